from __future__ import annotations

from typing import Any

from sglang_kit import report
from sglang_kit.quantity import GIB

CHAT: dict[str, Any] = {
    "name": "chat",
    "state": "started",
    "gpus": ["0", "1"],
    "port": 31000,
    "context_length": 32768,
    "concurrency": 48,
    "strategy": "mtp",
    "fingerprint": "667903beab97f70c",
}
CODER: dict[str, Any] = {
    **CHAT,
    "name": "coder-on-cpu",
    "state": "stopped",
    "gpus": [],
    "port": 31001,
    "context_length": None,
    "concurrency": None,
    "strategy": "none",
    "fingerprint": "0123456789abcdef",
}
READY: dict[str, Any] = {
    "state": "ready",
    "allocated": {"kv_tokens": 165000, "kv_bytes": 3 * GIB // 2, "running_requests": 48},
    "stages": [
        {"name": "import", "begin": 0.0, "seconds": 0.0},
        {"name": "weights", "begin": 12.4, "seconds": 31.0},
        {"name": "serving", "begin": 43.4, "seconds": None},
    ],
    "checks": [
        {"name": "health", "held": True, "detail": "HTTP 200: "},
        {"name": "completion", "held": True, "detail": "Yes — 是的。\nThis is cut off."},
    ],
}


def verdict(state: str, **changes: object) -> dict[str, Any]:
    quiet = {"stage": "weights", "phase": "", "sentence": "", "remedy": "", "evidence": []}
    return {**quiet, "state": state, **changes}


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert report.table(
        ("a", "größe", "last"), [("1", "Übermaß", ""), ("wide cell", "", "x"), ("", "", "")]
    ) == [
        "a          größe    last",
        "---------  -------  ----",
        "1          Übermaß",
        "wide cell           x",
        "",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert report.table(("a", "b c"), []) == ["a  b c", "-  ---"]


def test_no_instances() -> None:
    assert report.lines([]) == ["no instances"]
    assert report.lines([], {}) == ["no instances"]


def test_a_plan_shows_what_was_left_to_the_engine() -> None:
    assert report.lines([CHAT, CODER]) == [
        "instance      GPUs  port   context  requests  strategy  fingerprint",
        "------------  ----  -----  -------  --------  --------  ----------------",
        "chat          0,1   31000  32768    48        mtp       667903beab97f70c",
        "coder-on-cpu  CPU   31001  model's  planned   none      0123456789abcdef",
    ]


def test_a_proof_stands_beside_instances_that_were_not_to_be_proven() -> None:
    assert report.lines([CHAT, CODER], {"chat": READY}) == [
        "instance      unit     stages (s)  KV tokens  K + V     requests  answer",
        "------------  -------  ----------  ---------  --------  --------  ---------------------------",
        "chat          ready    weights 31  165000     1.50 GiB  48        'Yes — 是的。\\nThis is cut of'",
        "coder-on-cpu  stopped",
    ]


def test_instances_that_were_all_left_out_are_shown_as_wanted() -> None:
    assert report.lines([CODER], {})[2] == "coder-on-cpu  stopped"


def test_a_proof_of_which_only_the_state_is_known() -> None:
    bare = {"state": "failed", "allocated": {}, "stages": [], "checks": []}
    assert (
        report.lines([CHAT], {"chat": bare})[2]
        == "chat      failed                                          ''"
    )


def test_what_is_ready_is_no_failure() -> None:
    assert report.failures({}) == []
    assert report.failures({"chat": READY}) == []


def test_a_failure_is_told_with_its_evidence_and_its_remedy() -> None:
    failed = verdict(
        "failed",
        phase="kv_cache",
        sentence="the KV cache is smaller than one context",
        evidence=[{"number": 7, "text": "RuntimeError: fewer\n  tokens"}, {"number": 9, "text": "bye"}],
        remedy="lower context_length",
    )
    verdicts = {"chat": failed, "good": READY, "coder": verdict("stopped", sentence="stopped by request")}
    assert report.failures(verdicts) == [
        "chat: failed in stage kv_cache: the KV cache is smaller than one context",
        "  | RuntimeError: fewer",
        "  |   tokens",
        "  | bye",
        "  what to do: lower context_length",
        "coder: stopped in stage weights: stopped by request",
    ]
