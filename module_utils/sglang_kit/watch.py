"""When is this instance ready, or why will it never be? The loop around the readiness functions.

Everything that waits, reads or asks is here; what it means is judged by ``readiness.py``.

While an instance starts, its launcher asks over HTTP and judges the answers; the watch reads the journal and
takes the launcher's proof. What serves already is asked by the watch itself.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import credentials, evidence, probe, progress
from .launch import PROOF, STATE, last_good
from .readiness import FAILED, LOADING, READY, Expectation, Follower, UnitState, Verdict
from .systemd import JournalReader, remembered, unit_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUNTIME = Path("/run/sglang")
"""Parent of the units' ``RuntimeDirectory=``."""
POLL_SECONDS = 0.3
STEP_SECONDS = 3.0
"""What is said waits this long at most: between two steps, nobody looks."""
STOP_MARGIN_SECONDS = 30.0
"""How much longer than the unit's own stop limit a start may wait for the stop before it."""


@dataclass(frozen=True)
class Bookmark:
    """Where a watch was left: what the journal does not tell when another process reads it again.

    Times are seconds of the host's monotonic clock, which the journal's records carry, too.
    """

    asked_at: float
    spoken_at: float
    held_until: float = 0.0
    """When the last one that starts before it had not ended its own start yet."""
    invocation: str = ""
    started: float = 0.0
    proven: bool = False
    """Whether it served already when the watch began: then it is asked, and an earlier proof says nothing."""
    held: int = 0
    moved: float = 0.0
    shown: int = 0


class Watch:
    """Follows one instance on its host, from the journal of one invocation and over HTTP."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        *,
        previous: str | None = None,
        bookmark: Mapping[str, Any] | None = None,
        now: float,
    ) -> None:
        """``previous`` is the invocation that a start just asked to replace: nothing of it counts.

        ``bookmark`` is where an earlier watch of the same start was left.
        """
        self.unit: str = plan["unit"]
        self.plan = plan
        self._last_good = last_good(STATE, plan["name"])
        self._expectation = Expectation.from_plan(plan, self._last_good)
        self._previous = previous
        self._mark = Bookmark(**bookmark) if bookmark else Bookmark(asked_at=now, spoken_at=now)
        self._ended = False
        self._follower: Follower | None = None
        self._reader: JournalReader | None = None

    @property
    def bookmark(self) -> dict[str, Any]:
        """Where another watch can go on."""
        held, moved = self._follower.moved if self._follower else (0, 0.0)
        return {**asdict(self._mark), "held": held, "moved": moved}

    def hold(self, now: float) -> None:
        """Note that systemd holds the start back, since another one of them has to end before."""
        self._mark = replace(self._mark, held_until=now)

    def look(self, state: UnitState, now: float) -> Verdict:
        """Judge the instance; ``state`` is the unit's."""
        mark = self._mark
        if not mark.invocation and state.invocation == self._previous:
            return self._not_begun(state, now)
        if not state.invocation:
            if mark.invocation:
                state = replace(state, invocation=mark.invocation, started=mark.started)
            else:
                state = remembered(self.unit, state)
        first = self._follower is None
        follower = self._follower or self._begin(state, now)
        if self._reader is None and not (self._mark.proven and _is_ready(state)):
            began = replace(state, invocation=self._mark.invocation, started=self._mark.started)
            self._reader = JournalReader(self.unit, began)
        if self._reader is not None:
            proof = proof_of(self.plan["name"], state) if _is_ready(state) else None
            if proof:
                return proof
            follower.feed(self._reader.read(), now)
        if first:
            follower.resume(self._mark.held, self._mark.moved)
        verdict = self._observed(follower, state, now)
        if state.lifecycle != "alive" and not self._ended:
            self._ended = True  # its last lines may still be on their way to the journal
            return replace(verdict, state=LOADING)
        return verdict

    def says(self, verdict: Verdict, now: float) -> list[str]:
        """Tell people what is new since the last call."""
        mark = self._mark
        lines = progress.lines(
            self.plan["name"],
            verdict,
            shown=mark.shown,
            elapsed_seconds=now - (mark.started or mark.asked_at),
            silent_seconds=now - mark.spoken_at,
            last_good=self._last_good,
        )
        if lines:
            self._mark = replace(mark, shown=len(verdict.stages), spoken_at=now)
        return lines

    def evidence(self, state: UnitState) -> dict[str, str]:
        """Collect what explains a failure later, by file name."""
        seen = replace(
            state, invocation=self._mark.invocation, started=self._mark.started or self._mark.asked_at
        )
        records = JournalReader(self.unit, seen).records()
        return evidence.collect(self.plan, records, alive=state.active_state == "active")

    def _begin(self, state: UnitState, now: float) -> Follower:
        """Start at the first line of the invocation, which is the bookmark's where there is one.

        Before its main process is there, an invocation is as old as the first look at it.
        """
        if not self._mark.invocation:
            began = state.started or now
            proven = _is_ready(state)
            self._mark = replace(self._mark, invocation=state.invocation, started=began, proven=proven)
        mark = self._mark
        self._follower = Follower(self._expectation, started=mark.started, invocation=mark.invocation)
        return self._follower

    def _observed(self, follower: Follower, state: UnitState, now: float) -> Verdict:
        """Judge; ask what serves as long as an answer leads to another question."""
        verdict = follower.observe(now, unit=state)
        asked: Sequence[str] = ()
        while state.active_state == "active" and verdict.ask and verdict.ask != asked:
            asked = verdict.ask
            secrets = credentials.of_plan(self.plan)
            answers = probe.ask(self._expectation, self.plan["host"], asked, secrets)
            verdict = follower.observe(now, unit=state, answers=answers)
        return verdict

    def _not_begun(self, state: UnitState, now: float) -> Verdict:
        """Wait for the end of the previous invocation, as long as its stop may take."""
        verdict = Follower(self._expectation).observe(now, unit=UnitState(active_state="activating"))
        mark = self._mark
        if now - max(mark.asked_at, mark.held_until) < self.plan["stop_seconds"] + STOP_MARGIN_SECONDS:
            return verdict
        waited = now - mark.asked_at
        sentence = f"{waited:.0f} s after it was asked for, the start has not begun: the unit is"
        return replace(verdict, state=FAILED, sentence=f"{sentence} {state.active_state}, as before")


def _is_ready(state: UnitState) -> bool:
    """Whether the launcher has proven this invocation already; its journal need not be read again."""
    return state.active_state == "active" and state.status_text.startswith(READY)


@dataclass
class Seen:
    """What a watch has come to: verdicts, lines for people, evidence of failures, bookmarks of the rest.

    All are by instance name; ``instances`` hold verdicts as plain values.
    """

    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    bookmarks: dict[str, dict[str, Any]] = field(default_factory=dict)


def follow(
    plans: Sequence[Mapping[str, Any]],
    previous: Mapping[str, str],
    *,
    bookmarks: Mapping[str, Mapping[str, Any]] | None = None,
    stepwise: bool = False,
) -> Seen:
    """Watch instances until each is ready or has failed; ``stepwise`` only until there is something to say.

    ``previous`` holds the invocation to be replaced of every instance that was just started, ``bookmarks``
    where an earlier step has left off.
    """
    begin = time.monotonic()
    watches = {
        plan["name"]: Watch(
            plan,
            previous=previous.get(plan["name"]),
            bookmark=(bookmarks or {}).get(plan["name"]),
            now=begin,
        )
        for plan in plans
    }
    seen = Seen()
    while watches:
        states = unit_states([watch.unit for watch in watches.values()])
        for name, watch in tuple(watches.items()):
            state, now = states[watch.unit], time.monotonic()
            if any(other.unit in watch.plan["after"] for other in watches.values()):
                watch.hold(now)
            verdict = watch.look(state, now)
            seen.said += watch.says(verdict, now)
            if verdict.final:
                seen.instances[name] = _plain(verdict, name, state)
                del watches[name]
                if verdict.state != READY:
                    seen.files[name] = watch.evidence(state)
        if stepwise and (seen.files or (seen.said and now - begin >= STEP_SECONDS)):
            break
        if watches:
            time.sleep(POLL_SECONDS)
    seen.bookmarks = {name: watch.bookmark for name, watch in watches.items()}
    return seen


def _plain(verdict: Verdict, name: str, state: UnitState) -> dict[str, Any]:
    """Complete what was asked now by what the launcher has seen at the start."""
    proof = proof_of(name, state)
    known = (
        verdict
        if proof is None
        else replace(verdict, allocated=proof.allocated, stages=proof.stages, notes=proof.notes)
    )
    return {**known.as_dict(), "main_pid": state.main_pid}


def proof_of(name: str, state: UnitState) -> Verdict | None:
    """Read the launcher's verdict of ready, when it is of this very invocation."""
    try:
        proof = json.loads(Path(RUNTIME, name, PROOF).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Verdict.from_dict(proof) if proof["invocation"] == state.invocation else None


def look_back(plan: Mapping[str, Any]) -> tuple[Verdict, UnitState]:
    """Judge the last invocation of an instance, whether it runs, has failed or was stopped long ago."""
    unit, name = plan["unit"], plan["name"]
    state = unit_states([unit])[unit]
    if _is_ready(state):
        proof = proof_of(name, state)
        if proof:
            return proof, state
    # Of a start that systemd has forgotten, the first line tells the time, and no line of the kernel counts.
    started = state.started
    state = remembered(unit, state)
    expectation = Expectation.from_plan(plan, last_good(STATE, name))
    follower = Follower(expectation, started=started or None, invocation=state.invocation)
    now = time.monotonic()
    reader = JournalReader(unit, replace(state, started=started or math.inf))
    follower.feed(reader.read(), now)
    return follower.observe(now, unit=state), state
