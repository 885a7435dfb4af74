"""Which processes run on this host, whose are they, and who holds a port? A door to /proc."""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from .journal import redact
from .platform_facts import unit_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

PROC = Path("/proc")
LONGEST_COMMAND = 160
"""Characters of a command line that people are shown."""
_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class Process:
    """A process; ``unit`` is empty where systemd did not start it."""

    pid: int
    uid: int
    argv: tuple[str, ...]
    unit: str

    def __str__(self) -> str:
        """Render for people: pid, command and unit; secrets are masked."""
        return describe(self.pid, " ".join(self.argv), self.unit)


def describe(pid: int, command: str, unit: str) -> str:
    """Say who a process is; one that this host does not show has neither command nor unit."""
    shown = redact(" ".join(command.split()))
    if len(shown) > LONGEST_COMMAND:
        shown = f"{shown[:LONGEST_COMMAND]}..."
    return f"pid {pid}{f' ({shown})' if shown else ''}{f' of {unit}' if unit else ''}"


@dataclass(frozen=True)
class Listener:
    """A TCP socket that takes connections; ``inode`` names it in ``/proc/PID/fd``."""

    address: Address
    port: int
    inode: int


def running() -> list[Process]:
    """List the processes that this host shows, without the kernel's threads and those that have ended."""
    return [process for place in _places() if (process := _read(place)) and process.argv]


def _places() -> Iterator[Path]:
    return (place for place in sorted(PROC.iterdir()) if place.name.isdigit())


def _read(place: Path) -> Process | None:
    try:
        words = (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        cgroup = (place / "cgroup").read_text(encoding="utf-8", errors="replace")
        uid = place.stat().st_uid
    except OSError:  # it has just ended
        return None
    argv = tuple(word.decode(errors="replace") for word in words if word)
    return Process(int(place.name), uid, argv, unit_of(cgroup))


def listeners() -> list[Listener]:
    """List the listening TCP sockets of this network, also of processes that are not shown here."""
    texts = [
        place.read_text(encoding="ascii")
        for name in ("tcp", "tcp6")
        if (place := PROC / "net" / name).exists()
    ]
    return [listener for text in texts for listener in parse_listeners(text)]


def parse_listeners(text: str) -> list[Listener]:
    """Read ``/proc/net/tcp`` or ``/proc/net/tcp6`` (proc(5)): addresses are words in host order."""
    rows = (line.split() for line in text.splitlines()[1:])
    return [_listener(row[1], row[9]) for row in rows if row[3] == _LISTEN]


def _listener(local: str, inode: str) -> Listener:
    digits, _, port = local.partition(":")
    raw = bytes.fromhex(digits)
    words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return Listener(mapped or address, int(port, 16), int(inode))


def owners(inodes: Collection[int]) -> dict[int, Process]:
    """Find who holds sockets: inode -> the first process that has it open."""
    found: dict[int, Process] = {}
    for place in _places() if inodes else ():
        for inode in set(inodes) & _sockets(place) - set(found):
            process = _read(place)
            if process:
                found[inode] = process
    return found


def _sockets(place: Path) -> set[int]:
    """Sockets that a process has open; none where it has ended."""
    links = []
    with suppress(OSError):
        for descriptor in os.listdir(place / "fd"):  # noqa: PTH208 - read whole before any is followed
            with suppress(OSError):  # it has just been closed
                links.append(os.readlink(place / "fd" / descriptor))  # noqa: PTH115 - a text, not a path
    return {int(match[1]) for link in links if (match := _SOCKET.fullmatch(link))}
