"""The short form of ``make chaos``: each way to end a deploy once, on a host of its own."""

from __future__ import annotations

from pathlib import Path

from tests import chaos

INVENTORY = Path(__file__).parents[1] / "inventory"


def test_a_deploy_that_is_killed_heals_by_the_next_one() -> None:
    chaos.run(chaos.Chaos(INVENTORY, "molecule-rolling2"), points=len(chaos.KINDS), seed=1)
