"""What is this machine? Readers of what its tools print, and the record that they fill.

Every reader takes text as a command or a file gave it and knows nothing of how it was got.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .quantity import from_mib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Version = tuple[int, int]
"""Major and minor number."""

GPU_QUERY = "index,uuid,name,compute_cap,memory.total,memory.free,driver_version"
PROCESS_QUERY = "gpu_uuid,pid,used_memory,process_name"
CSV = "--format=csv,noheader,nounits"
"""What ``nvidia-smi`` is asked for, in the order in which the readers below expect it."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; ``compute_capability`` as in ``"9.0"``, memory 0 where the driver does not tell."""

    index: int
    uuid: str
    name: str
    compute_capability: str
    memory_total_bytes: int
    memory_free_bytes: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds GPU memory.

    ``unit``, ``command`` and ``ancestors`` (pids, its parent first) are empty where the process cannot be
    seen, as in a container: ``nvidia-smi`` names the pids of the machine.
    """

    gpu: int
    pid: int
    memory_bytes: int
    unit: str
    command: str
    ancestors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mount:
    """The mount that holds a path.

    Hard links do not cross ``identifier``, even on one ``device`` (``major:minor``), which has the space.
    """

    identifier: int
    device: str
    point: str
    noexec: bool


@dataclass(frozen=True)
class Directory:
    """A directory, or where it would be made: ``exists`` is false, the rest tells of its parent's mount."""

    path: str
    exists: bool
    owner: str
    group: str
    mode: str
    free_bytes: int
    mount: Mount


@dataclass(frozen=True)
class Facts:
    """One look at a host. Empty texts, None and empty tuples stand for what is not there.

    ``systemd`` is the version of the running manager; ``cuda`` the newest CUDA that the driver
    serves; ``driver_loadable`` whether libcuda.so.1 loads as a unit would load it, ``driver_directory``
    a directory outside the loader's path that has it; ``toolkits`` maps each CUDA home to its nvcc.
    """

    machine: str
    kernel: str
    container: str
    systemd: int | None
    glibc: Version | None
    pythons: Mapping[str, Version]
    directories: tuple[Directory, ...]
    users: tuple[str, ...]
    groups: tuple[str, ...]
    packages: Mapping[str, bool] | None
    driver: str
    cuda: Version | None
    driver_loadable: bool
    driver_directory: str
    nvidia_smi: str
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]
    toolkits: Mapping[str, Version]
    memory_total_bytes: int = 0
    """Main memory; 0 where it is not known."""


def systemd_version(text: str) -> int | None:
    """Read ``systemctl --version``; None where that is no systemd."""
    match = re.match(r"systemd (\d+)", text)
    return int(match[1]) if match else None


def glibc_version(text: str) -> Version | None:
    """Read ``confstr(CS_GNU_LIBC_VERSION)``, as in ``glibc 2.36``; None on another C library."""
    match = re.match(r"glibc (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def cuda_version(number: int) -> Version:
    """Read the number of ``cuDriverGetVersion``: 13010 is 13.1."""
    return number // 1000, number % 1000 // 10


def nvcc_version(text: str) -> Version | None:
    """Read ``nvcc --version``; None where it did not run."""
    match = re.search(r"release (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def python_version(path: str) -> Version | None:
    """Version by the name of an interpreter, as in ``/usr/bin/python3.11``; None for other names."""
    match = re.fullmatch(r"python(\d+)\.(\d+)", os.path.basename(path))  # noqa: PTH119 - a pure text
    return (int(match[1]), int(match[2])) if match else None


def _rows(text: str, columns: int) -> Iterable[list[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", columns - 1)]
        if len(cells) == columns:
            yield cells


def _memory(cell: str) -> int:
    return from_mib(int(cell)) if cell.isdigit() else 0


def gpus(text: str) -> tuple[tuple[Gpu, ...], str]:
    """Read ``nvidia-smi --query-gpu=GPU_QUERY``: the GPUs, and the driver's version ("" without one)."""
    rows = [row for row in _rows(text, len(GPU_QUERY.split(","))) if row[0].isdigit()]
    found = tuple(
        Gpu(int(index), uuid, name, capability, _memory(total), _memory(free))
        for index, uuid, name, capability, total, free, _ in rows
    )
    return found, rows[0][-1] if rows else ""


def gpu_processes(
    text: str, gpus: Sequence[Gpu], seen: Mapping[int, tuple[str, str, tuple[int, ...]]]
) -> tuple[GpuProcess, ...]:
    """Read ``nvidia-smi --query-compute-apps=PROCESS_QUERY``.

    ``seen`` maps a pid to its cgroup text, its command line and its ancestors, for those that this host
    shows.
    """
    unseen: tuple[str, str, tuple[int, ...]] = ("", "", ())
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    rows = _rows(text, len(PROCESS_QUERY.split(",")))
    return tuple(
        GpuProcess(
            gpu=index_of[uuid],
            pid=int(pid),
            memory_bytes=_memory(memory),
            unit=unit_of(seen.get(int(pid), unseen)[0]),
            command=seen.get(int(pid), unseen)[1],
            ancestors=seen.get(int(pid), unseen)[2],
        )
        for uuid, pid, memory, _ in rows
        if uuid in index_of and pid.isdigit()
    )


def process_ids(text: str) -> tuple[int, ...]:
    """Pids in the answer to ``PROCESS_QUERY``."""
    return tuple(int(row[1]) for row in _rows(text, len(PROCESS_QUERY.split(","))) if row[1].isdigit())


def unit_of(cgroup: str) -> str:
    """Name the systemd unit of a process from ``/proc/PID/cgroup``; "" where it has none."""
    for line in cgroup.splitlines():
        parts = re.findall(r"[^/]+\.(?:service|scope)(?=/|$)", line.rpartition(":")[2])
        if parts:
            return str(parts[-1])
    return ""


def mount_of(mountinfo: str, path: str) -> Mount:
    """Find the mount of a resolved, absolute path in ``/proc/self/mountinfo`` (proc(5)).

    The last of several mounts on one point is the one that is seen.
    """
    best = Mount(identifier=0, device="", point="", noexec=False)
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            best = Mount(int(fields[0]), fields[2], point, "noexec" in fields[5].split(","))
    return best


def packages(text: str, wanted: Iterable[str]) -> dict[str, bool]:
    """Say of each wanted package whether it is installed.

    ``text`` has the package and its ``db:Status-Status`` on each line, as ``dpkg-query --show`` prints
    them; packages that it does not know are missing from it.
    """
    installed = {line.split(" ")[0] for line in text.splitlines() if line.endswith(" installed")}
    return {name: name in installed for name in wanted}


def missing_libraries(ldd: str) -> tuple[str, ...]:
    """Shared libraries that ``ldd`` could not find."""
    return tuple(re.findall(r"^\s*(\S+) => not found", ldd, re.MULTILINE))
