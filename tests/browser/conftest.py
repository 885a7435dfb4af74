from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import Chromium

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = shutil.which("chromium")
    assert program, "these tests need the package chromium (Debian) in PATH"
    with Chromium(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(params=[(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")], ids=str)
def window(request: pytest.FixtureRequest) -> tuple[int, str]:
    """Width and scheme: a phone's and a desk's, in light and in dark."""
    width, scheme = request.param
    return width, scheme
