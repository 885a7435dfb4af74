"""Which process is this, from which does it descend, and since when does it run? ``/proc/PID/stat``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Stat(NamedTuple):
    """What proc(5) tells of a process; it was ``started`` in clock ticks since boot, as text."""

    name: str
    parent: int
    started: str


NOBODY = Stat("", 0, "")
"""A process that does not run."""


def ancestors(pid: int) -> tuple[int, ...]:
    """List who a process descends from, its parent first; nobody where it does not run."""
    found = []
    while parent := stat(pid).parent:
        found.append(parent)
        pid = parent
    return tuple(found)


def stat(pid: int) -> Stat:
    """Look at a process; its name may hold blanks and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return NOBODY
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(head.partition("(")[2], int(fields[1]), fields[19])
