from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.plan import plan_host, read_host

from tests import modules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.conftest import Tools

SECRET = "key-0123456789"  # noqa: S105 - nobody's


@pytest.fixture(scope="module")
def states() -> ModuleType:
    return modules.load("sglang_states")


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    host = read_host(
        {"name": "ct200", "engine_version": "0.5.23", "release": "/opt/sglang/releases/0.5.23-0"}
    )
    given = {"name": "chat", "model": "/m", "port": 30001, "secrets": {"api_key": SECRET}}
    (plan,) = plan_host(instances=[given], settings=host)
    return {
        "name": "chat",
        "states": ["inventory", "known-good"],
        "host": "ct200",
        "known": ["chat"],
        "plan": plan,
        "unit": "[Service]\nNice=1\n",
        "secrets": [{"path": plan["secrets"]["api_key"], "content": SECRET}],
        "directory": str(tmp_path / "instances"),
        "config_directory": str(tmp_path),
    }


def test_the_documentation_says_what_the_module_takes(states: ModuleType) -> None:
    (secrets,) = [option for name, option in states.ARGUMENTS.items() if name == "secrets"]
    documented = modules.documented(states)
    assert set(documented) == set(states.ARGUMENTS)
    assert set(documented["secrets"]["options"]) == set(secrets["options"])


@pytest.mark.parametrize("check", [False, True])
def test_what_there_is_and_what_there_is_not(
    states: ModuleType, tools: Tools, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], check: bool
) -> None:
    tools.place("nvidia-smi", "exit 1")
    answer = modules.run(states, capsys, asked, check=check)
    assert not answer["changed"]
    assert list(answer["views"]) == ["inventory"]
    assert answer["views"]["inventory"]["files"]["unit"] == "[Service]\nNice=1\n"
    assert len(answer["views"]["inventory"]["secrets"]["api_key"]) == 64
    assert len(answer["missing"]) == 1
    assert SECRET not in json.dumps(answer)


def test_a_state_that_does_not_exist(
    states: ModuleType, capsys: pytest.CaptureFixture[str], asked: dict[str, Any]
) -> None:
    answer = modules.run(states, capsys, {**asked, "states": ["yesterday"]})
    assert answer["failed"]
    assert (
        "chat: state: has no state 'yesterday'; there are inventory, running, installed, known-good"
        in answer["msg"]
    )


def test_an_instance_that_neither_the_inventory_nor_the_host_knows(
    states: ModuleType, capsys: pytest.CaptureFixture[str], asked: dict[str, Any]
) -> None:
    answer = modules.run(states, capsys, {**asked, "name": "chatt"})
    assert answer["failed"]
    assert answer["msg"] == "chatt: is no instance of this host; known are chat"
