"""Models, cards and predictions that the tests of the sizing rooms share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_kit.engine import facts
from sglang_kit.memory import Prediction, predict
from sglang_kit.model import read_config
from sglang_kit.quantity import from_gib, from_mib
from sglang_kit.resolution import Card
from sglang_kit.settings import Settings

if TYPE_CHECKING:
    from sglang_kit.shapes import Model

CONFIGS = Path(__file__).parent / "fixtures" / "configs"
FIRST, LAST = "0.5.11", "0.5.23"


@cache
def model(name: str) -> Model:
    """Read the model of a fixture."""
    return read_config(json.loads((CONFIGS / f"{name}.json").read_text()))


def card(free_gib: float | None = 93.57, total_mib: int | None = 143771, **known: Any) -> Card:  # noqa: ANN401 - any field
    """Describe a card with ``free_gib`` of ``total_mib`` free."""
    total = None if total_mib is None else from_mib(total_mib)
    return Card(total=total, free=None if free_gib is None else from_gib(free_gib), **known)


def prediction(
    name: str,
    version: str = LAST,
    draft: str | None = None,
    on: Card | None = None,
    **given: Any,  # noqa: ANN401 - any setting
) -> Prediction:
    """Predict a fixture's model under settings."""
    return predict(
        settings=Settings(draft_model=draft is not None, **given),
        model=model(name),
        facts=facts(version),
        card=on or card(),
        draft=None if draft is None else model(draft),
    )
