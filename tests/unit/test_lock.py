from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import ancestry, lock

from tests import modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ANN = {"token": "desk/1/2", "user": "ann", "controller": "desk", "playbook": "deploy.yml", "since": "9:30"}
BOB = {"token": "lab/3/4", "user": "bob", "controller": "lab", "playbook": "rollback.yml", "since": "9:40"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Put a process in place of the sshd that serves the next holder."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        known = {"pid": process.pid, "started": ancestry.stat(process.pid).started}
        monkeypatch.setattr(lock, "anchor", lambda: known)
        yield process
        process.kill()


@pytest.mark.usefixtures("served")
def test_one_at_a_time(path: str) -> None:
    assert lock.take(path, ANN) is None
    other = lock.take(path, BOB)
    assert other is not None
    assert {key: other[key] for key in ANN} == ANN
    assert lock.take(path, ANN) is None, "it renews what it holds"
    assert not lock.release(path, BOB["token"])
    assert lock.release(path, ANN["token"])
    assert lock.take(path, BOB) is None


@pytest.mark.usefixtures("served")
def test_who_renews_it_has_held_it_all_the_time(path: str) -> None:
    lock.take(path, {**ANN, "since": "10:00"})
    lock.take(path, {**ANN, "since": "10:05"})
    other = lock.take(path, {**BOB, "since": "10:06"})
    assert other is not None
    assert other["since"] == "10:00"


def test_a_holder_without_its_connection_does_not_block(path: str, served: subprocess.Popen[bytes]) -> None:
    lock.take(path, ANN)
    served.kill()
    served.wait()
    assert lock.take(path, BOB) is None


def test_a_pid_that_somebody_else_has_now_is_no_holder(
    path: str, served: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "anchor", lambda: {"pid": served.pid, "started": "1"})
    lock.take(path, ANN)
    assert lock.take(path, BOB) is None


@pytest.mark.usefixtures("served")
def test_a_controller_may_say_that_its_holder_is_dead(path: str) -> None:
    lock.take(path, ANN)
    assert lock.take(path, BOB, dead="another") is not None
    assert lock.take(path, BOB, dead=ANN["token"]) is None


def test_without_sshd_only_the_controller_knows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "anchor", lambda: None)
    lock.take(path, ANN)
    assert lock.take(path, BOB) is not None


def test_half_a_lock_is_none(path: str) -> None:
    Path(path).write_text('{"token": "de', encoding="utf-8")
    assert lock.take(path, BOB) is None
    assert json.loads(Path(path).read_text(encoding="utf-8"))["user"] == "bob"


def test_a_link_is_not_followed(path: str, tmp_path: Path) -> None:
    Path(path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock.take(path, ANN)


def test_the_anchor_is_the_nearest_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancestry, "PROC", tmp_path)

    def process(pid: int, name: str, parent: int) -> None:
        (tmp_path / str(pid)).mkdir()
        fields = ["S", str(parent), *["0"] * 17, str(pid * 100), "0"]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n", encoding="utf-8")

    for pid, name, parent in (
        (10, "sshd", 1),
        (20, "sshd-session", 10),
        (30, "sh (of) x", 20),
        (40, "python3", 30),
    ):
        process(pid, name, parent)
    assert lock.anchor(40) == {"pid": 20, "started": "2000"}
    process(50, "agetty", 1)
    assert lock.anchor(50) is None
    monkeypatch.setattr(os, "getpid", lambda: 30)
    assert lock.anchor() == {"pid": 20, "started": "2000"}
    assert ancestry.stat(99) == ancestry.NOBODY
    assert ancestry.ancestors(40) == (30, 20, 10, 1)
    assert ancestry.ancestors(99) == ()


# --- the module and its action plugin ------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return modules.load("sglang_lock")


def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    assert modules.documented(module) == module.ARGUMENTS


@pytest.mark.usefixtures("served")
def test_the_module_takes_and_frees(
    module: ModuleType, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(holder: dict[str, Any], *, check: bool = False, **more: str) -> Any:  # noqa: ANN401 - a dict
        return modules.run(module, capsys, {"path": path, "holder": holder, **more}, check=check)["other"]

    assert ask(ANN, check=True) == {}
    assert not Path(path).exists()
    assert ask(ANN) == {}
    assert ask(BOB)["user"] == "ann"
    assert ask(BOB, dead=ANN["token"]) == {}
    assert ask(BOB, state="free") == {}
    assert Path(path).read_text(encoding="utf-8") == ""
