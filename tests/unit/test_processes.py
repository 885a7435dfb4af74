"""Who runs and who listens, read from a real /proc and from constructed ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sglang_kit import processes
from sglang_kit.processes import Listener, Process, describe, parse_listeners

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    HEAD + "   0: 0100007F:7530 00000000:0000 0A 0:0 0:0 0 1000 0 4711 1 0 100\n"
    "   1: 00000000:0016 00000000:0000 0A 0:0 0:0 0 0 0 4712 1 0 100\n"
    "   2: 0100007F:7530 0100007F:C350 01 0:0 0:0 0 1000 0 4713 1 0 20\n"
)
TCP6 = (
    HEAD + "   0: 00000000000000000000000001000000:0277 00000000000000000000000000000000:0000"
    " 0A 00000000:00000000 00:00000000 00000000     0        0 55 1 0 100\n"
    "   1: 0000000000000000FFFF00000100007F:7531 00000000000000000000000000000000:0000"
    " 0A 00000000:00000000 00:00000000 00000000     0        0 56 1 0 100\n"
)


def test_listening_sockets_are_read_and_no_others() -> None:
    listening = parse_listeners(TCP)
    assert [(str(one.address), one.port, one.inode) for one in listening] == [
        ("127.0.0.1", 30000, 4711),
        ("0.0.0.0", 22, 4712),  # noqa: S104 - read, not bound
    ]


def test_ipv6_and_what_it_maps() -> None:
    assert [(str(one.address), one.port) for one in parse_listeners(TCP6)] == [
        ("::1", 631),
        ("127.0.0.1", 30001),
    ]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_listener_of_this_process_is_found(family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        (found,) = [one for one in processes.listeners() if one.port == port]
        assert str(found.address) == address
        owner = processes.owners([found.inode])[found.inode]
    assert owner.pid == os.getpid()
    assert owner.uid == os.geteuid()
    assert owner.argv[0] == sys.orig_argv[0]


def test_nobody_owns_what_nobody_has_open() -> None:
    assert processes.owners([2**40]) == {}
    assert processes.owners([]) == {}


def test_a_process_with_its_whole_command_line() -> None:
    with subprocess.Popen(["cat", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"runs\n")  # right after its exec the kernel shows an empty command line
        assert process.stdout.readline() == b"runs\n"
        (found,) = [one for one in processes.running() if one.pid == process.pid]
        process.stdin.close()
    assert found.argv == ("cat", "-")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    return tmp_path


def place(proc: Path, pid: int, argv: bytes, cgroup: str = "0::/\n") -> Path:
    directory = proc / str(pid)
    (directory / "fd").mkdir(parents=True)
    (directory / "cmdline").write_bytes(argv)
    (directory / "cgroup").write_text(cgroup, encoding="utf-8")
    return directory


def test_units_and_titles_and_no_kernel_threads(proc: Path) -> None:
    place(proc, 7, b"sglang::scheduler_TP0\0\0\0\0", "0::/system.slice/sglang-chat.service\n")
    place(proc, 2, b"")
    (proc / "self").mkdir()
    assert processes.running() == [
        Process(7, os.geteuid(), ("sglang::scheduler_TP0",), "sglang-chat.service")
    ]


def test_processes_that_end_while_they_are_looked_at_are_left_out(proc: Path) -> None:
    (proc / "8").mkdir()
    gone = place(proc, 9, b"sleep\0")
    (gone / "fd" / "3").symlink_to("socket:[77]")
    (gone / "cgroup").unlink()
    assert processes.running() == []
    assert processes.owners([77]) == {}


def test_a_socket_belongs_to_the_first_process_that_has_it(proc: Path) -> None:
    for pid in (11, 12):
        directory = place(proc, pid, b"server\0")
        (directory / "fd" / "3").symlink_to("socket:[77]")
        (directory / "fd" / "4").symlink_to("/dev/null")
    assert processes.owners([77, 78]) == {77: Process(11, os.geteuid(), ("server",), "")}


def test_a_host_without_ipv6(proc: Path) -> None:
    (proc / "net").mkdir()
    (proc / "net" / "tcp").write_text(TCP, encoding="ascii")
    assert [one.port for one in processes.listeners()] == [30000, 22]
    assert isinstance(processes.listeners()[0], Listener)


@pytest.mark.parametrize(
    ("command", "unit", "text"),
    [
        ("", "", "pid 7"),
        ("nginx -g x", "nginx.service", "pid 7 (nginx -g x) of nginx.service"),
        ("python --api-key abc", "", "pid 7 (python --api-key ***)"),
        ("a\nb", "", "pid 7 (a b)"),
        ("x" * 500, "", f"pid 7 ({'x' * 160}...)"),
    ],
)
def test_a_process_for_people(command: str, unit: str, text: str) -> None:
    assert describe(7, command, unit) == text
    assert str(Process(7, 0, tuple(command.split("\n")), unit)) == text
