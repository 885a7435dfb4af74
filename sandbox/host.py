"""The life of a host: made from an image, booted in a cell, stopped, removed."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox import image, machine, plan, ssh, tiny_model
from sandbox.cell import Cell, run
from sandbox.console import SandboxError, say
from sandbox.state import Host, State, remove_tree

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

BOOT_SECONDS = 60
SETTLE_SECONDS = 10
STOP_SECONDS = 90
POWER_OFF = signal.SIGRTMIN + 4  # systemd(1): starts poweroff.target
CONSOLE = "console.log"
BOOTED = ("running", "degraded")
# cgroup v2 inside, also on a machine that mounts v1 beside it; the lock is ours (``State.lock``).
NSPAWN_ENVIRONMENT = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_LOCK": "0"}
EXEC_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


def cell_of(state: State, name: str) -> Cell:
    """Return the cell that a host runs in."""
    return Cell.named(state.cell_name(name))


def up(state: State, name: str, wish: plan.Wish) -> None:
    """Make a host unless it exists, boot it unless it runs; return when ssh answers."""
    state.directory(name)
    with state.lock(f"host-{name}"):
        host = state.find(name) or create(state, name, wish)
        if differing := plan.contradictions(host, wish):
            raise SandboxError(f"{name} exists, but {differing}; remove it first")
        tiny_model.write(state.models / "tiny-gpt2")
        (state.store / "uv-cache").mkdir(exist_ok=True)
        (state.store / "hosts" / name).mkdir(parents=True, exist_ok=True)
        cell = cell_of(state, name)
        started = time.monotonic()
        running = cell.leader() is not None
        if running:
            wait_booted(state, host, cell)
        else:
            boot(state, host, cell)
        verb = "is up" if running else f"booted in {time.monotonic() - started:.1f} s"
        say(f"{name}: {verb}, root@{host.address}:{host.ssh_port} ({host.suite})")


def create(state: State, name: str, wish: plan.Wish) -> Host:
    """Make a host's directory in one step, from an image that is built on first use."""
    image_name = image.ensure(state, wish.suite or image.SUITES[0])
    with state.lock("places", wait=True):
        recorded = state.recorded()
        networks = plan.networks_in_use(recorded, run(["ip", "-json", "address"]).stdout)
        place = plan.place(recorded, wish, networks=networks, is_free=port_is_free)
        partial = state.hosts / f".{name}.partial"
        remove_tree(partial)
        for part in ("upper", "work", "root"):
            (partial / part).mkdir(parents=True)
        overlay = overlay_works(partial, image_name)
        if not overlay:
            run(["cp", "--archive", "--reflink=auto", f"{state.images / image_name}/.", partial / "root"])
        tree = partial / ("upper" if overlay else "root")
        write_files(tree, state, image_name, name, place)
        host = Host(
            name=name,
            image=image_name,
            overlay=overlay,
            address=place.address,
            ssh_port=place.ssh_port,
            host_key=ssh.generate_key(tree / ssh.HOST_KEY, name),
            network=place.network,
        )
        state.record(host, partial)
        partial.rename(state.directory(name))
    ssh.refresh(state)
    return host


def overlay_works(directory: Path, image_name: str) -> bool:
    """Tell whether this file system can hold an overlay's changes; an overlay itself cannot."""
    mount = f"cd {shlex.quote(str(directory))} && {shlex.join(plan.overlay_mount(image_name))}"
    return (
        run(["unshare", "--mount", "--propagation=private", "sh", "-c", mount], check=False).returncode == 0
    )


def write_files(tree: Path, state: State, image_name: str, name: str, place: plan.Place) -> None:
    """Write what is a host's own, and what it inherits from the machine."""
    template = state.images / image_name
    inherited = machine.machine_configuration(
        own_certificates=any((template / image.OWN_CERTIFICATES).iterdir())
    )
    own = {
        "etc/hostname": f"{name}\n",
        "etc/hosts": f"{inherited.get('etc/hosts', '')}127.0.1.1 {name}\n",
        "etc/machine-id": f"{uuid.uuid4().hex}\n",
        "etc/ssh/sshd_config.d/sandbox.conf": ssh.server_configuration(place.address, place.ssh_port),
        "root/.ssh/authorized_keys": ssh.client_key(state),
    }
    for path, text in {**inherited, **own}.items():
        for parent in reversed(Path(path).parents):
            if not (tree / parent).exists():
                (tree / parent).mkdir()
                with suppress(FileNotFoundError):  # a directory that the image does not have
                    (tree / parent).chmod((template / parent).stat().st_mode)
        (tree / path).write_text(text)
    # A link, because uv's hard links do not cross from one mount to another: see State.store.
    (tree / "opt").mkdir(exist_ok=True)
    (tree / "opt/sglang").symlink_to(f"/srv/store/hosts/{name}")


def boot(state: State, host: Host, cell: Cell) -> None:
    """Start systemd in a fresh cell and wait for it; whatever goes wrong, nothing half alive stays."""
    if host.network is None and not port_is_free(host.ssh_port):
        raise SandboxError(f"{host.name}: port {host.ssh_port} is taken on this machine")
    script = plan.boot_script(state, host, machine_pid=os.getpid())
    directory = state.directory(host.name)
    try:
        process = cell.start(
            script, directory=directory, log=directory / CONSOLE, environment=NSPAWN_ENVIRONMENT
        )
        wait_booted(state, host, cell, process)
    except BaseException:
        cell.kill()
        raise


def wait_booted(state: State, host: Host, cell: Cell, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until sshd greets and systemd has nothing left to start.

    An engine that starts at boot takes minutes; it is named and not waited for, as is a unit that failed.
    """
    started = time.monotonic()
    while True:
        system = in_host(cell, ["systemctl", "is-system-running"])
        seconds = time.monotonic() - started
        settled = system in BOOTED or (system == "starting" and seconds > SETTLE_SECONDS)
        if settled and ssh_answers(host):
            break
        if (process and process.poll() is not None) or seconds > BOOT_SECONDS:
            console = image.tail(state.directory(host.name) / CONSOLE)
            raise SandboxError(f"{host.name} did not boot ({system or 'no systemd'}):\n{console}")
        time.sleep(0.05)
    for what, units in (("still starting", "--state=activating"), ("failed", "--state=failed")):
        if lines := in_host(cell, ["systemctl", "list-units", "--plain", "--no-legend", units]):
            say(f"{host.name}: {what}: {' '.join(line.split()[0] for line in lines.splitlines())}")


def port_is_free(port: int) -> bool:
    """Tell whether nobody listens on a loopback port of the machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as sshd does
        try:
            probe.bind((plan.LOOPBACK, port))
        except OSError:
            return False
    return True


def ssh_answers(host: Host) -> bool:
    """Tell whether sshd greets; greeting it back keeps its log free of errors."""
    try:
        with socket.create_connection((host.address, host.ssh_port), timeout=1) as connection:
            greeting = connection.recv(256)
            connection.sendall(b"SSH-2.0-sandbox\r\n")
    except OSError:
        return False
    return greeting.startswith(b"SSH-")


def enter(cell: Cell, argv: Sequence[str]) -> list[str]:
    """Return the command that runs ``argv`` in the host without ssh; the host must run."""
    leader = cell.leader()
    if leader is None:
        raise SandboxError(f"{cell.name} is not running")
    environment = [f"{name}={value}" for name, value in EXEC_ENVIRONMENT.items()]
    environment.append(f"TERM={os.environ.get('TERM', 'dumb')}")
    return ["nsenter", f"--target={leader}", "--all", "--", "env", "-i", *environment, *argv]


def in_host(cell: Cell, argv: Sequence[str]) -> str:
    """Return what a command prints in the host, empty where it does not run."""
    if cell.leader() is None:
        return ""
    return run(enter(cell, argv), check=False).stdout.strip()


def down(state: State, name: str) -> None:
    """Stop a host as ``systemctl poweroff`` does; what does not stop in time is killed."""
    with state.lock(f"host-{name}"):
        state.get(name)
        cell = cell_of(state, name)
        leader = cell.leader()
        started = time.monotonic()
        if leader is not None:
            os.kill(leader, POWER_OFF)
            if not cell.wait_empty(STOP_SECONDS):
                say(f"{name}: did not stop in {STOP_SECONDS} s, killing it")
        cell.kill()
        say(
            f"{name}: stopped in {time.monotonic() - started:.1f} s" if leader else f"{name}: was not running"
        )


def power_off(state: State, name: str) -> None:
    """End every process of a host at once, as a power cut does; its disk stays as it was."""
    with state.lock(f"host-{name}"):
        state.get(name)
        cell_of(state, name).kill()
        say(f"{name}: powered off")


def remove(state: State, name: str) -> None:
    """End a host and delete its disk and its ``/opt/sglang``; no host of that name is fine."""
    directory = state.directory(name)
    with state.lock(f"host-{name}"):
        cell_of(state, name).kill()
        remove_tree(directory)
        remove_tree(state.hosts / f".{name}.partial")
        remove_tree(state.store / "hosts" / name)
    ssh.refresh(state)
    say(f"{name}: removed")


def describe(state: State) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each host: name, suite, what systemd says, where ssh is, and the network."""
    rows = []
    for host in state.recorded():
        cell = cell_of(state, host.name)
        system = in_host(cell, ["systemctl", "is-system-running"]) or ("hung" if cell.pids() else "stopped")
        network = "shared" if host.network is None else f"own, cable {plan.cable(state, host.network)}"
        rows.append((host.name, host.suite, system, f"{host.address}:{host.ssh_port}", network))
    return rows


def clean(state: State) -> None:
    """End and delete everything that this directory's sandbox ever made, and nothing else."""
    with state.exclusive():
        for cell in Cell.all(state.prefix):
            cell.kill()
            say(f"{cell.name}: ended")
        if state.exists():
            state.delete()
            say(f"{state.root}: removed")
