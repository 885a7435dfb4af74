from __future__ import annotations

from typing import Any

import pytest

from scripts import measured_rows
from scripts.measured_rows import row

GIB = 1 << 30
CASE: dict[str, Any] = {
    "case": "chat",
    "model_config": "configs/qwen3-8b.json",
    "sglang_version": "0.5.15.post1",
    "argv": ["--mem-fraction-static", "0.8"],
    "prompt": False,
}
CARD = {"gpu_total_mib": 143_771, "compute_capability": "9.0"}
BEGIN = f"""\
[gate]
[free] {140 * GIB} init_torch_distributed
[free] {139 * GIB + 1} load_model
[2026-11-29 19:05:08] Load weight begin. avail mem=139.00 GB
"""
END = f"""\
[free] {124 * GIB} load_model
[2026-11-29 19:05:08] Load weight end. elapsed=0.37 s, avail mem=124.00 GB, mem usage=15.00 GB.
"""
READY = f"""\
[free] {27 * GIB} init_memory_pool
[2026-11-29 19:05:08] Memory pool end. avail mem=27.00 GB
[2026-11-29 19:05:09] max_total_num_tokens=788362, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=4096, context_len=16384, available_gpu_mem=27.00 GB
[2026-11-29 19:05:09] The server is fired up and ready to roll!
[card] {26 * GIB} after 8192 tokens
"""


def cache(tokens: int, size: float) -> str:
    sizes = f"K size: {size} GB, V size: {size} GB"
    return f"[2026-11-29 19:05:08] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, {sizes}\n"


def test_a_start_becomes_a_row_with_free_memory_in_bytes() -> None:
    found = row(CASE, BEGIN + END + cache(788_362, 48.12) + READY, CARD)
    assert "prompt" not in found
    assert "error" not in found
    assert found["free_before_gib"] == round((139 * GIB + 1) / GIB, 6)
    assert (found["weights_gib"], found["free_after_weights_gib"]) == (15.0, 124.0)
    assert (found["kv_tokens"], found["max_running_requests"], found["k_gib"]) == (788_362, 4096, 48.12)
    assert [when for when, _ in found["free_gib"]] == [
        "Load weight begin", "Load weight end", "Memory pool end", "max_total_num_tokens",
    ]  # fmt: skip
    assert found["card_free_gib"] == [["after 8192 tokens", 26.0]]


def test_a_rounded_number_that_nobody_looked_up_is_left_out() -> None:
    later = "[2026-11-29 19:05:08] Memory pool end. avail mem=12.34 GB\n"
    assert "free_after_target_pools_gib" not in row(CASE, BEGIN + END + later, CARD)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (cache(80, 2.0) + cache(100, 3.0), {"sliding_tokens": 80, "k_gib": 5.0}),
        (BEGIN + END + cache(100, 3.0) + cache(100, 0.5), {"k_gib": 3.0, "draft_k_gib": 0.5}),
    ],
    ids=["windows", "draft"],
)
def test_two_caches_are_told_apart(lines: str, expected: dict[str, float]) -> None:
    found = row(CASE, BEGIN + END + lines + READY, CARD)
    assert {key: found[key] for key in expected} == expected


def test_a_latent_cache_is_one_size() -> None:
    line = "[2026-11-29 22:05:08] KV Cache is allocated. #tokens: 2000, KV size: 7.50 GB\n"
    assert row(CASE, BEGIN + END + line + READY, CARD)["k_gib"] == 7.5


def test_of_two_ranks_the_one_with_less_counts_and_pools_once() -> None:
    def said(by: int, text: str, free: int) -> str:
        line = f"[2026-11-29 22:05:08 TP{by}] {text} avail mem={free / GIB:.2f} GB\n"
        return f"[free] {free} load_model {by}\n[free] {free + 1} load_model {1 - by}\n{line}"

    begin, end, more = "Load weight begin.", "Load weight end. elapsed=0.37 s,", 3 << 20
    lines = [
        said(1, begin, 139 * GIB),
        said(0, begin, 139 * GIB - more),
        said(0, end, 130 * GIB),
        "[2026-11-29 22:05:08 TP0] KV Cache is allocated. #tokens: 100, K size: 3.0 GB, V size: 3.0 GB\n",
        "[2026-11-29 22:05:08 TP1] KV Cache is allocated. #tokens: 100, K size: 3.0 GB, V size: 3.0 GB\n",
        said(1, end, 130 * GIB - more),
    ]
    found = row(CASE, "".join(lines) + READY, CARD)
    assert found["free_before_gib"] == round((139 * GIB - more) / GIB, 6)
    assert found["free_after_weights_gib"] == round((130 * GIB - more) / GIB, 6)
    assert (found["k_gib"], "sliding_tokens" in found, "draft_weights_gib" in found) == (3.0, False, False)


def test_a_start_that_ends_keeps_its_error() -> None:
    traceback = """\
[2026-11-29 19:05:09] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 1, in run
    run()
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.

[2026-11-29 19:05:09] Received sigquit from a child process. It usually means the child failed.
"""
    found = row(CASE, BEGIN + END + traceback, CARD)
    assert found["error"] == "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert "kv_tokens" not in found


def test_a_start_that_ends_before_its_cache_has_none() -> None:
    assert measured_rows.cache([], drafts=False) == {}
