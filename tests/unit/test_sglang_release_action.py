"""The action plugin shows what a build does while it runs, and returns what the module did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests import modules

if TYPE_CHECKING:
    from types import ModuleType

BUILT = {"changed": True, "path": "/opt/sglang/releases/0.5.23", "complete": True}
JOB = {"ansible_job_id": "j1", "results_file": "/root/.ansible_async/j1", "started": True, "finished": False}
STATUS = "ansible.legacy.async_status"


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    return modules.load_action("sglang_release")


class Run:
    """The plugin on a host that gives one answer after the other."""

    def __init__(self, plugin: ModuleType, answers: list[dict[str, Any]], **arguments: object) -> None:
        self.asked: list[tuple[str, Any, int]] = []
        self._answers = answers
        self.task = SimpleNamespace(args=arguments, async_val=0, check_mode=False, action="sglang_release")
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
        play = SimpleNamespace(check_mode=False)
        self.action = plugin.ActionModule(self.task, connection, play, None, None, None)
        self.action._execute_module = self._execute  # noqa: SLF001 - stands in for the way to the host

    def _execute(
        self,
        *,
        task_vars: object,
        module_name: str = "",
        module_args: dict[str, Any] | None = None,
        wrap_async: bool = False,
    ) -> dict[str, Any]:
        assert task_vars
        assert wrap_async == bool(self.task.async_val)
        self.asked.append((module_name, dict(module_args or {}), self.task.async_val))
        return self._answers.pop(0)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.action.run(task_vars={"inventory_hostname": "ct200"})
        assert self._answers == []
        return result


@pytest.fixture
def shown(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(plugin, "display", SimpleNamespace(display=lines.append))
    monkeypatch.setattr(plugin, "time", SimpleNamespace(sleep=lambda _seconds: None))
    return lines


def test_each_line_of_a_build_is_shown_once(plugin: ModuleType, shown: list[str]) -> None:
    looks = [{"progress": text} for text in ("", "fetches torch", "fetches torch", "imports")]
    answers = [JOB, *(one for look in looks for one in (JOB, look)), {**BUILT, **JOB, "finished": True}, {}]
    run = Run(plugin, answers, lock_file="/locks/lock.txt")
    assert run.result() == BUILT
    assert shown == ["ct200 fetches torch", "ct200 imports"]
    first, status, look, *_, cleanup = run.asked
    assert first[2] > 0
    assert status == (STATUS, {"jid": "j1", "_async_dir": "/root/.ansible_async"}, 0)
    assert look == ("", {"lock_file": "/locks/lock.txt", "progress": True}, 0)
    assert cleanup == (STATUS, {**status[1], "mode": "cleanup"}, 0)


def test_a_build_that_fails_is_returned_as_it_is(plugin: ModuleType, shown: list[str]) -> None:
    failed = {"failed": True, "msg": "hash mismatch"}
    run = Run(
        plugin, [JOB, {**failed, "ansible_job_id": "j1", "finished": 1}, {}], lock_file="/locks/lock.txt"
    )
    assert run.result() == failed
    assert shown == []


def test_a_job_that_cannot_begin_is_told(plugin: ModuleType) -> None:
    failed = {"failed": True, "msg": "no room for it"}
    assert Run(plugin, [failed], lock_file="/locks/lock.txt").result() == failed


@pytest.mark.parametrize("check", [False, True])
def test_a_look_and_a_dry_run_are_no_jobs(plugin: ModuleType, *, check: bool) -> None:
    run = Run(plugin, [BUILT], **({"lock_file": "/locks/lock.txt"} if check else {}))
    run.task.check_mode = check
    assert run.result() == BUILT
    assert [asked[2] for asked in run.asked] == [0]
