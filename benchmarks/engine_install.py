"""How long does the installation of an engine take, against a plain ``pip install`` of the same lock?

``python benchmarks/engine_install.py [--version V] [--python P] [--store D]``. Both install below ``D``,
where uv's cache is, too. The second time counts: their caches are warm then. A first run takes an index and
35 GB of disk, of which uv's cache stays. The release is built as a deploy builds it, its test included,
which pip has not. Ends with status 1 where the release takes longer.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "module_utils")]

from sglang_kit import release  # noqa: E402 - likewise

from scripts.bundle import environment  # noqa: E402 - after the path above

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = ROOT / "roles/sglang_engine/files"


def build(directory: Path, version: str, python: str) -> None:
    """Build a release, as the module ``sglang_release`` does."""
    root = directory / "root"
    lock = FILES / f"locks/{version}.txt"
    for name in ("releases", "uv"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / "releases")
    (root / "releases").mkdir()
    release.build(
        root=str(root),
        release=release.Release(version, hashlib.sha256(lock.read_bytes()).hexdigest()),
        how=release.Build(
            lock_file=str(lock),
            python=python,
            uv=(FILES / "uv.txt").read_text(encoding="utf-8"),
            uv_cache=str(directory.parent / "uv-cache"),
            unit={"PATH": "/usr/bin:/bin"},
        ),
    )


def pip(directory: Path, version: str, python: str) -> None:
    """Install the same packages as anybody would (pip refuses to resolve a lock that has extras)."""
    venv = directory / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([python, "-m", "venv", venv], check=True)
    subprocess.run(
        [
            *(venv / "bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"),
            *("--cache-dir", directory / "pip-cache", "--requirement", FILES / f"locks/{version}.txt"),
        ],
        check=True,
        env=environment(),
    )


def seconds_of(install: Callable[[Path, str, str], None], arguments: argparse.Namespace) -> float:
    """Install twice, and measure the second time: caches are warm then."""
    for _ in range(2):
        begin = time.perf_counter()
        install(arguments.store / "benchmark", arguments.version, arguments.python)
        seconds = time.perf_counter() - begin
        print(f"{install.__name__}: {seconds:.0f} s", flush=True)
    return seconds


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--version", default="0.5.23", help="SGLang version (default 0.5.23)")
    parser.add_argument(
        "--python", default="/usr/bin/python3.11", help="interpreter (default that of Debian 12)"
    )
    parser.add_argument("--store", type=Path, default=ROOT / ".sandbox/store", help="where it is done")
    arguments = parser.parse_args()
    scratch = arguments.store / "benchmark"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        ours, theirs = seconds_of(build, arguments), seconds_of(pip, arguments)
    finally:
        shutil.rmtree(scratch)
    print(f"release {ours:.0f} s, pip {theirs:.0f} s: {theirs / ours:.1f} times as fast")
    return 0 if ours <= theirs else 1


if __name__ == "__main__":
    sys.exit(main())
