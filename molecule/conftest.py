"""What the tests of every scenario show when they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def journal_of_a_failed_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Show what the units of the test's host wrote when an assertion fails."""
    failed_before = request.session.testsfailed
    # Asked for here and not as an argument: that would repeat tests without a host on each host.
    host = request.getfixturevalue("host") if "host" in request.fixturenames else None
    yield
    if host and request.session.testsfailed > failed_before:
        print(host.run("journalctl --unit 'sglang-*' --lines 60 --no-pager").stdout)  # noqa: T201 - shown by pytest
