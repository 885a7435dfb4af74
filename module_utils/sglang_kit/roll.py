"""In which order are the instances of a host changed, and what is said when a change ends early?

A port or GPU that passes from one instance to another is free only when the first one has left it. So stops
come first, then whoever leaves something before whoever takes it. Instances that take something from each
other in a circle are one group: all of it stops before any of it starts, and it goes back as one. So are
instances that share a GPU, from the first that starts again: each is sized by what those before it have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Step = dict[str, Any]
    """``name``, ``action`` and ``reason`` as ``fingerprint.Action``; ``group``: the names of those that it is
    changed with; ``runs``: what its process holds now, empty where none does."""

STARTS = ("start", "restart")
PLACE = ("name", "unit", "host", "port", "nccl_port", "gpus", "shared", "drain", "undrain")
"""Entries of a plan that say what a running instance holds, where it answers, and who sends it requests."""


def place(plan: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Say what an instance holds while it runs this plan."""
    return None if plan is None else {key: plan.get(key) for key in PLACE}


def batches(
    plans: Sequence[Mapping[str, Any]], observed: Mapping[str, Any], parallel: int = 1
) -> list[list[Step]]:
    """Lay out what has to be done: batches one after another, the steps of a batch at once.

    ``observed`` is what ``sglang_service_info`` returned by name; ``holds`` in it is what the running process
    was started with. A batch has ``parallel`` steps at most, or is one group. Where nothing forbids it, the
    order is that of the plans.
    """
    held = {name: one.get("holds") or {} for name, one in observed.items()}
    steps: list[Step] = [
        {**one, "group": [one["name"]], "runs": held.get(one["name"], {})}
        for one in actions(plans, observed)
        if one["action"] != "none"
    ]
    stops = [step for step in steps if step["action"] == "stop"]
    moving = {step["name"]: step for step in steps if step["action"] != "stop"}
    wanted = {plan["name"]: plan for plan in plans}
    before = {
        name: {other for other in moving if other != name and _passes(moving[other]["runs"], wanted[name])}
        for name in moving
    }
    starting = {wanted[name]["unit"]: name for name, step in moving.items() if step["action"] in STARTS}
    for name in starting.values():
        for other in (starting[unit] for unit in wanted[name]["after"] if unit in starting):
            before[name].add(other)
            before[other].add(name)
    found: list[list[Step]] = []
    for group in _ordered(before):
        together = [{**moving[name], "group": group} for name in group]
        last = {step["name"] for step in found[-1]} if found else set()
        fits = found and len(last) + len(group) <= parallel
        if fits and not any(before[name] & last for name in group):
            found[-1] += together
        else:
            found.append(together)
    return [stops, *found] if stops else found


def actions(plans: Sequence[Mapping[str, Any]], observed: Mapping[str, Any]) -> Iterator[Step]:
    """Decide as ``fingerprint.actions``; who shares a GPU starts again with whoever starts before it."""
    starting: dict[str, str] = {}
    for plan, one in zip(plans, fingerprint.actions(plans, observed)):
        first = next((starting[unit] for unit in plan["after"] if unit in starting), None)
        if first and plan["state"] == "started" and one["action"] not in STARTS:
            reason = f"shares a GPU with {first}, which starts before it"
            one = {**one, "action": "restart", "reason": reason}  # noqa: PLW2901 - the same step
        if one["action"] in STARTS:
            starting[plan["unit"]] = plan["name"]
        yield one


def _passes(held: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Whether something that a running instance holds is wanted by this plan."""
    if not held:
        return False
    sharing = held["shared"] and plan["shared"]
    gpus = set() if sharing else set(held["gpus"]) & set(plan["gpus"])
    return bool(gpus or _ports(held) & _ports(plan))


def _ports(plan: Mapping[str, Any]) -> set[int]:
    return {plan["port"], plan["nccl_port"]} - {None}


def _ordered(before: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield groups: circles as one, whoever must come before first, and else in the order given."""
    reached = {name: _reachable(name, before) for name in before}
    groups: list[list[str]] = []
    for name in before:
        if not any(name in group for group in groups):
            circle = [other for other in before if name in reached[other] and other in reached[name]]
            groups.append(circle or [name])
    done: set[str] = set()
    while groups:
        ready = next(group for group in groups if all(before[name] <= done | set(group) for name in group))
        groups.remove(ready)
        done.update(ready)
        yield ready


def _reachable(name: str, before: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = set(before[name])
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= before[one] - found
    return found


def go_back(steps: Iterable[Mapping[str, Any]], failed: Iterable[str]) -> list[str]:
    """Name the instances of a batch that go back when these have failed: each with its whole group."""
    names = set(failed)
    return [step["name"] for step in steps if names & set(step["group"])]


def ending(
    failures: Mapping[str, Mapping[str, Any]],
    *,
    message: str,
    back: Mapping[str, str],
    stays: Mapping[str, str],
    proof: Mapping[str, Any],
    untouched: Sequence[str],
    unrecorded: str = "",
) -> str:
    """Say how a roll-out ended: what failed and why, what runs now, what was not touched.

    ``failures`` are those of ``sglang_ready``; where the change failed before any start, ``message`` says
    why. ``back`` holds the state that each instance was set back to, ``stays`` why others were not, and
    ``proof`` what ``sglang_ready`` returned of those that were, ``unrecorded`` why no failure is recorded.
    """
    lines = ["The roll-out ends here."]
    for name, failure in failures.items():
        lines.append(f"{name}: {failure['state']} in stage {failure['phase']}: {failure['sentence']}")
        lines += [f"  what to do: {failure['remedy']}"] if failure["remedy"] else []
        lines.append(f"  evidence: {failure['saved']}")
    lines += [] if failures else [message]
    wrong = proof.get("failures") or {}
    for name, state in back.items():
        if name in wrong:
            again = wrong[name]
            lines.append(
                f"{name} was set back to its last good state {state}, which does not become ready any more:"
                f" {again['state']} in stage {again['phase']}: {again['sentence']}"
            )
        elif name in (proof.get("instances") or {}):
            lines.append(f"{name} is back on its last good state {state} and serves")
        else:
            lines.append(
                f"{name} was set back to its last good state {state}; not proven: {proof.get('msg')}"
            )
    lines += [f"{name} was not set back: {reason}" for name, reason in stays.items()]
    lines += [f"not touched: {', '.join(untouched)}"] if untouched else []
    lines += [f"the failure is not in the history: {unrecorded}"] if unrecorded else []
    return "\n".join(lines)
