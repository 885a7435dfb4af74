from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sglang_kit.fingerprint import VARIABLE

from tests import modules

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conftest import Tools

INVOCATION = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def info() -> ModuleType:
    return modules.load("sglang_service_info")


def test_the_documentation_says_what_the_module_takes(info: ModuleType) -> None:
    assert modules.documented(info) == info.ARGUMENTS


@pytest.mark.parametrize("check", [False, True])
def test_units_are_read_in_one_call_and_the_fingerprint_from_the_process(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command,
        env={**os.environ, VARIABLE: "667903beab97f70c"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its environment is its own from here on
        tools.place(
            "systemctl",
            f"printf '%s\\n' ActiveState=active SubState=running MainPID={process.pid} NRestarts=2"
            f" InvocationID={INVOCATION} ExecMainStartTimestampMonotonic=1 StatusText=ready ''"
            " ActiveState=inactive SubState=dead MainPID=0 InvocationID= StatusText= LoadState=not-found",
        )
        units = {"chat": "sglang-chat.service", "gone": "sglang-gone.service"}
        result = modules.run(info, capsys, {"units": units}, check=check)
        process.communicate(b"\n")
    assert result["instances"] == {
        "chat": {
            "active": "active",
            "sub": "running",
            "lifecycle": "alive",
            "main_pid": process.pid,
            "invocation": INVOCATION,
            "fingerprint": "667903beab97f70c",
            "status": "ready",
            "restarts": 2,
        },
        "gone": {
            "active": "inactive",
            "sub": "dead",
            "lifecycle": "never_started",
            "main_pid": 0,
            "invocation": "",
            "fingerprint": None,
            "status": "",
            "restarts": 0,
        },
    }
    assert not result.get("changed")
    (call,) = tools.calls("systemctl")
    assert call.endswith(" sglang-chat.service sglang-gone.service")


def test_no_units_are_no_question(info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.place("systemctl", "exit 1")
    assert modules.run(info, capsys, {"units": {}})["instances"] == {}
    assert tools.calls("systemctl") == []


def test_units_are_required(info: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    result = modules.run(info, capsys, {})
    assert result["failed"] is True
    assert result["msg"] == "missing required arguments: units"
