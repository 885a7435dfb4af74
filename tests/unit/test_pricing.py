from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sglang_kit.engine import SUPPORTED, facts
from sglang_kit.pricing import Demand, demand
from sglang_kit.problem import ProblemsError
from sglang_kit.settings import Settings

from tests.sizing import FIRST, LAST, card, model


def priced(name: str, version: str = LAST, draft: str | None = None, **given: Any) -> Demand:  # noqa: ANN401 - any setting
    return demand(
        settings=Settings(draft_model=draft is not None, **given),
        model=model(name),
        facts=facts(version),
        draft=None if draft is None or draft == "unknown" else model(draft),
        card=card(),
    )


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_token_of_plain_layers(version: str) -> None:
    found = priced("qwen3-8b", version)
    assert (found.key, found.value, found.cell) == (73_728, 73_728, 147_456)
    assert priced("qwen3-8b", version, kv_dtype="fp8_e5m2").cell == 73_728
    assert priced("qwen3-8b", version, tensor_parallel=8).cell == 147_456 / 8
    assert priced("qwen3-8b", version, tensor_parallel=32).cell == 147_456 / 8  # a KV head at least


def test_scales_of_mxfp8_count() -> None:
    assert priced("qwen3-8b", kv_dtype="mxfp8").cell == 73_728 * 33 / 32


def test_a_draft_may_cache_in_a_dtype_of_its_own() -> None:
    names: dict[str, Any] = {"name": "qwen36-27b", "draft": "dflash-qwen36-27b", "algorithm": "DFLASH"}
    plain = priced(**names)
    half = priced(**names, draft_kv_dtype="fp8_e4m3")
    assert (half.draft_key, half.draft_value) == (plain.draft_key / 2, plain.draft_value / 2)
    assert (half.key, half.value) == (plain.key, plain.value)
    assert plain.cell - half.cell == half.draft_key + half.draft_value
    narrow = priced(**names, kv_dtype="fp8_e4m3", draft_kv_dtype="auto")
    assert (narrow.draft_key, narrow.key) == (plain.draft_key, plain.key / 2)


def test_a_latent_is_not_split() -> None:
    one, eight = (priced("deepseek-v2-lite", tensor_parallel=ranks) for ranks in (1, 8))
    assert one.cell == eight.cell == 27 * 576 * 2
    assert one.value == 0


def test_a_sparse_indexer_caches_keys_of_its_own() -> None:
    plain = priced("deepseek-v3.2", tensor_parallel=8)
    assert plain.cell - plain.key == 61 * (128 + 4)
    old, new = (
        priced("deepseek-v3.2", version, tensor_parallel=8, kv_dtype="fp8_e4m3") for version in (FIRST, LAST)
    )
    assert old.cell != new.cell or facts(FIRST).latent_scales_charged == facts(LAST).latent_scales_charged


def test_state_dtypes() -> None:
    default = priced("qwen36-27b")
    half = priced("qwen36-27b", state_dtype="bfloat16", conv_dtype="float32")
    assert (half.ssm, half.conv) == (default.ssm / 2, default.conv * 2)
    assert priced("qwen3-8b").slot == 0


@pytest.mark.parametrize(
    ("name", "draft", "given", "charged"),
    [
        ("qwen3-8b", None, {}, dict.fromkeys(SUPPORTED, 0)),
        ("qwen3-8b", None, {"algorithm": "NGRAM"}, dict.fromkeys(SUPPORTED, 0)),
        (
            "qwen36-27b",
            None,
            {"algorithm": "EAGLE"},
            {FIRST: 0, "0.5.12.post1": 0, "0.5.15.post1": 0, LAST: 0},
        ),
        (
            "llama-3.1-8b",
            "eagle3-llama-3.1-8b",
            {"algorithm": "EAGLE3"},
            {FIRST: 0, "0.5.12.post1": 0, "0.5.15.post1": 4096, "0.5.18": 4096, LAST: 4096},
        ),
    ],
)
def test_what_the_engine_charges_for_a_draft(
    name: str, draft: str | None, given: dict[str, Any], charged: dict[str, int]
) -> None:
    plain = priced(name).cell
    assert {version: priced(name, version, draft, **given).cell - plain for version in charged} == charged


def test_blocks_are_charged_as_they_are_since_their_layers_differ() -> None:
    drafted = {
        version: priced("qwen36-27b", version, "dflash-qwen36-27b", algorithm="DFLASH")
        for version in SUPPORTED
    }
    plain = priced("qwen36-27b").cell
    layers, own = 16, model("dflash-qwen36-27b").kv_layers
    assert drafted[FIRST].cell == -(-plain * (layers + own) // layers)
    assert drafted[LAST].cell - plain == drafted[LAST].draft_key + drafted[LAST].draft_value


def test_a_draft_that_is_named_but_unknown_counts_as_nothing() -> None:
    found = priced("llama-3.1-8b", draft="unknown", algorithm="EAGLE3")
    assert (found.draft_weights, found.draft_loading, found.draft_key) == (0, 0, 0)


def test_tables_grow_only_beyond_the_context() -> None:
    short, long = (priced("qwen36-27b", context_length=length) for length in (4096, 32768))
    assert short.table_growth < long.table_growth
    default = priced("qwen36-27b")
    assert default.table_growth > 0


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "qwen3-8b",
            {"kv_dtype": "int3"},
            "memory.kv_dtype: the layout of int3 is not understood; use one of",
        ),
        ("qwen3-8b", {"tensor_parallel": 6}, "32 attention heads cannot be split over 6 ranks; use 8 GPUs"),
        (
            "qwen36-27b",
            {"tensor_parallel": 32},
            "24 attention heads cannot be split over 32 ranks; use 24 GPUs",
        ),
        ("lfm2-1.2b", {"tensor_parallel": 64}, "cannot be split over 64 ranks"),
        (
            "qwen36-27b",
            {"algorithm": "EAGLE", "draft_kv_dtype": "int3"},
            "args.speculative-draft-kv-cache-dtype: the layout of int3 is not understood",
        ),
        (
            "qwen3-8b",
            {"algorithm": "EAGLE"},
            "strategy: Qwen3ForCausalLM has no prediction layers of its own",
        ),
        (
            "gpt-oss-20b",
            {"prefix_cache": False, "running_requests": 4},
            "prefix_cache: without it SGLang 0.5.23 sizes the pool of GptOssForCausalLM's windows by",
        ),
    ],
)
def test_what_is_not_understood(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        priced(name, **given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen36-27b"])
def test_a_model_without_a_cache_of_whole_contexts_is_refused(name: str) -> None:
    bare = replace(model(name), kv=())
    with pytest.raises(ProblemsError, match=r"model: no layer of \w+ caches a whole context"):
        demand(settings=Settings(), model=bare, facts=facts(LAST), draft=None, card=card())


def test_windows_without_a_prefix_cache_before() -> None:
    assert priced("gpt-oss-20b", FIRST, prefix_cache=False, running_requests=4).sliding_cell > 0
