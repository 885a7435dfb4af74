"""What does an instance look like on this host, now or in a recorded state, as ``difference.py`` compares it?

The command line and the variables are those of the process that runs, the files those on the disk, and the
models, the driver and the kernel those that a start would meet now.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import difference, model_files, preflight, processes, survey, systemd
from .launch import PROOF
from .problem import Problem, ProblemsError, no_instance
from .state import KNOWN_GOOD, WANTED, Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .processes import Listener

RUNTIME = Path("/run/sglang")
INVENTORY, RUNNING, INSTALLED = "inventory", "running", "installed"
WORDS = {
    INVENTORY: "is not in the inventory",
    RUNNING: "does not run",
    INSTALLED: "has not been deployed yet",
    KNOWN_GOOD: "has no known-good state: no start of it was proven since it was first deployed",
}
"""Words for states, and what is said where there is no such state."""
_LINKS = {INSTALLED: WANTED, KNOWN_GOOD: KNOWN_GOOD}
_SYSTEMD = re.compile(
    "PATH|LANG|LANGUAGE|LC_.*|USER|LOGNAME|HOME|SHELL|TERM|PWD|INVOCATION_ID|JOURNAL_STREAM|LOG_NAMESPACE|FDSTORE"
    "|MAINPID|MANAGERPID.*|NOTIFY_SOCKET|PIDFILE|SYSTEMD_EXEC_PID|WATCHDOG_.*|LISTEN_.*|MEMORY_PRESSURE_.*"
    "|XDG_RUNTIME_DIR|(CACHE|CONFIGURATION|CREDENTIALS|LOGS|RUNTIME|STATE)_DIRECTORY"
)
"""Variables that systemd itself sets (systemd.exec(5)); they count only where the plan has them."""


def view(
    plan: Mapping[str, Any], host: Mapping[str, Any], *, main_pid: int = 0, invocation: str = ""
) -> dict[str, Any]:
    """Look at an instance; where ``main_pid`` is 0 nothing runs, and the next start would run the plan.

    ``host`` is what ``survey.marks`` returned.
    """
    return {
        "title": "running",
        "plan": {**plan, **_running(plan, main_pid)},
        "host": dict(host),
        "models": models(plan),
        "secrets": digests(plan),
        "files": files(plan),
        "held": held(plan),
        "allocated": proof(plan["name"], invocation).get("allocated"),
    }


def views(
    *,
    name: str,
    states: Sequence[str],
    host: str,
    known: Sequence[str],
    plan: Mapping[str, Any] | None,
    unit: str,
    secrets: Mapping[str, str],
    directory: str,
    config_directory: str,
) -> tuple[dict[str, Any], list[str]]:
    """Bring the views of these words (``WORDS``, or a state's name), and say which there are not, and why.

    ``known`` are the names in the inventory. Raises ``ProblemsError`` where neither they nor this host know
    the instance, and where a named state does not exist or cannot be read.
    """
    store, below = Store(directory), survey.marks()
    there = {*known, *store.names()}
    if name not in there:
        raise no_instance(name, there)
    found: dict[str, Any] = {}
    missing = []
    for word in states:
        if word == INVENTORY:
            one = plan and to_come(plan, below, unit=unit, secrets=secrets)
        elif word == RUNNING:
            one = _now(store, name, below, config_directory)
        elif word in _LINKS:
            state = store.at(name, _LINKS[word])
            one = state and recorded(store, state, word)
        elif word in store.ids(name):
            one = recorded(store, store.read(name, word), word)
        else:
            words = ", ".join([*WORDS, *store.ids(name)[:3]])
            raise ProblemsError([Problem(name, "state", f"has no state {word!r}", f"there are {words}")])
        if one:
            found[word] = {**one, "on": host}
        else:
            missing.append(f"{name} on {host}: {WORDS[word]}")
    return found, missing


def recorded(store: Store, state: Mapping[str, Any], title: str) -> dict[str, Any]:
    """View a state of the store."""
    return difference.of_state(state, {file.path: file.content for file in store.files(state)}, title)


def _now(store: Store, name: str, below: Mapping[str, Any], config_directory: str) -> dict[str, Any] | None:
    """View what runs; None where nothing does."""
    unit = systemd.unit_states([f"sglang-{name}.service"])[f"sglang-{name}.service"]
    place = Path(config_directory, f"{name}.plan.json")
    if not unit.main_pid or not place.exists():
        return None
    known = store.running(name, systemd.running_fingerprint(unit.main_pid))
    plan = known["plan"] if known else json.loads(place.read_text(encoding="utf-8"))
    return view(plan, below, main_pid=unit.main_pid, invocation=unit.invocation)


def to_come(
    plan: Mapping[str, Any], host: Mapping[str, Any], *, unit: str, secrets: Mapping[str, str]
) -> dict[str, Any]:
    """View what a deploy of this plan would make here; ``secrets`` are their contents by path."""
    environment = "\n".join(plan["environment_lines"])
    given = {name: secrets[path] for name, path in plan["secrets"].items() if path in secrets}
    return {
        **difference.of_plan(plan),
        "host": dict(host),
        "models": models(plan),
        "secrets": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in given.items()},
        "files": {"unit": unit, "environment": environment},
    }


def models(plan: Mapping[str, Any]) -> dict[str, str]:
    """Fingerprint the files of an instance's model, and of its draft model where it has one."""
    places = zip(difference.MODEL_FILES, (plan["model"], plan["draft_model"]))
    return {name: model_files.fingerprint(path) for name, path in places if path}


def digests(plan: Mapping[str, Any]) -> dict[str, str]:
    """Digest the secrets that lie on the host, by name; one without a file is left out."""
    places = {name: Path(path) for name, path in plan["secrets"].items()}
    return {
        name: hashlib.sha256(place.read_bytes()).hexdigest()
        for name, place in places.items()
        if place.exists()
    }


def changed(plan: Mapping[str, Any], main_pid: int) -> str:
    """Say what of its plan a running process was not started with; "" for nothing.

    With a drop-in nothing is said: whoever wrote it has their reasons, and a restart would change nothing.
    """
    running = _running(plan, main_pid)
    if not running:
        return ""
    other = [name for name, text in plan["environment"].items() if running["environment"].get(name) != text]
    found = [
        *(["other arguments"] if running["argv"] != plan["argv"] else []),
        *(f"another {name}" for name in other),
    ]
    return "" if not found or drop_ins(plan) else ", ".join(found)


def drop_ins(plan: Mapping[str, Any]) -> list[str]:
    """Name the drop-ins of a unit."""
    return systemd.show([plan["unit"]], ("DropInPaths",))[plan["unit"]].get("DropInPaths", "").split()


def files(plan: Mapping[str, Any]) -> dict[str, str]:
    """Read the unit, the environment file, and each drop-in by its path."""
    places = {"unit": plan["unit_file"], "environment": plan["environment_file"]}
    places.update({path: path for path in drop_ins(plan)})
    return {
        name: Path(place).read_text(encoding="utf-8", errors="replace") if Path(place).exists() else ""
        for name, place in places.items()
    }


def held(plan: Mapping[str, Any]) -> dict[str, str]:
    """Find who else listens on the ports of an instance."""
    mine = preflight.ports(plan)
    taken = [
        one for one in processes.listeners() if one.port in mine and preflight.blocks(one, mine[one.port])
    ]
    owners = processes.owners([one.inode for one in taken])
    return {
        f"port {one.port}": f"held by {owners.get(one.inode, 'a process that is not visible')}"
        for one in taken
        if not _own(one, owners, plan)
    }


def _own(one: Listener, owners: Mapping[int, processes.Process], plan: Mapping[str, Any]) -> bool:
    return one.inode in owners and owners[one.inode].unit == plan["unit"]


def proof(name: str, invocation: str) -> dict[str, Any]:
    """Read what the launcher saw when this very invocation became ready."""
    place = RUNTIME / name / PROOF
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    return found if found.get("invocation") == invocation else {}


def _running(plan: Mapping[str, Any], pid: int) -> dict[str, Any]:
    """Say in the words of a plan what a unit's main process was started with."""
    argv, environment = _words(pid, "cmdline"), _words(pid, "environ")
    if not argv:
        return {}
    pairs = dict(word.partition("=")[::2] for word in environment)
    kept = {
        name: text
        for name, text in pairs.items()
        if name in plan["environment"] or not _SYSTEMD.fullmatch(name)
    }
    engine = argv[argv.index("--") + 1 :] if "--" in argv else argv
    release = plan["release"]
    if engine[0].endswith("/bin/python"):
        release = engine[0][: -len("/bin/python")]
    version = release.rpartition("/")[2].rpartition("-")[0]
    return {
        "argv": engine,
        "environment": kept,
        "release": release,
        "engine_version": plan["engine_version"] if release == plan["release"] else version,
    }


def _words(pid: int, name: str) -> Sequence[str]:
    """Read a list of words from ``/proc``; empty where there is no such process any more."""
    try:
        text = Path(f"{processes.PROC}/{pid}/{name}").read_bytes() if pid else b""
    except OSError:
        return []
    return (
        [word.decode("utf-8", "surrogateescape") for word in text.rstrip(b"\0").split(b"\0")] if text else []
    )
