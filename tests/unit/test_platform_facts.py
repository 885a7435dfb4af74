"""Readers of what tools print. Outputs are recorded unless a name says "constructed"."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_kit import platform_facts as read
from sglang_kit.quantity import MIB

CLI = Path(__file__).resolve().parent.parent / "fixtures" / "cli"
H200 = (CLI / "nvidia-smi-580.159.04-1-h200-gpus.csv").read_text(encoding="utf-8")
H200_PROCESSES = (CLI / "nvidia-smi-580.159.04-1-h200-processes.csv").read_text(encoding="utf-8")
RTX = (CLI / "nvidia-smi-constructed-8-rtx-pro-6000-gpus.csv").read_text(encoding="utf-8")

MOUNTS = """\
1188 1168 0:127 / / rw,relatime shared:343 - overlay overlay rw,lowerdir=a,upperdir=b,workdir=c
1189 1188 0:129 / /data rw,nosuid,nodev,noexec shared:363 - tmpfs tmpfs rw,size=2468412k
1201 1188 254:0 /disks/one /srv/store rw,relatime shared:372 - ext4 /dev/vda rw,discard
1202 1188 254:0 /disks/two /srv/two\\040words rw,relatime - ext4 /dev/vda rw,discard
1203 1188 254:0 /disks/new /srv/store rw,relatime - ext4 /dev/vda rw,discard
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("systemd 252 (252.39-1~deb12u2)\n+PAM +AUDIT +SELINUX default-hierarchy=unified\n", 252),
        ("systemd 257 (257.9-1~deb13u1)\n+PAM +AUDIT\n", 257),
        ("", None),
        ("System has not been booted with systemd as init system (PID 1).\n", None),
    ],
)
def test_systemd_version(text: str, version: int | None) -> None:
    assert read.systemd_version(text) == version


@pytest.mark.parametrize(("text", "version"), [("glibc 2.36", (2, 36)), ("", None), ("musl 1.2", None)])
def test_glibc_version(text: str, version: tuple[int, int] | None) -> None:
    assert read.glibc_version(text) == version


@pytest.mark.parametrize(("number", "version"), [(13000, (13, 0)), (12080, (12, 8)), (13010, (13, 1))])
def test_cuda_version(number: int, version: tuple[int, int]) -> None:
    assert read.cuda_version(number) == version


def test_nvcc_version() -> None:
    assert read.nvcc_version((CLI / "nvcc-13.0.txt").read_text(encoding="utf-8")) == (13, 0)
    assert read.nvcc_version("") is None


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/bin/python3.11", (3, 11)),
        ("/usr/bin/python3", None),
        ("/usr/bin/python3.11-config", None),
        ("/usr/bin/python3.14t", None),
    ],
)
def test_python_version(path: str, version: tuple[int, int] | None) -> None:
    assert read.python_version(path) == version


def test_a_gpu() -> None:
    assert read.gpus(H200) == (
        (
            read.Gpu(
                index=0,
                uuid="GPU-dc5e4593-5e61-e052-9f6d-0f0689604717",
                name="NVIDIA H200",
                compute_capability="9.0",
                memory_total_bytes=143771 * MIB,
                memory_free_bytes=138442 * MIB,
            ),
        ),
        "580.159.04",
    )


def test_gpus_of_a_full_host() -> None:
    gpus, driver = read.gpus(RTX)
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert {gpu.compute_capability for gpu in gpus} == {"12.0"}
    assert {gpu.memory_total_bytes for gpu in gpus} == {97887 * MIB}
    assert driver == "580.95.05"


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", 'Field "nope" is not a valid field to query.\n\n']
)
def test_no_gpus(text: str) -> None:
    assert read.gpus(text) == ((), "")


def test_memory_that_the_driver_does_not_tell() -> None:
    gpus, _ = read.gpus("0, GPU-1, NVIDIA GB10, 12.1, [N/A], [N/A], 580.95.05\n")
    assert (gpus[0].memory_total_bytes, gpus[0].memory_free_bytes) == (0, 0)


def test_processes_with_their_units() -> None:
    gpus, _ = read.gpus(H200)
    assert read.process_ids(H200_PROCESSES) == (415,)
    seen = {415: ("0::/system.slice/other.service\n", "python3 serve.py", (410, 1))}
    assert read.gpu_processes(H200_PROCESSES, gpus, seen) == (
        read.GpuProcess(
            gpu=0,
            pid=415,
            memory_bytes=4706 * MIB,
            unit="other.service",
            command="python3 serve.py",
            ancestors=(410, 1),
        ),
    )


def test_processes_of_another_pid_namespace_have_no_name() -> None:
    gpus, _ = read.gpus(H200)
    (process,) = read.gpu_processes(H200_PROCESSES, gpus, {})
    assert (process.unit, process.command) == ("", "")


def test_processes_on_a_gpu_that_is_not_listed_are_left_out() -> None:
    assert read.gpu_processes("GPU-0, 1, 10, a\nGPU-0, [N/A], 10, b\n", (), {}) == ()


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/sglang-chat.service\n", "sglang-chat.service"),
        ("0::/init.scope\n", "init.scope"),
        ("9:name=systemd:/system.slice/docker.service\n0::/\n", "docker.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/process_api/413a19aaa08cebcb5607be9700e44de9\n", ""),
        ("", ""),
    ],
)
def test_unit_of_a_process(cgroup: str, unit: str) -> None:
    assert read.unit_of(cgroup) == unit


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/opt/sglang", read.Mount(1188, "0:127", "/", noexec=False)),
        ("/data/x", read.Mount(1189, "0:129", "/data", noexec=True)),
        ("/database", read.Mount(1188, "0:127", "/", noexec=False)),
        ("/srv/two words/a", read.Mount(1202, "254:0", "/srv/two words", noexec=False)),
        ("/srv/store", read.Mount(1203, "254:0", "/srv/store", noexec=False)),
    ],
)
def test_mount_of_a_path(path: str, mount: read.Mount) -> None:
    assert read.mount_of(MOUNTS, path) == mount


def test_packages() -> None:
    text = "adduser installed\ngcc config-files\nlibnuma1 installed\nlibnuma1-dbg not-installed\n"
    assert read.packages(text, ["libnuma1", "gcc", "ninja-build"]) == {
        "libnuma1": True,
        "gcc": False,
        "ninja-build": False,
    }


def test_missing_libraries() -> None:
    text = (
        "\tlinux-vdso.so.1 (0x00007f6ea6793000)\n"
        "\tlibcuda.so.1 => not found\n"
        "\tlibnuma.so.1 => not found\n"
        "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f6ea5604000)\n"
    )
    assert read.missing_libraries(text) == ("libcuda.so.1", "libnuma.so.1")
