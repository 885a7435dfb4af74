"""The shipped locks hold what the role promises of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from packaging.markers import Marker
from sglang_kit import engine, gates

from scripts.lock import PUBLISHED_BEFORE

FILES = Path(__file__).resolve().parent.parent.parent / "roles" / "sglang_engine" / "files"
LOCKS = {place.stem: place.read_text(encoding="utf-8") for place in sorted((FILES / "locks").iterdir())}
PIN = re.compile(
    r"^([a-z0-9-]+)==(\S+) ; ([^\\\n]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


@pytest.fixture(params=LOCKS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pins(version: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, number, _, _ in PIN.findall(LOCKS[version]):
        found.setdefault(name, set()).add(number)
    return found


def test_a_lock_for_each_version_that_the_script_knows() -> None:
    assert set(LOCKS) == set(PUBLISHED_BEFORE)
    assert set(LOCKS) <= set(engine.SUPPORTED)


def test_every_line_is_a_pin_with_hashes(version: str) -> None:
    head, body = re.fullmatch(r"((?:#[^\n]*\n)+)(.*)", LOCKS[version], re.DOTALL).groups()  # type: ignore[union-attr]
    assert PUBLISHED_BEFORE[version] in head
    assert PIN.sub("", body) == ""
    assert "://" not in LOCKS[version]


def test_a_lock_installs_its_version(version: str) -> None:
    assert pins(version)["sglang"] == {version}


def test_the_kernels_package_is_one_that_transformers_of_its_time_can_import(version: str) -> None:
    assert pins(version)["kernels"] == {"0.14.1"}


def test_torch_is_built_for_the_cuda_that_the_gates_ask_for(version: str) -> None:
    (runtime,) = pins(version)["nvidia-cuda-runtime"]
    assert tuple(map(int, runtime.split(".")[:2])) == gates.CUDA


def installed(version: str, python: tuple[int, int]) -> Counter[str]:
    """Count the pins of each package that hold on a Linux x86_64 host with this Python."""
    host = {
        "python_version": "{}.{}".format(*python),
        "python_full_version": "{}.{}.9".format(*python),
        "platform_machine": "x86_64",
        "sys_platform": "linux",
    }
    return Counter(
        name for name, _, marker, _ in PIN.findall(LOCKS[version]) if Marker(marker).evaluate(host)
    )


def test_the_lock_is_for_the_pythons_that_the_gates_ask_for(version: str) -> None:
    (major, first), (_, last) = engine.facts(version).python_first, engine.facts(version).python_last
    assert f"Python {major}.{first} to {major}.{last}," in LOCKS[version]
    for minor in range(first, last + 1):
        found = installed(version, (major, minor))
        assert found["sglang"] == 1
        assert set(found.values()) == {1}
    assert installed(version, (major, last + 1)) == {}


def test_uv_is_pinned_by_one_hash() -> None:
    pin = (FILES / "uv.txt").read_text(encoding="utf-8")
    match = re.fullmatch(r"uv==(\d+)\.(\d+)\.\d+ --hash=sha256:[0-9a-f]{64}\n", pin)
    assert match
    assert (int(match[1]), int(match[2])) >= (0, 12), "older ones silently installed another SGLang"
