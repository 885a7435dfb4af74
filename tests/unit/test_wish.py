from __future__ import annotations

import json
from typing import Any

import pytest
from sglang_kit.plan import HostSettings, plan_host
from sglang_kit.problem import ProblemsError
from sglang_kit.wish import instance_memory

from tests.plans import FIXTURES

GPU = {"name": "RTX PRO 6000", "memory_mib": 97887, "free_gib": 94.24, "compute_capability": "12.0"}
WISH = {"context_length": 32768, "concurrency": 16, "strategy": {"method": "mtp"}}


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / "configs" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def ask(wish: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - arguments differ
    given = {"config": config("qwen36-27b"), "gpu": GPU, "engine_version": "0.5.23", **changes}
    return instance_memory(wish, **given)


def refused(wish: dict[str, Any], **changes: Any) -> str:  # noqa: ANN401 - arguments differ
    with pytest.raises(ProblemsError) as raised:
        ask(wish, **changes)
    return str(raised.value)


def test_one_instance_gets_what_it_would_get_alone_on_a_host() -> None:
    settings = HostSettings("metal", "0.5.23", "/release", accelerator="nvidia", gpus=({**GPU, "count": 8},))
    instance = {"name": "chat", "model": "/srv/models/q", "port": 30000, "gpus": [5], **WISH}
    (plan,) = plan_host(
        instances=[instance], settings=settings, models={"/srv/models/q": config("qwen36-27b")}
    )
    alone = ask(WISH)
    assert {**plan["memory"], "card": None} == {**alone, "card": None}  # which names its GPUs


def test_nothing_has_to_be_wished() -> None:
    assert ask({})["concurrency"] >= 1


def test_a_context_of_one_token_is_planned_and_refused_as_others_are() -> None:
    short = {**config("qwen3-8b"), "max_position_embeddings": 50, "rope_scaling": {"factor": 0.01}}
    assert ask({}, config=short)["context_length"] == 1
    assert "the weights take" in refused({}, config=short, gpu={"memory_mib": 2048})


def test_the_number_of_gpus_counts_not_which() -> None:
    wish = {"context_length": 32768, "concurrency": 16}
    two = ask({**wish, "gpus": [6, 7]})
    assert two == ask({**wish, "gpus": ["GPU-0a", "GPU-0b"]})
    assert two["kv_tokens"] > ask({**wish, "gpus": [6]})["kv_tokens"]


def test_a_draft_model_needs_no_path() -> None:
    draft = config("dflash-qwen36-27b")
    wish: dict[str, Any] = {"context_length": 8192, "concurrency": 4, "strategy": {"method": "dflash"}}
    unnamed = ask(wish, draft_config=draft)
    assert unnamed["settings"]["draft_model"] == "/draft"
    wish["strategy"]["draft_model"] = "/srv/models/draft"
    named = ask(wish, draft_config=draft)
    assert named["pools_gib"] == unnamed["pools_gib"]


def test_a_draft_model_without_its_config_is_refused() -> None:
    wish = {"strategy": {"method": "dflash", "draft_model": "/srv/models/draft"}}
    assert refused(wish) == (
        "instance: strategy.draft_model: needs the draft model's config.json, too; give draft_config"
    )


def test_a_pinned_fraction_plans_no_memory_of_a_model_that_is_not_understood() -> None:
    wish = {**WISH, "memory": {"fraction": 0.8}}
    assert refused(wish, config={"architectures": ["NewForCausalLM"]}) == (
        "instance: memory: /model: NewForCausalLM is not understood: its memory cannot be planned"
    )


def test_a_cpu_needs_no_gpu() -> None:
    wish = {"gpus": [], "context_length": 1024, "concurrency": 8}
    memory = ask(wish, config=config("tiny-gpt2"), gpu={})
    assert memory["kv_tokens"] == 8192


def test_a_gpu_without_a_size_is_refused() -> None:
    told = refused(WISH, gpu={"memory_mib": None})
    assert told == "instance: gpu.memory_mib: is missing; write what nvidia-smi says, in MiB"
    told = refused(WISH, gpu={"memory_mib": 0})
    assert told == "instance: gpu.memory_mib: '0' is not a number from 1 to 1e+08"


def test_all_faults_of_a_wish_are_told_with_its_name() -> None:
    told = refused({"name": "chat", "gpus": "0", "concurrency": "many", "contxt": 1})
    assert "chat: gpus: " in told
    assert "chat: concurrency: 'many'" in told
    assert "chat: contxt: is not a known key" in told


def test_what_would_work_is_told() -> None:
    assert "ask for at most " in refused({**WISH, "name": "chat", "concurrency": 48})


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ("mtp", "instance: wish: 'mtp' is not a mapping of keys to values"),
        ({**WISH, "strategy": "mtp"}, "instance: strategy: 'mtp' is not a mapping of keys to values"),
        ({**WISH, "model": ["/m"]}, "instance: model: ['/m'] is not a non-empty text"),
    ],
)
def test_wrong_types_are_told(wish: Any, told: str) -> None:  # noqa: ANN401 - that is the point
    assert told in refused(wish, draft_config=config("qwen36-27b"))
    assert "is not a version this was tested with" in refused(WISH, engine_version=["0.5.23"])
