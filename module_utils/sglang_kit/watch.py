"""When is this instance ready, or why will it never be? The loop around the readiness functions.

Everything that waits, reads or asks is here; what it means is judged by ``readiness.py``.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import credentials, probe
from .launch import PROOF
from .readiness import FAILED, LOADING, READY, Expectation, Follower, UnitState
from .systemd import JournalReader, unit_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .readiness import Verdict

RUNTIME = Path("/run/sglang")
"""Parent of the units' ``RuntimeDirectory=``."""
POLL_SECONDS = 0.3
STOP_MARGIN_SECONDS = 30.0
"""How much longer than the unit's own stop limit a start may wait for the stop before it."""


class Watch:
    """Follows one instance on its host, from the journal of one invocation and over HTTP."""

    def __init__(self, plan: Mapping[str, Any], *, previous: str | None = None, now: float) -> None:
        """``previous`` is the invocation that a start just asked to replace: nothing of it counts."""
        self.unit: str = plan["unit"]
        self._plan = plan
        self._previous = previous
        self._asked_at = now
        self._ended = False
        self._follower: Follower | None = None
        self._reader: JournalReader | None = None

    def look(self, state: UnitState, now: float) -> Verdict:
        """Judge the instance; ``state`` is the unit's."""
        if state.invocation == self._previous:
            return self._not_begun(state, now)
        if self._follower is None:
            # Before its main process is there, an invocation is as old as this look at it.
            begun = replace(state, started=state.started or now)
            self._follower = Follower(self._expectation, started=begun.started)
            self._reader = None if _is_ready(state) else JournalReader(self.unit, begun)
        if self._reader is not None:
            self._follower.feed(self._reader.read(), now)
        verdict = self._follower.observe(now, unit=state)
        asked: Sequence[str] = ()
        while verdict.ask and verdict.ask != asked:
            asked = verdict.ask
            secrets = credentials.of_plan(self._plan)
            answers = probe.ask(self._expectation, self._plan["host"], asked, secrets)
            verdict = self._follower.observe(now, unit=state, answers=answers)
        if state.lifecycle != "alive" and not self._ended:
            self._ended = True  # its last lines may still be on their way to the journal
            return replace(verdict, state=LOADING)
        return verdict

    def _not_begun(self, state: UnitState, now: float) -> Verdict:
        """Wait for the end of the previous invocation, as long as its stop may take."""
        verdict = Follower(self._expectation).observe(now, unit=UnitState(active_state="activating"))
        waited = now - self._asked_at
        if waited < self._plan["stop_seconds"] + STOP_MARGIN_SECONDS:
            return verdict
        sentence = f"{waited:.0f} s after it was asked for, the start has not begun: the unit is"
        return replace(verdict, state=FAILED, sentence=f"{sentence} {state.active_state}, as before")

    @property
    def _expectation(self) -> Expectation:
        return Expectation.from_plan(self._plan)


def _is_ready(state: UnitState) -> bool:
    """Whether the launcher has proven this invocation already; its journal need not be read again."""
    return state.active_state == "active" and state.status_text.startswith(READY)


def follow(plans: Sequence[Mapping[str, Any]], previous: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Watch instances until each is ready or has failed; return the verdicts by instance name.

    ``previous`` holds the invocation to be replaced of every instance that was just started.
    """
    begin = time.monotonic()
    open_watches = {
        plan["name"]: Watch(plan, previous=previous.get(plan["name"]), now=begin) for plan in plans
    }
    verdicts: dict[str, dict[str, Any]] = {}
    while open_watches:
        states = unit_states([watch.unit for watch in open_watches.values()])
        for name, watch in tuple(open_watches.items()):
            state = states[watch.unit]
            verdict = watch.look(state, time.monotonic())
            if verdict.final:
                verdicts[name] = {**verdict.as_dict(), **_proof(name, state), "main_pid": state.main_pid}
                del open_watches[name]
        if open_watches:
            time.sleep(POLL_SECONDS)
    return verdicts


def _proof(name: str, state: UnitState) -> dict[str, Any]:
    """Pools and stages as the launcher saw them, when they are of this very invocation."""
    try:
        proof = json.loads(Path(RUNTIME, name, PROOF).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if proof["invocation"] != state.invocation:
        return {}
    return {key: proof[key] for key in ("allocated", "stages", "notes")}
