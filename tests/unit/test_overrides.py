from __future__ import annotations

from typing import Any

import pytest
from sglang_kit import engine
from sglang_kit.instance import Instance, read_instances
from sglang_kit.overrides import judge, pinned
from sglang_kit.problem import Collector

PROMISES = {
    "model_path": "model",
    "served_model_name": "served_model_name",
    "host": "host",
    "port": "port",
    "device": "gpus",
    "tp_size": "gpus",
    "disable_radix_cache": "prefix_cache",
    "speculative_algorithm": "strategy.method",
}
"""What every instance says."""


def instance(**keys: object) -> Instance:
    found = Collector()
    (read,) = read_instances([{"name": "chat", "model": "/srv/models/m", "port": 30000, **keys}], found)
    found.check()
    return read


def test_what_was_left_out_is_not_pinned() -> None:
    assert pinned(instance(), engine.facts("0.5.23")) == PROMISES


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"context_length": 4096}, {"context_length": "context_length"}),
        ({"concurrency": 4}, {"max_running_requests": "concurrency"}),
        ({"memory": {"fraction": 0.8}}, {"mem_fraction_static": "memory.fraction"}),
        (
            {"memory": {"state_slots": 8, "state_dtype": "bfloat16"}},
            {"max_mamba_cache_size": "memory.state_slots", "mamba_ssm_dtype": "memory.state_dtype"},
        ),
        (
            {"strategy": {"method": "mtp", "steps": 3}},
            {"speculative_num_steps": "strategy.steps"},
        ),
        ({"args": {"page-size": 16}}, {"page_size": "args.page-size"}),
        ({"args": {"max-total-tokens": 8192}}, {"max_total_tokens": "args.max-total-tokens"}),
    ],
)
def test_what_the_user_says_is_pinned_by_the_engines_field(
    keys: dict[str, Any], expected: dict[str, str]
) -> None:
    assert pinned(instance(**keys), engine.facts("0.5.23")) == {**PROMISES, **expected}


@pytest.mark.parametrize(
    ("version", "flag", "field"),
    [
        ("0.5.11", "mamba-scheduler-strategy", "mamba_scheduler_strategy"),
        ("0.5.23", "mamba-radix-cache-strategy", "mamba_radix_cache_strategy"),
    ],
)
def test_a_flag_is_known_by_the_field_of_its_version(version: str, flag: str, field: str) -> None:
    given = instance(args={flag: "extra_buffer"})
    assert pinned(given, engine.facts(version))[field] == f"args.{flag}"


PLAN = {
    "name": "chat",
    "engine_version": "0.5.23",
    "pinned": {"page_size": "args.page-size", "context_length": "context_length"},
    "accept_overrides": ["context_length"],
}


def changed(field: str, *, by: str = "") -> dict[str, Any]:
    return {"field": field, "asked": 1, "effective": 64, "given": True, "by": by}


def test_a_refusal_is_given_in_the_engines_words() -> None:
    judgement = judge(PLAN, {"phase": "resolve", "message": "ValueError: no", "overrides": []})
    assert [str(one) for one in judgement.refused] == [
        "chat: argv: SGLang 0.5.23 refuses it (resolve): ValueError: no"
    ]


def test_the_keys_that_its_words_are_about_are_named() -> None:
    message = "ValueError: page_size 1 wants --own-flag, not --tp-size 2"
    plan = {**PLAN, "pinned": {"page_size": "args.page-size", "own_flag": "args.own-flag"}}
    (refused,) = judge(plan, {"phase": "resolve", "message": message, "overrides": []}).refused
    assert refused.remedy == "change `args.page-size` or `args.own-flag` or `gpus`"


def test_a_change_of_what_is_pinned_is_refused_unless_it_is_accepted() -> None:
    overrides = [changed("page_size", by="_page_size_default"), changed("context_length"), changed("other")]
    judgement = judge(PLAN, {"phase": "ok", "message": "", "overrides": overrides})
    refused = (
        "chat: args.page-size: page_size: asked 1, the engine makes it 64 (_page_size_default); "
        "set args.page-size to what the engine can do, or accept_overrides: [page_size]"
    )
    assert [str(one) for one in judgement.refused] == [refused]
    assert judgement.notes == (
        "chat: context_length: asked 1, the engine makes it 64",
        "chat: other: asked 1, the engine makes it 64",
    )
