"""May a deploy begin on this host, and what will its units need to know of it?

Judged from one look at the host, all faults at once, before anything is changed.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .problem import Collector, Problem
from .quantity import GIB, human

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .platform_facts import Facts, Version

SYSTEMD = 247
"""``LoadCredential=`` hands secrets to the units; the ``:`` before their command needs 244."""
GLIBC: Version = (2, 34)
"""The wheels are built for manylinux_2_34 since 0.5.11."""
CUDA: Version = (13, 0)
"""The torch of every supported version is built for CUDA 13.0 (``nvidia-cuda-runtime`` in the locks)."""
MACHINE = "x86_64"
"""The locks are for this architecture."""
RELEASE_BYTES = 12 * GIB
"""A release takes 9.5 (0.5.23) to 11 GiB (0.5.15.post1)."""
KERNEL_CACHE_BYTES = GIB
"""Compiled kernels of a model."""

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Needs:
    """What the deploy wants of the host.

    ``gpu_instances`` are the names of the instances that ask for GPUs, ``gpu_count`` how many the
    inventory declares (None: undeclared); ``python`` and ``cuda_home`` are the user's own choices
    or empty. ``releases``, ``uv_cache`` and ``kernel_cache`` are the paths of directories in the facts, as
    are those of ``brought``: bytes that are copied to the host or unpacked there to build a release.
    """

    accelerator: str = "auto"
    gpu_instances: tuple[str, ...] = ()
    gpu_count: int | None = None
    engine_version: str = ""
    python_first: Version = (3, 10)
    python_last: Version = (3, 12)
    python: str = ""
    cuda_home: str = ""
    require_nvcc: bool = True
    manage_packages: bool = True
    release_installed: bool = False
    releases: str = ""
    uv_cache: str = ""
    kernel_cache: str = ""
    brought: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Paths:
    """Where a unit finds its programs and libraries; empty texts stand for "none".

    ``library_path`` holds the driver's directory, and that only where the loader does not know it:
    ``LD_LIBRARY_PATH`` goes before the run paths of the wheels, and a toolkit's libraries there would
    take the place of the ones that torch brings.
    """

    cuda_home: str
    path: str
    library_path: str


def accelerator(facts: Facts, wanted: str) -> str:
    """``nvidia`` or ``none``; ``auto`` follows what the driver shows."""
    if wanted != "auto":
        return wanted
    return "nvidia" if facts.gpus else "none"


def choose_python(facts: Facts, needs: Needs) -> str:
    """Path of the interpreter of new releases: the user's, or the newest that serves; "" for none."""
    if needs.python:
        return needs.python
    serving = {
        version: path
        for path, version in sorted(facts.pythons.items(), reverse=True)
        if needs.python_first <= version <= needs.python_last
    }
    return serving[max(serving)] if serving else ""


def choose_cuda_home(facts: Facts, needs: Needs) -> str:
    """Directory of the CUDA toolkit: the user's, or the first that fits torch's CUDA; "" for none.

    Facts list the candidates by preference.
    """
    if needs.cuda_home:
        return needs.cuda_home
    return next((home for home, nvcc in facts.toolkits.items() if nvcc[0] == CUDA[0]), "")


def unit_paths(facts: Facts, needs: Needs) -> Paths:
    """Compute what the units of this host get as CUDA_HOME, PATH and LD_LIBRARY_PATH.

    The caller puts a release's own ``bin`` in front. SGLang runs ``nvidia-smi`` to size its defaults
    (``sglang/srt/utils/common.py`` get_nvgpu_memory_capacity), and the kernels' build runs ``nvcc``.
    """
    if accelerator(facts, needs.accelerator) == "none":
        return Paths("", ":".join(_SYSTEM_PATH), "")
    home = choose_cuda_home(facts, needs)
    tools = [f"{home}/bin"] if home else []
    driver = posixpath.dirname(facts.nvidia_smi)
    if driver and driver not in _SYSTEM_PATH:
        tools.append(driver)
    library_path = "" if facts.driver_loadable else facts.driver_directory
    return Paths(home, ":".join([*tools, *_SYSTEM_PATH]), library_path)


def gates(facts: Facts, needs: Needs) -> list[Problem]:
    """Every reason why a deploy must not begin."""
    found = Collector()
    _check_system(facts, found)
    _check_python(facts, needs, found)
    _check_packages(facts, needs, found)
    _check_directories(facts, needs, found)
    if accelerator(facts, needs.accelerator) == "nvidia" or (
        needs.accelerator == "auto" and needs.gpu_instances
    ):
        _check_driver(facts, needs, found)
        _check_toolkit(facts, needs, found)
    return found.problems


def warnings(facts: Facts, needs: Needs) -> list[str]:
    """Say what is worth knowing and stops nothing."""
    if not needs.release_installed and not _links(facts, needs):
        text = (
            f"{needs.uv_cache} and {needs.releases} are not on one mount: packages are copied instead of"
            f" linked, and every release takes its {human(RELEASE_BYTES)} again"
        )
        return [text]
    return []


def missing(
    facts: Facts, directories: Iterable[Mapping[str, str]], *, user: str, group: str
) -> dict[str, Any]:
    """List what a deploy has to make or set right before the engine can be installed.

    ``directories`` are wanted as ``path``, ``owner``, ``group`` and octal ``mode``.
    """
    have = {d.path: (d.exists, d.owner, d.group, d.mode) for d in facts.directories}
    return {
        "packages": [name for name, installed in (facts.packages or {}).items() if not installed],
        "user": user not in facts.users,
        "group": group not in facts.groups,
        "directories": [
            dict(want)
            for want in directories
            if have[want["path"]] != (True, want["owner"], want["group"], want["mode"])
        ],
    }


def _check_system(facts: Facts, found: Collector) -> None:
    if facts.machine != MACHINE:
        found.add("host", "machine", f"is {facts.machine}, and the releases are for {MACHINE}")
    if facts.systemd is None:
        found.add("host", "systemd", "does not run here", "boot the host, or the container, with systemd")
    elif facts.systemd < SYSTEMD:
        found.add(
            "host",
            "systemd",
            f"is {facts.systemd}, and the units need {SYSTEMD} (LoadCredential=)",
            "Debian 12, Debian 13 and Ubuntu 24.04 have it",
        )
    if facts.glibc is None or facts.glibc < GLIBC:
        have = f"is {_dotted(facts.glibc)}" if facts.glibc else "is not the C library of this host"
        found.add(
            "host",
            "glibc",
            f"{have}, and the engine's wheels need {_dotted(GLIBC)}",
            "Debian 12, Debian 13 and Ubuntu 24.04 have it",
        )


def _check_python(facts: Facts, needs: Needs, found: Collector) -> None:
    if needs.release_installed:
        return
    engine = f"SGLang {needs.engine_version}".rstrip()
    wanted = f"{_dotted(needs.python_first)} to {_dotted(needs.python_last)}"
    if needs.python:
        version = facts.pythons.get(needs.python)
        if version is None:
            found.add("host", "sglang_engine_python", f"{needs.python} is not a Python interpreter")
        elif not needs.python_first <= version <= needs.python_last:
            found.add(
                "host",
                "sglang_engine_python",
                f"{needs.python} is {_dotted(version)}, and {engine} needs {wanted}",
            )
    elif not choose_python(facts, needs):
        have = ", ".join(sorted(map(_dotted, set(facts.pythons.values())))) or "none"
        found.add(
            "host",
            "python",
            f"{engine} needs Python {wanted} (other versions lack a wheel of one of its dependencies),"
            f" and this host has {have}",
            "install one beside it and name it in sglang_engine_python,"
            " or use Debian 12 (3.11) or Ubuntu 24.04 (3.12)",
        )


def _check_packages(facts: Facts, needs: Needs, found: Collector) -> None:
    if facts.packages is None:
        if needs.manage_packages:
            found.add(
                "host",
                "sglang_host_manage_packages",
                "is on, and this host has no dpkg",
                "install the counterparts of sglang_host_packages yourself and set it to false",
            )
        return
    missing = [name for name, installed in facts.packages.items() if not installed]
    if missing and not needs.manage_packages:
        found.add(
            "host",
            "sglang_host_packages",
            f"not installed, and sglang_host_manage_packages is off: {', '.join(missing)}",
            f"apt-get install {' '.join(missing)}",
        )


def _check_directories(facts: Facts, needs: Needs, found: Collector) -> None:
    by_path = {directory.path: directory for directory in facts.directories}
    for path in (needs.releases, needs.kernel_cache):
        if by_path[path].mount.noexec:
            found.add(
                "host",
                path,
                f"lies on {by_path[path].mount.point}, mounted noexec: nothing in it can be run or loaded",
                "mount it without noexec",
            )
    room = {needs.kernel_cache: KERNEL_CACHE_BYTES}
    if not needs.release_installed:
        room[needs.releases] = RELEASE_BYTES
        if not _links(facts, needs):
            room[needs.uv_cache] = RELEASE_BYTES
        for path, size in needs.brought.items():
            room[path] = room.get(path, 0) + size
    for device in sorted({by_path[path].mount.device for path in room}):
        wanted = {path: size for path, size in room.items() if by_path[path].mount.device == device}
        where = by_path[next(iter(wanted))]
        if where.free_bytes < sum(wanted.values()):
            purposes = ", ".join(f"{human(size)} in {path}" for path, size in wanted.items())
            found.add(
                "host",
                "disk",
                f"{human(where.free_bytes)} are free on {where.mount.point}, and the deploy needs"
                f" {human(sum(wanted.values()))}: {purposes}",
            )


def _links(facts: Facts, needs: Needs) -> bool:
    mounts = {d.path: d.mount.identifier for d in facts.directories}
    return mounts[needs.releases] == mounts[needs.uv_cache]


def _check_driver(facts: Facts, needs: Needs, found: Collector) -> None:
    verb = "asks" if len(needs.gpu_instances) == 1 else "ask"
    users = f" ({', '.join(needs.gpu_instances)} {verb} for GPUs)" if needs.gpu_instances else ""
    if not facts.gpus:
        found.add(
            "host",
            "driver",
            f"shows no NVIDIA GPU{users}",
            "install the NVIDIA driver, R580 or newer, or set `gpus: []` to serve on the CPU",
        )
        return
    if needs.gpu_count is not None and needs.gpu_count != len(facts.gpus):
        found.add(
            "host",
            "sglang_host_gpus",
            f"declares {needs.gpu_count}, and driver {facts.driver} shows {len(facts.gpus)}",
            "a GPU that fell off the bus shows in the kernel's log as Xid 79",
        )
    if not facts.driver_loadable and not facts.driver_directory:
        found.add(
            "host",
            "libcuda.so.1",
            "cannot be loaded, though nvidia-smi works",
            "put the directory that has it into /etc/ld.so.conf.d and run ldconfig",
        )
    elif facts.cuda is None or facts.cuda < CUDA:
        have = f"CUDA {_dotted(facts.cuda)}" if facts.cuda else "an unknown version of CUDA"
        found.add(
            "host",
            "driver",
            f"{facts.driver} serves {have}, and SGLang's torch is built for CUDA {_dotted(CUDA)}",
            "R580 is the first that serves it",
        )


def _check_toolkit(facts: Facts, needs: Needs, found: Collector) -> None:
    own = needs.cuda_home
    if own and not re.fullmatch(r"/[^\s:]*", own):
        found.add(
            "host",
            "sglang_host_cuda_home",
            f"{own!r} is not one absolute path",
            "give the directory that holds bin/nvcc, as in /usr/local/cuda-13.0",
        )
        return
    if not needs.require_nvcc:
        return
    if own and own not in facts.toolkits:
        found.add("host", "sglang_host_cuda_home", f"{own} has no bin/nvcc", _others(facts))
    elif not choose_cuda_home(facts, needs):
        found.add(
            "host",
            "sglang_host_cuda_home",
            f"no CUDA {CUDA[0]} toolkit found, and kernels compiled at the first start need its nvcc",
            f"install cuda-toolkit-{CUDA[0]}-{CUDA[1]}, or give its directory; " + _others(facts),
        )


def _others(facts: Facts) -> str:
    found = [f"{home} ({_dotted(nvcc)})" for home, nvcc in facts.toolkits.items()]
    return f"found: {', '.join(found)}" if found else "no nvcc found"


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
