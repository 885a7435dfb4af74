"""The door to the host, with tools that answer as the recorded ones did."""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import pwd
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import survey
from sglang_kit.quantity import MIB

if TYPE_CHECKING:
    from sglang_kit.platform_facts import Facts

    from tests.conftest import Tools

CLI = Path(__file__).resolve().parent.parent / "fixtures" / "cli"
GPUS = (CLI / "nvidia-smi-580.159.04-1-h200-gpus.csv").read_text(encoding="utf-8")
NVCC = (CLI / "nvcc-13.0.txt").read_text(encoding="utf-8")


def printing(text: str) -> str:
    return f"cat <<'END'\n{text.rstrip()}\nEND"


@pytest.fixture
def host(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Make a host whose tools are scripts and whose toolkits and interpreters lie below tmp_path."""
    monkeypatch.setattr(survey, "PROGRAMS", f"{tmp_path}/tools:/usr/bin:/bin")
    monkeypatch.setattr(survey, "TOOLKITS", (f"{tmp_path}/cuda", f"{tmp_path}/cuda-*"))
    monkeypatch.setattr(survey, "INTERPRETERS", (f"{tmp_path}/bin/python3.*",))
    monkeypatch.setattr(survey, "DRIVER_DIRECTORIES", ())
    monkeypatch.setattr(survey, "_booted", lambda: True)
    tools.place("systemctl", "echo 'systemd 252 (252.39-1~deb12u2)'")
    tools.place("systemd-detect-virt", "echo none; exit 1")
    tools.place("dpkg-query", "echo gcc installed; echo make not-installed")
    return tools


def look(tmp_path: Path, **changes: Any) -> Facts:  # noqa: ANN401 - any argument of survey
    given: dict[str, Any] = {
        "user": "root",
        "group": "nonesuch",
        "packages": ["gcc", "make"],
        "directories": [str(tmp_path)],
        **changes,
    }
    return survey.survey(**given)


def place(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_host_without_a_gpu(host: Tools, tmp_path: Path) -> None:
    facts = look(tmp_path)
    assert (facts.systemd, facts.container) == (252, "none")
    assert facts.glibc is not None
    assert facts.packages == {"gcc": True, "make": False}
    assert (facts.users, facts.groups) == (("root",), ())
    assert (facts.driver, facts.nvidia_smi, facts.gpus, facts.processes) == ("", "", (), ())
    assert (facts.driver_loadable, facts.driver_directory, facts.cuda) == (False, "", None)
    assert facts.toolkits == {}
    assert host.calls("systemctl") == ["--version"]
    assert facts.memory_total_bytes > 256 * MIB


def test_a_host_with_gpus(host: Tools, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        row = f"GPU-dc5e4593-5e61-e052-9f6d-0f0689604717, {process.pid}, 4706, sleep"
        host.place(
            "nvidia-smi",
            f"case $1 in --query-gpu=*) {printing(GPUS)}\n;; *) {printing(row)}\n;; esac",
        )
        facts = look(tmp_path)
        process.kill()
    assert facts.nvidia_smi == str(tmp_path / "tools/nvidia-smi")
    assert facts.driver == "580.159.04"
    assert [gpu.index for gpu in facts.gpus] == [0]
    assert [(p.gpu, p.pid, p.memory_bytes, p.command) for p in facts.processes] == [
        (0, process.pid, 4706 * MIB, "sleep 60")
    ]


def test_a_process_that_has_ended_is_kept_without_its_name(host: Tools, tmp_path: Path) -> None:
    row = "GPU-dc5e4593-5e61-e052-9f6d-0f0689604717, 4194305, 4706, gone"
    host.place("nvidia-smi", f"case $1 in --query-gpu=*) {printing(GPUS)}\n;; *) {printing(row)}\n;; esac")
    (process,) = look(tmp_path).processes
    assert (process.unit, process.command) == ("", "")


def test_a_driver_without_devices(host: Tools, tmp_path: Path) -> None:
    host.place("nvidia-smi", "echo 'No devices were found'; exit 6")
    assert look(tmp_path).gpus == ()


def test_a_host_that_systemd_does_not_run(
    host: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_booted", lambda: False)
    assert look(tmp_path).systemd is None
    assert host.calls("systemctl") == []


def test_booted_follows_systemds_own_mark() -> None:
    assert survey._booted() == Path("/run/systemd/system").is_dir()  # noqa: SLF001 - replaced above


def test_a_host_without_dpkg(host: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "PROGRAMS", str(tmp_path / "nothing"))
    facts = look(tmp_path)
    assert facts.packages is None
    assert facts.container == "none"
    assert host.calls("dpkg-query") == []


class Driver:
    """libcuda as far as its version is asked for."""

    def __init__(self, status: int) -> None:
        self.status = status

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: ANN401, N802 - a ctypes reference; the driver's name
        number._obj.value = 13000  # noqa: SLF001 - the only way to what byref() was given
        return self.status


@pytest.mark.parametrize(
    ("loads", "status", "expected"),
    [
        ("libcuda.so.1", 0, (True, "", (13, 0))),
        ("/drivers/libcuda.so.1", 0, (False, "/drivers", (13, 0))),
        ("libcuda.so.1", 999, (True, "", None)),
    ],
)
@pytest.mark.usefixtures("host")
def test_the_driver_is_loaded_as_a_unit_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loads: str, status: int, expected: tuple[Any, ...]
) -> None:
    def load(name: str) -> Driver:
        if name != loads:
            raise OSError(name)
        return Driver(status)

    monkeypatch.setattr(survey, "DRIVER_DIRECTORIES", ("/elsewhere", "/drivers"))
    monkeypatch.setattr(ctypes, "CDLL", load)
    facts = look(tmp_path)
    assert (facts.driver_loadable, facts.driver_directory, facts.cuda) == expected


@pytest.mark.usefixtures("host")
def test_accounts_of_a_directory_service_that_lists_nobody_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwall", list)
    monkeypatch.setattr(grp, "getgrall", list)
    found = look(tmp_path, user="root", group="root")
    assert (found.users, found.groups) == (("root",), ("root",))


@pytest.mark.usefixtures("host")
def test_interpreters_by_name_and_the_users_own(tmp_path: Path) -> None:
    for name in ("python3.9", "python3.11", "python3.11-config"):
        place(tmp_path / "bin" / name, "exit 1")
    own = str(place(tmp_path / "own" / "python", "echo python3.12"))
    no_python = str(place(tmp_path / "own" / "other", "exit 1"))
    assert look(tmp_path).pythons == {
        f"{tmp_path}/bin/python3.11": (3, 11),
        f"{tmp_path}/bin/python3.9": (3, 9),
    }
    assert look(tmp_path, python=own).pythons[own] == (3, 12)
    assert no_python not in look(tmp_path, python=no_python).pythons
    assert look(tmp_path, python=f"{tmp_path}/bin/python3.9").pythons[f"{tmp_path}/bin/python3.9"] == (3, 9)


@pytest.mark.usefixtures("host")
def test_toolkits_newest_first_and_the_users_own(tmp_path: Path) -> None:
    for name, release in (("cuda-12.8", "12.8"), ("cuda-13.0", "13.0")):
        place(tmp_path / name / "bin" / "nvcc", printing(NVCC.replace("release 13.0", f"release {release}")))
    (tmp_path / "cuda-empty").mkdir()
    own = place(tmp_path / "own" / "bin" / "nvcc", printing(NVCC)).parent.parent
    assert list(look(tmp_path).toolkits.items()) == [
        (f"{tmp_path}/cuda-13.0", (13, 0)),
        (f"{tmp_path}/cuda-12.8", (12, 8)),
    ]
    assert look(tmp_path, cuda_home=str(own)).toolkits[str(own)] == (13, 0)
    assert look(tmp_path, cuda_home=":nonsense").toolkits == look(tmp_path).toolkits


@pytest.mark.usefixtures("host")
def test_directories_that_are_there_and_those_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    there.mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(there)
    (tmp_path / "file").touch()
    paths = [str(tmp_path / name) for name in ("there", "link", "file", "absent/deeper")]
    seen = look(tmp_path, directories=paths).directories
    assert [(d.path, d.exists, d.mode) for d in seen] == [
        (paths[0], True, "0750"),
        (paths[1], True, "0750"),
        (paths[2], False, "0644"),
        (paths[3], False, f"{tmp_path.stat().st_mode & 0o7777:04o}"),
    ]
    assert all(d.free_bytes > 0 and d.mount.point for d in seen)

    def nobody(_: int) -> object:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert look(tmp_path, directories=paths[:1]).directories[0].owner == str(os.geteuid())


def test_gpus_and_who_uses_them_without_the_rest(host: Tools) -> None:
    row = "GPU-dc5e4593-5e61-e052-9f6d-0f0689604717, 4194305, 4706, gone"
    host.place("nvidia-smi", f"case $1 in --query-gpu=*) {printing(GPUS)}\n;; *) {printing(row)}\n;; esac")
    gpus, users = survey.gpus_in_use()
    assert [gpu.index for gpu in gpus] == [0]
    assert [(user.pid, user.memory_bytes) for user in users] == [(4194305, 4706 * MIB)]


def test_what_lies_below_every_instance(host: Tools) -> None:
    host.place("nvidia-smi", printing(GPUS))
    assert survey.marks() == {
        "driver": "580.159.04",
        "kernel": platform.release(),
        "gpus": ["0: NVIDIA H200"],
    }


@pytest.mark.usefixtures("host")
def test_no_driver_no_gpus() -> None:
    assert survey.gpus_in_use() == ((), ())
    assert survey.marks() == {"driver": "", "kernel": platform.release(), "gpus": []}
