"""Cells of a matrix are planned before anything starts, and each is measured once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sglang_kit import benchmark
from sglang_kit.benchmark import Load
from sglang_kit.plan import HostSettings
from sglang_kit.problem import ProblemsError

from tests.plans import FIXTURES

CONFIG = json.loads((FIXTURES / "configs" / "qwen36-27b.json").read_text(encoding="utf-8"))
DRAFT = json.loads((FIXTURES / "configs" / "dflash-qwen36-27b.json").read_text(encoding="utf-8"))
MODELS = {"/srv/models/qwen": CONFIG, "/srv/models/dflash": DRAFT}
CARD = {
    "count": 8,
    "name": "RTX PRO 6000",
    "memory_mib": 97887,
    "free_gib": 94.24,
    "compute_capability": "12.0",
}
HOST = HostSettings("ct200", "0.5.23", "/opt/sglang/releases/0.5.23-0", "nvidia", gpu_count=8, gpus=(CARD,))
RAW: dict[str, Any] = {
    "instance": {
        "model": "/srv/models/qwen",
        "port": 30090,
        "context_length": 8192,
        "args": {"log-level": "info"},
    },
    "gpus": {"one card": [1], "four cards": [4, 5, 6, 7]},
    "variants": {
        "none": None,
        "mtp": {"strategy": {"method": "mtp"}, "args": {"schedule-conservativeness": 0.5}},
        "ddtree": {"strategy": {"method": "ddtree", "draft_model": "/srv/models/dflash"}},
    },
    "concurrency": [16, 4, 4],
}


def matrix(**changes: object) -> benchmark.Matrix:
    return benchmark.read_matrix("strategies", {"strategies": {**RAW, **changes}})


def outlook(text: str = "", **changes: object) -> dict[str, Any]:
    return benchmark.outlook(matrix(**changes), settings=HOST, models=MODELS, text=text)


def outcome(tokens: float, **more: object) -> dict[str, Any]:
    seen = {
        "output_throughput": tokens,
        "median_ttft_ms": 81.2,
        "median_tpot_ms": 12.5,
        "p99_e2e_latency_ms": 2500.0,
    }
    return {"result": "measured", "effective": 16, "measured": {**seen, **more}, "changed": False}


def text(*records: benchmark.Record) -> str:
    return "".join(f"{json.dumps(one)}\n" for one in records)


# --- reading -------------------------------------------------------------------------------------


def test_a_matrix_is_read_with_its_defaults() -> None:
    read = matrix()
    assert (read.baseline, read.concurrency, read.load) == ("none", (4, 16), Load())
    assert read.variants["none"] == {}


def test_every_fault_is_told_at_once() -> None:
    faulty = {
        "instance": {"model": "/m", "gpus": [0]},
        "gpus": [1],
        "variants": {"a": {"name": "x"}},
        "baseline": "b",
        "concurrency": [0],
        "load": {"seconds": 1, "input_tokens": True},
        "kontext": 1,
    }
    with pytest.raises(ProblemsError) as raised:
        benchmark.read_matrix("m", {"m": faulty})
    assert [str(problem).partition(";")[0] for problem in raised.value.problems] == [
        "m: kontext: is not a known key",
        "m: gpus: [1] is not a mapping with entries",
        "m: instance.gpus: is set by the matrix",
        "m: a.name: is set by the matrix",
        "m: baseline: 'b' is no variant",
        "m: concurrency: [0] is not a list of whole numbers from 1",
        "m: load.seconds: is not a known key",
        "m: load.input_tokens: True is not a whole number from 1",
    ]


def test_a_matrix_that_there_is_not() -> None:
    with pytest.raises(ProblemsError, match="there are strategies"):
        benchmark.read_matrix("other", {"strategies": RAW})
    with pytest.raises(ProblemsError, match="there are none"):
        benchmark.read_matrix("other", {})


# --- the plan ------------------------------------------------------------------------------------


def seen(index: int, free_gib: float) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "memory_free_bytes": int(free_gib * 2**30)}


def holder(gpu: int, unit: str, gib: float) -> dict[str, Any]:
    who = {"pid": 77, "unit": unit, "command": "python", "ancestors": []}
    return {**who, "gpu": gpu, "memory_bytes": int(gib * 2**30)}


def refused(settings: HostSettings, **changes: object) -> dict[tuple[str, str], str]:
    found = benchmark.outlook(matrix(**changes), settings=settings, models=MODELS, text="")
    return {(one["group"], one["variant"]): one["reason"] for one in found["refused"]}


def test_memory_of_services_that_will_be_stopped_counts_as_free() -> None:
    """Two cards: the host's own service fills one, the other one's holder is outside of this container."""
    cards = {"gpus": {"own": [0], "other": [1]}}
    held = replace(
        HOST, seen_gpus=(seen(0, 4.2), seen(1, 1.4)), seen_processes=(holder(0, "sglang-chat.service", 90),)
    )
    reasons = refused(held, **cards)
    assert set(reasons) == {("own", "ddtree"), ("other", "none"), ("other", "mtp"), ("other", "ddtree")}
    assert "GPU 1 has 1.40 GiB free" in reasons["other", "mtp"]
    assert "no process that can be seen holds the rest" in reasons["other", "mtp"]


@pytest.mark.parametrize("adopted", [(), ("ollama.service",)])
def test_memory_of_others_does_not(adopted: tuple[str, ...]) -> None:
    """Nor where a deploy would take them over."""
    processes = (holder(1, "ollama.service", 90),)
    held = replace(HOST, seen_gpus=(seen(1, 4.2),), seen_processes=processes, adopted=adopted)
    reasons = refused(held, gpus={"one card": [1]})
    assert set(reasons) == {("one card", "none"), ("one card", "mtp"), ("one card", "ddtree")}
    assert "(ollama.service) holds 90.00 GiB" in reasons["one card", "mtp"]


def test_each_start_is_planned_for_its_highest_level() -> None:
    found = outlook()
    assert [(one["group"], one["variant"]) for one in found["starts"]] == [
        ("one card", "none"),
        ("one card", "mtp"),
        ("four cards", "none"),
        ("four cards", "mtp"),
    ]
    mtp = found["starts"][3]
    assert [level["concurrency"] for level in mtp["levels"]] == [4, 16]
    assert mtp["tensor_parallel"] == 4
    plan = mtp["plan"]
    assert (plan["name"], plan["gpus"], plan["concurrency"]) == ("benchmark", ["4", "5", "6", "7"], 16)
    for words in (["--log-level", "info"], ["--schedule-conservativeness", "0.5"], ["--tp-size", "4"]):
        assert words[1] == plan["argv"][plan["argv"].index(words[0]) + 1]


def test_what_cannot_work_is_refused_with_the_plans_reason() -> None:
    found = outlook()
    assert [(one["group"], one["variant"], one["concurrency"]) for one in found["refused"]] == [
        (group, "ddtree", level) for group in ("one card", "four cards") for level in (4, 16)
    ]
    assert "has no speculative algorithm for 'ddtree'" in found["refused"][0]["reason"]
    assert "one card, ddtree, 4, 16 clients: refused" in found["lines"]


def test_levels_that_do_not_fit_are_refused_one_by_one() -> None:
    found = outlook(concurrency=[4, 900], gpus={"one card": [1]}, variants={"mtp": RAW["variants"]["mtp"]})
    ((start,), (refused,)) = found["starts"], found["refused"]
    assert [level["concurrency"] for level in start["levels"]] == [4]
    assert refused["concurrency"] == 900
    assert refused["reason"].startswith("memory: nothing is left for the KV cache: ")


def test_a_matrix_of_which_nothing_works() -> None:
    found = outlook(variants={"ddtree": RAW["variants"]["ddtree"]}, baseline="ddtree")
    assert found["starts"] == []
    assert found["lines"][0] == "no cell of this matrix can work"


def test_memory_that_is_left_to_the_engine_is_said_so() -> None:
    found = benchmark.outlook(matrix(), settings=HOST, models={}, text="")
    assert "engine's" in found["lines"][2]


# --- the record ----------------------------------------------------------------------------------


def test_what_was_measured_is_not_measured_again() -> None:
    first = outlook()
    start = first["starts"][0]
    kept = text(
        *first["refused"], *(benchmark.recorded(start, one, outcome(1), "") for one in start["levels"])
    )
    second = outlook(kept + '{"cut off')
    assert next((one["group"], one["variant"]) for one in second["starts"]) == ("one card", "mtp")
    assert second["refused"] == []
    assert "has results" in second["lines"][2]
    partly = text(benchmark.recorded(start, start["levels"][0], outcome(1), ""))
    assert [level["concurrency"] for level in outlook(partly)["starts"][0]["levels"]] == [16]


def test_another_plan_or_load_is_another_cell() -> None:
    start = outlook()["starts"][0]
    kept = text(*(benchmark.recorded(start, one, outcome(1), "") for one in start["levels"]))
    assert outlook(kept, load={"seed": 2})["starts"][0]["variant"] == "none"
    instance = {**RAW["instance"], "context_length": 4096}
    assert outlook(kept, instance=instance)["starts"][0]["variant"] == "none"


def test_a_record_tells_what_was_started_and_what_came_out() -> None:
    start = outlook()["starts"][1]
    start["plan"]["environment"]["HF_TOKEN"] = "t0k3n"  # noqa: S105 - nobody's
    one = benchmark.recorded(start, start["levels"][0], outcome(159.1), "2026-11-29T19:00:00+00:00")
    assert (one["variant"], one["concurrency"], one["engine_version"]) == ("mtp", 4, "0.5.23")
    assert (one["fingerprint"], one["result"], one["effective"]) == (
        start["plan"]["fingerprint"],
        "measured",
        16,
    )
    assert one["plan"]["argv"] == start["plan"]["argv"]
    assert "t0k3n" not in json.dumps(one)
    assert "changed" not in one


# --- measuring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "asked"), [("10.0.0.1", "10.0.0.1"), ("::", "127.0.0.1")])
def test_the_client_of_the_release_is_asked(host: str, asked: str) -> None:
    plan = {"release": "/r", "host": host, "port": 30090, "model": "/m"}
    argv = benchmark.command(plan, load=Load(requests_per_client=3, seed=7), concurrency=8, output="/o")
    assert argv[:3] == ["/r/bin/python", "-m", "sglang.bench_serving"]
    given = dict(zip(argv[3:], argv[4:]))
    assert (given["--host"], given["--port"], given["--output-file"]) == (asked, "30090", "/o")
    assert (given["--max-concurrency"], given["--num-prompts"], given["--seed"]) == ("8", "24", "15")


def test_what_is_kept_of_the_clients_result() -> None:
    raw = {"completed": 4, "accept_length": None, "output_throughput": 1.5, "server_info": {"api_key": "x"}}
    assert benchmark.measured(raw) == {"completed": 4, "output_throughput": 1.5}


# --- for people ----------------------------------------------------------------------------------


def test_results_stand_beside_the_baseline_on_the_same_gpus() -> None:
    base, mtp, other, _ = outlook()["starts"]
    low, high = base["levels"]
    found = [
        benchmark.recorded(mtp, mtp["levels"][0], outcome(300.0, accept_length=2.5), ""),
        benchmark.recorded(base, high, {"result": "failed", "cause": "c", "reason": "out of memory"}, ""),
        benchmark.recorded(base, low, outcome(100.0), ""),
        benchmark.recorded(other, other["levels"][0], outcome(0.0), ""),
    ]
    lines = benchmark.lines(found, "none")
    rows = [line.split() for line in lines[2:6]]
    assert rows == [
        ["one", "card", "none", "4", "100.0", "1.00", "81", "12.5", "2.50", "measured"],
        ["one", "card", "none", "16", "failed"],
        ["one", "card", "mtp", "4", "300.0", "3.00", "81", "12.5", "2.50", "2.50", "measured"],
        ["four", "cards", "none", "4", "0.0", "81", "12.5", "2.50", "measured"],
    ]
    assert lines[6:] == ["", "one card, none, 16 clients: failed", "  out of memory"]
    assert all(len(line) <= 92 for line in lines)


def test_hosts_that_share_a_matrix_are_told_apart() -> None:
    base, mtp, *_ = outlook()["starts"]
    low, high = base["levels"]
    failed = {"result": "failed", "reason": "out of memory"}
    here = [
        benchmark.recorded(base, low, outcome(100.0), ""),
        benchmark.recorded(mtp, low, outcome(300.0), ""),
        benchmark.recorded(mtp, high, failed, ""),
    ]
    there = [{**one, "host": "ct201"} for one in here]
    there[0]["measured"] = {**there[0]["measured"], "output_throughput": 150.0}
    lines = benchmark.lines([here[0], there[1], *here[1:], there[0], there[2]], "none")
    assert [line.split()[:6] for line in lines[2:8]] == [
        ["ct200", "one", "card", "none", "4", "100.0"],
        ["ct200", "one", "card", "mtp", "4", "300.0"],
        ["ct200", "one", "card", "mtp", "16", "failed"],
        ["ct201", "one", "card", "none", "4", "150.0"],
        ["ct201", "one", "card", "mtp", "4", "300.0"],
        ["ct201", "one", "card", "mtp", "16", "failed"],
    ]
    assert [line.split()[6] for line in (lines[3], lines[6])] == ["3.00", "2.00"]
    assert [line for line in lines[8:] if "clients" in line] == [
        "ct200 one card, mtp, 16 clients: failed",
        "ct201 one card, mtp, 16 clients: failed",
    ]


def test_no_results_yet() -> None:
    assert benchmark.lines([], "none") == ["no results yet"]
