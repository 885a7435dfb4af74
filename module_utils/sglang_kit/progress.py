"""What is said while an instance starts? One line a stage, and one in every silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .readiness import LOADING, READY, STAGE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .readiness import Verdict

SILENCE_SECONDS = 20.0
"""After this long without a line the stage is said again: with the way to the controller, within 30 s."""


def lines(
    name: str,
    verdict: Verdict,
    *,
    shown: int,
    elapsed_seconds: float,
    silent_seconds: float,
    last_good: Mapping[str, Any],
) -> list[str]:
    """Say what is new: the stages after the first ``shown`` ones, that it is ready, or that it still loads.

    ``elapsed_seconds`` since the start, ``silent_seconds`` since something was said. ``last_good`` is what
    the last good start took, in all (``seconds``) and stage by stage (``stages``). A failure is not told
    here: it is told whole.
    """
    if verdict.state not in (LOADING, READY):
        return []
    before = last_good.get("stages", {})
    started = verdict.stages[0].begin if verdict.stages else 0.0
    said = [
        _line(name, stage.begin - started, STAGE_NAMES.get(stage.name, stage.name), before.get(stage.name))
        for stage in verdict.stages[shown:]
    ]
    if verdict.state == READY:
        return [*said, _line(name, elapsed_seconds, READY, last_good.get("seconds"))] if said or shown else []
    if not said and silent_seconds >= SILENCE_SECONDS:
        stage = STAGE_NAMES.get(verdict.stage, verdict.stage) if verdict.stages else "has not begun yet"
        what = ", ".join(part for part in (stage, verdict.progress) if part)
        return [_line(name, elapsed_seconds, what, before.get(verdict.stage))]
    return said


def _line(name: str, elapsed_seconds: float, what: str, last_time: float | None) -> str:
    expected = "" if last_time is None else f" (last time {_clock(last_time)})"
    return f"{name}: {_clock(elapsed_seconds)} {what}{expected}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def took(verdict: Verdict) -> dict[str, Any]:
    """Say what a start that became ready took: the ``last_good`` of the next one, in seconds."""
    stages = {stage.name: stage.seconds for stage in verdict.stages if stage.seconds is not None}
    begin = verdict.stages[0].begin if verdict.stages else verdict.since
    return {"seconds": verdict.since - begin, "stages": stages}
