"""The flag table against installed releases.

``SGLANG_TEST_VENVS`` names a folder that holds a virtual environment per version (``<folder>/0.5.23``).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from sglang_kit import engine_probe
from sglang_kit.engine import SUPPORTED, facts
from sglang_kit.engine_flags import check_flags, known_flags

VENVS = os.environ.get("SGLANG_TEST_VENVS")
INSTALLED = [v for v in SUPPORTED if VENVS and (Path(VENVS) / v / "bin" / "python").exists()]

pytestmark = pytest.mark.skipif(not INSTALLED, reason="SGLANG_TEST_VENVS names no installed release")


@pytest.mark.parametrize("version", INSTALLED)
def test_the_installed_parser_has_the_flags_of_the_table(version: str) -> None:
    python = Path(str(VENVS)) / version / "bin" / "python"
    probe = [str(python), str(engine_probe.__file__)]
    done = subprocess.run(probe, check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    live = {flag: (kind, value_type) for flag, kind, value_type, _, _ in found["flags"]}
    table = {flag.name: (flag.kind, flag.type) for flag in known_flags(version).values()}
    assert live == {**live, **table}, "plugins may add more"
    # The table names a flag's newest field; an older version has one of the flag's own name.
    fields = {flag: field for flag, _, _, field, _ in found["flags"]}
    named = {
        flag.name: {flag.field, flag.name[2:].replace("-", "_")} for flag in known_flags(version).values()
    }
    assert {flag: fields[flag] for flag in named if fields[flag] not in named[flag]} == {}
    assert set(facts(version).algorithms) <= set(found["algorithms"])
    assert check_flags(version, ["--model-path", "x", "--port", "1"]) == []
