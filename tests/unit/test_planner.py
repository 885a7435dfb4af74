from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sglang_kit.engine import SUPPORTED, facts
from sglang_kit.instance import MemoryPins, Strategy
from sglang_kit.memory import predict
from sglang_kit.planner import LADDER, Plan, default_headroom, plan
from sglang_kit.problem import ProblemsError
from sglang_kit.quantity import GIB
from sglang_kit.rules import Wish
from sglang_kit.settings import Settings

from tests.sizing import FIRST, LAST, card, model

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_kit.resolution import Card


def planned(
    name: str,
    version: str = LAST,
    draft: str | None = None,
    on: Card | None = None,
    **wish: Any,  # noqa: ANN401 - any field
) -> Plan:
    return plan(
        model=model(name),
        draft=None if draft is None else model(draft),
        facts=facts(version),
        card=on or card(),
        wish=Wish(**wish),
        where="chat",
    )


MTP = Strategy("mtp", steps=3)
HAND_TUNED = planned("qwen36-27b", FIRST, strategy=MTP, context_length=8192)


def test_it_beats_the_hand_tuned_settings() -> None:
    found = HAND_TUNED.prediction
    assert found.running_requests >= 16
    assert found.kv_tokens >= 165_000
    assert found.tightest.free >= 4 * GIB
    assert HAND_TUNED.full_contexts == found.kv_tokens // 8192
    assert dict(HAND_TUNED.values) == {
        "context_length": 8192,
        "running_requests": 16,
        "memory_fraction": HAND_TUNED.settings.memory_fraction,
        "prefill_chunk": 8192,
        "graph_max_bs_decode": 16,
        "mamba_strategy": "extra_buffer",
        "state_slots": 80,
        "algorithm": "EAGLE",
        "draft_steps": 3,
        "draft_topk": 1,
        "draft_tokens": 4,
    }


def test_it_says_what_other_numbers_give() -> None:
    others = {one.concurrency: one for one in HAND_TUNED.alternatives}
    assert list(others) == [8, 12, 24]
    assert others[8].kv_tokens > others[12].kv_tokens > HAND_TUNED.prediction.kv_tokens
    assert others[24].fault
    assert others[8].fault == ""
    assert all(one.tightest_bytes >= 4 * GIB for one in (others[8], others[12]))


def test_it_says_why() -> None:
    assert "the draft model loads beside the pools" in HAND_TUNED.binds
    assert [reason.partition(":")[0] for reason in HAND_TUNED.reasons] == [
        f"memory_fraction {HAND_TUNED.settings.memory_fraction:g}",
        "running_requests 16",
        "state_slots 80",
        "running_requests is written",
        "extra_buffer",
        "prefill_chunk and graph_max_bs_decode",
    ]
    assert HAND_TUNED.notes == ("weights are computed from shapes, to 1%",)


def test_a_plan_is_plain_data() -> None:
    found = HAND_TUNED.as_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["pools_gib"]["weights"] == 51.09
    assert found["tightest"]["moment"] == "draft pool allocated"
    assert found["slots_per_request"] == 5


def test_the_largest_fraction_is_chosen() -> None:
    found = HAND_TUNED
    more = replace(found.settings, memory_fraction=(found.settings.memory_fraction or 0) + 0.001)
    tighter = predict(settings=more, model=model("qwen36-27b"), facts=facts(FIRST), card=card())
    assert tighter.tightest.free < found.headroom_bytes <= found.prediction.tightest.free


def test_a_plain_model_leaves_requests_to_the_engine() -> None:
    found = planned("qwen3-8b", context_length=8192)
    assert "running_requests" not in dict(found.values)
    assert found.alternatives == ()
    assert found.prediction.running_requests > 256
    assert "serving" in found.binds
    asked = planned("qwen3-8b", context_length=8192, concurrency=12)
    assert dict(asked.values)["running_requests"] == 12
    assert asked.prediction.running_requests == 12


def test_pins_are_kept() -> None:
    pins = MemoryPins(
        fraction=0.85, kv_dtype="fp8_e4m3", state_slots=40, state_ratio=0.5, state_dtype="bfloat16"
    )
    found = planned("qwen36-27b", memory=pins, context_length=8192)
    values = dict(found.values)
    assert {key: values[key] for key in ("memory_fraction", "kv_dtype", "state_slots", "state_ratio")} == {
        "memory_fraction": 0.85, "kv_dtype": "fp8_e4m3", "state_slots": 40, "state_ratio": 0.5,
    }  # fmt: skip
    assert values["state_dtype"] == "bfloat16"
    assert values["running_requests"] == 8
    tight = planned("qwen36-27b", memory=MemoryPins(fraction=0.93), concurrency=4, context_length=8192)
    assert "less than the headroom of" in tight.notes[0]


def test_a_pinned_ratio_sizes_the_state_cache() -> None:
    pinned = [
        planned("qwen36-27b", memory=MemoryPins(state_ratio=ratio), context_length=8192, concurrency=8)
        for ratio in (0.3, 0.9)
    ]
    assert [dict(found.values)["state_ratio"] for found in pinned] == [0.3, 0.9]
    assert not any("state_slots" in dict(found.values) for found in pinned)
    small, large = (found.prediction for found in pinned)
    assert 40 < small.state_slots < large.state_slots
    assert small.kv_tokens > large.kv_tokens
    assert f"state_slots {small.state_slots}: what memory.state_ratio gives" in pinned[0].reasons[1]
    told = r"memory.state_ratio: 0.01 leaves no room for the 5 state slots .*; leave memory.state_ratio out"
    with pytest.raises(ProblemsError, match=told):
        planned("qwen36-27b", memory=MemoryPins(state_ratio=0.01), context_length=8192, concurrency=8)


def test_a_headroom_is_kept_free() -> None:
    found = planned("qwen3-8b", memory=MemoryPins(headroom_gib=20))
    assert 20 * GIB <= found.prediction.tightest.free < 20.3 * GIB


def test_the_headroom_follows_the_card() -> None:
    assert default_headroom(card(total_mib=143_771)) == 4 * GIB
    assert default_headroom(card(total_mib=20_480)) == GIB
    assert default_headroom(card(total_mib=None)) == 0


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize(
    ("name", "draft", "strategy"),
    [
        ("qwen36-27b", None, MTP),
        ("qwen36-27b", "dflash-qwen36-27b", Strategy("dflash", "x")),
        ("qwen36-27b", "dflash-qwen36-27b", Strategy("dflash", "x", draft_tokens=8)),
        ("llama-3.1-8b", "eagle3-llama-3.1-8b", Strategy("eagle3", "x", topk=4, draft_tokens=8)),
        ("llama-3.1-8b", None, Strategy("ngram")),
        ("falcon-h1-7b", None, Strategy()),
        ("gpt-oss-20b", None, Strategy()),
    ],
)
def test_strategies(version: str, name: str, draft: str | None, strategy: Strategy) -> None:
    longest = 8192 if draft is None else min(8192, model(draft).context_length)
    found = planned(name, version, draft, strategy=strategy, context_length=longest)
    assert found.prediction.error == ""
    again = predict(
        settings=found.settings, model=model(name), facts=facts(version), card=card(),
        draft=None if draft is None else model(draft),
    )  # fmt: skip
    assert again == found.prediction


@pytest.mark.parametrize(
    ("strategy", "numbers"),
    [
        (Strategy("mtp"), (3, 1, 4)),
        (Strategy("mtp", steps=5), (5, 1, 6)),
        (Strategy("mtp", draft_tokens=3), (2, 1, 3)),
        (Strategy("mtp", topk=2), (3, 2, 4)),
        (Strategy("mtp", topk=2, draft_tokens=8), (3, 2, 8)),
    ],
)
def test_numbers_of_a_draft_that_are_left_out(strategy: Strategy, numbers: tuple[int, int, int]) -> None:
    settings = planned("qwen36-27b", strategy=strategy, context_length=8192).settings
    assert (settings.draft_steps, settings.draft_topk, settings.draft_tokens) == numbers


def test_numbers_that_do_not_go_together_are_noted() -> None:
    many = planned("qwen36-27b", concurrency=8, context_length=131_072)
    assert "2 of 8 requests can hold a full context at once" in many.notes or any(
        "requests can hold a full context at once" in note for note in many.notes
    )


def test_a_prefix_cache_that_the_engine_drops_is_noted() -> None:
    lost = replace(facts(LAST), prefix_cache_lost=("Qwen3ForCausalLM",))
    found = plan(model=model("qwen3-8b"), draft=None, facts=lost, card=card(weights=16 * GIB), wish=Wish())
    assert found.notes == ("SGLang 0.5.23 switches the prefix cache off for Qwen3ForCausalLM",)


def test_without_a_prefix_cache_requests_need_one_slot() -> None:
    found = planned("qwen36-27b", prefix_cache=False, concurrency=8, context_length=8192)
    values = dict(found.values)
    assert (values["state_slots"], values["disable_prefix_cache"]) == (8, True)
    assert "mamba_strategy" not in values


def test_what_args_say_is_kept() -> None:
    base = Settings(graph_max_bs_decode=4, prefill_chunk=2048, state_strategy="extra_buffer")
    values = dict(planned("qwen36-27b", base=base, context_length=8192).values)
    assert (values["graph_max_bs_decode"], values["prefill_chunk"]) == (4, 2048)
    assert "mamba_strategy" not in values
    off = dict(planned("qwen3-8b", base=Settings(decode_graphs=False)).values)
    assert "graph_max_bs_decode" not in off


@pytest.mark.parametrize("free", [None, 16.0])
def test_the_cpu_gets_a_number_of_tokens(free: float | None) -> None:
    found = planned("tiny-gpt2", on=card(free, None), base=Settings(device="cpu"), context_length=1024)
    assert dict(found.values) == {"context_length": 1024, "total_tokens": 8192}
    assert found.binds == "the number of tokens that was asked for" or free
    asked = planned("tiny-gpt2", on=card(free, None), base=Settings(device="cpu"), concurrency=2)
    assert dict(asked.values)["total_tokens"] == 2048
    assert asked.as_dict()["tightest"] == {} or free


def refusal(name: str, version: str = LAST, **wish: Any) -> str:  # noqa: ANN401 - any field
    with pytest.raises(ProblemsError) as caught:
        planned(name, version, **wish)
    assert all(problem.where == "chat" for problem in caught.value.problems)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "version", "wish", "message", "remedy"),
    [
        ("qwen3-8b", LAST, {"strategy": Strategy("mtp")}, "has no prediction layers", "use none or ngram"),
        ("qwen36-27b", FIRST, {"strategy": MTP, "context_length": 8192, "concurrency": 48},
         "240 state slots take 34.41 GiB, the reserve for 48 requests x 4", "ask for at most 23 requests or"),
        ("qwen36-27b", FIRST, {"strategy": MTP, "context_length": 8192, "memory": MemoryPins(state_slots=4)},
         "4 state slots are fewer than the 5 that one request needs", "leave memory.state_slots out"),
        ("qwen36-27b", LAST, {"context_length": 8192, "concurrency": 8, "memory": MemoryPins(state_slots=20)},
         "20 state slots serve 4 requests at 5 slots each, 8 are wanted", "leave memory.state_slots out"),
        ("qwen36-27b", LAST, {"context_length": 8192, "memory": MemoryPins(fraction=0.4)},
         "memory: ", "leave memory.fraction out"),
        ("qwen3-8b", LAST, {"context_length": 8192, "memory": MemoryPins(fraction=0.999)},
         "are missing at the moment 'serving'", "leave memory.fraction out"),
        ("qwen3-8b", LAST, {"memory": MemoryPins(headroom_gib=90)}, "memory",
         "leave memory.headroom_gib out"),
        ("qwen3-8b", LAST, {"on": card(16)}, "memory: nothing is left for the KV cache", "use 4 such GPUs"),
        ("llama-4-scout", LAST, {}, "model: the weights take 207.37 GiB, 93.57 GiB are free",
         "ask for one request and use 4 such GPUs"),
        ("llama-4-scout", LAST, {"on": card(10)}, "model: the weights", "no setting works, not on 8"),
        ("qwen3-8b", LAST, {"base": Settings(total_tokens=41_000), "memory": MemoryPins(headroom_gib=75)},
         "93.57 GiB are free, weights take 15.28 GiB, 75.00 GiB stay free",
         "leave memory.headroom_gib out"),
        ("tiny-gpt2", LAST, {"memory": MemoryPins(headroom_gib=93)},
         "of 93.00 GiB headroom are left at the moment 'serving', whatever the fraction",
         "leave memory.headroom_gib out"),
        ("qwen36-27b", LAST, {"on": card(52), "base": Settings(state_strategy="extra_buffer")},
         "nothing is left for the KV cache", "such GPUs"),
        ("gpt-oss-20b", LAST, {"base": Settings(total_tokens=150), "memory": MemoryPins(fraction=0.8)},
         "SWA pool (120 tokens) cannot hold", "no setting works"),
        ("qwen3-8b", LAST, {"base": Settings(total_tokens=3000), "concurrency": 4},
         "the KV pool of 3,000 tokens is smaller than one context of 40,960", "lower the context to 2,048"),
        ("qwen3-8b", LAST, {"base": Settings(total_tokens=40_960, page_size=16), "concurrency": 30_000},
         "20480 of 30000 requests run: the KV pool has 40,960 tokens", "ask for at most"),
        ("qwen3-8b", LAST, {"memory": MemoryPins(kv_dtype="int3")}, "the layout of int3", "use one of auto"),
        ("qwen36-27b", LAST, {"base": Settings(page_size=512, track_interval=512, state_strategy="no_buffer",
                                              overlap=False)}, "page size 1, not 512", "leave it out"),
        ("qwen36-27b", FIRST, {"base": Settings(state_strategy="extra_buffer_lazy"), "strategy": MTP},
         "args: SGLang 0.5.11 would stop with AssertionError: extra_buffer_lazy unsupported with spec", ""),
        ("qwen3-8b", LAST, {"tensor_parallel": 3}, "32 attention heads cannot be split over 3", "use 4 GPUs"),
    ],
)  # fmt: skip
def test_refusals(*, name: str, version: str, wish: dict[str, Any], message: str, remedy: str) -> None:
    text = refusal(name, version, **wish)
    assert message in text
    assert remedy in text


def test_all_faults_of_a_refusal_have_numbers() -> None:
    text = refusal("qwen36-27b", FIRST, strategy=MTP, context_length=262_144, concurrency=16)
    assert re.search(
        r"the KV pool of [\d,]+ tokens is smaller than one context of 262,144, 80 state slots", text
    )
    assert "the reserve for 16 requests x 4 draft tokens" in text


WISHES = st.fixed_dictionaries(
    {
        "context_length": st.sampled_from([None, 2048, 8192, 32768]),
        "concurrency": st.none() | st.integers(1, 400),
        "prefix_cache": st.booleans(),
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "memory": st.builds(
            MemoryPins,
            fraction=st.none() | st.floats(0.2, 0.98).map(lambda part: round(part, 3)),
            kv_dtype=st.sampled_from([None, "fp8_e4m3"]),
            headroom_gib=st.none() | st.floats(0, 30),
            state_ratio=st.none() | st.floats(0.1, 3).map(lambda part: round(part, 2)),
        ),
    }
)
CASES = st.sampled_from(
    [
        ("qwen36-27b", None, MTP),
        ("qwen36-27b", None, Strategy()),
        ("qwen36-27b", "dflash-qwen36-27b", Strategy("dflash", "x")),
        ("llama-3.1-8b", "eagle3-llama-3.1-8b", Strategy("eagle3", "x")),
        ("qwen3-8b", None, Strategy("ngram")),
        ("deepseek-v2-lite", None, Strategy()),
        ("falcon-h1-7b", None, Strategy()),
        ("gpt-oss-20b", None, Strategy()),
    ]
)


REMEDIES: tuple[tuple[str, Callable[[dict[str, Any], str], dict[str, Any]]], ...] = (
    (r"ask for at most (\d+) requests", lambda wish, n: wish | {"concurrency": int(n)}),
    (r"lower the context to ([\d,]+)", lambda wish, n: wish | {"context_length": int(n.replace(",", ""))}),
    (r"use (\d+) such GPUs", lambda wish, n: wish | {"tensor_parallel": int(n)}),
    (r"leave memory\.(\w+) out", lambda wish, n: wish | {"memory": replace(wish["memory"], **{n: None})}),
    (r"set (prefix_cache): false", lambda wish, n: wish | {n: False}),
    (r"set strategy\.method: (none)", lambda wish, n: wish | {"strategy": Strategy(n)}),
    (r"set memory\.kv_dtype: (\w+)", lambda wish, n: wish | {"memory": replace(wish["memory"], kv_dtype=n)}),
    (
        r"set memory\.state_dtype: (\w+)",
        lambda wish, n: wish | {"memory": replace(wish["memory"], state_dtype=n)},
    ),
    (
        r"draft one token per step \(strategy.steps: (1)\)",
        lambda wish, n: wish | {"strategy": replace(wish["strategy"], steps=int(n))},
    ),
)


def follow(remedy: str, wish: dict[str, Any]) -> list[dict[str, Any]]:
    """Wishes changed as each part of a remedy says; empty where it is no single change."""
    found = []
    for part in remedy.split(" or "):
        for pattern, change in REMEDIES:
            match = re.fullmatch(pattern, part)
            if match:
                found.append(change(wish, match[1]))
    return found


def test_remedies_are_understood() -> None:
    with pytest.raises(ProblemsError) as caught:
        planned("qwen36-27b", FIRST, strategy=MTP, context_length=8192, concurrency=48)
    (problem,) = caught.value.problems
    assert len(follow(problem.remedy, {"memory": MemoryPins()})) == 3


@settings(max_examples=80)
@given(case=CASES, version=st.sampled_from(SUPPORTED), free=st.floats(4, 180), wish=WISHES)
def test_every_plan_stands_and_every_refusal_helps(
    case: tuple[str, str | None, Strategy], version: str, free: float, wish: dict[str, Any]
) -> None:
    name, draft, strategy = case
    assume(not (name == "gpt-oss-20b" and not wish["prefix_cache"]))
    wish = wish | {"strategy": strategy}
    try:
        found = planned(name, version, draft, on=card(free), **wish)
    except ProblemsError as error:
        remedies = {problem.remedy for problem in error.problems}
        assert "" not in remedies
        for changed in (one for remedy in remedies for one in follow(remedy, wish)):
            assert planned(name, version, draft, on=card(free), **changed).prediction.error == ""
        return
    stands = predict(
        settings=found.settings,
        model=model(name),
        facts=facts(version),
        card=card(free),
        draft=None if draft is None else model(draft),
    )
    assert stands == found.prediction
    assert stands.error == ""
    assert stands.kv_tokens >= found.context_length
    assert wish["concurrency"] is None or stands.running_requests == wish["concurrency"]
    assert wish["memory"].fraction is not None or stands.tightest.free >= found.headroom_bytes
    assert {one.concurrency for one in found.alternatives} <= set(LADDER)
