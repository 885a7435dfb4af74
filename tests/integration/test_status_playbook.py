"""Status of hosts of which one cannot be reached."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.on_host import playbook

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Tools

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
GONE = {"ansible_host": "127.0.0.1", "ansible_port": 9}
INSTANCE = {"name": "chat", "model": "/srv/models/tiny-gpt2", "port": 32790}


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    group = {
        "hosts": {"gone": GONE, "here": HERE},
        "vars": {
            "sglang_host_accelerator": "none",
            "sglang_engine_version": "0.5.23",
            "sglang_service_instances": [INSTANCE],
            "sglang_artifacts_dir": str(tmp_path),
        },
    }
    place = tmp_path / "hosts.yml"
    place.write_text(json.dumps({"gpu_hosts": group}), encoding="utf-8")
    return place


def test_a_host_that_is_gone_fails_once_and_the_others_are_shown(
    inventory: Path, tmp_path: Path, tools: Tools
) -> None:
    tools.place("systemctl", "printf 'LoadState=not-found\\nActiveState=inactive\\nMainPID=0\\n'")
    outcome = playbook(inventory, "playbooks/status.yml")
    assert outcome.returncode != 0
    assert outcome.stdout.count("fatal: [gone]") == 1
    assert "chat      started  not installed" in outcome.stdout
    assert "not as wanted: chat" in outcome.stdout
    seen = json.loads((tmp_path / "status.json").read_text(encoding="utf-8"))
    assert seen["gone"]["unreachable"] is True
    assert [one["state"] for one in seen["here"]["instances"]] == ["not_installed"]


def test_nothing_older_is_left_where_no_host_is_reached(inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{}", encoding="utf-8")
    outcome = playbook(inventory, "playbooks/status.yml", "--limit=gone")
    assert outcome.returncode != 0
    assert not (tmp_path / "status.json").exists()
