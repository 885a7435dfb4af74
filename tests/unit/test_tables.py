"""Generated tables are as fresh as their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import tables


def test_no_table_is_stale() -> None:
    assert tables.stale(write=False) == []


def test_an_example_that_is_no_longer_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "REFUSALS", ({"concurrency": 8},))
    with pytest.raises(RuntimeError, match=r"'concurrency': 8.* is no longer refused"):
        tables.refusals(Path("plan.md"))
