from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import progress
from sglang_kit.readiness import Stage, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGES = (Stage("arguments", 100.0, 12.0), Stage("weights", 112.0, 60.4), Stage("kv_cache", 172.4))
LOADING = Verdict(state="loading", stage="kv_cache", since=100.0, sentence="", stages=STAGES)
LAST_GOOD = {"seconds": 92.0, "stages": {"arguments": 11.6, "weights": 31.2, "kv_cache": 3.0}}


def lines(
    verdict: Verdict, *, shown: int = 0, silent: float = 0.0, last: Mapping[str, Any] | None = None
) -> list[str]:
    return progress.lines(
        "chat", verdict, shown=shown, elapsed_seconds=95.0, silent_seconds=silent, last_good=last or {}
    )


def test_each_new_stage_is_a_line() -> None:
    assert lines(LOADING) == ["chat: 0:00 arguments", "chat: 0:12 weights", "chat: 1:12 KV cache"]
    assert lines(LOADING, shown=2) == ["chat: 1:12 KV cache"]
    assert lines(LOADING, shown=3) == []


def test_the_last_good_start_tells_what_to_expect() -> None:
    assert lines(LOADING, last=LAST_GOOD) == [
        "chat: 0:00 arguments (last time 0:12)",
        "chat: 0:12 weights (last time 0:31)",
        "chat: 1:12 KV cache (last time 0:03)",
    ]
    ready = replace(LOADING, state="ready")
    assert lines(ready, shown=3, last=LAST_GOOD) == ["chat: 1:35 ready (last time 1:32)"]


def test_a_silence_is_broken_with_the_progress() -> None:
    silent = replace(LOADING, stage="weights", progress="shards 62%")
    assert lines(silent, shown=3, silent=19.9) == []
    assert lines(silent, shown=3, silent=20.0) == ["chat: 1:35 weights, shards 62%"]
    assert lines(replace(silent, progress=""), shown=3, silent=20.0) == ["chat: 1:35 weights"]


def test_a_start_that_has_not_begun_is_told_in_a_silence() -> None:
    waiting = replace(LOADING, stage="arguments", stages=())
    assert lines(waiting) == []
    assert lines(waiting, silent=25.0) == ["chat: 1:35 has not begun yet"]


def test_what_served_already_is_no_news() -> None:
    assert lines(replace(LOADING, state="ready", stages=())) == []


@pytest.mark.parametrize("state", ["failed", "stalled", "stopped", "restarting", "never_started"])
def test_a_failure_is_told_elsewhere(state: str) -> None:
    assert lines(replace(LOADING, state=state), silent=99.0) == []


def test_what_a_start_took_is_known_stage_by_stage() -> None:
    assert progress.took(replace(LOADING, state="ready", since=190.0)) == {
        "seconds": 90.0,
        "stages": {"arguments": 12.0, "weights": 60.4},
    }
    assert progress.took(replace(LOADING, state="ready", stages=())) == {"seconds": 0.0, "stages": {}}
