from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import modules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.conftest import Tools


@pytest.fixture(scope="module")
def status() -> ModuleType:
    return modules.load("sglang_status")


def test_the_documentation_says_what_the_module_takes(status: ModuleType) -> None:
    assert modules.documented(status) == status.ARGUMENTS


@pytest.mark.parametrize("check", [False, True])
def test_a_host_is_told_as_data_and_for_people(
    status: ModuleType, tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    tools.place("systemctl", "printf '%s\\n' ActiveState=inactive SubState=dead LoadState=not-found")
    places = {
        name: str(tmp_path / name)
        for name in status.ARGUMENTS
        if name not in ("instances", "name", "reserved_gpus")
    }
    answer = modules.run(status, capsys, {"instances": {"chat": "started"}, **places}, check=check)
    assert not answer["changed"]
    assert not answer["as_wanted"]
    assert [(one["name"], one["state"]) for one in answer["instances"]] == [("chat", "not_installed")]
    assert answer["lines"][2].startswith("chat")
    assert answer["disk"] == []
    none = modules.run(status, capsys, {"instances": {"chat": "started"}, "name": "chatt", **places})
    assert none["msg"] == "chatt: is no instance of this host; known are chat"
