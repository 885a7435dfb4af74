from __future__ import annotations

import grp
import os
import pwd
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from sglang_kit import history
from sglang_kit.fileset import File
from sglang_kit.state import Store

from tests import modules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.conftest import Tools

BY = {"user": "ann", "controller": "desk", "commit": "0123abcd4567"}
PLAN = {"name": "chat", "release": "/opt/sglang/releases/a", "engine_version": "0.5.23"}


def stage(store: Store, number: int) -> str:
    """Stage states that differ."""
    me, mine = store.owner, store.group
    plan = {**PLAN, "fingerprint": f"{number:x}" * 16}
    moment = datetime(2026, 11, 29, 18, number, tzinfo=timezone.utc)
    by = BY if number < 3 else {}
    file = File("/etc/sglang/chat.env", f"A={number}\n", owner=me, group=mine)
    return store.stage(plan, [file], {"by": by}, moment)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    me = pwd.getpwuid(os.geteuid()).pw_name
    return Store(str(tmp_path / "instances"), me, grp.getgrgid(os.getegid()).gr_name)


@pytest.fixture
def known(store: Store) -> list[str]:
    """Make three states: one that was ready, one that was not, and one that has not been tried."""
    files = [stage(store, number) for number in (1, 2, 3)]
    ready = {"time": "2026-11-29T18:01:30+00:00", "result": "ready", "cause": "", "sentence": ""}
    failed = {
        **ready,
        "result": "failed",
        "cause": "weights-damaged",
        "sentence": "model.safetensors is cut off",
    }
    store.record("chat", files[0], ready)
    store.record("chat", files[1], failed)
    return files


def test_the_history_of_an_instance(store: Store, known: list[str]) -> None:
    told = history.of_instance(store, "chat", "1" * 16)
    assert {key: told[key] for key in ("wanted", "known_good", "running", "target")} == {
        "wanted": known[2],
        "known_good": known[0],
        "running": known[0],
        "target": known[0],
    }
    assert [one["id"] for one in told["states"]] == [*reversed(known)]
    assert "plan" not in told["states"][0], "the whole of it is in the state itself"
    assert told["runs"]["name"] == "chat"
    assert told["altered"] == ""
    stopped = history.of_instance(store, "chat", None)
    assert (stopped["running"], stopped["runs"], stopped["altered"]) == (None, {}, "")


def test_as_people_see_it(store: Store, known: list[str]) -> None:
    name, headings, _, *rows = history.lines("chat", history.of_instance(store, "chat", "1" * 16))
    assert name == "chat"
    assert headings.split() == ["state", "by", "commit", "engine", "last", "result", "now"]
    assert headings.index("now") == rows[0].index("wanted")
    assert rows == [
        f"  {known[2]}                          0.5.23  never started            wanted",
        f"  {known[1]}  ann@desk  0123abcd4567  0.5.23  failed 2026-11-29T18:01",
        f"  {known[0]}  ann@desk  0123abcd4567  0.5.23  ready 2026-11-29T18:01   running, known-good",
        f"  {known[1]}: weights-damaged: model.safetensors is cut off",
    ]


def test_a_state_to_which_its_instance_was_set_back_is_ready_again(store: Store, known: list[str]) -> None:
    back = {"time": "2026-11-29T18:04:30+00:00", "result": "rolled_back", "cause": "", "sentence": ""}
    store.record("chat", known[0], back)
    lines = history.lines("chat", history.of_instance(store, "chat", None))
    assert any(f"  {known[0]}  " in line and "ready again 2026-11-29T18:04" in line for line in lines)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return modules.load("sglang_history")


def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    assert modules.documented(module) == module.ARGUMENTS


@pytest.mark.usefixtures("known")
@pytest.mark.skipif(os.geteuid() != 0, reason="the module's store is root's")
def test_the_module_tells_of_one_or_all(
    module: ModuleType, store: Store, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.place("systemctl", "printf 'ActiveState=inactive\\nMainPID=0\\n'")
    for name in ({}, {"name": "chat"}):
        told = modules.run(module, capsys, {"states": store.root, **name})
        assert set(told["instances"]) == {"chat"}
        assert told["lines"][0] == "chat"
    unknown = modules.run(module, capsys, {"states": store.root, "name": "coder"})
    assert unknown["msg"] == "coder: is no instance of this host; known are chat"
