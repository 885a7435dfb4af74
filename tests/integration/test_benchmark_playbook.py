"""What a benchmark would do, of a host that nobody can reach."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.on_host import ROOT, playbook

if TYPE_CHECKING:
    from pathlib import Path

CT200 = ROOT / "inventories/ct200"


def test_the_cells_of_a_host_that_the_inventory_describes(tmp_path: Path) -> None:
    given = ("matrix=strategies", "plan_only=true", f"sglang_artifacts_dir={tmp_path}")
    outcome = playbook(CT200, "playbooks/benchmark.yml", "-l", "ct200", *(f"-e{one}" for one in given))
    assert outcome.returncode == 0, outcome.stdout
    assert "tp8, mtp, 1, 4, 16 clients: refused" in outcome.stdout
    kept = (tmp_path / "benchmark/strategies/results.jsonl").read_text(encoding="utf-8").splitlines()
    refused = {(one["group"], one["variant"]) for one in map(json.loads, kept)}
    assert ("tp1", "ddtree") in refused
    assert ("tp4", "mtp") not in refused


def test_a_matrix_that_there_is_not_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    for given in ((), ("-ematrix=stategies",)):
        outcome = playbook(
            CT200, "playbooks/benchmark.yml", "-lct200", f"-esglang_artifacts_dir={tmp_path}", *given
        )
        assert outcome.returncode != 0
        assert "-e matrix=NAME; matrices of this host: strategies" in outcome.stdout
        assert "filter plugin" not in outcome.stdout + outcome.stderr
