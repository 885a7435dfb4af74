from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit.fingerprint import VARIABLE, Action, actions, decide, fingerprint

ARGV = ("/opt/sglang/releases/a/bin/python", "-m", "sglang.launch_server", "--port", "30000")
ENVIRONMENT = {"PATH": "/usr/bin", "GREETING": "grüß dich"}
UNIT = {"start_seconds": 300, "stop_seconds": 180}

WORDS = st.lists(st.text(st.characters(codec="utf-8")), max_size=6)


def mark(**changes: Any) -> str:  # noqa: ANN401 - any part may be changed
    return fingerprint(**{"argv": ARGV, "environment": ENVIRONMENT, "unit": UNIT, **changes})


def test_a_fingerprint_fits_into_a_variable() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", mark())


def test_the_same_content_has_the_same_fingerprint() -> None:
    assert mark(argv=list(ARGV)) == mark()
    assert mark(environment=dict(reversed(ENVIRONMENT.items()))) == mark()
    assert mark(environment={**ENVIRONMENT, VARIABLE: mark()}) == mark(), "it does not cover itself"


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": (ARGV[0].replace("/a/", "/b/"), *ARGV[1:])},
        {"argv": (*ARGV[:-1], "30001")},
        {"argv": (*ARGV[:3], "30000", "--port")},
        {"argv": (*ARGV[:3], "--port 30000")},
        {"argv": (*ARGV, "")},
        {"environment": {**ENVIRONMENT, "GREETING": "gruss dich"}},
        {"environment": {**ENVIRONMENT, "EMPTY": ""}},
        {"environment": {}},
        {"unit": {**UNIT, "start_seconds": 600}},
    ],
)
def test_whatever_the_running_engine_would_notice_changes_it(changes: dict[str, Any]) -> None:
    assert mark(**changes) != mark()


@given(WORDS, WORDS)
def test_two_command_lines_share_a_fingerprint_only_if_they_are_the_same(
    one: list[str], other: list[str]
) -> None:
    assert (mark(argv=one) == mark(argv=other)) == (one == other)


RUNNING = "0123456789abcdef"
WANTED = "fedcba9876543210"


@pytest.mark.parametrize(
    ("wanted_state", "active", "running", "action", "reason"),
    [
        ("started", "active", WANTED, "none", "runs what is wanted"),
        ("started", "activating", WANTED, "prove", "is starting with what is wanted"),
        ("started", "reloading", WANTED, "none", "runs what is wanted"),
        ("started", "active", RUNNING, "restart", f"runs {RUNNING}, wanted is {WANTED}"),
        ("started", "activating", RUNNING, "restart", f"runs {RUNNING}, wanted is {WANTED}"),
        ("started", "active", None, "restart", "has no main process with a fingerprint"),
        ("started", "inactive", None, "start", "is inactive"),
        ("started", "failed", None, "start", "is failed"),
        ("started", "deactivating", WANTED, "start", "is deactivating"),
        ("stopped", "active", WANTED, "stop", "wanted stopped"),
        ("stopped", "activating", None, "stop", "wanted stopped"),
        ("stopped", "inactive", None, "none", "stopped, as wanted"),
        ("stopped", "failed", None, "none", "stopped, as wanted"),
    ],
)
def test_what_has_to_be_done(
    wanted_state: str, active: str, running: str | None, action: str, reason: str
) -> None:
    decided = decide(name="chat", wanted_state=wanted_state, wanted=WANTED, running=running, active=active)
    assert decided == Action("chat", action, reason)


def test_a_process_that_was_started_from_edited_files_is_restarted() -> None:
    plans = [{"name": "chat", "state": "started", "fingerprint": WANTED}]
    seen = {"active": "active", "fingerprint": WANTED, "changed": "another GREETING"}
    assert actions(plans, {"chat": seen}) == [
        {"name": "chat", "action": "restart", "reason": "was started with another GREETING"}
    ]


def test_a_restart_says_what_it_changes_where_that_is_known() -> None:
    plans = [{"name": "chat", "state": "started", "fingerprint": WANTED}]
    seen = {"active": "active", "fingerprint": RUNNING, "differs": "--page-size 1 -> 64"}
    assert actions(plans, {"chat": seen}) == [
        {"name": "chat", "action": "restart", "reason": "--page-size 1 -> 64"}
    ]


def test_one_action_for_each_plan_in_their_order() -> None:
    plans = [
        {"name": "chat", "state": "started", "fingerprint": WANTED},
        {"name": "coder", "state": "stopped", "fingerprint": WANTED},
        {"name": "new", "state": "started", "fingerprint": WANTED},
    ]
    observed = {
        "coder": {"active": "active", "fingerprint": RUNNING},
        "chat": {"active": "active", "fingerprint": WANTED},
        "foreign": {"active": "active", "fingerprint": None},
    }
    assert actions(plans, observed) == [
        {"name": "chat", "action": "none", "reason": "runs what is wanted"},
        {"name": "coder", "action": "stop", "reason": "wanted stopped"},
        {"name": "new", "action": "start", "reason": "is inactive"},
    ]


def test_nothing_planned_nothing_done() -> None:
    assert actions([], {"chat": {"active": "active", "fingerprint": RUNNING}}) == []


def test_replaced_model_files_count() -> None:
    assert mark(models={}) == mark(models=None) == mark()
    assert mark(models={"/m": "a.b"}) != mark(models={"/m": "a.c"})


def test_a_secret_counts_by_its_mark() -> None:
    content: dict[str, Any] = {"argv": ["python"], "environment": {}, "unit": {}}
    marks = [
        fingerprint(**content, secrets=secrets) for secrets in (None, {}, {"api_key": "1"}, {"api_key": "2"})
    ]
    assert marks[0] == marks[1] == fingerprint(**content)
    assert len(set(marks)) == 3
