from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sglang_kit.engine import SUPPORTED, facts
from sglang_kit.resolution import Card, EngineError, Resolved, resolve, slots_per_request
from sglang_kit.settings import Settings

from tests.sizing import FIRST, LAST, card, model


def resolved(
    name: str = "qwen36-27b",
    version: str = LAST,
    draft: str | None = None,
    on: Card | None = None,
    **given: Any,  # noqa: ANN401 - any setting
) -> Resolved:
    return resolve(
        settings=Settings(**given),
        model=model(name),
        facts=facts(version),
        draft=None if draft is None else model(draft),
        card=on or card(),
    )


@pytest.mark.parametrize(
    ("version", "strategy", "prefix_cache", "overlap", "skip_lock", "slots"),
    [
        (FIRST, "no_buffer", True, False, False, 3),
        (FIRST, "extra_buffer", True, True, False, 5),
        (FIRST, "extra_buffer", True, False, False, 4),
        (FIRST, "extra_buffer", False, True, False, 1),
        (LAST, "extra_buffer_lazy", True, True, False, 4),
        (LAST, "extra_buffer", True, True, True, 4),
        (LAST, "no_buffer", True, False, True, 3),
    ],
)
def test_slots_per_request(
    *,
    version: str,
    strategy: str,
    prefix_cache: bool,
    overlap: bool,
    skip_lock: bool,
    slots: int,
) -> None:
    found = slots_per_request(
        facts(version), strategy, prefix_cache=prefix_cache, overlap=overlap, skip_lock=skip_lock
    )
    assert found == slots


@pytest.mark.parametrize(
    ("version", "given", "strategy", "overlap", "page"),
    [
        (FIRST, {}, "no_buffer", False, 1),
        (FIRST, {"page_size": 64}, "no_buffer", False, 1),
        (FIRST, {"state_strategy": "extra_buffer"}, "extra_buffer", True, 1),
        (LAST, {"state_strategy": "extra_buffer", "prefix_cache": False}, "extra_buffer", True, 1),
        (FIRST, {"prefix_cache": False}, "no_buffer", True, 1),
        (LAST, {}, "extra_buffer", True, 1),
        (LAST, {"overlap": False}, "no_buffer", False, 1),
        (LAST, {"overlap": False, "page_size": 64}, "extra_buffer", False, 64),
        (LAST, {"prefix_cache": False}, "no_buffer", True, 1),
        (LAST, {"state_strategy": "no_buffer", "overlap": False}, "no_buffer", False, 1),
    ],
)
def test_strategies(version: str, given: dict[str, Any], strategy: str, overlap: bool, page: int) -> None:
    found = resolved(version=version, **given)
    assert (found.state_strategy, found.overlap, found.page_size) == (strategy, overlap, page)


def test_an_unsupported_model_loses_the_overlap() -> None:
    found = resolved("lfm2-1.2b")
    assert (found.state_strategy, found.overlap) == ("no_buffer", False)


def test_a_model_without_state_has_neither_strategy_nor_slots() -> None:
    found = resolved("qwen3-8b", page_size=16)
    assert (found.state_strategy, found.slots_per_request, found.page_size) == ("", 0, 16)


@pytest.mark.parametrize(
    ("version", "name", "given", "message"),
    [
        (
            FIRST,
            "qwen36-27b",
            {"state_strategy": "extra_buffer", "prefix_cache": False},
            "not compatible with",
        ),
        (LAST, "lfm2-1.2b", {"state_strategy": "extra_buffer"}, "is not supported for Lfm2"),
        (LAST, "qwen36-27b", {"state_strategy": "extra_buffer", "device": "cpu"}, "platform support"),
        (
            "0.5.15.post1",
            "qwen36-27b",
            {"state_strategy": "extra_buffer_lazy", "algorithm": "EAGLE"},
            "extra_buffer_lazy unsupported with spec.",
        ),
        (
            LAST,
            "qwen36-27b",
            {"algorithm": "DFLASH", "draft_tokens": 300, "state_strategy": "extra_buffer"},
            "mamba_track_interval 256 must be greater than or equal to",
        ),
        (
            LAST,
            "qwen36-27b",
            {"state_strategy": "extra_buffer", "page_size": 48},
            "divisible by page_size 48",
        ),
        (FIRST, "qwen36-27b", {"algorithm": "EAGLE"}, "is not compatible with radix cache when using"),
        (LAST, "qwen36-27b", {"state_strategy": "no_buffer", "page_size": 16}, "only supports page_size=1"),
        (LAST, "qwen36-27b", {"state_strategy": "no_buffer"}, "do not support overlap schedule"),
        (LAST, "qwen3-8b", {"context_length": 50_000}, "(50000) is greater than the derived"),
    ],
)
def test_what_the_engine_refuses(version: str, name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError) as caught:
        resolved(name, version, **given)
    assert message in str(caught.value)


def test_a_longer_context_that_is_allowed() -> None:
    assert resolved("qwen3-8b", context_length=50_000, longer_context=True).context_length == 50_000


def test_a_draft_gets_the_context_of_its_target() -> None:
    given: dict[str, Any] = {"algorithm": "EAGLE3", "draft_model": True, "context_length": 8192}
    with pytest.raises(
        EngineError, match=r"Target model's context_length \(8192\) .* context_length \(2048\)"
    ):
        resolved("llama-3.1-8b", draft="eagle3-llama-3.1-8b", **given)
    longer = resolved("llama-3.1-8b", draft="eagle3-llama-3.1-8b", longer_context=True, **given)
    assert longer.context_length == 8192


@pytest.mark.parametrize(
    ("given", "draft", "tokens"),
    [
        ({}, None, 0),
        ({"algorithm": "NGRAM"}, None, 12),
        ({"algorithm": "NGRAM", "draft_tokens": 6}, None, 6),
        ({"algorithm": "DFLASH"}, "dflash-qwen36-27b", 16),
        ({"algorithm": "DFLASH"}, None, 16),
        ({"algorithm": "DFLASH", "draft_tokens": 8}, "dflash-qwen36-27b", 8),
        ({"algorithm": "EAGLE"}, None, 4),
        ({"algorithm": "EAGLE"}, "llama-3.1-8b", 4),
        ({"algorithm": "EAGLE", "draft_steps": 5, "draft_topk": 1, "draft_tokens": 9}, None, 6),
        ({"algorithm": "EAGLE", "draft_steps": 5, "draft_topk": 4, "draft_tokens": 9}, None, 9),
        ({"algorithm": "EAGLE", "draft_steps": 5, "draft_topk": 4}, None, 6),
    ],
)
def test_draft_tokens(given: dict[str, Any], draft: str | None, tokens: int) -> None:
    assert resolved("qwen3-8b", draft=draft, **given).draft_tokens == tokens


@pytest.mark.parametrize(("algorithm", "tokens"), [("EAGLE3", 8), ("STANDALONE", 4)])
def test_the_target_decides_how_many_tokens_are_drafted_unasked(algorithm: str, tokens: int) -> None:
    found = resolved("llama-3.1-8b", draft="eagle3-llama-3.1-8b", context_length=2048, algorithm=algorithm)
    assert found.draft_tokens == tokens


@pytest.mark.parametrize(
    ("version", "given", "overlap"),
    [
        (FIRST, {"algorithm": "EAGLE"}, True),
        (FIRST, {"algorithm": "EAGLE", "draft_topk": 4, "draft_steps": 3}, False),
        (FIRST, {"algorithm": "EAGLE", "speculation_v2": False}, False),
        (FIRST, {"algorithm": "NGRAM"}, False),
        (LAST, {"algorithm": "NGRAM"}, True),
        (LAST, {"algorithm": "EAGLE", "draft_topk": 4, "draft_steps": 3, "speculation_v2": False}, True),
    ],
)
def test_speculation_and_overlap(version: str, given: dict[str, Any], overlap: bool) -> None:
    assert resolved("qwen3-8b", version, **given).overlap is overlap


def test_speculation_asks_for_requests() -> None:
    assert resolved("qwen3-8b", algorithm="EAGLE").requested == 48
    assert resolved("qwen3-8b", algorithm="EAGLE", running_requests=4).requested == 4
    assert resolved("qwen3-8b").requested is None


@pytest.mark.parametrize(
    ("backend", "page", "found"),
    [("flashmla", 1, 64), ("trtllm_mha", 16, 16), ("trtllm_mha", 8, 64), ("fa3", 8, 8), ("", 4, 4)],
)
def test_backends_force_pages(backend: str, page: int, found: int) -> None:
    assert resolved("qwen3-8b", attention_backend=backend, page_size=page).page_size == found


@pytest.mark.parametrize(
    ("capability", "named", "backend"),
    [(None, None, ""), ((9, 0), None, "fa3"), ((10, 0), None, "trtllm_mha"), ((8, 9), None, "flashinfer"),
     ((9, 0), "triton", "triton")],
)  # fmt: skip
def test_the_card_chooses_the_backend(
    capability: tuple[int, int] | None, named: str | None, backend: str
) -> None:
    on = card(capability=capability)
    assert resolved("qwen3-8b", on=on, attention_backend=named).attention_backend == backend


@pytest.mark.parametrize(("major", "backend"), [(9, "fa3"), (10, "flashinfer"), (12, "triton")])
def test_latent_attention_has_backends_of_its_own(major: int, backend: str) -> None:
    assert resolved("deepseek-v2-lite", on=card(capability=(major, 0))).attention_backend == backend


@pytest.mark.parametrize(
    ("given", "backend"),
    [
        ({"draft_topk": 1}, "fa3"),
        ({"draft_topk": 1, "page_size": 64}, "flashinfer"),
        ({"draft_topk": 4}, "flashinfer"),
    ],
)
def test_what_is_drafted_decides_about_the_backend(given: dict[str, Any], backend: str) -> None:
    found = resolved("qwen3-8b", on=card(capability=(9, 0)), algorithm="EAGLE", draft_steps=3, **given)
    assert found.attention_backend == backend


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize(
    ("total_mib", "chunk", "graphs"),
    [(15_000, 2048, 8), (46_068, 4096, 32), (81_559, 8192, 256)],
)
def test_defaults_follow_the_card(version: str, total_mib: int, chunk: int, graphs: int) -> None:
    found = resolved("qwen3-8b", version, on=card(total_mib=total_mib))
    assert (found.prefill_chunk, found.graph_requests) == (chunk, graphs)
    assert 0.5 < found.memory_fraction < 0.95


def test_defaults_of_an_unknown_card() -> None:
    found = resolved("qwen3-8b", on=card(total_mib=None))
    assert found.memory_fraction == facts(LAST).unknown_card_fraction


def test_the_default_fraction_of_measured_starts() -> None:
    given: dict[str, Any] = {"decode_graphs": False}
    assert resolved("qwen3-8b", FIRST, **given).memory_fraction == pytest.approx(0.903)
    assert resolved("qwen3-8b", FIRST, **given, memory_fraction=0.5).memory_fraction == 0.5


def test_more_ranks_reserve_more() -> None:
    one, eight = (resolved("qwen3-8b", tensor_parallel=ranks) for ranks in (1, 8))
    assert eight.graph_requests > one.graph_requests
    assert eight.memory_fraction < one.memory_fraction
    dp = resolved("qwen3-8b", tensor_parallel=8, attention_data_parallel=8)
    few = resolved("qwen3-8b", tensor_parallel=8, attention_data_parallel=8, graph_max_bs_decode=64)
    assert dp.memory_fraction < few.memory_fraction < 1


def test_speculation_reserves_for_the_draft() -> None:
    plain, drafted = (
        resolved("qwen3-8b", FIRST, algorithm=one, running_requests=8) for one in (None, "EAGLE")
    )
    assert drafted.memory_fraction < plain.memory_fraction


def test_a_vision_model_leaves_a_share() -> None:
    given: dict[str, Any] = {"decode_graphs": False, "prefill_graphs": False}
    text, vision = (resolved(multimodal=flag, **given).memory_fraction for flag in (False, True))
    assert vision / text == pytest.approx(0.95, abs=0.05)
    assert resolved("qwen3-8b", multimodal=True, **given).memory_fraction == text


@pytest.mark.parametrize(
    ("name", "version", "given", "captured"),
    [
        ("qwen3-8b", LAST, {}, True),
        ("qwen3-8b", LAST, {"device": "cpu"}, False),
        ("qwen3-8b", LAST, {"prefill_graphs": False}, False),
        ("qwen3-vl-8b", FIRST, {}, False),
        ("deepseek-v2-lite", FIRST, {}, True),
        ("qwen3-8b", FIRST, {"tensor_parallel": 2, "attention_data_parallel": 2}, False),
    ],
)
def test_prefill_graphs(name: str, version: str, given: dict[str, Any], captured: bool) -> None:
    assert resolved(name, version, **given).prefill_graphs is captured


@pytest.mark.parametrize("version", SUPPORTED)
def test_prefill_graphs_cost_by_their_buckets(version: str) -> None:
    on = card(total_mib=40_000)
    given: dict[str, Any] = {"prefill_chunk": 4096, "on": on, "context_length": 4096}
    fewer = resolved("qwen3-8b", version, total_tokens=256, **given).memory_fraction
    assert fewer > resolved("qwen3-8b", version, **given).memory_fraction
    latent = resolved("deepseek-v2-lite", version, on=on).memory_fraction
    assert latent < resolved("deepseek-v2-lite", version, on=on, prefill_graphs=False).memory_fraction or (
        not resolved("deepseek-v2-lite", version, on=on).prefill_graphs
    )


def test_a_model_whose_prefix_cache_the_engine_drops() -> None:
    lost = replace(facts(FIRST), prefix_cache_lost=("Qwen3ForCausalLM",))
    found = resolve(settings=Settings(), model=model("qwen3-8b"), facts=lost, draft=None, card=card())
    assert not found.prefix_cache
