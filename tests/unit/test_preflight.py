"""What is in the way of a start is named, and a start that nothing is in the way of goes on."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from sglang_kit import platform_facts, preflight, processes, survey
from sglang_kit.journal import parse_text, read
from sglang_kit.platform_facts import Gpu, GpuProcess
from sglang_kit.processes import Listener, Process
from sglang_kit.quantity import from_mib

CLI = Path(__file__).resolve().parent.parent / "fixtures" / "cli"
H200 = "GPU-dc5e4593-5e61-e052-9f6d-0f0689604717"
GPU = Gpu(0, H200, "NVIDIA H200", "9.0", from_mib(143_771), from_mib(143_156))


def plan(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any key of a plan
    base = {"gpus": [], "shared": False, "host": "127.0.0.1", "port": 30000, "nccl_port": 20000}
    return {**base, **changes}


def held(memory_mib: int, **changes: Any) -> GpuProcess:  # noqa: ANN401 - any field
    known = {"gpu": 0, "pid": 77, "unit": "user-1000.slice", "command": "python3 train.py", **changes}
    return GpuProcess(memory_bytes=from_mib(memory_mib), **known)


def used(memory_mib: int) -> Gpu:
    return Gpu(0, H200, "", "9.0", from_mib(143_771), from_mib(143_156 - memory_mib))


# --- GPU memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [["0"], [H200], [H200[:12]]])
def test_a_stranger_on_the_gpu_is_named(gpus: list[str]) -> None:
    assert preflight.held_memory(plan(gpus=gpus), [used(4706)], [held(4706)]) == [
        "GPU 0: 4706 MiB are held by pid 77 (python3 train.py) of user-1000.slice"
    ]


@pytest.mark.parametrize("gpus", [["1"], ["GPU-ffff"], ["MIG-dc5e4593"], []])
def test_other_gpus_do_not_matter(gpus: list[str]) -> None:
    assert preflight.held_memory(plan(gpus=gpus), [used(4706)], [held(4706)]) == []


def test_a_small_context_is_in_nobodys_way() -> None:
    assert preflight.held_memory(plan(gpus=["0"]), [used(300)], [held(300)]) == []
    assert preflight.held_memory(plan(gpus=["0"]), [GPU], []) == []


@pytest.mark.parametrize(
    ("shared", "user", "allowed"),
    [
        (True, held(4706, unit="sglang-other.service"), True),
        (True, held(4706, unit="", command=""), True),
        (True, held(4706), False),
        (False, held(4706, unit="sglang-other.service"), False),
    ],
)
def test_instances_that_share_by_agreement_may_hold_memory(
    shared: bool, user: GpuProcess, allowed: bool
) -> None:
    found = preflight.held_memory(plan(gpus=["0"], shared=shared), [used(4706)], [user])
    assert (found == []) == allowed


def test_memory_without_a_process_is_said_to_be_so() -> None:
    assert preflight.held_memory(plan(gpus=["0"]), [used(40_000)], [held(10, pid=5)]) == [
        "GPU 0: 40605 MiB are held by no process that nvidia-smi names"
    ]
    assert preflight.held_memory(plan(gpus=["0"], shared=True), [used(40_000)], []) == []


def test_what_a_real_driver_printed() -> None:
    gpus, _ = platform_facts.gpus((CLI / "nvidia-smi-580.159.04-1-h200-gpus.csv").read_text())
    text = (CLI / "nvidia-smi-580.159.04-1-h200-processes.csv").read_text()
    seen = {415: ("0::/system.slice/train.service\n", "train", ())}
    users = platform_facts.gpu_processes(text, gpus, seen)
    assert preflight.held_memory(plan(gpus=["0"]), gpus, users) == [
        "GPU 0: 4706 MiB are held by pid 415 (train) of train.service"
    ]


# --- ports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listening", "wanted", "taken"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),  # noqa: S104 - compared, not bound
        ("::", "127.0.0.1", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("10.0.0.1", "0.0.0.0", True),  # noqa: S104 - likewise
        ("10.0.0.1", "", True),
        ("10.0.0.1", "some-name", True),
        ("::1", "127.0.0.1", False),
        ("::1", "::1", True),
    ],
)
def test_who_blocks_an_address(listening: str, wanted: str, taken: bool) -> None:
    assert preflight.blocks(Listener(ipaddress.ip_address(listening), 30000, 1), wanted) is taken


def test_ports_of_an_instance() -> None:
    assert preflight.ports(plan()) == {30000: "127.0.0.1", 20000: ""}
    assert preflight.ports(plan(nccl_port=None)) == {30000: "127.0.0.1"}


def test_holders_are_named_as_far_as_they_can_be_seen() -> None:
    one = Listener(ipaddress.ip_address("127.0.0.1"), 30000, 11)
    other = Listener(ipaddress.ip_address("::"), 20000, 12)
    nginx = Process(99, 0, ("nginx",), "nginx.service")
    assert preflight.held_ports([one, other], {11: nginx}) == [
        "port 30000 on 127.0.0.1 is held by pid 99 (nginx) of nginx.service",
        "port 20000 on :: is held by a process not visible here",
    ]


# --- the gate ------------------------------------------------------------------------------------


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(preflight, "time", clock)
    return clock


def gate(tmp_path: Path, content: dict[str, Any]) -> int:
    place = tmp_path / "chat.plan.json"
    place.write_text(json.dumps(content), encoding="utf-8")
    return preflight.main([str(place)])


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number


def test_a_free_port_lets_the_unit_start(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(tmp_path, plan(port=port, nccl_port=None)) == 0
    assert capsys.readouterr().out == ""


def test_a_held_port_refuses_in_a_line_that_the_diagnosis_reads(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert gate(tmp_path, plan(port=port, nccl_port=None)) == preflight.EXIT_REFUSED
    assert clock.now == 100.0 + preflight.WAIT_SECONDS
    (event,) = read([parse_text(1, capsys.readouterr().out.rstrip("\n"))])
    assert event.kind == "judged"
    assert (event.fields["cause"], event.fields["phase"]) == ("port-held", "gate")
    assert f"port {port} on 127.0.0.1 is held by pid {os.getpid()} (" in str(event.fields["sentence"])
    assert "end what is named" in str(event.fields["remedy"])


def test_what_ends_while_it_waits_is_in_nobodys_way(
    tmp_path: Path, clock: Clock, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([[held(4706)], [held(4706)], []])
    monkeypatch.setattr(survey, "gpus_in_use", lambda: ((GPU,), next(looks)))
    assert gate(tmp_path, plan(gpus=["0"], port=port, nccl_port=None)) == 0
    assert clock.now == 100.0 + 2 * preflight.POLL_SECONDS


@pytest.mark.usefixtures("clock")
def test_held_memory_refuses(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(survey, "gpus_in_use", lambda: ((used(4706),), [held(4706)]))
    assert gate(tmp_path, plan(gpus=["0"], port=port, nccl_port=None)) == preflight.EXIT_REFUSED
    assert capsys.readouterr().out.endswith("[cause: gpu-memory-held, phase: gate]\n")


def test_the_driver_is_not_asked_for_an_instance_without_gpus(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(survey, "gpus_in_use")
    monkeypatch.setattr(processes, "listeners", list)
    assert gate(tmp_path, plan(port=port)) == 0


@pytest.mark.parametrize("words", [[], ["a", "b"]])
def test_wrong_use_says_how(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage: preflight PLAN_FILE"):
        preflight.main(words)
