"""What will stand on this host?

The one function from inventory to plan. A plan holds everything that templates print and that the
running system is later compared with; nothing is computed after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any

from . import cards, command, credentials, engine, fingerprint, hook, host, overrides, unit
from .config_reader import read_json
from .host_memory import Request, check_host_memory, host_bytes, plan_shared
from .instance import GPU, Instance, read_instances
from .model import NotUnderstoodError, read_config
from .problem import Collector, ProblemsError
from .quantity import GIB
from .rules import Wish
from .settings import read_argv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .engine import EngineFacts
    from .instance import Argument
    from .planner import Plan
    from .resolution import Card
    from .shapes import Model

PORT = re.compile(r"[0-9]{1,5}")

START_SECONDS = 120
"""The unit's own limit for a start; the launcher extends it as long as it sees no stage stall."""
STOP_SECONDS = 180
"""Longest drain of running requests, the engine's own 5 to 20 s of shutdown included."""

NVIDIA_DEVICES = ("char-nvidia* rw",)
"""All groups of the driver in ``/proc/devices``; CUDA needs nvidia, nvidia-uvm and their control nodes."""


@dataclass(frozen=True)
class HostSettings:
    """What the roles know about a host; paths are absolute, empty texts stand for "none"."""

    name: str
    engine_version: str
    release: str
    accelerator: str = "none"
    allow_untested: bool = False
    build: Mapping[str, Any] | None = None
    """What was found in a build of one's own, empty before it is installed; None for a released engine."""
    gpu_count: int | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()
    """What the inventory declares of the GPUs, as ``cards.read`` returns it."""
    seen_gpus: tuple[Mapping[str, Any], ...] = ()
    seen_processes: tuple[Mapping[str, Any], ...] = ()
    """What ``sglang_host_info`` saw of them; empty before the host was contacted."""
    memory_gib: float = 0
    """Main memory as the inventory declares it, in GiB; 0 where it does not."""
    seen_memory_bytes: int = 0
    adopted: tuple[str, ...] = ()
    """Units and pids of others that a deploy takes over."""
    reserved_gpus: tuple[str, ...] = ()
    reserved_ports: tuple[int, ...] = ()
    user: str = "sglang"
    group: str = "sglang"
    unit_template: str = ""
    """The text of which units are made; only a difference in it counts."""
    model_fingerprints: Mapping[str, str] | None = None
    """What ``sglang_model_info`` saw of the models' files, by directory; None before contact."""
    drain: hook.Hook = None
    undrain: hook.Hook = None
    """Hooks of every instance that has none of its own."""
    kit: str = "/opt/sglang/kit"
    config_directory: str = "/etc/sglang"
    unit_directory: str = "/etc/systemd/system"
    cache_directory: str = "/var/cache/sglang"
    cuda_home: str = ""
    path: str = "/usr/local/bin:/usr/bin:/bin"
    library_path: str = ""


def read_host(raw: Mapping[str, Any]) -> HostSettings:
    """Read the settings that the roles hand over; unknown keys are ignored, absent ones defaulted.

    Raises ``ProblemsError`` with every fault, as of something reserved that could not be kept off.
    """
    known = {field.name for field in fields(HostSettings)}
    values = {key: value for key, value in raw.items() if key in known and value is not None}
    found = Collector()
    values["reserved_gpus"] = _reserved(values, "reserved_gpus", GPU, "a GPU index or UUID", found)
    ports = _reserved(values, "reserved_ports", PORT, "a port number", found)
    values["memory_gib"] = _gib(values.get("memory_gib", 0), "memory_gib", found)
    for key in (hook.DRAIN, hook.UNDRAIN):
        values[key] = _hook(values.get(key, ()), key, found)
    values["gpus"] = cards.read(values.get("gpus", ()), found)
    found.check()
    values["reserved_ports"] = tuple(int(port) for port in ports)
    for key in ("seen_gpus", "seen_processes", "adopted"):
        values[key] = tuple(values.get(key, ()))
    return HostSettings(**values)


def _reserved(
    values: Mapping[str, Any], key: str, form: re.Pattern[str], noun: str, found: Collector
) -> tuple[str, ...]:
    """Read a list of the role ``sglang_host``; a scalar would pass its argument specification, too."""
    given = values.get(key, ())
    if not isinstance(given, (list, tuple)):
        found.add("host", f"sglang_host_{key}", f"{given!r} is not a list", f"write [{given}]")
        return ()
    items = tuple(str(item) for item in given)
    for item in items:
        if not form.fullmatch(item):
            found.add("host", f"sglang_host_{key}", f"{item!r} is not {noun}")
    return items


def _gib(given: object, key: str, found: Collector) -> float:
    try:
        size = float(str(given))
    except ValueError:
        size = -1.0
    if not 0 <= size < inf:
        found.add(
            "host", f"sglang_host_{key}", f"{given!r} is not a size in GiB", "write a number, as in 512"
        )
    return size


def plan_host(
    *, instances: object, settings: HostSettings, models: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Plan every instance of a host, as plain JSON-like values in the order of the inventory.

    ``models`` are the configurations (each ``config.json``, read or its text) by directory; the memory of
    an instance whose model is not among them, or on a host whose GPUs are not known, is left to the engine,
    as it is where a model is not understood and the instance pins its fraction.
    An absent instance makes no plan and holds no port and no GPU: it is as if it were not listed.
    Raises ``ProblemsError`` with every fault of every instance.
    """
    found = Collector()
    try:
        facts = engine.facts(
            settings.engine_version,
            allow_untested=settings.allow_untested,
            build=engine.read_build(settings.build),
        )
    except ProblemsError as unknown:
        found.problems += unknown.problems
        facts = engine.facts(engine.SUPPORTED[-1])
    reserved = host.Reserved(settings.reserved_gpus, settings.reserved_ports)
    present = [one for one in read_instances(instances, found) if one.state != "absent"]
    wanted = host.plan_ports(present, reserved, found)
    host.check_gpus(wanted, count=settings.gpu_count, reserved=reserved, found=found)
    for instance in wanted:
        _check_accelerator(instance, settings, found)
        found.problems += command.check_arguments(instance, facts)
    known_cards = cards.declared(settings.gpus) or cards.measured(settings.seen_gpus)
    memory = _plan_memory(wanted, facts, settings, host_cards=known_cards, models=models or {}, found=found)
    found.check()
    after = host.start_after(wanted)
    return [
        _plan(
            instance,
            facts,
            settings,
            after=after[instance.name],
            memory=memory.get(instance.name),
            needs=_needs(instance, known_cards, models or {}),
        )
        for instance in wanted
    ]


def secret_files(*, instances: object, settings: HostSettings) -> list[dict[str, str]]:
    """Name the files of all secrets of a host, with what they hold: path and content.

    Raises ``ProblemsError`` as ``plan_host`` does for instances that cannot be read.
    """
    found = Collector()
    present = [one for one in read_instances(instances, found) if one.state != "absent"]
    found.check()
    return [
        {"path": credentials.file_of(settings.config_directory, one.name, name), "content": value}
        for one in present
        for name, value in one.secrets.given.items()
    ]


def _plan_memory(
    instances: Sequence[Instance],
    facts: EngineFacts,
    settings: HostSettings,
    *,
    host_cards: Mapping[str, Card],
    models: Mapping[str, Any],
    found: Collector,
) -> dict[str, Plan]:
    """Plan the memory of every instance whose model and GPUs are known; note each fault."""
    cards.surprises(
        instances,
        host_cards,
        gpus=settings.seen_gpus,
        processes=settings.seen_processes,
        adopted=settings.adopted,
        found=found,
    )
    faulty = {problem.where for problem in found.problems}
    requests = []
    for instance in (one for one in instances if one.name not in faulty):
        try:
            request = _request(instance, facts, models)
        except ProblemsError as error:
            found.problems += error.problems
            continue
        if request is not None and all(gpu in host_cards for gpu in instance.gpus):
            requests.append(request)
    try:
        plans = plan_shared(requests, host_cards)
    except ProblemsError as error:
        found.problems += error.problems
        return {}
    total = int(settings.memory_gib * GIB) or settings.seen_memory_bytes
    if total:
        # On the CPU the engine's pools are the main memory, and it is told their size.
        needs = [(one.name, host_bytes(plans[one.name])) for one in requests if one.gpus]
        found.problems += check_host_memory(needs, total=total)
    return plans


def _needs(instance: Instance, host_cards: Mapping[str, Card], models: Mapping[str, Any]) -> list[str]:
    """Say what is not known to plan the memory, and the line of the inventory that tells it."""
    found = [reason for path in _paths(instance) if (reason := _unknown(path, instance, models))]
    unknown = [gpu for gpu in instance.gpus if gpu not in host_cards]
    if unknown and host_cards:
        found.append(f"GPU {', '.join(unknown)} is not known: name one of {', '.join(host_cards)}")
    elif unknown:
        found.append(
            "the host's GPUs are not known: write what nvidia-smi says of them, as in "
            "sglang_host_gpus: [{count: 8, memory_mib: 97887}]"
        )
    return found


def _paths(instance: Instance) -> list[str]:
    return [path for path in (instance.model, instance.strategy.draft_model) if path]


def _unknown(path: str, instance: Instance, models: Mapping[str, Any]) -> str:
    """Say why an instance is planned without the memory of this model; "" where it is planned, or refused."""
    if path not in models:
        return (
            f"the config.json of {path} is not known: add a copy of it to "
            f"sglang_model_catalog: {{path: {path}, config: COPY}}"
        )
    if instance.memory.fraction is not None:
        try:
            _model(path, models, instance.name)
        except NotUnderstoodError as unknown:
            return f"{path}: {unknown.problems[0].message}"
    return ""


def _request(instance: Instance, facts: EngineFacts, models: Mapping[str, Any]) -> Request | None:
    """Say what an instance is and wants; None where its memory is not planned."""
    if any(_unknown(path, instance, models) for path in _paths(instance)):
        return None
    draft_model = instance.strategy.draft_model
    words = command.user_words(instance)
    base = read_argv(words, facts=facts, environment=instance.env, where=instance.name).settings
    wish = Wish(
        strategy=instance.strategy,
        memory=instance.memory,
        context_length=instance.context_length,
        concurrency=instance.concurrency,
        prefix_cache=instance.prefix_cache,
        tensor_parallel=instance.tensor_parallel,
        base=replace(base, device=_device(instance)),
    )
    return Request(
        name=instance.name,
        gpus=instance.gpus,
        model=_model(instance.model, models, instance.name),
        draft=None if draft_model is None else _model(draft_model, models, instance.name),
        facts=facts,
        wish=wish,
    )


def _model(path: str, models: Mapping[str, Any], where: str) -> Model:
    place = f"{where}: {path}/config.json"
    found = models[path]
    return read_config(read_json(found, where=place) if isinstance(found, str) else found, where=place)


def _check_accelerator(instance: Instance, settings: HostSettings, found: Collector) -> None:
    if settings.accelerator == "none" and instance.gpus:
        found.add(instance.name, "gpus", "this host has no GPU", "write `gpus: []` to serve on the CPU")
    if settings.accelerator == "nvidia" and not instance.gpus:
        found.add(instance.name, "gpus", "is empty on a GPU host", "name the GPUs, as in `gpus: [0]`")


def _plan(
    instance: Instance,
    facts: EngineFacts,
    settings: HostSettings,
    *,
    after: tuple[str, ...],
    memory: Plan | None,
    needs: list[str],
) -> dict[str, Any]:
    planned = _pinned(instance, facts) if memory is None else dict(memory.values)
    argv = command.engine_argv(
        instance=instance,
        facts=facts,
        python=f"{settings.release}/bin/python",
        settings={**_device_settings(instance, facts), **planned},
    )
    environment = command.engine_environment(
        instance=instance,
        facts=facts,
        release=settings.release,
        cache_directory=settings.cache_directory,
        cuda_home=settings.cuda_home,
        path=settings.path,
        library_path=settings.library_path,
    )
    if instance.args.get("enable-metrics"):
        # One directory an instance, wiped at every start: the engine never removes what it writes there.
        environment.setdefault("PROMETHEUS_MULTIPROC_DIR", f"/run/sglang/{instance.name}")
    limits = {
        "start_seconds": START_SECONDS,
        "stop_seconds": STOP_SECONDS,
        "numa_nodes": list(instance.numa_nodes),
    }
    marks = {
        name: credentials.mark(value, f"{settings.name}/{instance.name}/{name}")
        for name, value in instance.secrets.given.items()
    }
    devices = list(NVIDIA_DEVICES) if instance.gpus else []
    account = {"user": settings.user, "group": settings.group}
    template = unit.essence(settings.unit_template)
    seen = settings.model_fingerprints or {}
    mark = fingerprint.fingerprint(
        argv=argv,
        environment=environment,
        unit={**limits, **account, "device_allow": devices, "template": template},
        models={path: seen[path] for path in seen if path in (instance.model, instance.strategy.draft_model)},
        secrets=marks,
    )
    environment[fingerprint.VARIABLE] = mark
    place = f"{settings.config_directory}/{instance.name}"
    kit = ("/usr/bin/python3", "-IB", settings.kit)
    launcher = (*kit, "launch", f"{place}.plan.json", "--", *argv)
    gate = (*kit, "preflight", f"{place}.plan.json")
    return {
        "name": instance.name,
        "unit": instance.unit,
        "state": instance.state,
        "model": instance.model,
        "served_model_name": instance.served_model_name,
        "gpus": list(instance.gpus),
        "shared": instance.shared,
        "strategy": instance.strategy.method,
        "draft_model": instance.strategy.draft_model,
        "host": instance.host,
        "port": instance.port,
        "nccl_port": instance.nccl_port,
        "engine_version": facts.version,
        "release": settings.release,
        "context_length": instance.context_length,
        "concurrency": instance.concurrency,
        "canary": instance.canary,
        "drain": _plain(instance.drain or settings.drain),
        "undrain": _plain(instance.undrain or settings.undrain),
        "accept_overrides": list(instance.accept_overrides),
        "pinned": overrides.pinned(instance, facts),
        "secrets": {
            name: credentials.file_of(settings.config_directory, instance.name, name) for name in marks
        },
        "after": list(after),
        "memory": None if memory is None else memory.as_dict(),
        "memory_needs": needs,
        "argv": list(argv),
        "environment": environment,
        "environment_lines": [unit.environment_line(*item) for item in environment.items()],
        "exec_start": unit.command_line(launcher),
        "exec_start_pre": f"+{unit.command_line(gate)}",
        "device_allow": devices,
        "stage_seconds": dict(instance.stage_seconds),
        "description": unit.value(f"SGLang {instance.name} ({instance.served_model_name})"),
        "plan_file": f"{place}.plan.json",
        "environment_file": f"{place}.env",
        "unit_file": f"{settings.unit_directory}/{instance.unit}",
        "fingerprint": mark,
        **limits,
    }


def _hook(given: object, key: str, found: Collector) -> hook.Hook:
    try:
        return hook.read(given)
    except ValueError as wrong:
        found.add("host", f"sglang_service_{key}", str(wrong))
        return None


def _plain(given: hook.Hook) -> list[str] | str | None:
    return list(given) if isinstance(given, tuple) else given


def _device_settings(instance: Instance, facts: EngineFacts) -> dict[str, Argument]:
    """Say the device, and on a CPU a grammar backend that runs there: another one kills the scheduler."""
    device = _device(instance)
    if device == "cpu" and not facts.xgrammar_on_cpu:
        return {"device": device, "grammar_backend": "llguidance"}
    return {"device": device}


def _device(instance: Instance) -> str:
    return "cuda" if instance.gpus else "cpu"


def _pinned(instance: Instance, facts: EngineFacts) -> dict[str, Argument]:
    """Values by meaning where no memory could be planned; what the user left out stays with the engine."""
    strategy, memory = instance.strategy, instance.memory
    values: dict[str, Argument | None] = {
        "context_length": instance.context_length,
        "running_requests": instance.concurrency,
        "disable_prefix_cache": not instance.prefix_cache,
        "memory_fraction": memory.fraction,
        "kv_dtype": memory.kv_dtype,
        "state_slots": memory.state_slots,
        "state_ratio": memory.state_ratio,
        "state_dtype": memory.state_dtype,
        "algorithm": facts.algorithm(strategy.method),
        "draft_model": strategy.draft_model,
        "draft_steps": strategy.steps,
        "draft_topk": strategy.topk,
        "draft_tokens": strategy.draft_tokens,
    }
    return {meaning: value for meaning, value in values.items() if value is not None}
