from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import adopt, processes, survey
from sglang_kit.adopt import Holder, end, holders, refused, units
from sglang_kit.platform_facts import Gpu, GpuProcess
from sglang_kit.processes import Process
from sglang_kit.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Tools

ENGINE = ("python3", "-m", "sglang.launch_server", "--port", "30001")


@pytest.fixture
def port() -> Iterator[int]:
    """Listen, as somebody else's engine would."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def plan(tmp_path: Path, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any entry
    return {
        "name": "chat",
        "unit": "sglang-chat.service",
        "unit_file": str(tmp_path / "sglang-chat.service"),
        "plan_file": "/etc/sglang/chat.plan.json",
        "host": "127.0.0.1",
        "port": 1,
        "nccl_port": None,
        "gpus": [],
        **changes,
    }


def test_nobody_is_in_the_way(tmp_path: Path) -> None:
    assert holders([], [plan(tmp_path)], set()) == []
    assert holders([], [], set()) == []


def test_who_listens_on_the_port(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Process(os.getpid(), 0, ENGINE, "mine.service")
    monkeypatch.setattr(processes, "running", lambda: [me])
    (found,) = holders([], [plan(tmp_path, port=port)], set())
    assert found == Holder("chat", f"port {port} on 127.0.0.1", me.pid, " ".join(ENGINE), "mine.service")
    assert holders([], [plan(tmp_path, port=port)], {"mine.service"}) == []


def test_who_listens_out_of_sight(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "owners", lambda _inodes: {})
    (found,) = holders([], [plan(tmp_path, port=port)], set())
    (problem,) = refused([found], [])
    assert problem.message == "is held by a process not visible here"
    assert problem.remedy == "give the instance another one"


@pytest.mark.parametrize("parent", ["engine", "shell"])
def test_a_worker_is_named_by_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    """Its own title says nothing, and ending it alone would not end the engine."""
    gpu = Gpu(1, "GPU-1", "card", "12.0", 96 * GIB, 80 * GIB)
    user = GpuProcess(1, os.getpid(), 16 * GIB, "session-3.scope", "sglang::scheduler")
    elsewhere, small, unseen = replace(user, gpu=2), replace(user, memory_bytes=1), replace(user, pid=1 << 30)
    argv = ENGINE if parent == "engine" else ("-bash",)
    known = [
        Process(os.getpid(), 0, ("sglang::scheduler",), "session-3.scope"),
        Process(os.getppid(), 0, argv, "session-3.scope"),
    ]
    monkeypatch.setattr(processes, "running", lambda: known)
    monkeypatch.setattr(survey, "gpus_in_use", lambda: ((gpu,), (user, small, elsewhere, unseen)))
    (found,) = holders([], [plan(tmp_path, gpus=["1"])], set())
    assert (found.what, found.pid) == (
        "GPU 1: 16384 MiB",
        os.getppid() if parent == "engine" else os.getpid(),
    )


def test_a_unit_of_somebody_else_that_has_the_name(tmp_path: Path) -> None:
    place = tmp_path / "sglang-chat.service"
    place.write_text("[Service]\nExecStart=python3 -m sglang.launch_server\n", encoding="utf-8")
    (found,) = holders([plan(tmp_path)], [], {"sglang-chat.service"})
    (problem,) = refused([found], [])
    assert str(problem) == (
        f"chat: unit file {place}: is no deploy's, but sglang-chat.service is wanted;"
        " end it, or let a deploy take it over: sglang_service_adopt: [sglang-chat.service]"
    )
    place.write_text("[Service]\nExecStart=launch /etc/sglang/chat.plan.json\n", encoding="utf-8")
    assert holders([plan(tmp_path)], [], {"sglang-chat.service"}) == []


OF_A_UNIT = Holder("chat", "port 30001 on 127.0.0.1", 612, " ".join(ENGINE), "mine.service")
BY_HAND = Holder("chat", "port 30001 on 127.0.0.1", 612, " ".join(ENGINE), "session-3.scope")


def test_the_way_to_take_it_over_is_told() -> None:
    """Not the unit of a login: stopping that one would end much more."""
    (of_a_unit,), (by_hand,) = refused([OF_A_UNIT], []), refused([BY_HAND], [])
    assert of_a_unit.message == (
        "is held by pid 612 (python3 -m sglang.launch_server --port 30001) of mine.service"
    )
    assert of_a_unit.remedy.endswith("sglang_service_adopt: [mine.service]")
    assert by_hand.remedy.endswith("sglang_service_adopt: [612]")


@pytest.mark.parametrize("adopted", [["mine.service"], ["mine"], ["612"]])
def test_what_is_given_to_us_is_not_refused(adopted: list[str]) -> None:
    assert refused([OF_A_UNIT], adopted) == []


def test_units_are_stopped_once(tools: Tools) -> None:
    tools.place(
        "systemctl",
        """printf '%s\\n' ActiveState=active UnitFileState=disabled '' \\
           ActiveState=inactive UnitFileState=enabled '' ActiveState=inactive UnitFileState=disabled""",
    )
    given = ["runs", "comes-back.service", "612", "sglang-chat", "gone"]
    assert units(given, {"sglang-chat.service"}) == ["runs.service", "comes-back.service"]
    assert units([], set()) == []


def test_processes_are_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "POLL_SECONDS", 0.01)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as willing,
        subprocess.Popen(
            [sys.executable, "-c", stubborn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other,
    ):
        signal.signal(signal.SIGCHLD, lambda *_: willing.poll())
        assert other.stdout is not None
        other.stdout.readline()
        assert end([willing.pid]) == []
        monkeypatch.setattr(adopt, "WAIT_SECONDS", 0.1)
        assert end([willing.pid, other.pid]) == [other.pid]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        other.kill()
