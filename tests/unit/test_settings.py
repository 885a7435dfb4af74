from __future__ import annotations

from typing import Any

import pytest
from sglang_kit.engine import SUPPORTED, Build, facts
from sglang_kit.problem import ProblemsError
from sglang_kit.settings import CommandLine, Settings, read_argv

from tests.sizing import FIRST, LAST


def read(*words: str, version: str = LAST, **environment: str) -> Settings:
    return read_argv(words, facts=facts(version), environment=environment).settings


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_whole_command_line(version: str) -> None:
    words = (
        "--tp-size 2 --context-length 8k --mem-fraction-static 0.88 --max-running-requests=16 --page-size 64 "
        "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--max-mamba-cache-size 80 --disable-radix-cache --disable-overlap-schedule --kv-cache-dtype fp8_e4m3"
    )
    assert read(*words.split(), version=version) == Settings(
        tensor_parallel=2,
        context_length=8000,
        memory_fraction=0.88,
        running_requests=16,
        page_size=64,
        algorithm="EAGLE",
        draft_steps=3,
        draft_topk=1,
        state_slots=80,
        prefix_cache=False,
        overlap=False,
        kv_dtype="fp8_e4m3",
    )


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--context-length 8Ki", "context_length", 8192),
        ("--context-length 0.5M", "context_length", 500_000),
        ("--context-length 1.005k", "context_length", 1005),
        ("--max-total-tokens 1M", "total_tokens", 1_000_000),
        ("--max-prefill-tokens 16Ki", "prefill_tokens", 16_384),
        ("--enable-multimodal", "multimodal", True),
        ("--tp-size 4 --tensor-parallel-size 8", "tensor_parallel", 8),
        ("--enable-dp-attention", "attention_data_parallel", 1),
        ("--enable-dp-attention --dp-size 4", "attention_data_parallel", 4),
        ("--speculative-draft-model-path x", "draft_model", True),
        ("--disable-cuda-graph", "decode_graphs", False),
        ("--enable-mixed-chunk", "mixed_chunk", True),
        ("--hicache-size 30", "hierarchical_gb", 30),
        ("--hicache-ratio 1.5", "hierarchical_ratio", 1.5),
        ("--enable-hierarchical-cache", "hierarchical_cache", True),
    ],
)
def test_single_flags(words: str, field: str, value: object) -> None:
    assert getattr(read(*words.split()), field) == value


def test_flags_of_a_build_that_is_not_installed_yet_say_nothing_of_others() -> None:
    own = facts(LAST, build=Build())
    words = ["--ddtree-width", "3", "--max-running-requests", "8", "--ddtree-depth", "2", "4", "--ddtree-x=1"]
    assert read_argv(words, facts=own) == CommandLine(Settings(running_requests=8), ())


def test_a_list_of_graphs_counts_by_its_largest() -> None:
    found = facts(FIRST)
    words = [found.flag("graph_list_decode"), "1", "8", "4"]
    assert read(*words, version=FIRST).graph_max_bs_decode == 8


@pytest.mark.parametrize(
    ("words", "version", "decode", "prefill"),
    [
        ("", LAST, True, True),
        ("--disable-cuda-graph", LAST, False, False),
        ("--disable-cuda-graph", FIRST, False, True),
        ("--disable-piecewise-cuda-graph", FIRST, True, False),
        ("--disable-prefill-cuda-graph", LAST, True, False),
        ("--cuda-graph-backend-prefill disabled", LAST, True, False),
        ("--cuda-graph-backend-decode disabled", LAST, False, True),
        ("--disable-cuda-graph --cuda-graph-backend-decode full", LAST, True, False),
    ],
)
def test_graphs(words: str, version: str, decode: bool, prefill: bool) -> None:
    found = read(*words.split(), version=version)
    assert (found.decode_graphs, found.prefill_graphs) == (decode, prefill)


def test_the_environment_counts() -> None:
    found = read(
        SGLANG_ENABLE_SPEC_V2="0",
        SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK="Yes",
        SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1",
        SGLANG_MAMBA_CONV_DTYPE="float16",
        SGLANG_MAMBA_SSM_DTYPE="bfloat16",
        SGLANG_VLM_CACHE_SIZE_MB="100",
        SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK="false",
        HOME="/nowhere",
    )
    assert found == Settings(
        speculation_v2=False,
        skip_decode_lock=True,
        longer_context=True,
        conv_dtype="float16",
        state_dtype="bfloat16",
        multimodal_cache_mib=100,
        balance_checked=False,
    )


def test_a_flag_wins_over_its_variable() -> None:
    assert read("--mamba-ssm-dtype", "float32", SGLANG_MAMBA_SSM_DTYPE="bfloat16").state_dtype == "float32"


def test_what_no_formula_knows_is_named() -> None:
    words = ["--quantization", "fp8", "--pp-size", "2", "--enable-lora", "--log-level", "info"]
    assert read_argv(words, facts=facts(LAST)).not_modelled == (
        "--enable-lora", "--pp-size", "--quantization",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (["--context-len", "8192"], {}, "chat: argv.--context-len: --context-len is an abbreviation"),
        (["--context-length", "long"], {}, "chat: --context-length: 'long' is no value of it"),
        (["--context-length", "8.5Ki"], {}, "chat: --context-length: '8.5Ki' is no value of it"),
        (["--context-length", "0.5"], {}, "chat: --context-length: '0.5' is no value of it"),
        (["--max-running-requests", "many"], {}, "chat: argv"),
        ([], {"SGLANG_VLM_CACHE_SIZE_MB": "x"}, "chat: env.SGLANG_VLM_CACHE_SIZE_MB: 'x' is no value of it"),
        (["--tp-size", "0"], {}, "chat: --tp-size: '0' is not from 1 to 1024"),
        (["--tp-size", "9" * 100], {}, f"chat: --tp-size: '{'9' * 80}' is not from 1 to 1024"),
        (["--mem-fraction-static", "inf"], {}, "chat: --mem-fraction-static: 'inf' is not from -1 to 10"),
        (
            ["--swa-full-tokens-ratio", "nan"],
            {},
            "chat: --swa-full-tokens-ratio: 'nan' is not from 0 to 1000",
        ),
        (
            ["--context-length", "9" * 400 + "k"],
            {},
            f"chat: --context-length: '{'9' * 80}' is not from 1 to 1e+09",
        ),
        (
            ["--enable-dp-attention", "--dp-size", "0"],
            {},
            "chat: --dp-size: '0' is not from 1 to 1024",
        ),
    ],
)
def test_what_cannot_be_read(words: list[str], environment: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        read_argv(words, facts=facts(LAST), environment=environment, where="chat")
    assert message in str(caught.value)
