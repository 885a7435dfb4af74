#!/usr/bin/env python3
"""Collect what an engine needs into one file, for hosts without a network.

    python scripts/bundle.py 0.5.23
    python scripts/bundle.py 0.5.23 --python 3.11 --output /mnt/stick/sglang.tar
    python scripts/bundle.py 0.5.23+ours.1 --lock ours.txt --wheel sglang-0.5.23+ours.1-py3-none-any.whl

It holds the wheels of the lock for each Python, uv's wheel, the kit, and the list of OS packages. Wheels
come from pip's index, are checked against the lock, and stay in ``dist/wheels`` for the next time. The same
lock, Pythons and kit make the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from packaging.markers import Marker

if TYPE_CHECKING:
    from collections.abc import Collection

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit import bundle, engine, gates, kit, lockfile  # noqa: E402 - after the path above

ENGINE_FILES = ROOT / "roles/sglang_engine/files"
HOST_DEFAULTS = ROOT / "roles/sglang_host/defaults/main.yml"
PIP = (sys.executable, "-m", "pip")
NETWORK = ("index-url", "extra-index-url", "find-links", "proxy", "cert", "client-cert", "trusted-host")
"""Settings of pip that say how its index is reached."""
PLATFORMS = (
    *(f"manylinux_2_{minor}_{gates.MACHINE}" for minor in range(gates.GLIBC[1], 4, -1)),
    *(f"manylinux{name}_{gates.MACHINE}" for name in ("2014", "2010", "1")),
    f"linux_{gates.MACHINE}",
)


def holding(text: str, python: str, own: Collection[str] = ()) -> list[str]:
    """List the requirements of a lock that hold with this Python (as 3.11.2), without their markers.

    ``own`` are the names of packages of which there are wheels already.
    """
    host = {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": gates.MACHINE,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    return [
        f"{pin.name}=={pin.version} " + " ".join(f"--hash=sha256:{value}" for value in pin.hashes)
        for pin in lockfile.pins(text)
        if pin.name not in own and (not pin.marker or Marker(pin.marker).evaluate(host))
    ]


def environment() -> dict[str, str]:
    """Variables that let pip reach its index as configured, without what else is configured.

    The constraints of this machine would contradict the lock.
    """
    listed = subprocess.run([*PIP, "config", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    pairs = [line.partition("=") for line in listed.splitlines() if not line.startswith(":env:")]
    configured = {key.rpartition(".")[2]: ast.literal_eval(value) for key, _, value in pairs}
    kept = {f"PIP_{key.upper().replace('-', '_')}": configured[key] for key in NETWORK if key in configured}
    return {**kept, **os.environ, "PIP_CONFIG_FILE": os.devnull}


def download(requirements: list[str], python: str, target: Path) -> None:
    """Let pip find the wheels for hosts with this Python, and check their hashes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements))
        file.flush()
        subprocess.run(
            [
                *(*PIP, "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"),
                *("--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"),
                *(f"--python-version={python}", f"--abi=cp{python.replace('.', '')}"),
                *(f"--platform={platform}" for platform in PLATFORMS),
                *("--dest", str(target), "--requirement", file.name),
            ],
            check=True,
            env=environment(),
        )


def fetch(text: str, pythons: list[str], own: Collection[str]) -> list[Path]:
    """Bring the other wheels of a lock, and uv's; those that are there from the last time stay."""
    place = ROOT / "dist/wheels" / f"{checksum(text)[:12]}-{'-'.join(pythons)}"
    place.mkdir(parents=True, exist_ok=True)
    uv = (ENGINE_FILES / "uv.txt").read_text(encoding="utf-8")
    for python in pythons:
        # Some packages are for the first patch releases alone.
        for requirements in {tuple(holding(text, f"{python}.{patch}", own)) for patch in (0, 99)}:
            download([*requirements, uv], python, place)
    return list(place.iterdir())


def checksum(text: str) -> str:
    """Compute the SHA-256 of a lock."""
    return hashlib.sha256(text.encode()).hexdigest()


def texts_of(text: str) -> dict[str, str]:
    """Write what goes into a bundle besides wheels, by name: the lock, the OS packages and the kit."""
    packages = yaml.safe_load(HOST_DEFAULTS.read_text(encoding="utf-8"))["sglang_host_packages"]
    kit_files = {f"kit/{name}": source for name, source in kit.texts().items()}
    return {"lock.txt": text, "packages.txt": "\n".join(packages) + "\n", **kit_files}


def supported(version: str) -> list[str]:
    """List the Pythons of a version."""
    facts = engine.facts(version, allow_untested=True)
    (major, first), (_, last) = facts.python_first, facts.python_last
    return [f"{major}.{minor}" for minor in range(first, last + 1)]


def collect(arguments: argparse.Namespace) -> Path:
    """Write the bundle."""
    version = arguments.version
    lock = arguments.lock or ENGINE_FILES / "locks" / f"{version}.txt"
    own = {path.name: bundle.digest(path) for path in arguments.wheel}
    text = lockfile.effective(lock.read_text(encoding="utf-8"), version=version, wheels=own)
    pythons = sorted(arguments.python or supported(version))
    target: Path = arguments.output or ROOT / "dist" / f"sglang-{version}-{checksum(text)[:12]}.tar"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        names = {lockfile.normal(file.partition("-")[0]) for file in own}
        wheels = [*fetch(text, pythons, names), *arguments.wheel]
        sources = {f"{bundle.WHEELS}/{path.name}": path for path in wheels}
        for name, content in texts_of(text).items():
            sources[name] = scratch / "texts" / name
            sources[name].parent.mkdir(parents=True, exist_ok=True)
            sources[name].write_text(content, encoding="utf-8")
        files = {name: bundle.digest(path) for name, path in sources.items()}
        bundle.write(target, bundle.Manifest(version, checksum(text), tuple(pythons), files), sources)
    return target


def main() -> None:
    """Read the command line; write one bundle and its SHA-256."""
    parser = argparse.ArgumentParser(description="Collect what an engine needs into one file.")
    parser.add_argument("version", help="SGLang version, as in sglang_engine_version")
    parser.add_argument("--lock", type=Path, help="a lock of your own (default: the shipped one)")
    parser.add_argument("--wheel", type=Path, action="append", default=[], help="a wheel of your own")
    parser.add_argument(
        "--python", action="append", help="as in 3.11 (default: all that the version supports)"
    )
    parser.add_argument("--output", type=Path, help="the file (default: below dist/)")
    target = collect(parser.parse_args())
    sys.stdout.write(f"{bundle.digest(target)}  {target}\n")


if __name__ == "__main__":
    main()
