"""What do the tools of this host say? The kit's only door to the driver, the package database and /proc."""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import platform_facts as read
from .ancestry import ancestors
from .platform_facts import CSV, GPU_QUERY, PROCESS_QUERY, Directory, Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .platform_facts import GpuProcess, Version

DRIVER_DIRECTORIES = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu/nvidia/current")
"""Where containers and some packages put libcuda.so.1 without telling the loader."""
TOOLKITS = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/usr")
"""CUDA homes by preference."""
INTERPRETERS = ("/usr/bin/python3.*", "/usr/local/bin/python3.*")
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"


def survey(
    *,
    user: str,
    group: str,
    packages: Iterable[str],
    directories: Iterable[str],
    python: str = "",
    cuda_home: str = "",
) -> Facts:
    """Look at everything once.

    ``python`` and ``cuda_home`` are looked at besides those in the usual places, where given.
    """
    nvidia_smi, gpus, driver = _gpus()
    library, cuda = _driver(("libcuda.so.1", *(f"{path}/libcuda.so.1" for path in DRIVER_DIRECTORIES)))
    return Facts(
        machine=platform.machine(),
        kernel=platform.release(),
        container=_output("systemd-detect-virt", "--container").strip() or "none",
        systemd=read.systemd_version(_output("systemctl", "--version")) if _booted() else None,
        glibc=read.glibc_version(os.confstr("CS_GNU_LIBC_VERSION") or ""),
        pythons=_pythons(python),
        directories=tuple(_directories(directories)),
        users=_known(pwd.getpwnam, user),
        groups=_known(grp.getgrnam, group),
        packages=_packages(tuple(packages)),
        driver=driver,
        cuda=cuda,
        driver_loadable=library == "libcuda.so.1",
        driver_directory=library.rpartition("/")[0],
        nvidia_smi=nvidia_smi,
        gpus=gpus,
        processes=_processes(nvidia_smi, gpus) if gpus else (),
        toolkits=_toolkits(cuda_home),
        memory_total_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def gpus_in_use() -> tuple[tuple[read.Gpu, ...], tuple[GpuProcess, ...]]:
    """Look at the GPUs and at who holds their memory; both are empty without a driver."""
    nvidia_smi, gpus, _ = _gpus()
    return gpus, _processes(nvidia_smi, gpus) if gpus else ()


def marks() -> dict[str, Any]:
    """Name what lies below every instance of the host: the driver, the kernel and the cards."""
    _, gpus, driver = _gpus()
    return {
        "driver": driver,
        "kernel": platform.release(),
        "gpus": [f"{gpu.index}: {gpu.name}" for gpu in gpus],
    }


def _gpus() -> tuple[str, tuple[read.Gpu, ...], str]:
    """Return where nvidia-smi lies, the GPUs that it shows, and the driver's version; empty without one."""
    nvidia_smi = shutil.which("nvidia-smi", path=PROGRAMS) or ""
    return (nvidia_smi, *read.gpus(_output(nvidia_smi, f"--query-gpu={GPU_QUERY}", CSV)))


def _booted() -> bool:
    """sd_booted(3)."""
    return Path("/run/systemd/system").is_dir()


def _output(program: str, *arguments: str) -> str:
    """Return what a program prints; "" where it is missing or fails."""
    path = shutil.which(program, path=PROGRAMS) if program else None
    if path is None:
        return ""
    outcome = subprocess.run(
        [path, *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        env={"PATH": PROGRAMS, "LC_ALL": "C"},
    )
    return outcome.stdout if outcome.returncode == 0 else ""


def _driver(libraries: Sequence[str]) -> tuple[str, Version | None]:
    """Load libcuda as a unit would: the first of these names that loads, and the CUDA that it serves."""
    for library in libraries:
        try:
            driver = ctypes.CDLL(library)
        except OSError:
            continue
        number = ctypes.c_int()
        status = driver.cuDriverGetVersion(ctypes.byref(number))
        return library, read.cuda_version(number.value) if status == 0 else None
    return "", None


def _processes(nvidia_smi: str, gpus: Sequence[read.Gpu]) -> tuple[GpuProcess, ...]:
    text = _output(nvidia_smi, f"--query-compute-apps={PROCESS_QUERY}", CSV)
    seen = {
        pid: (_text(f"/proc/{pid}/cgroup"), _command(pid), ancestors(pid)) for pid in read.process_ids(text)
    }
    return read.gpu_processes(text, gpus, seen)


def _command(pid: int) -> str:
    return _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def _text(path: str) -> str:
    """Read a small file; "" where it is gone, as with a process that has just ended."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _pythons(own: str) -> dict[str, Version]:
    known = {path: version for path in _places(INTERPRETERS) if (version := read.python_version(path))}
    if own and own not in known:
        answer = _output(own, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])")
        version = read.python_version(answer.strip())
        if version:
            known[own] = version
    return known


def _packages(wanted: Sequence[str]) -> dict[str, bool] | None:
    if shutil.which("dpkg-query", path=PROGRAMS) is None:
        return None
    listing = _output("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n")
    return read.packages(listing, wanted)


def _directories(paths: Iterable[str]) -> Iterable[Directory]:
    mounts = _text("/proc/self/mountinfo")
    for path in paths:
        place = next(place for place in (Path(path), *Path(path).parents) if place.exists())
        status = place.stat()
        space = os.statvfs(place)
        yield Directory(
            path=path,
            exists=place == Path(path) and place.is_dir(),
            owner=_name(pwd.getpwuid, status.st_uid),
            group=_name(grp.getgrgid, status.st_gid),
            mode=f"{stat.S_IMODE(status.st_mode):04o}",
            free_bytes=space.f_bavail * space.f_frsize,
            mount=read.mount_of(mounts, os.path.realpath(place)),
        )


def _known(lookup: Callable[[str], object], name: str) -> tuple[str, ...]:
    """Look for a user or group; those of a directory service are found, and often not listed."""
    try:
        lookup(name)
    except KeyError:
        return ()
    return (name,)


def _name(lookup: Callable[[int], Sequence[Any]], number: int) -> str:
    """Name of a user or group; its number where it has none."""
    try:
        return str(lookup(number)[0])
    except KeyError:
        return str(number)


def _toolkits(own: str) -> dict[str, Version]:
    homes = [*_places(TOOLKITS), *([own] if own.startswith("/") else [])]
    found = {home: read.nvcc_version(_output(f"{home}/bin/nvcc", "--version")) for home in homes}
    return {home: nvcc for home, nvcc in found.items() if nvcc}


def _places(patterns: Iterable[str]) -> list[str]:
    """Paths that match, pattern by pattern, higher versions first."""
    return [
        str(path)
        for pattern in patterns
        for path in sorted(Path("/").glob(pattern.lstrip("/")), key=_natural, reverse=True)
    ]


def _natural(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]
