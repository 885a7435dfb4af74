from __future__ import annotations

import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_kit.predict import run

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONFIG = json.loads((FIXTURES / "configs" / "qwen3-8b.json").read_text())
ROW: dict[str, Any] = {
    "case": "chat",
    "sglang_version": "0.5.23",
    "model_config": "configs/qwen3-8b.json",
    "argv": ["--mem-fraction-static", "0.8", "--context-length", "8192"],
    "gpu_total_mib": 143771,
    "free_before_gib": 93.57,
}


def answers(*rows: object, status: int = 0) -> list[dict[str, Any]]:
    """Run the rows (texts as they are) and check the status."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    output = io.StringIO()
    assert run(io.BytesIO("\n".join(lines).encode()), output, base=FIXTURES) == status
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_plain_model() -> None:
    (found,) = answers(ROW)
    assert list(found) == [
        "case", "weights_gib", "mem_fraction_static", "max_running_requests", "kv_tokens", "k_gib", "v_gib",
        "free_after_target_pools_gib", "free_least_gib", "free_least_moment", "free_at_end_gib",
        "free_serving_gib",
    ]  # fmt: skip
    assert (found["weights_gib"], found["mem_fraction_static"]) == (15.28, 0.8)
    assert found["kv_tokens"] * 36 * 8 * 128 * 2 / (1 << 30) == pytest.approx(found["k_gib"], abs=0.01)


def test_a_hybrid_model_with_speculation() -> None:
    argv = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
    flags = "--max-mamba-cache-size 20 --max-running-requests 4 --mem-fraction-static 0.8"
    row = ROW | {"model_config": "configs/qwen36-27b.json", "argv": f"{argv} {flags}".split()}
    (found,) = answers(row)
    assert (found["mamba_slots"], found["slots_per_request"], found["max_running_requests"]) == (20, 5, 4)
    assert (found["ssm_gib"], found["intermediate_ssm_gib"]) == (2.95, 2.81)
    assert {"conv_gib", "intermediate_conv_gib", "draft_weights_gib", "draft_k_gib", "draft_v_gib"} < set(
        found
    )


def test_windows_have_tokens_of_their_own() -> None:
    (found,) = answers(ROW | {"model_config": "configs/gpt-oss-20b.json"})
    assert found["sliding_tokens"] == int(found["kv_tokens"] * 0.8)


def test_configs_may_be_inline() -> None:
    row = {key: value for key, value in ROW.items() if key != "model_config"}
    assert answers(row | {"config": CONFIG}) == answers(ROW)


def test_a_draft_that_is_missing_is_said() -> None:
    argv = [*ROW["argv"], "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "x"]
    argv += ["--dtype", "float16", "--context-length", "2048"]
    row = ROW | {"argv": argv, "model_config": "configs/llama-3.1-8b.json"}
    bare, drafted = answers(row, row | {"draft_model_config": "configs/eagle3-llama-3.1-8b.json"})
    assert bare["not_modelled"] == ["--dtype", "draft model"]
    assert drafted["not_modelled"] == ["--dtype"]
    assert drafted["draft_k_gib"] > bare["draft_k_gib"] == 0


def test_errors_are_answers() -> None:
    early, late = answers(
        ROW | {"argv": ["--context-length", "50000"]}, ROW | {"argv": ["--mem-fraction-static", "0.1"]}
    )
    assert early["error"].startswith("ValueError: Warning: User-specified context_length (50000)")
    assert late["error"].startswith("ValueError: Loaded weights leave no GPU memory")
    assert late["mem_fraction_static"] == 0.1


def test_the_cpu_needs_no_card() -> None:
    row = {"sglang_version": "0.5.23", "model_config": "configs/tiny-gpt2.json"}
    (found,) = answers(row | {"argv": ["--device", "cpu", "--max-total-tokens", "4096"]})
    assert found["kv_tokens"] == 4096
    assert "free_least_gib" not in found


def test_lines_are_answered_in_order_and_blank_ones_skipped() -> None:
    found = answers(ROW, "", "nonsense", ROW | {"case": "second"}, status=1)
    assert [row.get("case") for row in found] == ["chat", None, "second"]
    assert found[1]["problems"][0].startswith("line 3: is no JSON")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sglang_version": None}, "sglang_version: is missing or no text"),
        ({"sglang_version": "0.4.1"}, "0.4.1"),
        ({"model_config": None}, "config: is missing"),
        ({"config": [1]}, "config: is no object"),
        ({"model_config": 3}, "model_config: is no path"),
        ({"model_config": "absent.json"}, "model_config: cannot be read"),
        ({"model_config": "a\0b"}, "model_config: cannot be read"),
        ({"argv": "--tp 2"}, "argv: is no list of texts"),
        ({"argv": [1]}, "argv: is no list of texts"),
        ({"environment": [1]}, "environment: is no object of texts"),
        ({"environment": {"A": 1}}, "environment: is no object of texts"),
        ({"free_before_gib": "93"}, "free_before_gib: '93' is no size"),
        ({"gpu_total_mib": 0}, "gpu_total_mib: 0 is less than 1024, in MiB"),
        ({"gpu_total_mib": True}, "gpu_total_mib: 'True' is no size"),
        ({"compute_capability": 9.0}, "compute_capability: 9.0 is none"),
        ({"compute_capability": "nine"}, "compute_capability: 'nine' is none"),
        ({"free_before_gib": None}, "free memory: is not known"),
        (
            {"argv": None, "implied": {"speculative_algorithm": 1}},
            "implied.speculative_algorithm: is no text",
        ),
        (
            {"argv": None, "implied": {"max_running_requests": 0}},
            "max_running_requests: 0 is no whole number",
        ),
    ],
)
def test_rows_that_cannot_be_read(change: dict[str, Any], message: str) -> None:
    (found,) = answers(ROW | change, status=1)
    assert message in " ".join(found["problems"])
    assert found["case"] == "chat"


def test_bytes_that_are_no_text_are_a_problem_of_their_line() -> None:
    output = io.StringIO()
    assert run(io.BytesIO(b'{"case": "\xff"}\n' + json.dumps(ROW).encode()), output, base=FIXTURES) == 1
    bad, good = [json.loads(line) for line in output.getvalue().splitlines()]
    assert bad["problems"][0].startswith("line 1: is no JSON: 'utf-8' codec can't decode")
    assert good["kv_tokens"]


def test_it_runs_as_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(ROW).encode())))
    monkeypatch.setattr(sys, "argv", ["predict", "--base", str(FIXTURES)])
    monkeypatch.delitem(sys.modules, "sglang_kit.predict")
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("sglang_kit.predict", run_name="__main__")
    assert caught.value.code == 0
    assert json.loads(capsys.readouterr().out) == answers(ROW)[0]


VALUES: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just([]) | st.just({})
)


@settings(max_examples=300)
@given(key=st.sampled_from([*ROW, "environment", "draft_config", "implied", "weights_gib"]), value=VALUES)
def test_no_row_ends_in_a_traceback(key: str, value: object) -> None:
    output = io.StringIO()
    run(io.BytesIO(json.dumps(ROW | {key: value}).encode()), output, base=FIXTURES)
    (found,) = [json.loads(line) for line in output.getvalue().splitlines()]
    assert {"kv_tokens", "error", "problems", "max_running_requests"} & set(found)
