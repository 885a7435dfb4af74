"""What does every instance of this host do, and what else lives here?

Says of each instance which life it leads (``STATES``), and finds what an administrator would want to know
beside it: engines that nobody's unit runs, services of others on the GPUs, and what fills the disk.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import credentials, difference, present, probe, processes, survey, systemd
from .problem import no_instance
from .quantity import MIB, human
from .readiness import (
    FAILED,
    HTTP_OK,
    LOADING,
    NEVER_STARTED,
    READY,
    RESTARTING,
    STOPPED,
    Answers,
    Expectation,
    Follower,
)
from .report import table
from .state import RESULTS, WANTED, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .platform_facts import Gpu, GpuProcess
    from .processes import Process
    from .readiness import UnitState, Verdict

NOT_INSTALLED = "not_installed"
ORPHANED = "orphaned"
STOPPING = "stopping"
SILENT = "silent"
STATES: dict[str, str] = {
    NOT_INSTALLED: "no deploy has installed it",
    NEVER_STARTED: "installed, and not started since the host booted",
    STOPPED: "stopped by request",
    LOADING: "starts; the stage is shown",
    READY: "serves",
    SILENT: "its unit is active, but /health does not answer with 200",
    STOPPING: "drains its requests",
    RESTARTING: "has failed; systemd starts it again",
    FAILED: "has failed and stays so; the cause is shown",
    ORPHANED: "its unit does not run, but processes of the engine do",
}
"""Lives of an instance."""

HEALTH_SECONDS = 5.0
"""How long ``/health`` may take: a busy server is slow to answer, not silent."""
DISK = ("releases", "package cache", "kernel caches", "models", "state and evidence")
"""What may fill the disk; drop-ins are listed besides, for whoever removes the instances."""
_CAUSES = (FAILED, RESTARTING)
_MODULE = "sglang.launch_server"
_TITLE = "sglang::"


@dataclass(frozen=True)
class Host:
    """Where things lie, and what belongs to others."""

    root: str
    config_directory: str
    cache_directory: str
    state_directory: str
    package_cache: str
    models_directory: str
    unit_directory: str
    reserved_gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """A process of SGLang that belongs to none of the units."""

    pid: int
    uid: int
    unit: str
    command: str


def look(wanted: Mapping[str, str], host: Host) -> dict[str, Any]:
    """Look at everything once; ``wanted`` is the state by instance name that the inventory asks for.

    Instances that are installed and not in the inventory are shown, too, as wanted ``absent``.
    """
    plans = installed_plans(host.config_directory)
    names = sorted({*wanted, *plans})
    units = {name: f"sglang-{name}.service" for name in names}
    states = systemd.unit_states(list(units.values()))
    strays = [one for one in processes.running() if is_engine(one) and one.unit not in units.values()]
    instances = [
        look_at(
            name,
            wanted=wanted.get(name, "absent"),
            plan=plans.get(name),
            unit=states[units[name]],
            strays=strays,
        )
        for name in names
    ]
    below, store = survey.marks(), Store(f"{host.state_directory}/instances")
    for one in instances:
        plan = plans.get(one["name"])
        one["drift"] = _drift(one, plan, below, store)
        one["pending"] = _pending(one["name"], plan, store)
    gpus, users = survey.gpus_in_use()
    return {
        "as_wanted": all(one["as_wanted"] for one in instances),
        "instances": instances,
        "engines": [asdict(Engine(one.pid, one.uid, one.unit, " ".join(one.argv))) for one in strays],
        "foreign": foreign(gpus, users, units=units.values(), reserved=host.reserved_gpus),
        "disk": disk(host),
    }


def only(seen: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Keep of a look one instance, and what is of none; raise ``ProblemsError`` where there is none such."""
    found = [one for one in seen["instances"] if one["name"] == name]
    if not found:
        raise no_instance(name, [one["name"] for one in seen["instances"]])
    return {**seen, "instances": found, "as_wanted": found[0]["as_wanted"]}


def installed_plans(directory: str) -> dict[str, dict[str, Any]]:
    """Read the plans of the last deploy, by instance name."""
    places = sorted(Path(directory).glob("*.plan.json"))
    plans = [json.loads(place.read_text(encoding="utf-8")) for place in places]
    return {plan["name"]: plan for plan in plans}


def is_engine(process: Process) -> bool:
    """Tell SGLang's server, and its workers by the titles that they give themselves."""
    program, *words = process.argv
    return program.startswith(_TITLE) or any(word in (_MODULE, "sglang/launch_server.py") for word in words)


def look_at(
    name: str,
    *,
    wanted: str,
    plan: Mapping[str, Any] | None,
    unit: UnitState,
    strays: Sequence[Process],
) -> dict[str, Any]:
    """Tell one instance's life."""
    ours = [one.pid for one in strays if plan is not None and _is_of(one, plan)]
    active = unit.active_state == "active"
    answers = ask(plan) if plan is not None and active else Answers()
    healthy = answers.health is not None and answers.health.status == HTTP_OK
    state = life(unit, orphans=bool(ours), healthy=healthy)
    verdict = judge(plan, unit) if plan is not None and state in _CAUSES else None
    proof = present.proof(name, unit.invocation) if active else {}
    alive = state in (READY, SILENT, LOADING, STOPPING)
    return {
        "name": name,
        "wanted": wanted,
        "state": state,
        "as_wanted": wanted not in _WANTS or state in _WANTS[wanted],
        "stage": _stage(unit, verdict) if state in (LOADING, *_CAUSES) else "",
        "cause": verdict.sentence if verdict else "",
        "remedy": verdict.remedy if verdict else "",
        "uptime_seconds": round(time.monotonic() - unit.started) if alive and unit.started else 0,
        "main_pid": unit.main_pid if alive else 0,
        "invocation": unit.invocation,
        "restarts": unit.restarts,
        "fingerprint": {
            "wanted": plan["fingerprint"] if plan else None,
            "running": systemd.running_fingerprint(unit.main_pid) if alive and unit.main_pid else None,
        },
        "pools": {
            "planned": dict((plan or {}).get("memory") or {}).get("pools_gib", {}),
            "allocated": proof.get("allocated", {}),
        },
        "concurrency": {
            "asked": plan["concurrency"] if plan else None,
            "effective": served(answers, proof),
        },
        "models": _models(plan or {}),
        "orphans": ours,
    }


def _drift(
    one: Mapping[str, Any], plan: Mapping[str, Any] | None, below: Mapping[str, Any], store: Store
) -> list[dict[str, Any]]:
    """Find what differs from what was deployed; a process of another plan counts for nothing here."""
    if plan is None:
        return []
    # What stands: after a roll-out that ended early, another state is wanted than the one that is installed.
    state = store.running(one["name"], plan["fingerprint"])
    deployed = present.recorded(store, state, present.INSTALLED) if state else difference.of_plan(plan)
    mark = one["fingerprint"]
    pid = one["main_pid"] if mark["running"] == mark["wanted"] else 0
    now = present.view(deployed["plan"], below, main_pid=pid, invocation=one["invocation"])
    return [asdict(found) for found in difference.drift(deployed, now)]


def _pending(name: str, plan: Mapping[str, Any] | None, store: Store) -> dict[str, Any] | None:
    """Find a wanted state that is not the one installed, as a deploy that failed leaves it."""
    wanted = store.at(name, WANTED)
    if plan is None or wanted is None or wanted["fingerprint"] == plan["fingerprint"]:
        return None
    last = wanted["results"][-1] if wanted["results"] else {}
    return {"state": wanted["id"], **{key: last.get(key, "") for key in ("result", "time", "sentence")}}


_WANTS = {
    "started": (READY,),
    "stopped": (STOPPED, NEVER_STARTED, NOT_INSTALLED, FAILED),
}
"""Lives that are as the inventory wants them."""


def life(unit: UnitState, *, orphans: bool, healthy: bool) -> str:
    """Name the life that an instance leads."""
    if unit.active_state == "active":
        return READY if healthy else SILENT
    if unit.lifecycle == "alive":
        return LOADING
    if unit.active_state == "deactivating":
        return STOPPING
    if orphans:
        return ORPHANED
    return NOT_INSTALLED if unit.load_state == "not-found" else unit.lifecycle


def _is_of(process: Process, plan: Mapping[str, Any]) -> bool:
    """Whether a stray engine was started as this instance, or serves on its port."""
    words = list(process.argv)
    port = str(plan["port"])
    on_port = f"--port={port}" in words or ("--port", port) in zip(words, words[1:])
    return on_port or systemd.running_fingerprint(process.pid) == plan["fingerprint"]


def _models(plan: Mapping[str, Any]) -> list[str]:
    """Name the directories that an instance is served from."""
    named = (plan.get("model"), plan.get("draft_model"))
    return [str(Path(path).resolve()) for path in named if path]


def _stage(unit: UnitState, verdict: Verdict | None) -> str:
    """Stage by the launcher's own words, or by the journal of a start that has failed."""
    if verdict is not None:
        return verdict.phase or verdict.stage
    return unit.status_text.partition(": ")[2] or "gate"


def ask(plan: Mapping[str, Any]) -> Answers:
    """Ask an instance for its health and for its own report."""
    return probe.ask(
        Expectation.from_plan(plan),
        plan["host"],
        ("health", "server_info"),
        credentials.of_plan(plan),
        timeout_seconds=HEALTH_SECONDS,
    )


def judge(plan: Mapping[str, Any], unit: UnitState) -> Verdict:
    """Judge the current invocation by its whole journal, and nothing older."""
    now = time.monotonic()
    follower = Follower(Expectation.from_plan(plan), started=unit.started or now)
    follower.feed(systemd.JournalReader(f"sglang-{plan['name']}.service", unit).read(), now)
    return follower.observe(now, unit=unit, ended=True)


def served(answers: Answers, proof: Mapping[str, Any]) -> int | None:
    """Count the requests that are served at a time: by the server's own report, else by its log."""
    info = answers.server_info
    body = info.body if info is not None and isinstance(info.body, dict) else {}
    states = body.get("internal_states") or ()
    told: int = sum(state.get("effective_max_running_requests_per_dp") or 0 for state in states)
    logged: int | None = proof.get("allocated", {}).get("running_requests")
    return told or logged


def foreign(
    gpus: Sequence[Gpu], users: Sequence[GpuProcess], *, units: Iterable[str], reserved: Sequence[str]
) -> list[dict[str, Any]]:
    """List who else holds GPU memory; ``reserved`` tells whether the inventory knows of it."""
    ours = set(units)
    kept = {gpu.index for gpu in gpus if {str(gpu.index), gpu.uuid} & set(reserved)}
    return [
        {
            "gpu": user.gpu,
            "reserved": user.gpu in kept,
            "pid": user.pid,
            "unit": user.unit,
            "command": user.command,
            "memory_mib": user.memory_bytes // MIB,
        }
        for user in users
        if user.unit not in ours
    ]


def disk(host: Host) -> list[dict[str, Any]]:
    """Measure what lies here; files that releases share with the cache count for the releases alone."""
    groups = {
        "releases": sorted(Path(host.root, "releases").glob("*")),
        "kernel caches": sorted(Path(host.cache_directory).glob("*")),
        "package cache": [Path(host.package_cache)],
        "models": sorted(Path(host.models_directory).glob("*")),
        "state and evidence": [Path(host.state_directory)],
        "drop-ins": sorted(Path(host.unit_directory).glob("sglang-*.service.d")),
    }
    kinds = {
        str(place.resolve()): kind for kind, places in groups.items() for place in places if place.is_dir()
    }
    sizes = _sizes(list(kinds))
    found = ((kind, path, sizes.get(path, 0)) for path, kind in kinds.items())
    return [{"kind": kind, "path": path, "bytes": size, "size": human(size)} for kind, path, size in found]


def _sizes(paths: Sequence[str]) -> dict[str, int]:
    """Ask ``du``, which walks 100,000 files of a release in a second; what vanishes meanwhile is left out."""
    if not paths:
        return {}
    outcome = subprocess.run(
        ["du", "--summarize", "--block-size=1", "--null", "--", *paths],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="surrogateescape",
    )
    rows = (row.partition("\t") for row in outcome.stdout.split("\0") if row)
    return {path: int(size) for size, _, path in rows}


# --- for people ----------------------------------------------------------------------------------


def lines(seen: Mapping[str, Any]) -> list[str]:
    """Lay out what ``look`` found."""
    found = (
        table(_HEADINGS, [_row(one) for one in seen["instances"]]) if seen["instances"] else ["no instances"]
    )
    for one in seen["instances"]:
        if one["cause"]:
            found += ["", f"{one['name']}: {one['cause']}"]
            found += [f"  what to do: {one['remedy']}"] if one["remedy"] else []
    drift = [f"{one['name']}: {text}" for one in seen["instances"] for text in _changes(one)]
    pending = [_short_of(one["name"], one["pending"]) for one in seen["instances"] if one["pending"]]
    found += _section("Wanted, and not what is installed (docs/change.md, Going back)", pending)
    found += _section("Changed since the deploy (docs/diff.md says what the next one does)", drift)
    found += _section("Engines that no unit of ours runs", [_engine(one) for one in seen["engines"]])
    found += _section("Others on the GPUs", [_foreign(one) for one in seen["foreign"]])
    used = {kind: sum(one["bytes"] for one in seen["disk"] if one["kind"] == kind) for kind in DISK}
    found += _section("Disk", [f"{kind:<18} {human(size)}" for kind, size in used.items()])
    return found


_HEADINGS = ("instance", "wanted", "state", "up", "pid", "runs", "KV tokens", "requests")


def _row(one: Mapping[str, Any]) -> list[str]:
    mark = one["fingerprint"]
    marks = {
        "another plan": mark["running"] != mark["wanted"],
        "changed": one["drift"],
        "not as wanted": one["pending"],
    }
    runs = next((word for word, holds in marks.items() if holds), "as wanted")
    concurrency, pools = one["concurrency"], one["pools"]["allocated"]
    served = "" if concurrency["effective"] is None else f"{concurrency['effective']:,}"
    return [
        one["name"],
        one["wanted"],
        one["state"].replace("_", " ") + (f": {one['stage']}" if one["stage"] else ""),
        _age(one["uptime_seconds"]),
        str(one["main_pid"] or ""),
        "" if mark["running"] is None else runs,
        f"{pools['kv_tokens']:,}" if "kv_tokens" in pools else "",
        f"{served} of {concurrency['asked']:,}" if served and concurrency["asked"] else served,
    ]


def _short_of(name: str, pending: Mapping[str, Any]) -> str:
    if not pending["result"]:
        return f"{name}: state {pending['state']} was never started"
    last = f"{RESULTS[pending['result']]} {pending['time'][:16]}"
    return f"{name}: state {pending['state']} {last}: {pending['sentence']}".rstrip(": ")


def _changes(one: Mapping[str, Any]) -> list[str]:
    return [difference.sentence(difference.Difference(**found)) for found in one["drift"]]


def _age(seconds: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s" if seconds else ""


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {row}" for row in rows)] if rows else []


def _engine(one: Mapping[str, Any]) -> str:
    return processes.describe(one["pid"], one["command"], one["unit"])


def _foreign(one: Mapping[str, Any]) -> str:
    whose = "reserved" if one["reserved"] else "not reserved"
    who = processes.describe(one["pid"], one["command"], one["unit"])
    return f"GPU {one['gpu']} ({whose}): {one['memory_mib']} MiB, {who}"
