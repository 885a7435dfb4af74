from __future__ import annotations

from typing import Any

import pytest
from sglang_kit.breakdown import allocated_by, breakdown, measured
from sglang_kit.quantity import GIB

from tests.plans import load, recorded_verdict

PLANS = {plan["name"]: plan for plan in load("six-instances")}
ALLOCATED = recorded_verdict()["allocated"]


def memory(name: str) -> dict[str, Any]:
    found: dict[str, Any] = PLANS[name]["memory"]
    return found


@pytest.mark.parametrize("name", ["chat", "long", "dense", "windows"])
def test_the_parts_of_a_card_add_up_to_it(name: str) -> None:
    found = breakdown(memory(name))
    assert found.total is not None
    assert sum(part.planned for part in found.parts) == pytest.approx(found.total, abs=0.02)


def test_pools_that_an_instance_does_not_have_are_left_out() -> None:
    keys = [part.key for part in breakdown(memory("dense")).parts]
    assert keys == ["used", "weights", "kv", "graphs", "activations", "other", "free"]


def test_a_pool_of_several_tensors_says_what_it_consists_of() -> None:
    details = {part.key: part.details for part in breakdown(memory("chat")).parts if part.details}
    assert details == {
        "draft": (("while loading", 5.53),),
        "state": (("conv", 0.22), ("SSM", 11.39)),
        "intermediate": (("conv", 0.09), ("SSM", 9.56)),
        "kv": (("K", 5.76), ("V", 5.76)),
        "draft-kv": (("K", 0.36), ("V", 0.36)),
    }


def test_on_a_cpu_nothing_is_known_of_the_rest() -> None:
    found = breakdown(memory("tiny"))
    assert found.total is None
    assert [part.key for part in found.parts] == ["activations"]
    assert not found.is_measured


def test_a_recorded_start_beside_its_plan() -> None:
    (plan,) = load("h200-mtp")
    found = breakdown(plan["memory"], ALLOCATED)
    assert found.is_measured
    assert {part.key: (part.planned, part.measured) for part in found.parts} == {
        "used": (46.83, 46.83),
        "weights": (51.09, 51.05),
        "draft": (0.79, 0.79),  # 5.53 were reported: with the embedding and head that are dropped
        "state": (1.29, 1.29),
        "intermediate": (5.16, 5.16),
        "kv": (22.68, 22.72),
        "draft-kv": (1.42, 1.42),
        "graphs": (0.69, None),  # this version does not say
        "activations": (1.42, None),
        "other": (0.15, 0.15),  # with the graphs
        "free": (8.88, 9.57),  # 10.99 were reported: before the activations
    }


def test_windows_of_their_own_count_as_kv_cache() -> None:
    seen = {"kv_bytes": 33 * GIB, "swa_kv_bytes": 34 * GIB}
    parts = {part.key: part for part in breakdown(memory("windows"), seen).parts}
    assert parts["kv"].measured == 67.0
    assert parts["free"].measured is None  # nothing was said of what is free


def test_more_than_planned_never_gives_less_than_nothing() -> None:
    seen = {"free_before_bytes": 94 * GIB, "weights_bytes": 94 * GIB, "free_bytes": GIB}
    parts = {part.key: part for part in breakdown(memory("dense"), seen).parts}
    assert parts["other"].measured == 0.0
    assert parts["free"].measured == 0.0  # 1 GiB was left, activations need more


def test_only_what_is_ready_was_measured() -> None:
    plans = load("six-instances")
    verdicts = {
        "chat": {"state": "ready", "allocated": {"kv_tokens": 188682}},
        "long": {"state": "failed", "allocated": {"kv_tokens": 1}},
    }
    seen = measured(plans, verdicts)
    assert seen == {"chat": {"fingerprint": PLANS["chat"]["fingerprint"], "allocated": {"kv_tokens": 188682}}}
    assert allocated_by(PLANS["chat"], seen) == {"kv_tokens": 188682}
    assert allocated_by(PLANS["long"], seen) == {}
    assert allocated_by({**PLANS["chat"], "fingerprint": "another"}, seen) == {}
