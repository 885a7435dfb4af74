"""Locks as uv writes them, and with wheels of one's own."""

from __future__ import annotations

import pytest
from sglang_kit import lockfile
from sglang_kit.lockfile import Pin
from sglang_kit.problem import ProblemsError

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
LOCK = f"""\
# a comment
numpy==2.3.4 ; python_full_version < '3.13' and sys_platform == 'linux' \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
sgl-kernel==0.4.2 \\
    --hash=sha256:{A}
sglang==0.5.23 --hash=sha256:{B}
"""
OURS = {"sglang-0.5.23+ours.1-py3-none-any.whl": C}


def test_pins_of_a_lock() -> None:
    assert lockfile.pins(LOCK) == [
        Pin("numpy", "2.3.4", "python_full_version < '3.13' and sys_platform == 'linux'", (A, B)),
        Pin("sgl-kernel", "0.4.2", "", (A,)),
        Pin("sglang", "0.5.23", "", (B,)),
    ]


def test_names_are_compared_as_indexes_do() -> None:
    assert lockfile.normal("Sgl_Kernel.x") == "sgl-kernel-x"


def test_a_lock_of_its_version_stays_as_it_is() -> None:
    assert lockfile.effective(LOCK, version="0.5.23", wheels={}) == LOCK


@pytest.mark.parametrize("end", ["", "\n"])
def test_wheels_of_ones_own_take_the_place_of_what_is_pinned(end: str) -> None:
    wheels = {**OURS, "sgl_kernel-0.4.2-1-cp310-abi3-manylinux2014_x86_64.whl": B}
    text = lockfile.effective(LOCK.rstrip("\n") + end, version="0.5.23+ours.1", wheels=wheels)
    assert lockfile.pins(text) == [
        Pin("numpy", "2.3.4", "python_full_version < '3.13' and sys_platform == 'linux'", (A, B)),
        Pin("sgl-kernel", "0.4.2", "", (B,)),
        Pin("sglang", "0.5.23+ours.1", "", (C,)),
    ]


def test_wheels_of_one_package_for_several_pythons_are_one_pin() -> None:
    wheels = {f"sglang-0.5.23-cp3{minor}-cp3{minor}-any.whl": digest for minor, digest in ((11, A), (12, C))}
    assert lockfile.pins(lockfile.effective(LOCK, version="0.5.23", wheels=wheels))[-1].hashes == (A, C)


def test_wheels_of_two_versions_of_a_package_are_refused() -> None:
    wheels = {"sglang-0.5.23-py3-none-any.whl": A, "sglang-0.5.23+ours.1-py3-none-any.whl": C}
    with pytest.raises(ProblemsError) as caught:
        lockfile.effective(LOCK, version="0.5.23+ours.1", wheels=wheels)
    assert "has sglang==0.5.23+ours.1 and 0.5.23; leave one of them out" in str(caught.value)


def test_every_fault_of_a_lock_is_said() -> None:
    with pytest.raises(ProblemsError) as caught:
        lockfile.effective("sglang==0.5.20\nnumpy==2.3.4\n", version="0.5.23", wheels={"sglang.whl": A})
    assert [str(problem) for problem in caught.value.problems] == [
        "sglang_engine_wheels: sglang.whl is not named as wheels are",
        "sglang_engine_lock: has no hash of numpy, sglang; uv pip compile --generate-hashes",
        (
            "sglang_engine_lock: pins sglang==0.5.20;"
            " set sglang_engine_version to it, or give a lock of sglang==0.5.23"
        ),
    ]


def test_a_lock_without_the_engine() -> None:
    with pytest.raises(ProblemsError, match="pins no sglang; set sglang_engine_version"):
        lockfile.effective("", version="0.5.23", wheels={})
