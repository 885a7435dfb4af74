"""What a host is to be: pure decisions, so that the same wish always gives the same host and boot."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.console import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sandbox.state import Host, State

LOOPBACK = "127.0.0.1"
FIRST_PORT = 2201
SSH_PORT = 22
NETWORKS = range(1, 255)
# A server's systemd may lock memory and filter devices and addresses with BPF; nspawn's default forbids it.
CAPABILITIES = "CAP_BPF,CAP_IPC_LOCK,CAP_PERFMON"
SYSTEM_CALLS = "@memlock bpf perf_event_open"


@dataclass(frozen=True)
class Wish:
    """What ``up`` was asked for; None leaves it to the sandbox."""

    suite: str | None = None
    ssh_port: int | None = None
    netns: bool = False


@dataclass(frozen=True)
class Place:
    """Where a host's sshd listens; ``network`` as in ``Host``."""

    address: str
    ssh_port: int
    network: int | None = None


def place(
    recorded: Sequence[Host], wish: Wish, *, networks: Collection[int], is_free: Callable[[int], bool]
) -> Place:
    """Choose where a new host listens.

    ``networks`` are in use on the machine; ``is_free`` tells whether nobody listens on a loopback port.
    """
    if wish.netns:
        network = next((number for number in NETWORKS if number not in networks), None)
        if network is None:
            raise SandboxError("no network 10.213.N.0/30 is free")
        return Place(f"10.213.{network}.2", wish.ssh_port or SSH_PORT, network)
    taken = {host.ssh_port: host.name for host in recorded if host.network is None}
    if wish.ssh_port is None:
        ports = range(FIRST_PORT, 1 << 16)
        return Place(LOOPBACK, next(port for port in ports if port not in taken and is_free(port)))
    if wish.ssh_port in taken:
        raise SandboxError(f"port {wish.ssh_port} belongs to host {taken[wish.ssh_port]}")
    if not is_free(wish.ssh_port):
        raise SandboxError(f"port {wish.ssh_port} is taken on this machine")
    return Place(LOOPBACK, wish.ssh_port)


def networks_in_use(recorded: Sequence[Host], addresses: str) -> set[int]:
    """Return every N of 10.213.N.0 that is recorded, or shown by ``ip -json address``."""
    shown = (entry["local"] for link in json.loads(addresses) for entry in link.get("addr_info", []))
    return {host.network for host in recorded if host.network is not None} | {
        int(address.split(".")[2]) for address in shown if address.startswith("10.213.")
    }


def contradictions(host: Host, wish: Wish) -> str:
    """Say where an existing host differs from what is asked for; empty where it does not."""
    asked = {"--suite": (wish.suite, host.suite), "--ssh-port": (wish.ssh_port, host.ssh_port)}
    found = [f"it has {option} {has}" for option, (wanted, has) in asked.items() if wanted not in (None, has)]
    if wish.netns and host.network is None:
        found.append("it shares the machine's network")
    return ", ".join(found)


def cable(state: State, network: int) -> str:
    """Return the name of the machine's end of a host's network cable (at most 15 characters)."""
    return f"sb{state.digest}-{network}"


def overlay_mount(image: str) -> list[str]:
    """Return the command that puts a host's changes over an image, run in the host's directory."""
    layers = f"lowerdir=../../images/{image},upperdir=upper,workdir=work"
    return ["mount", "-t", "overlay", "overlay", "-o", layers, "root"]


def boot_script(state: State, host: Host, *, machine_pid: int) -> str:
    """Return the shell script that boots a host, run in the host's directory inside its cell.

    ``machine_pid`` is a process in the machine's network namespace, where the other end of the cable of a
    host with a network of its own is made. The kernel removes both ends with the host's last process.
    """
    nspawn = [
        "systemd-nspawn",
        "--quiet",
        "--directory=root",
        "--boot",
        f"--machine={state.cell_name(host.name)}",
        "--register=no",
        "--keep-unit",
        "--link-journal=no",
        "--timezone=off",
        "--console=pipe",
        f"--capability={CAPABILITIES}",
        f"--system-call-filter={SYSTEM_CALLS}",
        f"--bind={state.store}:/srv/store",
        f"--bind-ro={state.models}:/srv/models",
    ]
    mount = [overlay_mount(host.image)] if host.overlay else []
    if host.network is None:
        return script([*mount, ["exec", *nspawn, "--resolv-conf=bind-host"]])
    end = cable(state, host.network)
    outside = ["nsenter", f"--net=/proc/{machine_pid}/ns/net", "ip"]
    inside = [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", "eth0", "type", "veth", "peer", "name", end, "netns", str(machine_pid)],
        ["ip", "address", "add", f"{host.address}/30", "dev", "eth0"],
        ["ip", "link", "set", "eth0", "up"],
        [*outside, "address", "add", f"10.213.{host.network}.1/30", "dev", end],
        [*outside, "link", "set", end, "up"],
        ["exec", *nspawn, "--resolv-conf=off", "--network-namespace-path=/proc/self/ns/net"],
    ]
    return script([*mount, ["exec", "unshare", "--net", "sh", "-euc", script(inside)]])


def script(commands: Sequence[Sequence[str]]) -> str:
    """Return the commands as a shell script, a line each."""
    return "\n".join(map(shlex.join, commands))
