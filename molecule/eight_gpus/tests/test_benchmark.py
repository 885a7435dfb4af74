"""A benchmark on cards that are in use: its own services make room and come back, a stranger does neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import playbook, processes_of, show

if TYPE_CHECKING:
    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
UNIT = "sglang-gpu-a.service"
HELD_MIB = 90000


@pytest.fixture(scope="module")
def one(host: Host) -> Host:
    """Return the host with a single instance, on its first card."""
    return host.get_host("ansible://molecule-one", ansible_inventory=str(INVENTORY))


@pytest.fixture(scope="module")
def results(one: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measure while the service holds the first card and a stranger the second; results by their group."""
    artifacts = tmp_path_factory.mktemp("artifacts")
    one.check_output("systemd-run --quiet --unit=holder sleep infinity")
    holders = processes_of(one, UNIT)[-1], show(one, "holder", "MainPID")
    lines = "".join(f"{card},{pid},{HELD_MIB}\\n" for card, pid in enumerate(holders))
    one.check_output(f"printf '{lines}' >/run/fake-gpus.csv")
    given = ("matrix=cards", f"sglang_artifacts_dir={artifacts}")
    words = ("--limit=molecule-one", *(f"--extra-vars={pair}" for pair in given))
    outcome = playbook(INVENTORY, "playbooks/benchmark.yml", *words)
    one.check_output("rm /run/fake-gpus.csv && systemctl stop holder")
    assert outcome.returncode == 0, outcome.stdout
    record = artifacts / "benchmark" / "cards" / "results.jsonl"
    return {cell["group"]: cell for cell in map(json.loads, record.read_text(encoding="utf-8").splitlines())}


def test_the_card_of_a_service_of_ours_is_free_for_it(results: dict[str, Any]) -> None:
    """The start served; a replay has nothing to measure it with."""
    assert results["ours"]["allocated"]["kv_tokens"] == 8192
    assert "No module named sglang.bench_serving" in results["ours"]["reason"]


def test_the_card_of_a_stranger_is_not(results: dict[str, Any]) -> None:
    assert results["taken"]["result"] == "refused"
    assert "(holder.service) holds 87.89 GiB" in results["taken"]["reason"]


def test_the_service_is_back(one: Host, results: dict[str, Any]) -> None:
    assert results
    assert show(one, UNIT, "StatusText") == "ready"
    assert show(one, "sglang-benchmark", "LoadState") == "not-found"
