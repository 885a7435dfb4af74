"""Two instances on one GPU: each is sized by what those before it have left, also when one changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import main_pids, playbook, show

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
UNITS = ["sglang-first.service", "sglang-second.service"]


def deploy(**variables: object) -> subprocess.CompletedProcess[str]:
    given = f"--extra-vars={json.dumps(variables)}"
    return playbook(INVENTORY, "deploy.yml", "--limit=molecule-one", given)


def sharers(*requests: int) -> list[dict[str, Any]]:
    common = {
        "model": "/srv/models/tiny-gpt2",
        "gpus": [0],
        "shared": True,
        "args": {"max-total-tokens": 8192},
        "env": {"SGLANG_REPLAY_SPEED": "100"},
    }
    names = ("first", "second")
    return [
        {**common, "name": name, "port": 32300 + 10 * at, "concurrency": number}
        for at, (name, number) in enumerate(zip(names, requests, strict=True))
    ]


@pytest.fixture(scope="module")
def one(host: Host) -> Host:
    """Return the host with a single instance."""
    return host.get_host("ansible://molecule-one", ansible_inventory=str(INVENTORY))


@pytest.fixture(scope="module")
def shared(one: Host) -> Iterator[dict[str, str]]:
    """Let both serve; give their main processes. Afterwards the host is as it was."""
    outcome = deploy(sglang_service_instances=sharers(8, 8))
    assert outcome.returncode == 0, outcome.stdout
    yield main_pids(one, UNITS)
    assert deploy().returncode == 0


def began(host: Host, unit: str, moment: str) -> int:
    return int(show(host, unit, f"{moment}TimestampMonotonic"))


def test_a_change_of_the_second_is_its_own(one: Host, shared: dict[str, str]) -> None:
    outcome = deploy(sglang_service_instances=sharers(8, 4))
    assert outcome.returncode == 0, outcome.stdout
    after = main_pids(one, UNITS)
    assert [unit for unit in UNITS if after[unit] != shared[unit]] == ["sglang-second.service"]


def test_a_change_of_the_first_starts_both_in_their_order(one: Host, shared: dict[str, str]) -> None:
    before = main_pids(one, UNITS)
    outcome = deploy(sglang_service_instances=sharers(4, 4))
    assert outcome.returncode == 0, outcome.stdout
    assert "restart second: shares a GPU with first, which starts before it" in outcome.stdout
    after = main_pids(one, UNITS)
    assert not set(after.values()) & {*before.values(), *shared.values()}
    first, second = UNITS
    assert began(one, second, "InactiveEnter") < began(one, first, "InactiveExit")
    assert began(one, first, "ActiveEnter") <= began(one, second, "InactiveExit")
