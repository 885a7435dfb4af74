#!/usr/bin/env python3
"""Write the hash lock of an SGLang version that the role ``sglang_engine`` ships.

    python scripts/lock.py 0.5.23

The same version gives the same bytes: packages are resolved as they stood on one day after the
release, by the uv that the role itself brings. SGLang leaves many dependencies open, and later ones
break it: 0.5.11 and 0.5.12.post1 with ``kernels`` 0.15 fail on import ("Either a revision or a version
must be specified"). A lock serves every Python version for which all dependencies have wheels.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit import engine  # noqa: E402 - after the path above

FILES = ROOT / "roles/sglang_engine/files"

PUBLISHED_BEFORE = {
    "0.5.11": "2026-05-21T00:00:00Z",
    "0.5.12.post1": "2026-05-27T00:00:00Z",  # kernels 0.15.1, which breaks transformers 5.6, came on the 29th
    "0.5.15.post1": "2026-07-21T00:00:00Z",
    "0.5.23": "2026-11-07T00:00:00Z",
}
"""Version -> the moment up to which packages count; a week after the release unless a comment says why."""


def lock(version: str) -> str:
    """Resolve ``version`` and return the lock's text."""
    facts = engine.facts(version)
    first, last = ("{}.{}".format(*python) for python in (facts.python_first, facts.python_last))
    before = PUBLISHED_BEFORE[version]
    requirement = (
        f"sglang=={version}; sys_platform == 'linux' and platform_machine == 'x86_64'"
        f" and python_version <= '{last}'"
    )
    resolved = _uv(
        *("pip", "compile", "-", "--quiet", "--universal", "--python-version", first),
        *("--generate-hashes", "--exclude-newer", before, "--no-annotate", "--no-header"),
        requirement=requirement,
    )
    return (
        f"# SGLang {version} on Linux x86_64 with Python {first} to {last},"
        f" from packages published before {before}.\n"
        f"# Written by scripts/lock.py.\n{resolved}"
    )


def _uv(*arguments: str, requirement: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--require-hashes"]
        subprocess.run([*pip, "-r", FILES / "uv.txt"], check=True)
        uv = [f"{folder}/bin/uv", *arguments]
        return subprocess.run(uv, input=requirement, check=True, text=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Write one lock."""
    parser = argparse.ArgumentParser(description="Write the hash lock of an SGLang version.")
    parser.add_argument("version", choices=PUBLISHED_BEFORE)
    version = parser.parse_args().version
    (FILES / "locks" / f"{version}.txt").write_text(lock(version), encoding="utf-8")


if __name__ == "__main__":
    main()
