from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

# The same examples every time, however slow the machine is.
settings.register_profile(
    "project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


class Tools:
    """Programs that stand in PATH before the real ones and keep a record of how they were called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def place(self, name: str, script: str = "") -> None:
        """Install ``name``, a shell script that sees its arguments."""
        program = self._directory / name
        log = f"printf '%s\\n' \"$*\" >> {self._directory}/{name}.calls"
        program.write_text(f"#!/bin/sh\n{log}\n{script}\n", encoding="utf-8")
        program.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """How ``name`` was called since it was first placed, one text a call."""
        record = self._directory / f"{name}.calls"
        return record.read_text(encoding="utf-8").splitlines() if record.exists() else []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    directory = tmp_path / "tools"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return Tools(directory)
