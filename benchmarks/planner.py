"""How long does planning take, and how much memory do the plans of many hosts hold?

    python benchmarks/planner.py

Plans are made one after the other on one core, timed in its own CPU seconds: wishes of a 64-layer hybrid
model with speculation, each searched over numbers of requests and fractions; then whole fleets of hosts
with eight instances each.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit.engine import SUPPORTED, facts  # noqa: E402 - found by the line above
from sglang_kit.host_memory import Request, plan_shared  # noqa: E402
from sglang_kit.instance import Strategy  # noqa: E402
from sglang_kit.model import read_config  # noqa: E402
from sglang_kit.planner import plan  # noqa: E402
from sglang_kit.quantity import MIB, from_gib, from_mib  # noqa: E402
from sglang_kit.resolution import Card  # noqa: E402
from sglang_kit.rules import Wish  # noqa: E402

PLANS = 10_000
FLEETS = (125, 250, 500, 1000)
INSTANCES = 8
CONFIG = ROOT / "tests" / "fixtures" / "configs" / "qwen36-27b.json"
MODEL = read_config(json.loads(CONFIG.read_text(encoding="utf-8")))
CONTEXTS = (2048, 8192, 16_384, 32_768)


def wish(number: int) -> Wish:
    """Vary context and steps, so that no two wishes in a row are alike."""
    return Wish(
        strategy=Strategy("mtp", steps=1 + number % 4), context_length=CONTEXTS[number % len(CONTEXTS)]
    )


def card(number: int) -> Card:
    """Describe a card of 141 GiB, of which 80 to 138 are free."""
    return Card(total=from_mib(143_771), free=from_gib(80 + number % 59))


def time_plans() -> float:
    """Return the CPU seconds for ``PLANS`` plans."""
    versions = [facts(version) for version in SUPPORTED]
    begin = time.process_time()
    for number in range(PLANS):
        found = versions[number % len(versions)]
        plan(model=MODEL, draft=None, facts=found, card=card(number), wish=wish(number))
    return time.process_time() - begin


def time_fleet(hosts: int) -> tuple[float, float]:
    """Return the CPU seconds to plan ``hosts`` hosts, and MiB that the process holds with all their plans."""
    begin = time.process_time()
    plans = []
    for host in range(hosts):
        cards = {str(gpu): card(host + gpu) for gpu in range(INSTANCES)}
        requests = [
            Request(f"i{gpu}", (gpu,), MODEL, None, facts(SUPPORTED[-1]), wish(host)) for gpu in cards
        ]
        plans.append({name: found.as_dict() for name, found in plan_shared(requests, cards).items()})
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    return time.process_time() - begin, held


def main() -> None:
    """Print one line per measurement."""
    seconds = time_plans()
    print(f"{PLANS:,} plans: {seconds:.1f} CPU s, {seconds / PLANS * 1000:.2f} ms each")
    for hosts in FLEETS:
        seconds, held = time_fleet(hosts)
        instances = hosts * INSTANCES
        print(f"{instances:,} instances on {hosts:,} hosts: {seconds:.1f} CPU s, {held:.0f} MiB held")


if __name__ == "__main__":
    main()
