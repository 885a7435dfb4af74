"""A cell holds one booted host or one image build, and can always be removed without a trace.

All processes of a cell are in one cgroup, and all its mounts in a mount namespace of its own that no file
pins. So one write to ``cgroup.kill`` ends everything, orphans included, and the kernel drops the mounts,
the network namespace and its cable with the last process. There are no pid files to go stale.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.console import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NSPAWN_RUN = Path("/run/systemd/nspawn")
KILL_SECONDS = 10


def run(argv: Sequence[str | Path], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its output; a failure is a ``SandboxError`` with what it printed."""
    result = subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and result.returncode:
        raise SandboxError(
            f"{argv[0]} failed ({result.returncode}): {(result.stderr or result.stdout).strip()}"
        )
    return result


def cgroup_mount(mounts: str) -> Path:
    """Return where cgroup v2 is mounted, given ``/proc/self/mounts``."""
    for line in mounts.splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    raise SandboxError("cgroup v2 is not mounted on this machine")


def last_pid(status: str) -> int:
    """Return a process's pid in its innermost pid namespace, given ``/proc/PID/status``."""
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])


@dataclass(frozen=True)
class Cell:
    """The processes and mounts of one host or build, by the name of their cgroup."""

    name: str
    cgroup: Path
    systemd: bool
    """The machine's own PID 1 is systemd, which then hands out the cgroup as a delegated scope."""

    @classmethod
    def named(cls, name: str) -> Cell:
        """Return the cell of this name, whether or not anything runs in it."""
        mount = cgroup_mount(Path("/proc/self/mounts").read_text())
        systemd = Path("/run/systemd/system").is_dir()
        return cls(name, mount / "system.slice" / f"{name}.scope" if systemd else mount / name, systemd)

    @classmethod
    def all(cls, prefix: str) -> list[Cell]:
        """Return the cells that exist now and whose names begin with ``prefix``."""
        parent = cls.named(prefix).cgroup.parent
        return [cls.named(path.name.removesuffix(".scope")) for path in sorted(parent.glob(f"{prefix}-*"))]

    def command(self, script: str) -> list[str]:
        """Return the argv that runs a shell script as the first process of the cell."""
        if self.systemd:
            enter = ["systemd-run", "--scope", "--quiet", "--collect", "--slice=system.slice"]
            enter += [f"--unit={self.name}", "--property=Delegate=yes", "--"]
        else:
            join = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
            enter = ["sh", "-euc", join, "sh", str(self.cgroup)]
        return [*enter, "unshare", "--mount", "--propagation=private", "sh", "-euc", script]

    def start(
        self, script: str, *, directory: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the script in a new session, its output in ``log``; it outlives this process."""
        self.kill()
        if not self.systemd:
            self.cgroup.mkdir()
        with log.open("wb") as output:
            return subprocess.Popen(
                self.command(script),
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Return every process of the cell, as the machine numbers them."""
        found: list[int] = []
        for directory, _, _ in os.walk(self.cgroup):
            with suppress(OSError):  # the cgroup went away while we looked
                found += [int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()]
        return found

    def leader(self) -> int | None:
        """Return the pid of the host's PID 1, None where no host runs.

        systemd-nspawn puts the host below ``payload/``, where systemd moves itself to ``init.scope``.
        """
        with suppress(OSError):  # no such cgroup, or no such process any more
            for pid in (self.cgroup / "payload/init.scope/cgroup.procs").read_text().split():
                if last_pid(Path(f"/proc/{pid}/status").read_text()) == 1:
                    return int(pid)
        return None

    def wait_empty(self, seconds: float) -> bool:
        """Wait until no process is left; False after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.pids():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """End every process at once, as a power cut would, and remove the cgroup."""
        with suppress(OSError):  # no such cgroup (any more)
            (self.cgroup / "cgroup.kill").write_text("1")
        if not self.wait_empty(KILL_SECONDS):
            raise SandboxError(f"{self.name}: processes {self.pids()} do not die")
        self.forget()

    def forget(self) -> None:
        """Remove the empty cgroup and what systemd-nspawn leaves in ``/run``."""
        deadline = time.monotonic() + KILL_SECONDS
        for directory, _, _ in os.walk(self.cgroup, topdown=False):
            while not _removed(Path(directory)):
                if time.monotonic() > deadline:
                    raise SandboxError(f"{self.name}: its cgroup {directory} stays busy")
                time.sleep(0.05)
        for leftover in NSPAWN_RUN.glob(f"*/{self.name}"):
            leftover.rmdir()


def _removed(cgroup: Path) -> bool:
    """Remove an empty cgroup; False while processes that have just died keep it busy."""
    try:
        cgroup.rmdir()
    except FileNotFoundError:  # the machine's systemd removes its scopes itself
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True
