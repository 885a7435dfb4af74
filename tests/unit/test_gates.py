from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sglang_kit import gates
from sglang_kit.platform_facts import Directory, Facts, Gpu, Mount
from sglang_kit.quantity import GIB

RELEASES, UV_CACHE, KERNELS = "/opt/sglang/releases", "/opt/sglang/uv-cache", "/var/cache/sglang"
ROOT = Mount(1, "254:0", "/", noexec=False)
H200 = Gpu(0, "GPU-0", "NVIDIA H200", "9.0", 140 * GIB, 139 * GIB)


def directory(path: str, *, free: int = 100 * GIB, mount: Mount = ROOT) -> Directory:
    return Directory(
        path=path, exists=True, owner="root", group="root", mode="0755", free_bytes=free, mount=mount
    )


CPU_HOST = Facts(
    machine="x86_64",
    kernel="6.1.0",
    container="none",
    systemd=252,
    glibc=(2, 36),
    pythons={"/usr/bin/python3.11": (3, 11)},
    directories=(directory(RELEASES), directory(UV_CACHE), directory(KERNELS)),
    users=("sglang",),
    groups=("sglang",),
    packages={"libnuma1": True, "gcc": True},
    driver="",
    cuda=None,
    driver_loadable=False,
    driver_directory="",
    nvidia_smi="",
    gpus=(),
    processes=(),
    toolkits={},
)
GPU_HOST = replace(
    CPU_HOST,
    driver="580.159.04",
    cuda=(13, 0),
    driver_loadable=True,
    nvidia_smi="/usr/bin/nvidia-smi",
    gpus=(H200, replace(H200, index=1, uuid="GPU-1")),
    toolkits={"/usr/local/cuda": (13, 0), "/usr/local/cuda-12.8": (12, 8)},
)
NEEDS = gates.Needs(
    engine_version="0.5.23",
    python_first=(3, 11),
    releases=RELEASES,
    uv_cache=UV_CACHE,
    kernel_cache=KERNELS,
)


def said(facts: Facts, **needs: Any) -> list[str]:  # noqa: ANN401 - any field of Needs
    return [str(problem) for problem in gates.gates(facts, replace(NEEDS, **needs))]


@pytest.mark.parametrize("facts", [CPU_HOST, GPU_HOST])
@pytest.mark.parametrize("accelerator", ["auto", "none"])
def test_a_good_host_passes(facts: Facts, accelerator: str) -> None:
    assert said(facts, accelerator=accelerator) == []


def test_everything_wrong_is_said_at_once() -> None:
    bad = replace(
        CPU_HOST,
        machine="aarch64",
        systemd=245,
        glibc=(2, 31),
        pythons={"/usr/bin/python3.8": (3, 8)},
        packages={"libnuma1": False, "gcc": True, "g++": False},
        directories=tuple(
            directory(path, free=GIB // 2, mount=Mount(2, "254:1", "/data", noexec=True))
            for path in (RELEASES, UV_CACHE, KERNELS)
        ),
    )
    assert said(bad, accelerator="nvidia", gpu_instances=("chat", "long"), manage_packages=False) == [
        "host: machine: is aarch64, and the releases are for x86_64",
        (
            "host: systemd: is 245, and the units need 247 (LoadCredential=);"
            " Debian 12, Debian 13 and Ubuntu 24.04 have it"
        ),
        (
            "host: glibc: is 2.31, and the engine's wheels need 2.34;"
            " Debian 12, Debian 13 and Ubuntu 24.04 have it"
        ),
        (
            "host: python: SGLang 0.5.23 needs Python 3.11 to 3.12 (other versions lack a wheel of one of its"
            " dependencies), and this host has 3.8; install one beside it and name it in"
            " sglang_engine_python,"
            " or use Debian 12 (3.11) or Ubuntu 24.04 (3.12)"
        ),
        (
            "host: sglang_host_packages: not installed, and sglang_host_manage_packages is off:"
            " libnuma1, g++;"
            " apt-get install libnuma1 g++"
        ),
        (
            "host: /opt/sglang/releases: lies on /data, mounted noexec: nothing in it can be run or loaded;"
            " mount it without noexec"
        ),
        (
            "host: /var/cache/sglang: lies on /data, mounted noexec: nothing in it can be run or loaded;"
            " mount it without noexec"
        ),
        (
            "host: disk: 512 MiB are free on /data, and the deploy needs 13.00 GiB: 1.00 GiB in"
            " /var/cache/sglang, 12.00 GiB in /opt/sglang/releases"
        ),
        (
            "host: driver: shows no NVIDIA GPU (chat, long ask for GPUs);"
            " install the NVIDIA driver, R580 or newer, or set `gpus: []` to serve on the CPU"
        ),
        (
            "host: sglang_host_cuda_home: no CUDA 13 toolkit found, and kernels compiled at the"
            " first start need"
            " its nvcc; install cuda-toolkit-13-0, or give its directory; no nvcc found"
        ),
    ]


def test_no_systemd_and_another_c_library() -> None:
    assert said(replace(CPU_HOST, systemd=None, glibc=None)) == [
        "host: systemd: does not run here; boot the host, or the container, with systemd",
        (
            "host: glibc: is not the C library of this host, and the engine's wheels need 2.34;"
            " Debian 12, Debian 13 and Ubuntu 24.04 have it"
        ),
    ]


def test_the_newest_python_that_serves_is_chosen() -> None:
    facts = replace(
        CPU_HOST,
        pythons={
            "/usr/bin/python3.11": (3, 11),
            "/usr/bin/python3.12": (3, 12),
            "/usr/bin/python3.13": (3, 13),
            "/usr/local/bin/python3.12": (3, 12),
        },
    )
    assert gates.choose_python(facts, NEEDS) == "/usr/bin/python3.12"
    assert gates.choose_python(facts, replace(NEEDS, python="/opt/python3.11")) == "/opt/python3.11"
    assert gates.choose_python(replace(facts, pythons={}), NEEDS) == ""


def test_the_users_python_is_judged() -> None:
    facts = replace(CPU_HOST, pythons={"/opt/py/bin/python3.13": (3, 13)})
    assert said(facts, python="/opt/py/bin/python3.13") == [
        "host: sglang_engine_python: /opt/py/bin/python3.13 is 3.13, and SGLang 0.5.23 needs 3.11 to 3.12"
    ]
    assert said(facts, python="/opt/none") == [
        "host: sglang_engine_python: /opt/none is not a Python interpreter"
    ]
    assert said(replace(facts, pythons={"/opt/p": (3, 12)}), python="/opt/p") == []


def test_an_installed_release_needs_neither_python_nor_room() -> None:
    small = replace(
        CPU_HOST,
        pythons={"/usr/bin/python3.13": (3, 13)},
        directories=tuple(directory(path, free=2 * GIB) for path in (RELEASES, UV_CACHE, KERNELS)),
    )
    assert said(small, release_installed=True) == []
    assert len(said(small)) == 2


def test_a_bundle_takes_its_room_and_that_of_what_it_unpacks_to() -> None:
    packages = "/opt/sglang/packages"
    brought = {packages: 5 * GIB, RELEASES: 5 * GIB}
    facts = replace(
        CPU_HOST,
        directories=(
            *(directory(path, free=20 * GIB) for path in (RELEASES, UV_CACHE, KERNELS)),
            directory(packages, free=4 * GIB, mount=Mount(2, "254:1", "/data", noexec=False)),
        ),
    )
    assert said(facts) == []
    assert said(facts, brought=brought) == [
        (
            "host: disk: 4.00 GiB are free on /data, and the deploy needs 5.00 GiB:"
            " 5.00 GiB in /opt/sglang/packages"
        )
    ]
    tight = replace(facts, directories=tuple(replace(one, mount=ROOT) for one in facts.directories))
    assert said(tight, brought=brought) == [
        (
            "host: disk: 20.00 GiB are free on /, and the deploy needs 23.00 GiB: 1.00 GiB in"
            " /var/cache/sglang, 17.00 GiB in /opt/sglang/releases, 5.00 GiB in /opt/sglang/packages"
        )
    ]
    assert said(tight, brought=brought, release_installed=True) == []


def test_a_cache_on_another_mount_of_the_same_disk_takes_the_room_twice() -> None:
    other = Mount(2, "254:0", "/srv/cache", noexec=False)
    facts = replace(
        CPU_HOST,
        directories=(
            directory(RELEASES, free=20 * GIB),
            directory(UV_CACHE, free=20 * GIB, mount=other),
            directory(KERNELS, free=20 * GIB),
        ),
    )
    assert said(facts) == [
        (
            "host: disk: 20.00 GiB are free on /, and the deploy needs 25.00 GiB: 1.00 GiB in"
            " /var/cache/sglang, 12.00 GiB in /opt/sglang/releases, 12.00 GiB in /opt/sglang/uv-cache"
        )
    ]
    assert gates.warnings(facts, NEEDS) == [
        (
            "/opt/sglang/uv-cache and /opt/sglang/releases are not on one mount: packages are"
            " copied instead of"
            " linked, and every release takes its 12.00 GiB again"
        )
    ]
    assert gates.warnings(facts, replace(NEEDS, release_installed=True)) == []
    assert gates.warnings(CPU_HOST, NEEDS) == []


def test_a_host_without_dpkg_looks_after_its_packages_itself() -> None:
    facts = replace(CPU_HOST, packages=None)
    assert said(facts, manage_packages=False) == []
    assert said(facts) == [
        (
            "host: sglang_host_manage_packages: is on, and this host has no dpkg;"
            " install the counterparts of sglang_host_packages yourself and set it to false"
        )
    ]


def test_missing_packages_are_no_fault_where_they_will_be_installed() -> None:
    assert said(replace(CPU_HOST, packages={"gcc": False})) == []


def test_an_instance_that_asks_for_gpus_needs_them() -> None:
    assert said(CPU_HOST, gpu_instances=("chat",))[0] == (
        "host: driver: shows no NVIDIA GPU (chat asks for GPUs); install the NVIDIA driver, R580 or newer,"
        " or set `gpus: []` to serve on the CPU"
    )


def test_a_gpu_that_is_gone_is_noticed() -> None:
    assert said(GPU_HOST, gpu_count=2) == []
    assert said(GPU_HOST, gpu_count=8) == [
        (
            "host: sglang_host_gpus: declares 8, and driver 580.159.04 shows 2;"
            " a GPU that fell off the bus shows in the kernel's log as Xid 79"
        )
    ]


@pytest.mark.parametrize(("cuda", "have"), [((12, 8), "CUDA 12.8"), (None, "an unknown version of CUDA")])
def test_an_old_driver(cuda: tuple[int, int] | None, have: str) -> None:
    assert said(replace(GPU_HOST, driver="570.1", cuda=cuda)) == [
        (
            f"host: driver: 570.1 serves {have}, and SGLang's torch is built for CUDA 13.0;"
            " R580 is the first that serves it"
        )
    ]


def test_a_driver_library_outside_the_loaders_path() -> None:
    apart = replace(
        GPU_HOST,
        driver_loadable=False,
        driver_directory="/usr/local/nvidia/lib64",
        nvidia_smi="/usr/local/nvidia/bin/nvidia-smi",
    )
    assert said(apart) == []
    paths = gates.unit_paths(apart, NEEDS)
    assert paths.library_path == "/usr/local/nvidia/lib64"
    assert paths.path.split(":")[:3] == ["/usr/local/cuda/bin", "/usr/local/nvidia/bin", "/usr/local/sbin"]
    assert said(replace(apart, driver_directory="")) == [
        (
            "host: libcuda.so.1: cannot be loaded, though nvidia-smi works;"
            " put the directory that has it into /etc/ld.so.conf.d and run ldconfig"
        )
    ]


@pytest.mark.parametrize(
    "home", [":/usr/local/cuda-12.8", "/usr/local/cuda:/opt/cuda", "cuda", "/usr/local/cuda ", "~/cuda"]
)
def test_a_cuda_home_that_is_not_one_absolute_path(home: str) -> None:
    assert said(GPU_HOST, cuda_home=home) == [
        (
            f"host: sglang_host_cuda_home: {home!r} is not one absolute path;"
            " give the directory that holds bin/nvcc, as in /usr/local/cuda-13.0"
        )
    ]


def test_a_cuda_home_without_a_compiler() -> None:
    assert said(GPU_HOST, cuda_home="/opt/cuda") == [
        (
            "host: sglang_host_cuda_home: /opt/cuda has no bin/nvcc;"
            " found: /usr/local/cuda (13.0), /usr/local/cuda-12.8 (12.8)"
        )
    ]
    assert said(GPU_HOST, cuda_home="/opt/cuda", require_nvcc=False) == []
    assert said(GPU_HOST, cuda_home="/usr/local/cuda-12.8") == []


def test_a_toolkit_of_another_cuda_is_not_taken() -> None:
    old = replace(GPU_HOST, toolkits={"/usr/local/cuda-12.8": (12, 8)})
    assert gates.unit_paths(old, NEEDS).cuda_home == ""
    assert "found: /usr/local/cuda-12.8 (12.8)" in said(old)[0]


def test_paths_of_units() -> None:
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert gates.unit_paths(CPU_HOST, NEEDS) == gates.Paths("", system, "")
    assert gates.unit_paths(GPU_HOST, replace(NEEDS, accelerator="none")) == gates.Paths("", system, "")
    assert gates.unit_paths(GPU_HOST, NEEDS) == gates.Paths(
        "/usr/local/cuda", f"/usr/local/cuda/bin:{system}", ""
    )
    assert gates.unit_paths(GPU_HOST, replace(NEEDS, cuda_home="/x")).cuda_home == "/x"


@pytest.mark.parametrize(
    ("facts", "wanted", "accelerator"),
    [(CPU_HOST, "auto", "none"), (GPU_HOST, "auto", "nvidia"), (GPU_HOST, "none", "none")],
)
def test_accelerator(facts: Facts, wanted: str, accelerator: str) -> None:
    assert gates.accelerator(facts, wanted) == accelerator


def test_what_a_deploy_has_to_make() -> None:
    facts = replace(
        CPU_HOST,
        users=(),
        packages={"gcc": False, "libnuma1": True},
        directories=(directory("/a"), replace(directory("/b"), exists=False), directory("/c")),
    )
    wanted = [
        {"path": path, "owner": owner, "group": "root", "mode": "0755"}
        for path, owner in (("/a", "root"), ("/b", "root"), ("/c", "sglang"))
    ]
    assert gates.missing(facts, wanted, user="sglang", group="sglang") == {
        "packages": ["gcc"],
        "user": True,
        "group": False,
        "directories": wanted[1:],
    }
    assert gates.missing(replace(facts, packages=None), [], user="sglang", group="x")["packages"] == []
