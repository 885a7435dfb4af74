from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit.quantity import GIB, KIB, MIB, from_gib, from_mib, gib, human

# The largest memory that is told apart: 2**53 bytes, where floats stop holding every integer.
SIZES = st.integers(min_value=0, max_value=1 << 53)


def test_units_are_binary() -> None:
    assert (KIB, MIB, GIB) == (1024, 1024**2, 1024**3)


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, 0.0), (GIB, 1.0), (24.7 * GIB, 24.7), (5 * MIB, 0.0), (6 * MIB, 0.01), (-GIB / 2, -0.5)],
)
def test_gib_shows_two_decimals_as_the_engine_does(size: float, shown: float) -> None:
    assert gib(size) == shown


@pytest.mark.parametrize(("given_gib", "size"), [(0, 0), (1, GIB), (0.5, 512 * MIB), (1e-10, 0)])
def test_gib_become_whole_bytes(given_gib: float, size: int) -> None:
    assert from_gib(given_gib) == size
    assert isinstance(from_gib(given_gib), int)


@given(SIZES)
def test_bytes_survive_the_way_through_exact_gib(size: int) -> None:
    assert from_gib(size / GIB) == size


@given(st.integers(min_value=0, max_value=1 << 33))
def test_mib_as_nvidia_smi_prints_them(mib: int) -> None:
    assert from_mib(mib) == mib * MIB


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 MiB"),
        (300 * MIB, "300 MiB"),
        (GIB, "1.00 GiB"),
        (97_887 * MIB, "95.59 GiB"),
        (-300 * MIB, "-300 MiB"),
        (-2.5 * GIB, "-2.50 GiB"),
    ],
)
def test_sizes_for_people(size: float, text: str) -> None:
    assert human(size) == text
