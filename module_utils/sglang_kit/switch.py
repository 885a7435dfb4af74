"""How does an instance change to another of its states, and back to its last good one?

The files of an instance change at its turn and not before: until then a crash or a reboot brings up what has
been proven. The environment file holds the fingerprint and comes last, so whatever starts in between, by a
power cut at the worst moment, does not pass for what was wanted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from . import evidence, fileset, state, systemd
from .roll import STARTS, go_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .state import Store

LINKS = (state.WANTED, state.KNOWN_GOOD)


@dataclass
class Switched:
    """What was changed, each by instance name: states and plans now in place, invocations before."""

    states: dict[str, str] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)
    """Of those that start; the others have nothing to prove."""
    previous: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    """Why an instance could not be set back."""
    unrecorded: str = ""
    """Why the failures could not be recorded."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def paths(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the files of one instance in the order in which they change."""
    return (*plan["secrets"].values(), plan["unit_file"], plan["plan_file"], plan["environment_file"])


def owners(store: Store) -> dict[str, str]:
    """Tell whose each file is that any recorded state has: path -> instance name."""
    return {
        file["path"]: name for name in store.names() for one in store.history(name) for file in one["files"]
    }


def forward(store: Store, steps: Sequence[Mapping[str, Any]], to: str = state.WANTED) -> Switched:
    """Put a state of each instance in place (``wanted``, ``known-good`` or a name), and ask for its start.

    ``steps`` are a batch of ``roll.batches``. The state becomes the wanted one.
    """
    targets = {step["name"]: _target(store, step["name"], to) for step in steps}
    for name, one in targets.items():
        store.point(name, state.WANTED, one["id"])
    return _install(store, steps, targets)


def back(
    store: Store,
    steps: Sequence[Mapping[str, Any]],
    attempted: Mapping[str, str],
    *,
    ready: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, Mapping[str, Any]],
) -> Switched:
    """Set instances back to their last good state after a batch has failed, and ask for its start.

    ``attempted`` are the states that were tried. ``ready`` and ``failures`` are what ``sglang_ready``
    returned; both are empty where the batch failed before any start: then all of it goes back. A last good
    state that was found running, and not started here, is started once: after a hang it may serve again.
    """
    now = datetime.now(timezone.utc)
    going = go_back(steps, failures or [step["name"] for step in steps])
    started = [step["name"] for step in steps if step["action"] in STARTS]
    goods = {name: store.at(name, state.KNOWN_GOOD) for name in going}
    tried = {name for name, good in goods.items() if good and good["id"] == attempted.get(name)}
    # A group of which nothing can change would only start again with the same.
    same = {name for step in steps if tried >= set(step["group"]) for name in step["group"]}
    going = [name for name in going if name not in same or name not in ready]
    seen = {name: _evidence(store.read(name, attempted[name])["plan"]) for name in failures}
    targets, stays = {}, {}
    for name in going:
        good = goods[name]
        if good is None:
            stays[name] = "no state of it was ever ready"
        elif name in same and name in started:
            stays[name] = f"what failed is its last good state, {good['id']}"
        elif store.obstacle(good):
            stays[name] = f"its last good state {good['id']} cannot come back: {store.obstacle(good)}"
        else:
            targets[name] = good
    again = [{**step, "action": "restart"} for step in steps if step["name"] in targets]
    beside = {name for step in again for name in step["group"]} & stays.keys() & attempted.keys()
    # What cannot go back with its group must not hold what the others had.
    systemd.stop_and_disable([store.read(name, attempted[name])["plan"]["unit"] for name in sorted(beside)])
    switched = _install(store, again, targets)
    switched.stays = stays
    try:
        for name, failure in failures.items():
            store.record(name, attempted[name], outcome(state.FAILED, failure, now))
            store.keep_failure(name, seen[name], now)
        record(store, attempted, {name: one for name, one in ready.items() if name not in going}, state.READY)
    except OSError as wrong:  # a full disk must not keep anything from serving again
        switched.unrecorded = str(wrong)
    return switched


def outcome(result: str, verdict: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Keep of a verdict what a state remembers of a start."""
    return {
        "time": now.isoformat(timespec="seconds"),
        "result": result,
        "cause": verdict["cause"],
        "sentence": verdict["sentence"],
        "allocated": verdict.get("allocated", {}),
        "stage_seconds": {one["name"]: one["seconds"] for one in verdict.get("stages", [])},
    }


def record(store: Store, states: Mapping[str, str], verdicts: Mapping[str, Any], ready: str) -> None:
    """Note what was proven of the states that stand now; ``ready`` is the result of those that are."""
    now = datetime.now(timezone.utc)
    for name, verdict in verdicts.items():
        result = ready if verdict["state"] == "ready" else state.FAILED
        store.record(name, states[name], outcome(result, verdict, now))


def _target(store: Store, name: str, to: str) -> dict[str, Any]:
    found = store.at(name, to) if to in LINKS else store.read(name, to)
    return store.read(name, to) if found is None else found


def _install(
    store: Store, steps: Sequence[Mapping[str, Any]], targets: Mapping[str, Mapping[str, Any]]
) -> Switched:
    """Stop what has to be free first, change the files, and ask for the starts without waiting."""
    plans = {step["name"]: targets[step["name"]]["plan"] for step in steps}
    units = {name: plan["unit"] for name, plan in plans.items()}
    starting = [step["name"] for step in steps if step["action"] in STARTS]
    stopping = [step["name"] for step in steps if step["action"] == "stop"]
    before = systemd.unit_states(list(units.values()))
    groups = {step["name"] for step in steps if len(step["group"]) > 1}
    # What never ran has no unit yet that could be stopped.
    runs = {name for name, unit in units.items() if before[unit].active_state not in ("inactive", "failed")}
    changes = _changes(store, targets.values())
    systemd.stop([units[name] for name in (*stopping, *(name for name in starting if name in groups & runs))])
    _write(changes, [plan["environment_file"] for plan in plans.values()])
    systemd.enable(systemd.not_enabled([units[name] for name in starting]))
    systemd.disable(systemd.enabled([units[name] for name in stopping]))
    # systemctl asks for one start after another: whoever others wait for comes first.
    first = sorted(starting, key=lambda name: len({*plans[name].get("after", ())} & {*units.values()}))
    systemd.restart([units[name] for name in first])
    return Switched(
        states={name: targets[name]["id"] for name in plans},
        plans=[dict(plan) for name, plan in plans.items() if name not in stopping],
        previous={name: before[units[name]].invocation for name in starting},
    )


def _changes(store: Store, targets: Iterable[Mapping[str, Any]]) -> tuple[fileset.Change, ...]:
    """Find what changes of the files of these instances; those that only their other states have go."""
    chosen = list(targets)
    names = {one["instance"] for one in chosen}
    known = [path for path, name in owners(store).items() if name in names]
    return fileset.compare([file for one in chosen for file in store.files(one)], known)


def _write(changes: Sequence[fileset.Change], last: Sequence[str]) -> None:
    """Change the files, ``last`` ones after all others."""
    fileset.apply([change for change in changes if change.path not in last])
    fileset.apply([change for change in changes if change.path in last])
    if systemd.unit_names(change.path for change in changes):
        systemd.reload()


def _evidence(plan: Mapping[str, Any]) -> dict[str, str]:
    """Collect what explains the failure later, before anything of it is replaced."""
    unit = plan["unit"]
    seen = systemd.remembered(unit, systemd.unit_states([unit])[unit])
    records = systemd.JournalReader(unit, seen).records()
    return evidence.collect(plan, records, alive=seen.active_state == "active")
