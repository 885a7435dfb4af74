from __future__ import annotations

import copy
from typing import Any

import pytest
from sglang_kit import report

from tests.plans import expected, load, recorded_verdict

PLANS = {plan["name"]: plan for plan in load("six-instances")}


def verdict(state: str, **changes: object) -> dict[str, Any]:
    quiet: dict[str, Any] = {"stage": "weights", "phase": "", "sentence": "", "remedy": "", "evidence": []}
    return {**quiet, "state": state, "allocated": {}, "stages": [], "checks": [], **changes}


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert report.table(
        ("a", "größe", "last"), [("1", "Übermaß", ""), ("wide cell", "", "x"), ("", "", "")]
    ) == [
        "a          größe    last",
        "---------  -------  ----",
        "1          Übermaß",
        "wide cell           x",
        "",
    ]


def test_numbers_stand_at_the_end_of_their_column() -> None:
    assert report.table(("n", "name"), [("1", "a"), ("1,000", "b")], right=("n",)) == [
        "    n  name",
        "-----  ----",
        "    1  a",
        "1,000  b",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert report.table(("a", "b c"), []) == ["a  b c", "-  ---"]


def test_no_instances() -> None:
    assert report.lines([]) == ["no instances"]
    assert report.lines([], {}) == ["no instances"]


def test_a_plan_as_people_see_it() -> None:
    assert report.lines(load("six-instances")) == expected("six-instances")


def test_nothing_is_wider_than_a_terminal_that_ansible_indents() -> None:
    assert max(map(len, report.lines(load("six-instances")))) <= report.WIDTH == 100 - 8


@pytest.mark.parametrize(
    ("share", "bar"), [(0.0, ""), (1 / 240, "▏"), (0.5, "█" * 15), (0.52, "█" * 15 + "▋"), (1.0, "█" * 30)]
)
def test_a_bar_is_drawn_to_an_eighth_of_a_column(share: float, bar: str) -> None:
    plan = copy.deepcopy(PLANS["dense"])
    total = plan["memory"]["card"]["total_gib"] = 240.0
    plan["memory"]["pools_gib"]["weights"] = round(total * share, 2)
    line = next((line for line in report.lines([plan]) if line.startswith("  weights ")), "")
    assert line.partition(" GiB")[2].strip() == bar


def test_a_card_without_a_name_is_not_named() -> None:
    plan = copy.deepcopy(PLANS["chat"])
    plan["memory"]["card"]["name"] = None
    assert "chat: GPU 1, 94.24 of 95.59 GiB free before the start" in report.lines([plan])


def test_a_card_that_is_not_known_makes_no_picture() -> None:
    plan = copy.deepcopy(PLANS["chat"])
    plan["memory"]["card"] = None
    told = report.lines([plan])
    assert told[4:7] == [
        "chat: GPU 1",
        "  weights              51.09 GiB",
        f"  draft weights         0.79 GiB  {'':30}  while loading 5.53",
    ]


def test_one_slot_is_no_slots() -> None:
    assert "  serves    8 requests at once, 1 state slot each (8 in all)" in report.lines(load("h200-mtp"))


def test_a_recorded_start_is_held_against_its_plan() -> None:
    plans = load("h200-mtp")
    assert report.lines(plans, {"mtp": recorded_verdict()}) == expected("h200-mtp")


def test_a_proof_stands_beside_instances_that_were_not_to_be_proven() -> None:
    ready = verdict(
        "ready",
        allocated={"kv_tokens": 8192, "running_requests": 12},
        checks=[
            {"name": "health", "held": True, "detail": "HTTP 200: "},
            {"name": "completion", "held": True, "detail": "Yes — 是的。\nThis is cut off somewhere."},
        ],
    )
    stopped = {**PLANS["chat"], "name": "stopped-for-now", "state": "stopped"}
    assert report.lines([stopped, PLANS["unknown"]], {"unknown": ready}) == [
        "instance         state    start  requests  KV tokens  answer",
        "---------------  -------  -----  --------  ---------  ------------------------------------",
        "stopped-for-now  stopped",
        "unknown          ready                 12      8,192  'Yes — 是的。\\nThis is cut off somewh…'",
    ]


def test_a_proof_of_which_only_the_state_is_known() -> None:
    assert report.lines([PLANS["chat"]], {"chat": verdict("never_started")})[2:] == [
        "chat      never started"
    ]


def test_stages_that_took_no_time_are_not_told() -> None:
    quick = [
        {"name": "import", "begin": 0.0, "seconds": 0.2},
        {"name": "serving", "begin": 0.2, "seconds": None},
    ]
    found = report.lines([PLANS["unknown"]], {"unknown": verdict("ready", stages=quick)})
    assert found[2:] == ["unknown   ready    0 s"]


def test_pools_as_planned_do_not_differ() -> None:
    allocated = {"kv_tokens": 188682, "state_slots": 80, "running_requests": 16}
    found = report.lines([PLANS["chat"]], {"chat": verdict("ready", allocated=allocated)})
    assert found[2:] == [
        "chat      ready         16 of 16    188,682",
        "",
        "chat",
        "",
        "  pool         planned  allocated  difference",
        "  -----------  -------  ---------  ----------",
        "  KV tokens    188,682    188,682        none",
        "  state slots       80         80        none",
    ]


def test_what_is_not_ready_is_told_with_its_cause() -> None:
    verdicts = {
        "chat": verdict("failed", phase="kv_cache", sentence="the KV cache is smaller than one context"),
        "good": verdict("ready"),
        "coder": verdict("stopped", sentence="stopped by request"),
    }
    assert report.causes(verdicts) == [
        "chat: failed in stage KV cache: the KV cache is smaller than one context",
        "coder: stopped in stage weights: stopped by request",
    ]
