from __future__ import annotations

import grp
import json
import os
import pwd
import socket
import subprocess
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.fingerprint import VARIABLE
from sglang_kit.state import Store

from tests import modules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.conftest import Tools

INVOCATION = "0123456789abcdef0123456789abcdef"

WAITS = [sys.executable, "-c", "print(flush=True); input()"]
PLAN = {
    "name": "chat",
    "unit": "sglang-chat.service",
    "after": [],
    "host": "127.0.0.1",
    "port": 30000,
    "nccl_port": None,
    "gpus": [],
    "shared": False,
    "release": "/opt/sglang/releases/a",
    "engine_version": "0.5.23",
    "argv": WAITS,
    "environment": {},
    "state": "started",
    "fingerprint": "667903beab97f70c",
}


def arguments(directory: Path, *names: str) -> dict[str, Any]:
    files = {"unit_file": str(directory / "none"), "plan_file": "none"}
    plans = [{**PLAN, **files, "name": name, "unit": f"sglang-{name}.service"} for name in names]
    return {
        "plans": plans,
        "states": str(directory / "instances"),
        "config_directory": str(directory / "etc"),
    }


@pytest.fixture(scope="module")
def info() -> ModuleType:
    return modules.load("sglang_service_info")


def test_the_documentation_says_what_the_module_takes(info: ModuleType) -> None:
    assert modules.documented(info) == info.ARGUMENTS


@pytest.mark.parametrize("check", [False, True])
def test_units_are_read_in_one_call_and_the_fingerprint_from_the_process(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path, check: bool
) -> None:
    with subprocess.Popen(
        WAITS,
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
        result = modules.run(info, capsys, arguments(tmp_path, "chat", "gone"), check=check)
        process.communicate(b"\n")
    assert result["instances"] == {
        "chat": {
            "active": "active",
            "sub": "running",
            "lifecycle": "alive",
            "main_pid": process.pid,
            "invocation": INVOCATION,
            "fingerprint": "667903beab97f70c",
            "changed": "",
            "differs": "",
            "status": "ready",
            "restarts": 2,
            "holds": None,
            "wanted": None,
            "known_good": None,
        },
        "gone": {
            "active": "inactive",
            "sub": "dead",
            "lifecycle": "never_started",
            "main_pid": 0,
            "invocation": "",
            "fingerprint": None,
            "changed": "",
            "differs": "",
            "status": "",
            "restarts": 0,
            "holds": None,
            "wanted": None,
            "known_good": None,
        },
    }
    assert not result.get("changed")
    (call,) = tools.calls("systemctl")
    assert call.endswith(" sglang-chat.service sglang-gone.service")


def test_what_a_process_holds_is_what_it_was_started_with(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not what has been installed since, unless nothing else is known of it."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    store = Store(str(tmp_path / "instances"), me, grp.getgrgid(os.getegid()).gr_name)
    started = {**PLAN, "fingerprint": "a" * 16, "port": 30001, "environment": {"GREETING": "hello"}}
    state = store.stage(started, (), {}, datetime(2026, 11, 29, tzinfo=timezone.utc))
    store.record("chat", state, {"result": "ready"})
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "chat.plan.json").write_text(json.dumps({**PLAN, "port": 30002}), encoding="utf-8")
    (etc / "old.plan.json").write_text(
        json.dumps({**PLAN, "name": "old", "unit": "sglang-old.service"}), encoding="utf-8"
    )
    seen = {}
    for mark in ("a" * 16, "b" * 16):
        with subprocess.Popen(
            WAITS,
            env={**os.environ, VARIABLE: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            active = f"ActiveState=active MainPID={process.pid}"
            tools.place("systemctl", f"printf '%s\\n' {active} '' {active}")
            seen[mark[0]] = modules.run(info, capsys, arguments(tmp_path, "chat"))
            process.communicate(b"\n")
    assert seen["a"]["instances"]["chat"]["holds"]["port"] == 30001
    assert seen["b"]["instances"]["chat"]["holds"]["port"] == 30002
    assert seen["a"]["instances"]["chat"]["known_good"] == state
    assert seen["a"]["instances"]["chat"]["differs"] == "GREETING hello -> -"
    assert [(one["name"], one["runs"]) for one in seen["a"]["leaving"]] == [("old", True)]
    failed = "ActiveState=failed MainPID=0"
    tools.place("systemctl", f"printf '%s\\n' {failed} '' {failed}")
    (old,) = modules.run(info, capsys, arguments(tmp_path, "chat"))["leaving"]
    assert not old["runs"], "and need not leave a load balancer"


def test_others_are_named_and_only_ended_where_that_is_allowed(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tools.place("systemctl", "printf 'ActiveState=inactive\\nMainPID=0\\n'")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = arguments(tmp_path, "chat")
        asked["plans"][0]["port"] = port = listening.getsockname()[1]
        seen = modules.run(info, capsys, asked)
        allowed = modules.run(info, capsys, {**asked, "adopt": [os.getpid()]})
    (refused,) = seen["refused"]
    assert refused.startswith(f"chat: port {port} on 127.0.0.1: is held by pid {os.getpid()} (")
    assert seen["adopted"] == {"units": [], "pids": []}
    assert allowed["refused"] == []
    assert allowed["adopted"] == {"units": [], "pids": [os.getpid()]}


def test_a_unit_is_taken_over_once(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The variable stays in the inventory, and the unit of that name is an instance's from then on."""
    tools.place("systemctl", "printf '%s\\n' ActiveState=active MainPID=0 UnitFileState=enabled")
    asked = {**arguments(tmp_path, "chat"), "adopt": ["sglang-chat"]}
    unit = tmp_path / "none"
    unit.write_text("[Service]\nExecStart=/usr/bin/mine\n", encoding="utf-8")
    foreign = modules.run(info, capsys, asked)
    unit.write_text("[Service]\nExecStart=launch none\n", encoding="utf-8")
    taken = modules.run(info, capsys, asked)
    assert foreign["adopted"]["units"] == ["sglang-chat.service"]
    assert taken["adopted"]["units"] == []


def test_nobody_is_looked_for_where_all_run_as_wanted(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tools.place("systemctl", "printf 'ActiveState=inactive\\nMainPID=0\\n'")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = arguments(tmp_path, "chat")
        asked["plans"][0].update(port=listening.getsockname()[1], state="stopped")
        assert modules.run(info, capsys, asked)["refused"] == []


def test_no_plans_are_no_question(
    info: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tools.place("systemctl", "exit 1")
    assert modules.run(info, capsys, arguments(tmp_path))["instances"] == {}
    assert tools.calls("systemctl") == []


def test_plans_are_required(info: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    result = modules.run(info, capsys, {})
    assert result["failed"] is True
    assert result["msg"] == "missing required arguments: plans"
