"""Who changes this host now? One deploy at a time, and one that is dead does not count.

The lock is a file below ``/run``, so a reboot frees it. It tells who holds it, and names an anchor: the
process of sshd on this host that serves the holder's connection, by pid and start time. Without that process
the holder cannot be at work here. It renews the lock at every step, so that a new connection becomes the
anchor. A controller can also say of its own processes that one is dead, since the connection of a killed one
lasts a while (``ControlPersist``).
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .ancestry import stat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

PATH = "/run/sglang-deploy.lock"
_SERVERS = ("sshd", "sshd-session")
"""Names of the process that serves one connection, up to OpenSSH 9.7 and after."""


def take(path: str, holder: Mapping[str, Any], *, dead: str = "") -> dict[str, Any] | None:
    """Take or renew the lock; return who holds it where it is somebody else.

    ``holder`` has a ``token`` of its own, and what people are told of it; ``since`` stays what it was when
    it took the lock. ``dead`` is the token of a holder that its controller knows to be dead.
    """
    with _opened(path) as stream:
        other = _read(stream)
        taken = other and other["token"] not in (holder["token"], dead) and _alive(other["anchor"])
        if taken:
            return other
        renewed = other and other["token"] == holder["token"] and other["since"]
        _write(stream, {**holder, "since": renewed or holder["since"], "anchor": anchor()})
    return None


def release(path: str, token: str) -> bool:
    """Free the lock where it is this holder's."""
    with _opened(path) as stream:
        other = _read(stream)
        mine = other is not None and other["token"] == token
        if mine:
            _write(stream, None)
    return mine


def anchor(pid: int | None = None) -> dict[str, Any] | None:
    """Find the process of sshd that this one (``pid``) descends from; None where there is none."""
    here = os.getpid() if pid is None else pid
    while here > 1:
        process = stat(here)
        if process.name in _SERVERS:
            return {"pid": here, "started": process.started}
        here = process.parent
    return None


def _alive(known: Mapping[str, Any] | None) -> bool:
    """Whether a holder may be at work; one that no sshd serves is known to its controller alone."""
    return known is None or stat(known["pid"]).started == known["started"]


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    """Open the file for one look or change at a time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream


def _read(stream: IO[str]) -> dict[str, Any] | None:
    text = stream.read()
    try:
        holder: dict[str, Any] = json.loads(text)
    except ValueError:  # free, or cut off while it was written
        return None
    return holder


def _write(stream: IO[str], holder: Mapping[str, Any] | None) -> None:
    stream.seek(0)
    stream.truncate()
    stream.write("" if holder is None else json.dumps(dict(holder)))
