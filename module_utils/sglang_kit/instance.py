"""Is this instance definition sound, and what did the user leave to us?

A definition is one item of ``sglang_service_instances``. Every key is read by the table ``KEYS`` (and
``STRATEGY_KEYS``, ``MEMORY_KEYS`` below it), every item of ``args`` and ``env`` by ``MAPS``; a value that
the user left out is ``None`` or the default named there. All faults of all instances are reported at once.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Callable, Union

from . import hook
from .readiness import STAGE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import TypeGuard

    from .problem import Collector

METHODS = ("none", "mtp", "eagle", "eagle3", "dflash", "ddtree", "ngram")
DRAFT_METHODS = ("eagle", "eagle3", "dflash", "ddtree")
STATES = ("started", "stopped", "absent")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")
GPU = re.compile(r"0|[1-9][0-9]{0,2}|(GPU|MIG)-[0-9A-Za-z/-]+")
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")
"""What no argument or variable can hold: NUL and halves of surrogate pairs."""
_NOT_ONE_LINE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

Argument = Union[bool, int, float, str, "tuple[str, ...]"]


@dataclass(frozen=True)
class Strategy:
    """How tokens are speculated; ``None`` leaves a number to the planner or the engine."""

    method: str = "none"
    draft_model: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None


@dataclass(frozen=True)
class MemoryPins:
    """Memory settings pinned by the user; ``None`` is planned. ``headroom_gib`` is GiB."""

    fraction: float | None = None
    kv_dtype: str | None = None
    state_slots: int | None = None
    state_ratio: float | None = None
    state_dtype: str | None = None
    headroom_gib: float | None = None


@dataclass(frozen=True)
class Secrets:
    """Keys of the instance's API and the token for a model hub; never shown."""

    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    hf_token: str | None = field(default=None, repr=False)

    @property
    def given(self) -> dict[str, str]:
        """Those that there are, by name."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}


@dataclass(frozen=True)
class Instance:
    """One sound definition with defaults filled in."""

    name: str
    model: str
    served_model_name: str
    port: int
    gpus: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    nccl_port: int | None = None
    context_length: int | None = None
    concurrency: int | None = None
    prefix_cache: bool = True
    strategy: Strategy = field(default_factory=Strategy)
    memory: MemoryPins = field(default_factory=MemoryPins)
    args: Mapping[str, Argument] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    numa_nodes: tuple[int, ...] = ()
    stage_seconds: Mapping[str, int] = field(default_factory=dict)
    shared: bool = False
    accept_exposed: bool = False
    accept_overrides: tuple[str, ...] = ()
    state: str = "started"
    canary: bool = True
    drain: hook.Hook = None
    undrain: hook.Hook = None

    @property
    def unit(self) -> str:
        """Name of the systemd unit."""
        return f"sglang-{self.name}.service"

    @property
    def tensor_parallel(self) -> int:
        """Tensor-parallel size: one rank a GPU, one rank without any."""
        return max(1, len(self.gpus))


class _Bad(Exception):  # noqa: N818 - never leaves this module
    """A value that does not fit: message and remedy."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


@contextmanager
def _noting(where: str, key: str, found: Collector) -> Iterator[None]:
    """Make a problem of a bad value, and go on."""
    try:
        yield
    except _Bad as bad:
        found.add(where, key, bad.message, bad.remedy)


_LONGEST = 200


def _shown(value: object) -> str:
    """Show a faulty value; of one that nests, and may hold a secret, only its kind."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if any(isinstance(part, (dict, list, tuple)) for part in parts):
        return f"a {type(value).__name__} of {len(parts)}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_Reader = Callable[[object], Any]


def _text(value: object) -> str:
    if isinstance(value, (int, float)):
        raise _Bad(f"{_shown(value)} is not a text", "quote it")
    if not isinstance(value, str) or not value.strip():
        raise _Bad(f"{_shown(value)} is not a non-empty text")
    if _NOT_ONE_LINE.search(value):
        raise _Bad(f"{_shown(value)} holds a line end or another control character")
    return str(value)


def _name(value: object) -> str:
    text = _text(value)
    if not NAME.fullmatch(text):
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")[:64].rstrip("-_.")
        raise _Bad(
            f"{text!r} cannot name a systemd unit: letters, digits, '.', '_' and '-' inside, 64 at most",
            f"use {plain!r}" if plain else "",
        )
    return text


def _path(value: object) -> str:
    text = _text(value).rstrip("/")
    if not text.startswith("/"):
        raise _Bad(f"{_shown(value)} is not an absolute path below /", f"write /srv/models/{text or 'NAME'}")
    return text


def _integer(low: int, high: int) -> _Reader:
    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _Bad(f"{_shown(value)} is not a whole number from {low} to {high}")
        if not low <= value <= high:
            raise _Bad(f"{value} is not from {low} to {high}", f"use {min(max(value, low), high)}")
        return int(value)

    return read


def _number(low: float, high: float, *, or_low: bool = False) -> _Reader:
    """Accept a number strictly between low and high, or low itself too."""

    def read(value: object) -> float:
        if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _Bad(f"{_shown(value)} is not a number between {low:g} and {high:g}")
        if not (low < value < high or (or_low and value == low)):
            raise _Bad(f"{value} is not between {low:g} and {high:g}")
        return float(value)

    return read


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Bad(f"{_shown(value)} is not true or false")
    return bool(value)


def _secret(value: object) -> str:
    """Read a token as HTTP takes it (RFC 6750, b64token); a short one could not be masked in a log."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._~+/-]{8,512}=*", value):
        raise _Bad("is not a token of 8 to 512 letters, digits and any of '-._~+/'", "make another one")
    return str(value)


def _one_of(choices: Sequence[str]) -> _Reader:
    def read(value: object) -> str:
        if value not in choices:
            raise _Bad(f"{_shown(value)} is none of {', '.join(choices)}", _nearest(value, choices))
        return str(value)

    return read


def _gpus(value: object) -> tuple[str, ...]:
    """GPU indices, UUIDs or MIG identifiers, as ``CUDA_VISIBLE_DEVICES`` takes them."""
    if not isinstance(value, (list, tuple)):
        raise _Bad(f"{_shown(value)} is not a list of GPU indices or UUIDs", f"write [{value}]")
    gpus = tuple(str(gpu) for gpu in value)
    bad = [gpu for gpu in gpus if not GPU.fullmatch(gpu)]
    if bad:
        raise _Bad(f"{', '.join(bad)}: neither a GPU index nor a GPU or MIG UUID")
    if len(set(gpus)) < len(gpus):
        raise _Bad(f"[{', '.join(gpus)}] names a GPU twice")
    return gpus


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise _Bad(f"{_shown(value)} is not a list")
    return tuple(_text(item) for item in value)


def _hook(value: object) -> hook.Hook:
    try:
        return hook.read(value)
    except ValueError as wrong:
        raise _Bad(str(wrong)) from None


def _argument(flag: object, value: object) -> Argument:
    """Engine flag: exact name without dashes and its value; true is a bare flag, a list several values."""
    if not isinstance(flag, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", flag):
        plain = re.sub(r"[^a-z0-9]+", "-", str(flag).lower()).strip("-")
        raise _Bad("is not a flag's name without its leading dashes", f"write {plain!r}" if plain else "")
    if isinstance(value, bool):
        return value
    if not isinstance(value, (list, tuple)):
        return _scalar(value)
    values = tuple(str(_scalar(item)) for item in value)
    flags = [item for item in values if item.startswith("-") and not re.fullmatch(r"-[0-9]*\.?[0-9]+", item)]
    if flags:
        raise _Bad(f"{', '.join(flags)} would be read as a flag", "give each flag a key of its own")
    return values


def _variable(name: object, value: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise _Bad("cannot name an environment variable: letters, digits and '_' inside, no digit first")
    return str(_scalar(value))


def _scalar(value: object) -> float | str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _Bad(f"{_shown(value)} is neither a text nor a number", "write it as a quoted text")
    if isinstance(value, str) and _UNWRITABLE.search(value):
        raise _Bad(f"{_shown(value)} holds a character that no program can be given")
    return value


_NODE = _integer(0, 1023)
_SECONDS = _integer(1, 86_400)


def _nodes(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise _Bad(f"{_shown(value)} is not a list of NUMA nodes", f"write [{value}]")
    return tuple(_NODE(node) for node in value)


def _stage_limit(stage: object, seconds: object) -> int:
    """Stage of a start, and the seconds that it may pass without progress."""
    if stage not in STAGE_SECONDS:
        raise _Bad("is no stage of a start", _nearest(stage, tuple(STAGE_SECONDS)))
    return int(_SECONDS(seconds))


_PORT = _integer(1024, 65535)
_COUNT = _integer(1, 1_000_000)

KEYS: dict[str, _Reader] = {
    "name": _name,
    "model": _path,
    "served_model_name": _text,
    "gpus": _gpus,
    "host": _text,
    "port": _PORT,
    "nccl_port": _PORT,
    "context_length": _integer(8, 100_000_000),
    "concurrency": _COUNT,
    "prefix_cache": _boolean,
    "numa_nodes": _nodes,
    "shared": _boolean,
    "accept_exposed": _boolean,
    "accept_overrides": _texts,
    "state": _one_of(STATES),
    "canary": _boolean,
    "drain": _hook,
    "undrain": _hook,
}
STRATEGY_KEYS: dict[str, _Reader] = {
    "method": _one_of(METHODS),
    "draft_model": _path,
    "steps": _integer(1, 64),
    "topk": _integer(1, 64),
    "draft_tokens": _integer(1, 256),
}
MEMORY_KEYS: dict[str, _Reader] = {
    "fraction": _number(0.0, 1.0),
    "kv_dtype": _text,
    "state_slots": _COUNT,
    "state_ratio": _number(0.0, 1000.0),
    "state_dtype": _one_of(("float32", "bfloat16", "float16")),
    "headroom_gib": _number(0.0, 10_000.0, or_low=True),
}
MAPS: dict[str, Callable[[object, object], Any]] = {
    "args": _argument,
    "env": _variable,
    "stage_seconds": _stage_limit,
}
SECRET_KEYS: dict[str, _Reader] = {"api_key": _secret, "admin_api_key": _secret, "hf_token": _secret}
GROUPS = {
    "strategy": (STRATEGY_KEYS, Strategy),
    "memory": (MEMORY_KEYS, MemoryPins),
    "secrets": (SECRET_KEYS, Secrets),
}
REQUIRED = {
    "name": "name it as its unit shall be called after 'sglang-'",
    "model": "give the model's directory on the host",
    "port": "choose one from 1024 to 65535",
}
UNKNOWN_PORT = 0
"""Stands for a port that could not be read; it collides with nothing."""


def read_instances(raw: object, found: Collector) -> tuple[Instance, ...]:
    """Read ``sglang_service_instances`` and note every fault of every item in ``found``.

    An unsound item is returned too, with the default in place of each bad value, so that checks
    across instances (ports, GPUs) find their faults in the same run. Nothing may be done with the
    result before ``found.check()``.
    """
    if not isinstance(raw, (list, tuple)):
        found.add("host", "sglang_service_instances", f"{_shown(raw)} is not a list of instances")
        return ()
    instances = [
        _read_instance(item, position, found)
        for position, item in enumerate(raw, start=1)
        if _is_mapping(item, f"instance {position}", "", found)
    ]
    names = [instance.name for instance in instances]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.add(name, "name", f"{names.count(name)} instances have this name", "rename all but one")
    return tuple(instances)


def _read_instance(raw: Mapping[Any, object], position: int, found: Collector) -> Instance:
    given_name = raw.get("name")
    where = str(given_name) if isinstance(given_name, str) and given_name else f"instance {position}"
    before = len(found.problems)
    values = _read_keys(raw, KEYS, where, "", found, groups=(*MAPS, *GROUPS))
    for key, example in REQUIRED.items():
        if raw.get(key) is None:
            found.add(where, key, "is missing", example)
    for key, read in MAPS.items():
        items = raw.get(key)
        if items is not None and _is_mapping(items, where, key, found):
            values[key] = _read_items(items, read, where, key, found)
    for group, (keys, build) in GROUPS.items():
        inner = raw.get(group)
        if inner is not None and _is_mapping(inner, where, group, found):
            values[group] = build(**_read_keys(inner, keys, where, f"{group}.", found))
    fallback = {"name": where, "model": "/", "port": UNKNOWN_PORT}
    values = {**fallback, **values}
    values.setdefault("served_model_name", values["model"].rsplit("/", 1)[-1])
    instance = Instance(**values)
    if not any(problem.key.startswith("strategy") for problem in found.problems[before:]):
        _check_strategy(instance, found)
    if not any(problem.key in ("host", "secrets", "secrets.api_key") for problem in found.problems[before:]):
        _check_exposure(instance, found)
    return instance


def _is_mapping(value: object, where: str, key: str, found: Collector) -> TypeGuard[dict[Any, object]]:
    if isinstance(value, dict):
        return True
    given = "this" if key == "secrets" else _shown(value)
    found.add(where, key, f"{given} is not a mapping of keys to values")
    return False


def _read_keys(
    raw: Mapping[Any, object],
    keys: Mapping[str, _Reader],
    where: str,
    prefix: str,
    found: Collector,
    *,
    groups: Sequence[str] = (),
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key in groups or value is None:
            continue
        if key not in keys:
            known = (*keys, *groups)
            found.add(where, f"{prefix}{key}", "is not a known key", _nearest(key, known))
            continue
        with _noting(where, f"{prefix}{key}", found):
            values[key] = keys[key](value)
    return values


def _read_items(
    raw: Mapping[Any, object],
    read: Callable[[object, object], Any],
    where: str,
    key: str,
    found: Collector,
) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for name, value in raw.items():
        with _noting(where, f"{key}.{name}", found):
            items[str(name)] = read(name, value)
    return items


def _check_strategy(instance: Instance, found: Collector) -> None:
    strategy = instance.strategy
    if strategy.method in DRAFT_METHODS and strategy.draft_model is None:
        found.add(
            instance.name,
            "strategy.draft_model",
            f"is missing: {strategy.method} speculates with a draft model of its own",
            "give its directory on the host, or use method mtp where the model has prediction layers",
        )
    if strategy.method not in DRAFT_METHODS and strategy.draft_model is not None:
        found.add(
            instance.name,
            "strategy.draft_model",
            f"is not used by method {strategy.method}",
            f"use one of {', '.join(DRAFT_METHODS)}, or remove it",
        )
    if strategy.method == "none":
        given = [key for key in ("steps", "topk", "draft_tokens") if getattr(strategy, key) is not None]
        for key in given:
            found.add(
                instance.name,
                f"strategy.{key}",
                "is not used by method none",
                "choose a method, or remove it",
            )


def _check_exposure(instance: Instance, found: Collector) -> None:
    """Refuse a server that everybody in the network may use, unless that was said."""
    if instance.secrets.api_key is None and not instance.accept_exposed and not _is_loopback(instance.host):
        found.add(
            instance.name,
            "host",
            f"{instance.host} can be reached from other machines, and nobody is asked for a key",
            "give secrets.api_key, or say accept_exposed: true",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def misspelt(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Say which variables are not ``known``, but nearly; others with our prefix may be the user's own."""
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.9) for name in {*names} - {*known}}
    return [
        f"{name} is no variable of ours: did you mean {near[name][0]}?" for name in sorted(near) if near[name]
    ]


def _nearest(value: object, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(str(value), known, n=1, cutoff=0.6)
    return f"did you mean {match[0]!r}?" if match else f"known are {', '.join(known)}"
