"""The playbook that plans, as people type it: no host is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Plan = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "playbooks/plan.yml",
                "--limit=ct200",
                f"--extra-vars=sglang_artifacts_dir={tmp_path}",
                *options,
            ],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            check=False,
            capture_output=True,
            encoding="utf-8",
        )

    return run


def test_a_plan_is_shown_and_its_page_written(plan: Plan, tmp_path: Path) -> None:
    """Pools that a deploy has measured are shown beside the plan, then and later."""
    page = tmp_path / "plan/ct200.html"
    verdict = {"state": "ready", "allocated": {"kv_tokens": 187000, "weights_bytes": 54814520115}}
    proof = {"__sglang_service_proof": {"instances": {"chat": verdict}}}
    deployed = plan("--extra-vars", json.dumps(proof))
    assert deployed.returncode == 0, deployed.stdout
    for essential in ("chat: GPU 1", "dflash-smoke: GPU 2", "long: GPUs 4, 5, 6, 7 as one group", "  binds "):
        assert f"        {essential}" in deployed.stdout
    assert "is no variable of ours" not in deployed.stdout
    shown = page.read_text(encoding="utf-8")
    assert "<h2>chat</h2>" in shown
    assert ">measured<" in shown
    later = plan()
    assert "changed=0" in later.stdout
    assert page.read_text(encoding="utf-8") == shown


def test_a_misspelt_variable_is_told_before_the_plan(plan: Plan) -> None:
    outcome = plan("--extra-vars=sglang_host_reserved_gpu=1")
    assert outcome.returncode == 0, outcome.stdout
    told, _, shown = outcome.stdout.partition("sglang_host_reserved_gpu is no variable of ours")
    assert "chat: GPU 1" in shown
    assert "chat: GPU 1" not in told


def test_check_mode_writes_nothing(plan: Plan, tmp_path: Path) -> None:
    outcome = plan("--check")
    assert outcome.returncode == 0, outcome.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_cannot_work_fails_with_what_would(plan: Plan, tmp_path: Path) -> None:
    instance = {
        "name": "chat",
        "model": "/srv/models/qwen36-27b",
        "gpus": [1],
        "port": 30001,
        "concurrency": 48,
        "context_length": 32768,
        "strategy": {"method": "mtp"},
    }
    outcome = plan("--extra-vars", json.dumps({"sglang_service_instances": [instance]}))
    assert outcome.returncode != 0
    told = " ".join((outcome.stdout + outcome.stderr).split())
    assert "chat: memory: nothing is left for the KV cache" in told
    assert "ask for at most" in told
    assert not (tmp_path / "plan").exists()
