"""What the scenarios of molecule must not have in common: all their hosts share this machine's network."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PORT = re.compile(r"port: ([0-9]+)")


def test_no_port_is_in_two_inventories() -> None:
    found: Counter[str] = Counter()
    for place in ROOT.glob("molecule/*/inventory/hosts.yml"):
        found.update(set(PORT.findall(place.read_text(encoding="utf-8"))))
    assert len(found) > len(list(ROOT.glob("molecule/*/inventory")))
    assert {port: count for port, count in found.items() if count > 1} == {}


def test_every_scenario_is_run_by_one_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = [name for line in re.findall(r"SCENARIOS := (.*)", makefile) for name in line.split()]
    assert sorted(listed) == sorted(place.parent.name for place in ROOT.glob("molecule/*/molecule.yml"))
