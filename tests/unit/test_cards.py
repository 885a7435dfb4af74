from __future__ import annotations

from typing import Any

import pytest
from sglang_kit import cards
from sglang_kit.instance import Instance
from sglang_kit.problem import Collector
from sglang_kit.quantity import GIB, MIB
from sglang_kit.resolution import Card

SEEN = {
    "index": 1,
    "uuid": "GPU-aaaa",
    "name": "NVIDIA RTX PRO 6000",
    "compute_capability": "12.0",
    "memory_total_bytes": 97_887 * MIB,
    "memory_free_bytes": 94 * GIB,
}


def instance(name: str = "chat", *gpus: str) -> Instance:
    return Instance(name=name, model="/srv/models/m", served_model_name="m", port=30000, gpus=gpus or ("1",))


def process(
    pid: int, size: int, *, unit: str = "", command: str = "", gpu: int = 1, ancestors: tuple[int, ...] = ()
) -> dict[str, Any]:
    known = {"unit": unit, "command": command, "ancestors": ancestors}
    return {"gpu": gpu, "pid": pid, "memory_bytes": size, **known}


def surprises(
    free: int, *processes: dict[str, Any], wanted: Instance | None = None, adopted: tuple[str, ...] = ()
) -> list[str]:
    found = Collector()
    cards.surprises(
        [wanted or instance()],
        {"0": Card(None, 94 * GIB), "1": Card(None, 94 * GIB), "GPU-aaaa": Card(None, 94 * GIB)},
        gpus=[{**SEEN, "index": 0, "uuid": "GPU-bbbb"}, {**SEEN, "memory_free_bytes": free}],
        processes=processes,
        adopted=adopted,
        found=found,
    )
    return [str(problem) for problem in found.problems]


def test_a_declared_entry_stands_for_several_cards_and_the_smallest_sets_the_total() -> None:
    found = cards.declared(
        [
            {
                "count": 2,
                "name": "RTX",
                "memory_mib": 97_887,
                "free_gib": 94.24,
                "compute_capability": "12.0",
            },
            {"memory_mib": 24_576},
        ]
    )
    assert list(found) == ["0", "1", "2"]
    assert {card.total for card in found.values()} == {24_576 * MIB}
    size = 97_887 * MIB
    assert found["1"] == Card(24_576 * MIB, int(94.24 * GIB), capability=(12, 0), name="RTX", size=size)
    assert found["2"] == Card(24_576 * MIB, 24_576 * MIB - cards.DRIVER_BYTES, size=24_576 * MIB)


def test_nothing_declared_and_nothing_seen() -> None:
    assert cards.declared([]) == cards.measured([]) == {}


def test_a_measured_card_is_known_by_index_and_uuid_and_counts_as_idle() -> None:
    found = cards.measured([SEEN])
    size = 97_887 * MIB
    idle = Card(size, size - cards.DRIVER_BYTES, capability=(12, 0), name="NVIDIA RTX PRO 6000", size=size)
    assert found == {"1": idle, "GPU-aaaa": idle}


@pytest.mark.parametrize("free", [94 * GIB, 94 * GIB - cards.TOLERANCE_BYTES])
def test_what_is_free_as_planned_is_no_surprise(free: int) -> None:
    assert surprises(free) == []


@pytest.mark.parametrize("unit", ["sglang-chat.service", "sglang-left-the-inventory.service"])
def test_what_instances_hold_counts_as_free(unit: str) -> None:
    assert surprises(4 * GIB, process(7, 90 * GIB, unit=unit)) == []


@pytest.mark.parametrize("adopted", ["mine", "mine.service", "7", "6"])
def test_what_is_taken_over_counts_as_free(adopted: str) -> None:
    mine = process(7, 90 * GIB, unit="mine.service", ancestors=(6, 1))
    assert surprises(4 * GIB, mine, adopted=(adopted,)) == []
    assert len(surprises(4 * GIB, mine, adopted=("8", "yours"))) == 1


def test_holders_are_named() -> None:
    (surprise,) = surprises(
        50 * GIB,
        process(7, 20 * GIB, unit="sglang-chat.service"),
        process(8, 20 * GIB, command="python train.py"),
        process(9, 4 * GIB),
        process(10, 60 * GIB, command="another card", gpu=0),
    )
    assert surprise == (
        "chat: gpus: GPU 1 has 70.00 GiB free, the plan counts on 94.00 GiB (pid 8 (python train.py) holds"
        " 20.00 GiB; pid 9 (outside this container) holds 4.00 GiB); end the process, let a deploy take it"
        " over (sglang_service_adopt), or declare what is free in `sglang_host_gpus` (free_gib)"
    )


def test_memory_that_nobody_is_seen_to_hold() -> None:
    assert "(no process that can be seen holds the rest)" in surprises(10 * GIB)[0]


def test_a_card_is_found_by_uuid_and_unknown_ones_are_left_out() -> None:
    assert "GPU GPU-aaaa has" in surprises(10 * GIB, wanted=instance("chat", "GPU-aaaa"))[0]
    assert surprises(10 * GIB, wanted=instance("chat", "GPU-bbbb")) == []
    assert surprises(10 * GIB, wanted=instance("chat", "MIG-cccc")) == []


def read(raw: object) -> list[str]:
    found = Collector()
    cards.read(raw, found)
    return [str(problem) for problem in found.problems]


def test_sound_entries_are_read_with_their_numbers() -> None:
    found = Collector()
    raw: list[dict[str, Any]] = [
        {"count": "2", "memory_mib": "97887", "free_gib": "94.24", "compute_capability": 12.0, "name": "RTX"},
        {"memory_mib": 24_576, "count": None, "free_gib": None, "compute_capability": None},
    ]
    first, second = cards.read(raw, found)
    assert found.problems == []
    assert first == {
        **raw[0],
        "count": 2,
        "memory_mib": 97_887,
        "free_gib": 94.24,
        "compute_capability": "12.0",
    }
    assert list(cards.declared([first, second])) == ["0", "1", "2"]


EXAMPLE = "write it as in {count: 8, memory_mib: 97887}"
KNOWN = "known are count, memory_mib, free_gib, name, compute_capability"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (8, f"host: sglang_host_gpus: 8 is not a list; {EXAMPLE}"),
        (["RTX"], f"host: sglang_host_gpus[0]: 'RTX' is not a mapping; {EXAMPLE}"),
        ([{}], "host: sglang_host_gpus[0].memory_mib: is missing; write what nvidia-smi says, in MiB"),
        (
            [{"memory_mib": "96 GB"}],
            "host: sglang_host_gpus[0].memory_mib: '96 GB' is not a number from 1 to 1e+08",
        ),
        (
            [{"memory_mib": 1, "count": 10**30}],
            f"host: sglang_host_gpus[0].count: '{10**30}' is not a number from 1 to 64",
        ),
        (
            [{"memory_mib": 1, "free_gib": float("nan")}],
            "host: sglang_host_gpus[0].free_gib: 'nan' is not a number from 0.001 to 100000",
        ),
        (
            [{"memory_mib": 97_887, "free_gib": 96.5}],
            "host: sglang_host_gpus[0].free_gib: 96.5 is more than memory_mib 97887 holds; use at most 95.59",
        ),
        (
            [{"memory_mib": 1, "compute_capability": "Blackwell"}],
            "host: sglang_host_gpus[0].compute_capability: 'Blackwell' is not as in '9.0'",
        ),
        (
            [{"memory_mib": 1, "memory": 1}],
            f"host: sglang_host_gpus[0].memory: is not a known key; {KNOWN}",
        ),
    ],
)
def test_faulty_entries_are_told_apart(raw: object, told: str) -> None:
    assert read(raw) == [told]


def test_all_faults_are_told_and_sound_entries_are_left() -> None:
    assert len(read([{"memory_mib": 0, "count": 0}, 1, {"memory_mib": 1}])) == 3
