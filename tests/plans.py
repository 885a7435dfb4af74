"""Plans with their memory, as ``sglang_plan`` returned them: examples for what people are shown.

``six-instances``: a hybrid model with speculation, the same over four GPUs, a dense one, one with sliding
windows, one whose memory was not planned, one on a CPU. ``h200-mtp``: the plan of the recorded start
``0.5.11/h200-mtp-noradix-ready.log``, with what was free there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_kit.readiness import Expectation
from sglang_kit.why import explain

FIXTURES = Path(__file__).parent / "fixtures"
DIRECTORY = FIXTURES / "plans"


def load(name: str) -> list[dict[str, Any]]:
    """Read example plans."""
    plans: list[dict[str, Any]] = json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    return plans


def expected(name: str) -> list[str]:
    """Read the lines that people shall see."""
    return (DIRECTORY / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def recorded_verdict() -> dict[str, Any]:
    """Judge the recorded start that ``h200-mtp`` planned."""
    with (FIXTURES / "recorded/0.5.11/h200-mtp-noradix-ready.log").open("rb") as raw:
        verdict, _ = explain(raw, Expectation())
    return verdict.as_dict()
