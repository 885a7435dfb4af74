from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.engine import facts
from sglang_kit.host_memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    Request,
    check_host_memory,
    host_bytes,
    plan_shared,
    taken_bytes,
)
from sglang_kit.instance import MemoryPins, Strategy
from sglang_kit.problem import ProblemsError
from sglang_kit.quantity import GIB
from sglang_kit.rules import Wish
from sglang_kit.settings import Settings

from tests.sizing import LAST, card, model

if TYPE_CHECKING:
    from sglang_kit.planner import Plan


def request(name: str, *gpus: str, of: str = "qwen3-8b", **wish: Any) -> Request:  # noqa: ANN401 - any field
    return Request(name, gpus, model(of), None, facts(LAST), Wish(context_length=8192, **wish))


def test_an_instance_alone_gets_its_card() -> None:
    found = plan_shared([request("chat", "0"), request("code", "1")], {"0": card(93), "1": card(139)})
    assert list(found) == ["chat", "code"]
    assert found["chat"].prediction.kv_tokens < found["code"].prediction.kv_tokens
    assert 4 * GIB <= found["chat"].prediction.tightest.free < 4.3 * GIB


def test_the_poorest_card_of_a_group_counts() -> None:
    cards = {"0": card(139), "1": card(130), "2": card(130)}
    both = plan_shared([request("chat", "0", "1", tensor_parallel=2)], cards)
    poor = plan_shared([request("chat", "1", "2", tensor_parallel=2)], cards)
    assert both["chat"].prediction == poor["chat"].prediction


def test_ranks_leave_room_for_their_communicators() -> None:
    wide = request("chat", "0", "1", tensor_parallel=2)
    cards, free = {"0": card(139), "1": card(139)}, 139 * GIB - COMMUNICATOR_BYTES
    less = replace(card(139), free=free)
    group = plan_shared([wide], cards)["chat"]
    alone = plan_shared([request("chat", "0", tensor_parallel=2)], {"0": less})["chat"]
    assert group.prediction == alone.prediction
    both = plan_shared([wide, request("b", "1")], cards)
    later = both["b"].prediction
    assert later.moments[0].free + later.weights == free - taken_bytes(both["chat"].prediction, less)


def test_cards_of_one_instance_must_be_alike() -> None:
    cards = {"0": card(139), "1": card(120)}
    with pytest.raises(ProblemsError, match=r"GPU 1 has 120\.00 GiB free, GPU 0 139\.00 GiB: SGLang refuses"):
        plan_shared([request("chat", "0", "1", tensor_parallel=2)], cards)
    unchecked = request("chat", "0", "1", tensor_parallel=2, base=Settings(balance_checked=False))
    assert plan_shared([unchecked], cards)["chat"].prediction.error == ""


def test_instances_share_a_card_in_their_order() -> None:
    found = plan_shared([request(name, "0") for name in ("a", "b", "c")], {"0": card(120)})
    sizes = [plan.prediction.weights + plan.prediction.kv_bytes for plan in found.values()]
    assert sum(sizes) < 120 * GIB
    assert max(sizes) - min(sizes) < 8 * GIB
    last = found["c"].prediction
    assert last.tightest.free >= 4 * GIB


def test_a_pinned_fraction_is_not_changed() -> None:
    pinned = request("a", "0", memory=MemoryPins(fraction=0.5))
    found = plan_shared([pinned, request("b", "0")], {"0": card(120)})
    assert found["a"].settings.memory_fraction == 0.5


def test_a_pinned_headroom_stays_beside_the_others_share() -> None:
    wide = request("a", "0", memory=MemoryPins(headroom_gib=10))
    found = plan_shared([wide, request("b", "0")], {"0": card(120)})
    assert found["a"].headroom_bytes == pytest.approx(65 * GIB)


def test_faults_of_all_instances_come_together() -> None:
    big = [request(name, "0", of="llama-4-scout") for name in ("a", "b")]
    with pytest.raises(ProblemsError) as caught:
        plan_shared([*big, request("c", "0")], {"0": card(100)})
    assert {problem.where for problem in caught.value.problems} == {"a", "b"}


def test_the_draft_and_the_context_count_as_taken() -> None:
    strategy = Strategy("mtp", steps=3)
    found = plan_shared([request("a", "0", of="qwen36-27b", strategy=strategy)], {"0": card(120)})[
        "a"
    ].prediction
    assert taken_bytes(found, card(120)) == 120 * GIB - found.moments[-1].free + CONTEXT_BYTES
    held = found.weights + found.draft_weights + found.state_bytes + found.kv_bytes
    assert held < taken_bytes(found, card(120)) < held + 6 * GIB


def test_without_a_gpu_the_cpu_is_planned_for() -> None:
    tiny = Request("a", (), model("tiny-gpt2"), None, facts(LAST), Wish(base=Settings(device="cpu")))
    assert dict(plan_shared([tiny], {})["a"].values)["total_tokens"] == 8192


def planned(**base: Any) -> Plan:  # noqa: ANN401 - any setting
    return plan_shared([request("chat", "0", base=Settings(**base))], {"0": card()})["chat"]


def test_main_memory() -> None:
    cards = {"0": card(), "1": card()}
    both = plan_shared([request("chat", "0", "1", tensor_parallel=2)], cards)["chat"]
    assert host_bytes(both) == 13 * GIB
    assert host_bytes(planned(hierarchical_gb=30)) == 8 * GIB
    assert host_bytes(planned(hierarchical_gb=30, hierarchical_cache=True)) == 8 * GIB + 30 * 10**9
    double = planned(hierarchical_cache=True)
    assert host_bytes(double) == 8 * GIB + 2 * double.prediction.kv_bytes


def test_a_host_with_too_little_main_memory() -> None:
    needs = [("chat", 13 * GIB), ("code", 38 * GIB)]
    assert check_host_memory(needs, total=51 * GIB) == []
    (problem,) = check_host_memory(iter(needs), total=50 * GIB)
    assert problem.message == (
        "the instances need 51.00 GiB of main memory, the host has 50.00 GiB (chat 13.00 GiB, code 38.00 GiB)"
    )
