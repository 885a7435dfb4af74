from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import watch

from tests import modules
from tests.serving import MODEL, NAME, Serving

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conftest import Tools

INVOCATION = "0123456789abcdef0123456789abcdef"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")


def plan(name: str, port: int) -> dict[str, Any]:
    return {
        "name": name,
        "unit": f"sglang-{name}.service",
        "model": MODEL,
        "served_model_name": NAME,
        "host": "127.0.0.1",
        "port": port,
        "argv": [],
        "stop_seconds": 180,
        "after": [],
    }


def shown(**properties: str) -> str:
    common = {"LoadState": "loaded", "InvocationID": INVOCATION, "ExecMainStartTimestampMonotonic": "1000000"}
    return "".join(f"{name}={text}\n" for name, text in {**common, **properties}.items())


SERVES = shown(ActiveState="active", SubState="running", MainPID="4711", StatusText="ready")
FAILED = shown(
    ActiveState="failed", SubState="failed", Result="exit-code", ExecMainCode="1", ExecMainStatus="78"
)
USAGE_ERROR = "launch_server.py: error: unrecognized arguments: --no-such-flag"


@pytest.fixture(scope="module")
def ready() -> ModuleType:
    return modules.load("sglang_ready")


def test_the_documentation_says_what_the_module_takes(ready: ModuleType) -> None:
    assert modules.documented(ready) == ready.ARGUMENTS


def place(tools: Tools, *states: str, message: str = "") -> None:
    """Put a systemd and a journal in place."""
    text = "\n".join(states)
    record = {
        "MESSAGE": message,
        "_PID": "4711",
        "_BOOT_ID": BOOT,
        "_SYSTEMD_INVOCATION_ID": INVOCATION,
        "__MONOTONIC_TIMESTAMP": "2000000",
        "__REALTIME_TIMESTAMP": "2000000",
    }
    tools.place("systemctl", f"[ $1 = cat ] || printf %s {shlex.quote(text)}")
    tools.place("journalctl", f"printf '%s\\n' {shlex.quote(json.dumps(record))}" if message else "")


@pytest.mark.parametrize("check", [False, True])
def test_what_serves_as_planned_is_ready_and_nothing_changes(
    ready: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    place(tools, SERVES)
    with Serving() as serving:
        plans = [plan("chat", serving.port)]
        result = modules.run(ready, capsys, {"plans": plans}, check=check)
    assert result["changed"] is False
    assert "failed" not in result
    assert result["instances"]["chat"]["state"] == "ready"
    assert result["instances"]["chat"]["main_pid"] == 4711
    assert tools.calls("journalctl") == []


def test_a_failure_is_told_beside_what_is_ready(
    ready: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tools, SERVES, FAILED, message=USAGE_ERROR)
    with Serving() as serving:
        plans = [plan("chat", serving.port), plan("coder", 1)]
        result = modules.run(ready, capsys, {"plans": plans})
    assert result["failed"] is True
    assert result["msg"].startswith("coder: failed in stage arguments: ")
    assert "--no-such-flag" in result["msg"]
    assert list(result["failures"]) == ["coder"]
    assert USAGE_ERROR in result["failures"]["coder"]["text"]
    assert USAGE_ERROR in result["failures"]["coder"]["files"]["journal.log"]
    assert {name: verdict["state"] for name, verdict in result["instances"].items()} == {
        "chat": "ready",
        "coder": "failed",
    }


def test_the_previous_invocation_is_handed_on(
    ready: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tools, SERVES)
    over = {**plan("chat", 1), "stop_seconds": -watch.STOP_MARGIN_SECONDS}
    arguments = {"plans": [over], "previous": {"chat": INVOCATION}}
    result = modules.run(ready, capsys, arguments)
    assert result["failed"] is True
    assert "the start has not begun" in result["msg"]


def test_a_step_ends_at_the_first_word_and_fails_nothing(
    ready: ModuleType,
    tools: Tools,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ready.watch, "STEP_SECONDS", 0)
    starting = shown(ActiveState="activating", SubState="start", MainPID="4711")
    place(tools, starting, message="Init parallel begin.")
    step = modules.run(ready, capsys, {"plans": [plan("chat", 1)], "stepwise": True})
    assert "failed" not in step
    assert step["said"] == ["chat: 0:00 arguments", "chat: 0:01 distributed"]
    place(tools, FAILED, message=USAGE_ERROR)
    again = {"plans": [plan("chat", 1)], "stepwise": True, "bookmarks": step["bookmarks"]}
    last = modules.run(ready, capsys, again)
    assert "failed" not in last
    assert (last["bookmarks"], list(last["failures"])) == ({}, ["chat"])


def test_no_plans_are_ready(ready: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert modules.run(ready, capsys, {"plans": []})["instances"] == {}


def test_plans_are_required(ready: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    result = modules.run(ready, capsys, {})
    assert result["failed"] is True
    assert result["msg"] == "missing required arguments: plans"
