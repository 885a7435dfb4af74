from __future__ import annotations

from typing import Any

import pytest
from sglang_kit.engine import facts
from sglang_kit.instance import MemoryPins, Strategy
from sglang_kit.rules import Wish, check_rules
from sglang_kit.settings import Settings

from tests.sizing import FIRST, LAST, model


def faults(
    name: str,
    version: str = LAST,
    draft: str | None = None,
    base: dict[str, Any] | None = None,
    **wish: Any,  # noqa: ANN401 - any field
) -> list[str]:
    drafted = None if draft is None else model(draft)
    found = check_rules(
        model=model(name),
        draft=drafted,
        facts=facts(version),
        wish=Wish(base=Settings(**(base or {})), **wish),
    )
    assert all(problem.where == "" and problem.remedy for problem in found)
    return [f"{problem.key}: {problem.message}" for problem in found]


@pytest.mark.parametrize(
    ("name", "version", "draft", "base", "wish"),
    [
        ("qwen3-8b", FIRST, None, {}, {}),
        ("qwen36-27b", FIRST, None, {}, {"strategy": Strategy("mtp", steps=3)}),
        ("qwen36-27b", LAST, None, {}, {"strategy": Strategy("mtp", steps=3)}),
        ("qwen36-27b", LAST, "dflash-qwen36-27b", {}, {"strategy": Strategy("dflash", "x")}),
        (
            "llama-3.1-8b",
            LAST,
            "eagle3-llama-3.1-8b",
            {"longer_context": True},
            {"strategy": Strategy("eagle3", "x")},
        ),
        ("qwen3-8b", LAST, "llama-3.1-8b", {}, {"strategy": Strategy("eagle", "x")}),
        ("qwen3-8b", LAST, None, {}, {"strategy": Strategy("ngram")}),
        ("qwen36-27b", LAST, None, {"state_strategy": "no_buffer", "overlap": False}, {}),
        ("qwen36-27b", FIRST, None, {"state_strategy": "no_buffer"}, {}),
        ("qwen36-27b", LAST, None, {"state_strategy": "extra_buffer"}, {}),
        ("qwen36-27b", LAST, None, {}, {"strategy": Strategy("mtp"), "prefix_cache": False}),
        ("qwen3-8b", LAST, None, {"longer_context": True}, {"context_length": 100_000}),
        ("qwen3-8b", LAST, None, {"prefill_chunk": -1, "page_size": 64, "mixed_chunk": True}, {}),
    ],
)
def test_sound_wishes(
    name: str, version: str, draft: str | None, base: dict[str, Any], wish: dict[str, Any]
) -> None:
    assert faults(name, version, draft, base, **wish) == []


@pytest.mark.parametrize(
    ("name", "version", "draft", "base", "wish", "message"),
    [
        ("qwen3-8b", LAST, None, {}, {"strategy": Strategy("ddtree", "x")},
         "strategy.method: SGLang 0.5.23 has no speculative algorithm for 'ddtree'"),
        ("qwen3-8b", LAST, None, {}, {"strategy": Strategy("mtp")},
         "strategy.method: Qwen3ForCausalLM has no prediction layers of its own"),
        ("qwen3-8b", LAST, None, {}, {"strategy": Strategy("eagle")},
         "strategy.draft_model: is missing: eagle needs a draft model"),
        ("llama-3.1-8b", LAST, "eagle3-llama-3.1-8b", {"longer_context": True},
         {"strategy": Strategy("eagle", "x")},
         "strategy.method: the draft model is made for eagle3"),
        ("qwen36-27b", LAST, "dflash-qwen36-27b-unset", {}, {"strategy": Strategy("dflash", "x")},
         "strategy.draft_model: layers of it have a window, whose size transformers drops"),
        ("qwen36-27b", LAST, "dflash-qwen36-27b", {}, {"strategy": Strategy("dflash", "x", topk=4)},
         "strategy.topk: dflash drafts one block"),
        ("qwen3-8b", LAST, None, {}, {"memory": MemoryPins(fraction=1.2)},
         "memory.fraction: 1.2 is not between 0 and 1"),
        ("qwen3-8b", LAST, None, {}, {"context_length": 100_000},
         "context_length: 100000 is longer than the model's 40960"),
        ("llama-3.1-8b", LAST, "eagle3-llama-3.1-8b", {}, {"strategy": Strategy("eagle3", "x")},
         "context_length: 131072 is longer than the draft model's 2048"),
        ("qwen3-8b", LAST, None, {"prefill_chunk": 1000, "page_size": 64}, {},
         "args.chunked-prefill-size: 1000 is no multiple of the page size 64"),
        ("qwen3-8b", LAST, None, {}, {"memory": MemoryPins(state_ratio=0.5)},
         "memory.state_ratio: Qwen3ForCausalLM has no state cache"),
        ("qwen3-8b", LAST, None, {"state_strategy": "extra_buffer"}, {},
         "args: extra_buffer needs a hybrid model"),
        ("qwen36-27b", LAST, None, {"state_strategy": "extra_buffer"}, {"prefix_cache": False},
         "args.mamba-radix-cache-strategy: extra_buffer exists for the prefix cache, which is off"),
        ("lfm2-1.2b", LAST, None, {"state_strategy": "extra_buffer"}, {},
         "has no extra_buffer for Lfm2ForCausalLM"),
        ("falcon-h1-7b", FIRST, None, {}, {"strategy": Strategy("ngram")},
         "prefix_cache: speculation on a hybrid model needs extra_buffer"),
        ("qwen36-27b", FIRST, None, {"state_strategy": "no_buffer"}, {"strategy": Strategy("mtp")},
         "refuses speculation with the prefix cache and no_buffer"),
        ("qwen36-27b", FIRST, None, {"state_strategy": "no_buffer", "page_size": 16}, {},
         "args.page-size: no_buffer needs page size 1, not 16"),
        ("qwen36-27b", LAST, None, {"state_strategy": "no_buffer"}, {},
         "no_buffer does not go with the overlapped scheduler"),
        ("qwen36-27b", LAST, None, {"mixed_chunk": True}, {},
         "args.enable-mixed-chunk: mixed chunks with extra_buffer lose accuracy under load"),
        ("qwen36-27b", LAST, None, {"page_size": 48}, {},
         "args.mamba-track-interval: 256 is no multiple of the page size 48"),
        ("qwen36-27b", LAST, None, {"device": "cpu"}, {},
         "gpus: Qwen3_5ForConditionalGeneration has a state cache, of which nothing is known on a CPU"),
        ("qwen36-27b", LAST, None, {}, {"strategy": Strategy("mtp", steps=3, draft_tokens=7)},
         "strategy.draft_tokens: 7 with topk 1: the engine would make it 4, one more than the steps"),
        ("qwen36-27b", LAST, None, {}, {"strategy": Strategy("mtp", draft_tokens=1)},
         "strategy.draft_tokens: 1 with topk 1: the engine would make it 2, one more than the steps"),
        ("qwen36-27b", LAST, "dflash-qwen36-27b", {}, {"strategy": Strategy("dflash", "x", draft_tokens=300)},
         "strategy.draft_tokens: 300 are more than the state's track interval of 256"),
    ],
)  # fmt: skip
def test_rules(
    *, name: str, version: str, draft: str | None, base: dict[str, Any], wish: dict[str, Any], message: str
) -> None:
    (found,) = faults(name, version, draft, base, **wish)
    assert message in found


def test_faults_come_together() -> None:
    wish: dict[str, Any] = {
        "context_length": 100_000,
        "memory": MemoryPins(fraction=2, state_slots=1, state_dtype="float32"),
    }
    assert len(faults("qwen3-8b", **wish)) == 4
