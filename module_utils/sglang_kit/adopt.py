"""Who holds what an instance needs and is none of ours, and may it be taken over?

Somebody may run SGLang on this host already, by hand or by a unit of their own. Such a process is named,
never ended silently: only what the user lists in ``sglang_service_adopt`` is stopped, a unit for good, and a
process by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import preflight, processes, status, survey, systemd
from .ancestry import stat
from .problem import Problem
from .quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from .processes import Process

WAIT_SECONDS = 180.0
"""Longest drain of an engine that is taken over."""
POLL_SECONDS = 0.2
_NOT_ITS_OWN = ("ssh", "user@", "session-", "cron", "docker", "containerd", "init.scope")
"""Beginnings of units that hold processes of others, too: whoever was started there is named by its pid."""


@dataclass(frozen=True)
class Holder:
    """A process that has what an instance needs; pid 0 where it is not visible here, or where a file does."""

    instance: str
    what: str
    pid: int
    command: str
    unit: str

    @property
    def told(self) -> str:
        """Say who it is."""
        if self.pid:
            return f"is held by {processes.describe(self.pid, self.command, self.unit)}"
        return (
            f"is no deploy's, but {self.unit} is wanted"
            if self.unit
            else "is held by a process not visible here"
        )

    @property
    def remedy(self) -> str:
        """Say how to name it in ``sglang_service_adopt``, where it can be stopped from here."""
        own = self.unit and not self.unit.startswith(_NOT_ITS_OWN)
        handle = self.unit if own else self.pid
        if not handle:
            return "give the instance another one"
        return f"end it, or let a deploy take it over: sglang_service_adopt: [{handle}]"


def holders(
    plans: Sequence[Mapping[str, Any]], starting: Sequence[Mapping[str, Any]], ours: Collection[str]
) -> list[Holder]:
    """Find who has the unit name of a plan, or a port or GPU of one that starts, and is none of us.

    ``ours`` are our units, of instances that leave, too.
    """
    found = [*_on_names(plans)]
    if starting:
        known = {process.pid: process for process in processes.running()}
        others = (*_on_ports(starting, known), *_on_gpus(starting, known))
        found += [one for one in others if one.unit not in ours]
    return found


def _on_ports(plans: Sequence[Mapping[str, Any]], known: Mapping[int, Process]) -> Iterator[Holder]:
    taken = [
        (plan["name"], listener)
        for listener in processes.listeners()
        for plan in plans
        for port, address in preflight.ports(plan).items()
        if port == listener.port and preflight.blocks(listener, address)
    ]
    owners = processes.owners([listener.inode for _, listener in taken])
    for name, listener in taken:
        owner = owners.get(listener.inode)
        what = f"port {listener.port} on {listener.address}"
        yield _holder(name, what, known, owner.pid if owner else 0)


def _on_gpus(plans: Sequence[Mapping[str, Any]], known: Mapping[int, Process]) -> Iterator[Holder]:
    gpus, users = survey.gpus_in_use() if any(plan["gpus"] for plan in plans) else ((), ())
    for plan in plans:
        wanted = [gpu.index for gpu in gpus if preflight.names_gpu(plan["gpus"], gpu)]
        for user in users:
            # In a container the driver's pids tell of nobody; the unit's own gate judges by amounts.
            if user.pid in known and user.gpu in wanted and user.memory_bytes >= preflight.HELD_MIB * MIB:
                what = f"GPU {user.gpu}: {user.memory_bytes // MIB} MiB"
                yield _holder(plan["name"], what, known, user.pid)


def _on_names(plans: Sequence[Mapping[str, Any]]) -> Iterator[Holder]:
    """Find units that have the name of one of ours, and that we did not write."""
    for plan in plans:
        place = Path(plan["unit_file"])
        if place.exists() and plan["plan_file"] not in place.read_text(encoding="utf-8", errors="replace"):
            yield Holder(plan["name"], f"unit file {place}", 0, "", plan["unit"])


def _holder(instance: str, what: str, known: Mapping[int, Process], pid: int) -> Holder:
    """Name the engine's main process in place of its workers."""
    process = known.get(pid)
    if process is None:
        return Holder(instance, what, 0, "", "")
    while status.is_engine(process):
        parent = known.get(stat(process.pid).parent)
        if parent is None or not status.is_engine(parent):
            break
        process = parent
    return Holder(instance, what, process.pid, " ".join(process.argv), process.unit)


def refused(found: Iterable[Holder], adopted: Collection[str]) -> list[Problem]:
    """Say who is in the way and was not given to us."""
    given = {*adopted, *(f"{one}.service" for one in adopted)}
    return [
        Problem(one.instance, one.what, one.told, one.remedy)
        for one in found
        if not given & {one.unit, str(one.pid)}
    ]


def units(adopted: Iterable[str], ours: Collection[str]) -> list[str]:
    """Name the units that were given to us and still run or come up at boot; ``ours`` are no more others'."""
    given = [one if "." in one else f"{one}.service" for one in adopted if not one.isdigit()]
    named = [one for one in given if one not in ours]
    states = systemd.show(named, ("ActiveState", "UnitFileState"))
    return [
        unit
        for unit in named
        if states[unit]["ActiveState"] in ("active", "activating", "reloading")
        or states[unit]["UnitFileState"].startswith("enabled")
    ]


def end(pids: Iterable[int]) -> list[int]:
    """Ask processes to end and wait for it; return those that did not."""
    left = [pid for pid in pids if _signal(pid, signal.SIGTERM)]
    deadline = time.monotonic() + WAIT_SECONDS
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        left = [pid for pid in left if _signal(pid, 0)]
    return left


def _signal(pid: int, number: int) -> bool:
    """Send a signal; False where the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
