"""Boots real hosts: about a minute, root, a Debian mirror. ``pytest tests/integration/test_sandbox.py``.

The tests tell one story in file order, in a sandbox of their own: an interrupted build, two hosts side by
side, a power cut, a network of its own, and an end after which nothing is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox import machine, plan
from sandbox.cell import NSPAWN_RUN, Cell
from sandbox.host import cell_of
from sandbox.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKOUT = Path(__file__).parents[2]


class Box:
    """A sandbox in a directory of its own, used through its command line."""

    def __init__(self, root: Path) -> None:
        self.state = State(root)
        self.environment = {**os.environ, "SANDBOX_DIR": str(root)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "sandbox", *words]
        return subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def fails(self, *words: str) -> str:
        """Run a command that must be refused and return its message."""
        process = self.start(*words)
        output, message = process.communicate()
        assert process.returncode == 1, (output, message)
        return message

    def __call__(self, *words: str) -> str:
        process = self.start(*words)
        output, message = process.communicate()
        sys.stderr.write(message)
        assert process.returncode == 0, (output, message)
        return output.strip()

    def cell(self, name: str) -> Cell:
        return cell_of(self.state, name)

    def cables(self) -> list[str]:
        return [name for _, name in socket.if_nameindex() if name.startswith(f"sb{self.state.digest}-")]

    def traces(self) -> list[str]:
        """Return everything on the machine that still speaks of this sandbox."""
        root = str(self.state.root)
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if root in line]
        processes = [
            path.read_bytes().replace(b"\0", b" ").decode()
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if path.exists() and root.encode() in path.read_bytes()
        ]
        cells = [cell.name for cell in Cell.all(self.state.prefix)]
        leftovers = [str(path) for path in NSPAWN_RUN.glob(f"*/{self.state.prefix}*")]
        directories = [root] if self.state.root.exists() else []
        return [*mounts, *processes, *cells, *self.cables(), *leftovers, *directories]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    machine.require()
    box = Box(tmp_path_factory.mktemp("sandbox") / "box")
    try:
        yield box
    finally:
        box("clean")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return str(port)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def test_an_interrupted_build_is_cleaned(box: Box) -> None:
    up = box.start("up", "first")
    build = Cell.named(f"{box.state.prefix}-image-bookworm")
    wait_until(lambda: len(build.pids()) > 1)
    up.send_signal(signal.SIGKILL)
    up.communicate()
    assert build.pids()
    assert list(box.state.images.glob(".*.partial"))
    box("clean")
    assert box.traces() == []


def test_a_host_boots_and_real_ssh_reaches_it(box: Box) -> None:
    box("up", "first", "--ssh-port", free_port())
    box("power-off", "first")
    started = time.monotonic()
    box("up", "first")
    sys.stderr.write(f"boot: {time.monotonic() - started:.1f} s\n")
    assert box("ssh", "first", "--", "systemctl is-system-running; hostname") == "running\nfirst"
    assert box("exec", "first", "--", "hostname") == "first"
    assert (
        box("ssh", "first", "--", "python3 -c 'import apt, sys; print(sys.version_info >= (3, 11))'")
        == "True"
    )


def test_a_second_host_runs_beside_it(box: Box) -> None:
    leader = box.cell("first").leader()
    box("up", "second", "--ssh-port", free_port())
    box("up", "first", "second")
    assert box.cell("first").leader() == leader
    names = [line.split()[:3] for line in box("list").splitlines()]
    assert names == [["first", "bookworm", "running"], ["second", "bookworm", "running"]]


def test_a_changed_host_key_is_noticed(box: Box) -> None:
    known = box.state.ssh / "known_hosts"
    text = known.read_text()
    known.write_text(text.replace("AAAA", "AAAB"))
    ssh = box.start("ssh", "first", "--", "true")
    assert ssh.communicate()[1]
    assert ssh.returncode == 255
    known.write_text(text)


def test_the_engine_of_two_hosts_is_one_file(box: Box) -> None:
    box("exec", "first", "--", "sh", "-c", "echo wheel > /srv/store/uv-cache/wheel")
    inodes = set()
    for name in ("first", "second"):
        box("ssh", name, "--", "ln /srv/store/uv-cache/wheel /opt/sglang/wheel")
        inodes.add(box("ssh", name, "--", "stat --format=%i /opt/sglang/wheel"))
    assert inodes == {str((box.state.store / "uv-cache/wheel").stat().st_ino)}


def test_models_are_read_only(box: Box) -> None:
    assert "model.safetensors" in box("ssh", "first", "--", "ls /srv/models/tiny-gpt2")
    assert box("ssh", "first", "--", "touch /srv/models/x 2>/dev/null || echo refused") == "refused"


def test_a_host_that_is_being_changed_is_left_alone(box: Box) -> None:
    with box.state.lock("host-first"):
        for verb in ("up", "down", "remove"):
            assert "is being changed by another command" in box.fails(verb, "first")
    with box.state.shared():
        assert "another command uses" in box.fails("clean")


def test_an_existing_host_is_not_made_over(box: Box) -> None:
    assert "remove it first" in box.fails("up", "first", "--suite", "trixie")


def test_a_port_that_is_taken_is_told_before_anything_boots(box: Box) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        assert f"port {port} is taken" in box.fails("up", "third", "--ssh-port", port)
    assert box.state.find("third") is None


def test_the_journal_and_the_disk_survive_a_power_cut(box: Box) -> None:
    box("ssh", "second", "--", "echo kept > /root/note; sync; logger before the cut; journalctl --sync")
    box("power-off", "second")
    assert box.cell("second").pids() == []
    box("up", "second")
    assert box("ssh", "second", "--", "cat /root/note") == "kept"
    assert "before the cut" in box("ssh", "second", "--", "journalctl --boot=-1 --output=cat")


def test_down_stops_units_in_order(box: Box) -> None:
    unit = "systemd-run --unit=last --property=ExecStop='/bin/touch /root/stopped' sleep infinity"
    box("ssh", "second", "--", unit)
    box("down", "second")
    assert box.cell("second").pids() == []
    box("up", "second")
    assert box("ssh", "second", "--", "ls /root/stopped") == "/root/stopped"


def test_an_engine_that_starts_at_boot_is_not_waited_for(box: Box) -> None:
    unit = "[Service]\\nType=notify\\nExecStart=sleep infinity\\n[Install]\\nWantedBy=multi-user.target"
    path = "/etc/systemd/system/slow.service"
    box("ssh", "second", "--", f"printf '{unit}' > {path}; systemctl enable --quiet slow")
    box("power-off", "second")
    up = box.start("up", "second")
    _, message = up.communicate()
    assert up.returncode == 0
    assert "second: still starting: slow.service" in message


def test_a_network_of_its_own(box: Box) -> None:
    box("up", "apart", "--netns")
    network = box.state.get("apart").network
    assert network is not None
    assert box.cables() == [plan.cable(box.state, network)]
    assert box("ssh", "apart", "--", "ip route show default; ls /sys/class/net").split() == ["eth0", "lo"]
    box("remove", "apart")
    wait_until(lambda: not box.cables())


def test_clean_ends_what_lost_its_parent(box: Box) -> None:
    box("up", "orphan", "--netns")
    cell = box.cell("orphan")
    (supervisor,) = (cell.cgroup / "supervisor/cgroup.procs").read_text().split()
    os.kill(int(supervisor), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{supervisor}").exists())
    assert cell.leader() is not None
    box("clean")
    wait_until(lambda: box.traces() == [])
