"""Keys and client settings, so that real ssh reaches every host with its host key checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.cell import run
from sandbox.plan import SSH_PORT
from sandbox.state import Host, State, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

KEY = "id_ed25519"
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"


def generate_key(path: Path, comment: str) -> str:
    """Make a key pair and return the public half without its comment."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def client_key(state: State) -> str:
    """Return the public key that opens every host, made on first use."""
    with state.lock("ssh", wait=True):
        public = state.ssh / f"{KEY}.pub"
        if not public.exists():
            partial = state.ssh / f".{KEY}"
            partial.unlink(missing_ok=True)
            generate_key(partial, "sandbox")
            partial.rename(state.ssh / KEY)
            partial.with_suffix(".pub").rename(public)
        return public.read_text()


def server_configuration(address: str, port: int) -> str:
    """Return the drop-in of a host's sshd."""
    return (
        f"Port {port}\n"
        f"ListenAddress {address}\n"
        f"HostKey /{HOST_KEY}\n"
        "PermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\n"
        "UseDNS no\n"
    )


def known_hosts(hosts: Iterable[Host]) -> str:
    """Return the host keys as ssh looks them up: a port that is not 22 is part of the name."""

    def name(host: Host) -> str:
        return host.address if host.ssh_port == SSH_PORT else f"[{host.address}]:{host.ssh_port}"

    return "".join(f"{name(host)} {host.host_key}\n" for host in hosts)


def client_configuration(hosts: Iterable[Host], directory: Path) -> str:
    """Return an ssh configuration that knows every host by its name."""
    blocks = [f"Host {host.name}\n  HostName {host.address}\n  Port {host.ssh_port}\n" for host in hosts]
    common = (
        "Host *\n"
        "  User root\n"
        f'  IdentityFile "{directory / KEY}"\n'
        "  IdentitiesOnly yes\n"
        f'  UserKnownHostsFile "{directory / "known_hosts"}"\n'
        "  StrictHostKeyChecking yes\n"
        "  ConnectTimeout 10\n"
    )
    return "".join([*blocks, common])


def refresh(state: State) -> None:
    """Write ``known_hosts`` and ``config`` for the hosts that are recorded now."""
    with state.lock("ssh", wait=True):
        hosts = state.recorded()
        write_atomically(state.ssh / "known_hosts", known_hosts(hosts))
        write_atomically(state.ssh / "config", client_configuration(hosts, state.ssh))


def client_command(state: State, host: Host, command: Sequence[str]) -> list[str]:
    """Return the ssh command for a host; like ssh's own, words after it go to the host's shell."""
    return ["ssh", "-F", str(state.ssh / "config"), host.name, *command]
