"""The action plugin shows progress while the module runs step by step, and keeps what a failure leaves."""

from __future__ import annotations

import json
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests import modules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

PLANS = [{"name": "chat"}, {"name": "coder"}]
READY = {"state": "ready", "stage": "serving", "phase": "", "cause": "", "sentence": "", "remedy": ""}
FAILED = {
    **READY,
    "state": "failed",
    "stage": "weights",
    "cause": "weights-damaged",
    "sentence": "it is cut off",
    "remedy": "copy it again",
}


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    return modules.load_action("sglang_ready")


class Run:
    """The plugin with a module that gives one step after the other."""

    def __init__(self, plugin: ModuleType, steps: list[dict[str, Any]], folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self._steps = steps
        arguments = {"plans": PLANS, "previous": {"chat": "i0"}, "artifacts_dir": str(folder)}
        task = SimpleNamespace(args=arguments, async_val=0, check_mode=False, action="sglang_ready")
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
        play = SimpleNamespace(check_mode=False)
        self.action = plugin.ActionModule(task, connection, play, None, None, None)
        self.action._execute_module = self._execute  # noqa: SLF001 - stands in for the way to the host

    def _execute(self, *, module_name: str, module_args: dict[str, Any], task_vars: object) -> dict[str, Any]:
        assert (module_name, bool(task_vars)) == ("sglang_ready", True)
        self.asked.append(module_args)
        return self._steps.pop(0)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.action.run(
            task_vars={"inventory_hostname": "ct200", "playbook_dir": "/nowhere"}
        )
        return result


def step(**changes: object) -> dict[str, Any]:
    return {"changed": False, "instances": {}, "failures": {}, "said": [], "bookmarks": {}, **changes}


@pytest.fixture
def shown(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(plugin, "display", SimpleNamespace(display=lines.append))
    return lines


def test_each_step_goes_on_where_the_last_has_left_off(
    plugin: ModuleType, shown: list[str], tmp_path: Path
) -> None:
    steps = [
        step(said=["chat: 0:00 arguments"], bookmarks={"chat": {"shown": 1}, "coder": {}}),
        step(said=["chat: 0:12 weights"], instances={"coder": READY}, bookmarks={"chat": {"shown": 2}}),
        step(said=["chat: 1:12 ready"], instances={"chat": READY}),
    ]
    run = Run(plugin, steps, tmp_path)
    result = run.result()
    assert shown == ["chat: 0:00 arguments", "chat: 0:12 weights", "chat: 1:12 ready"]
    assert result["instances"] == {"coder": READY, "chat": READY}
    assert result["changed"] is False
    assert "failed" not in result
    assert [sorted(asked.get("bookmarks", {})) for asked in run.asked] == [[], ["chat", "coder"], ["chat"]]
    assert [[plan["name"] for plan in asked["plans"]] for asked in run.asked] == [
        ["chat", "coder"],
        ["chat", "coder"],
        ["chat"],
    ]
    assert all(asked["stepwise"] and asked["previous"] == {"chat": "i0"} for asked in run.asked)


def test_a_failure_is_shown_whole_and_once_and_its_evidence_kept(
    plugin: ModuleType, shown: list[str], tmp_path: Path
) -> None:
    text = "state      failed\n         7 SafetensorError: the whole message"
    failure = {"text": text, "files": {"journal.log": "a journal", "../plan.json": "{}"}}
    run = Run(
        plugin, [step(instances={"chat": FAILED, "coder": READY}, failures={"chat": failure})], tmp_path
    )
    result = run.result()
    (place,) = (tmp_path / "failures" / "ct200" / "chat").iterdir()
    assert result["failed"] is True
    assert result["msg"] == f"chat: failed in stage weights: it is cut off ({place})"
    assert result["failures"] == {
        "chat": {
            "state": "failed",
            "phase": "weights",
            "cause": "weights-damaged",
            "sentence": "it is cut off",
            "remedy": "copy it again",
            "saved": str(place),
        }
    }
    assert result["instances"] == {"coder": READY}
    assert shown == [f"\nchat on ct200\n{text}", f"saved      {place}\n"]
    kept = {one.name: one.read_text(encoding="utf-8") for one in place.iterdir()}
    assert kept == {
        "journal.log": "a journal",
        "plan.json": "{}",
        "why.txt": f"{text}\n",
        "verdict.json": json.dumps(FAILED, indent=2),
    }
    assert {stat.S_IMODE(one.stat().st_mode) for one in place.iterdir()} == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_cause_is_told_also_where_no_evidence_can_be_kept(
    plugin: ModuleType, shown: list[str], tmp_path: Path
) -> None:
    (tmp_path / "failures").touch()
    failed = step(instances={"chat": FAILED, "coder": READY}, failures={"chat": {"text": "why", "files": {}}})
    result = Run(plugin, [failed], tmp_path).result()
    assert result["msg"].startswith(
        "chat: failed in stage weights: it is cut off (not on the controller: [Errno "
    )
    assert set(result["failures"]) == {"chat"}
    assert result["instances"] == {"coder": READY}
    assert shown[0] == "\nchat on ct200\nwhy"


def test_a_module_that_breaks_is_the_result(plugin: ModuleType, shown: list[str], tmp_path: Path) -> None:
    broken = {"failed": True, "msg": "MODULE FAILURE"}
    assert Run(plugin, [broken], tmp_path).result()["msg"] == "MODULE FAILURE"
    assert Run(plugin, [{"unreachable": True}], tmp_path).result()["unreachable"] is True
    assert shown == []
