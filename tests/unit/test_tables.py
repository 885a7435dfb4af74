"""Generated tables are as fresh as their sources."""

from __future__ import annotations

from scripts import tables


def test_no_table_is_stale() -> None:
    assert tables.stale(write=False) == []
