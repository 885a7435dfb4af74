"""The action plugin says who runs, and buries dead runs of its own controller."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests import modules
from tests.modules import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    return modules.load_action("sglang_lock")


class Run:
    """The plugin with a module that gives one answer after the other."""

    def __init__(self, plugin: ModuleType, answers: list[dict[str, Any]]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = answers
        task = SimpleNamespace(args={"state": "held"}, async_val=0, check_mode=False, action="sglang_lock")
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
        self.action = plugin.ActionModule(task, connection, SimpleNamespace(), None, None, None)
        self.action._execute_module = self._execute  # noqa: SLF001 - stands in for the way to the host

    def _execute(self, *, module_name: str, module_args: dict[str, Any], task_vars: object) -> dict[str, Any]:
        assert (module_name, bool(task_vars)) == ("sglang_lock", True)
        self.asked.append(module_args)
        return self._answers.pop(0)

    def result(self, directory: str = str(REPOSITORY)) -> dict[str, Any]:
        result: dict[str, Any] = self.action.run(task_vars={"playbook_dir": directory})
        return result


def test_the_holder_is_the_run_and_not_the_task(plugin: ModuleType) -> None:
    run = Run(plugin, [{"other": {}}])
    result = run.result()
    (asked,) = run.asked
    assert asked["holder"]["pid"] == os.getppid()
    assert asked["holder"]["token"].startswith(f"{asked['holder']['controller']}/{os.getppid()}/")
    assert asked["state"] == "held"
    assert set(result["by"]) == {"user", "controller", "commit"}
    assert "failed" not in result


def test_whoever_holds_it_is_named(plugin: ModuleType) -> None:
    other = {
        "token": "t",
        "user": "bob",
        "controller": "lab",
        "pid": 7,
        "started": "1",
        "playbook": "deploy.yml",
        "since": "2026-11-29T18:15:02+00:00",
    }
    result = Run(plugin, [{"other": other}]).result()
    assert result["failed"] is True
    assert result["msg"].startswith(
        "Another run changes this host: deploy.yml, started by bob on lab (pid 7), holds it since"
        " 2026-11-29T18:15:02+00:00. "
    )


@pytest.mark.parametrize("alive", [True, False])
def test_a_dead_run_of_this_controller_does_not_block(plugin: ModuleType, alive: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        me = plugin.holder()
        started = plugin.stat(process.pid).started
        other = {**me, "token": "of the other", "pid": process.pid, "started": started}
        if not alive:
            process.kill()
            process.wait()
        run = Run(plugin, [{"other": other}, {"other": {}}])
        result = run.result()
        process.kill()
    assert result.get("failed", False) is alive
    assert [asked.get("dead") for asked in run.asked] == ([None] if alive else [None, "of the other"])


def test_a_controller_of_the_same_name_knows_nothing_of_its_processes(plugin: ModuleType) -> None:
    """As containers of a CI, or machines that were named by nobody."""
    other = {**plugin.holder(), "token": "of the other", "pid": 0, "machine": "another"}
    run = Run(plugin, [{"other": other}])
    assert run.result()["failed"] is True
    assert len(run.asked) == 1


def test_a_controller_without_systemd_or_proc_has_its_name_alone(
    plugin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_MACHINE", tmp_path / "none")
    assert plugin.machine() == ""


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_an_account_without_a_name_has_its_number(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def nobody() -> str:
        raise error("uid not found")

    monkeypatch.setattr(plugin.getpass, "getuser", nobody)
    assert plugin.holder()["user"] == f"uid {os.getuid()}"


def test_the_commit_is_told_where_there_is_one(plugin: ModuleType, tmp_path: Path) -> None:
    assert plugin.commit(str(tmp_path)) == ""
    for words in (
        ["init"],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "init.defaultBranch=main", *words], check=True)
    assert len(plugin.commit(str(tmp_path))) == 12
