"""The flag table against installed releases.

``SGLANG_TEST_VENVS`` names a folder that holds a virtual environment per version (``<folder>/0.5.23``).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from sglang_kit.engine import SUPPORTED
from sglang_kit.engine_flags import check_flags, known_flags

from scripts import flags as generator

VENVS = os.environ.get("SGLANG_TEST_VENVS")
INSTALLED = [v for v in SUPPORTED if VENVS and (Path(VENVS) / v / "bin" / "python").exists()]

pytestmark = pytest.mark.skipif(not INSTALLED, reason="SGLANG_TEST_VENVS names no installed release")


@pytest.mark.parametrize("version", INSTALLED)
def test_the_installed_parser_has_the_flags_of_the_table(version: str) -> None:
    python = Path(str(VENVS)) / version / "bin" / "python"
    script = Path(str(generator.__file__))
    done = subprocess.run([python, script, "dump"], check=True, capture_output=True, text=True, timeout=300)
    live = {o: a for a in json.loads(done.stdout.splitlines()[-1]).values() for o in a["opts"]}
    known = known_flags(version)
    assert set(live) == set(known)
    wrong = [o for o, a in live.items() if known[o].kind != generator.KINDS[str(a["nargs"])]]
    assert not wrong
    assert check_flags(version, ["--model-path", "x", "--port", "1"]) == []
