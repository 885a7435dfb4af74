"""The formulas against the sizing code of installed releases, on random settings, models and memory.

``SGLANG_TEST_VENVS`` names a folder that holds a virtual environment per version (``<folder>/0.5.23``);
``SGLANG_TEST_CASES`` says how many cases each of them sizes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.engine import SUPPORTED, facts
from sglang_kit.memory import Start, size_pools
from sglang_kit.pricing import demand
from sglang_kit.resolution import EngineError, resolve
from sglang_kit.settings import Settings
from sglang_kit.shapes import KvLayers

from tests.sizing import CONFIGS, card, model

if TYPE_CHECKING:
    from sglang_kit.engine import EngineFacts
    from sglang_kit.shapes import Model

VENVS = os.environ.get("SGLANG_TEST_VENVS")
CASES = int(os.environ.get("SGLANG_TEST_CASES", "150"))
INSTALLED = [v for v in SUPPORTED if VENVS and (Path(VENVS) / v / "bin" / "python").exists()]
PROBE = Path(__file__).parent / "sizing_probe.py"
SAME_ERROR = 60  # characters; numbers follow, which the engine rounds by its own hardware
MODELS = (
    "deepseek-v2-lite",
    "deepseek-v3.2",
    "falcon-h1-7b",
    "gemma-2-9b",
    "gpt-oss-20b",
    "kimi-linear-48b-a3b",
    "lfm2-1.2b",
    "llama-3.1-8b",
    "mistral-7b-v0.3",
    "nemotron-h-8b",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "qwen36-27b",
)

pytestmark = pytest.mark.skipif(not INSTALLED, reason="SGLANG_TEST_VENVS names no installed release")


@dataclass(frozen=True)
class Case:
    """Random settings of a model, with what is free around its weights in GiB."""

    name: str
    settings: Settings
    draft: Model | None
    before: float
    after: float


def random_case(dice: random.Random, found: EngineFacts) -> Case:
    """Draw settings that the version takes."""
    name = dice.choice(MODELS)
    wanted = model(name)
    heads = [wanted.heads, *([wanted.state.heads] if wanted.state else [])]
    algorithm = dice.choice([None, None, "EAGLE", "DFLASH"])
    steps = dice.choice([1, 3, 7])
    prefix_cache = dice.random() < 0.75 or wanted.architecture in found.split_sliding
    strategy = "auto"
    overlap = True
    if wanted.state and prefix_cache:
        strategy = dice.choice(strategies(wanted, found, speculates=algorithm is not None))
        overlap = strategy == "extra_buffer_lazy" or (strategy == "extra_buffer" and dice.random() < 0.6)
    before = dice.uniform(10, 180)
    settings = Settings(
        tensor_parallel=dice.choice([ranks for ranks in (1, 2, 4, 8) if not any(h % ranks for h in heads)]),
        context_length=dice.choice([1024, 4096, 8192]),
        memory_fraction=round(dice.uniform(0.4, 0.98), 3),
        running_requests=dice.choice([None, 1, 3, 4, 8, 16, 48, 128, 1000]),
        total_tokens=dice.choice([None, None, None, 5000, 10**7]),
        kv_dtype=dice.choice(["auto", "auto", "fp8_e4m3"]),
        page_size=1 if strategy == "no_buffer" else dice.choice([1, 16, 64]),
        prefill_chunk=8192,
        prefix_cache=prefix_cache,
        overlap=overlap,
        state_strategy=strategy,
        state_slots=dice.choice([None, None, 2, 24, 100]) if wanted.state else None,
        state_ratio=dice.choice([0.3, 0.9, 2.0]),
        algorithm=algorithm,
        draft_model=algorithm is not None,
        draft_steps=steps if algorithm == "EAGLE" else None,
        draft_topk=1,
        draft_tokens={"EAGLE": steps + 1, "DFLASH": 16}.get(algorithm or ""),
    )
    block = model("dflash-qwen36-27b")
    one_layer = replace(block, kv=(KvLayers(1, 8, 128, 128),))
    draft = {"EAGLE": one_layer, "DFLASH": block}.get(algorithm or "")
    return Case(name, settings, draft, before, before * dice.uniform(0.02, 0.98))


def strategies(wanted: Model, found: EngineFacts, *, speculates: bool) -> list[str]:
    """Name what the version takes with a prefix cache; "auto" where it takes nothing."""
    names = ["no_buffer"]
    if wanted.architecture in found.extra_buffer_architectures:
        names.append("extra_buffer")
        if "extra_buffer_lazy" in found.state_strategies and (found.lazy_with_speculation or not speculates):
            names.append("extra_buffer_lazy")
    if speculates and found.speculation_needs_extra_buffer:
        names.remove("no_buffer")
    return names or ["auto"]


def ours(case: Case, start: Start) -> dict[str, Any]:
    try:
        pools = size_pools(start, before=case.before, after=case.after)
    except EngineError as error:
        return {"error": str(error)}
    return {
        "tokens": pools.kv_tokens,
        "requests": pools.running_requests,
        "slots": pools.state_slots,
        "sliding": pools.sliding_tokens,
    }


def question(case: Case, start: Start, folder: Path) -> dict[str, Any]:
    """Put a case into the probe's words, resolved as the engine would before it sizes."""
    given, resolved = case.settings, start.resolved
    return {
        "folder": str(folder / case.name),
        "ranks": given.tensor_parallel,
        "slots": given.state_slots,
        "requested": resolved.requested,
        "ratio": given.state_ratio,
        "prefix_cache": resolved.prefix_cache,
        "overlap": resolved.overlap,
        "draft_tokens": resolved.draft_tokens,
        "algorithm": given.algorithm,
        "total_tokens": given.total_tokens,
        "fraction": given.memory_fraction,
        "page_size": resolved.page_size,
        "strategy": resolved.state_strategy or "no_buffer",
        "context_length": given.context_length,
        "split": model(case.name).architecture in start.facts.split_sliding,
        "kv_dtype": given.kv_dtype,
        "before": case.before,
        "after": case.after,
        "draft_layers": case.draft.kv_layers if case.draft else 0,
        "draft_cell": int(start.price.draft_key + start.price.draft_value),
    }


def same(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if "error" in mine and "error" in theirs:
        return str(mine["error"])[:SAME_ERROR] == str(theirs["error"])[:SAME_ERROR]
    return mine == theirs


def write_configs(folder: Path) -> None:
    """Write the models' configs; without a quantisation, which the engine checks against the hardware."""
    for name in MODELS:
        config = json.loads((CONFIGS / f"{name}.json").read_text())
        config.pop("quantization_config", None)
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("version", INSTALLED)
def test_the_installed_engine_sizes_the_same(version: str, tmp_path: Path) -> None:
    write_configs(tmp_path)
    dice = random.Random(version)  # noqa: S311 - the same cases every time
    found = facts(version)
    compared: list[Case] = []
    questions, mine = [], []
    while len(compared) < CASES:
        case = random_case(dice, found)
        common: dict[str, Any] = {
            "settings": case.settings, "model": model(case.name), "facts": found, "draft": case.draft,
            "card": card(1024, None),
        }  # fmt: skip
        try:
            resolved = resolve(**common)
        except EngineError:  # refused before anything is sized
            continue
        start = Start(case.settings, resolved, demand(**common), model(case.name), found)
        compared.append(case)
        questions.append(question(case, start, tmp_path))
        mine.append(ours(case, start))
    python = Path(str(VENVS)) / version / "bin" / "python"
    done = subprocess.run(
        [python, PROBE], input=json.dumps(questions), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.partition("RESULTS")[2])
    assert len(theirs) == CASES
    assert [row for row in zip(compared, mine, theirs) if not same(row[1], row[2])] == []
