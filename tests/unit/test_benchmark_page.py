"""The page of a benchmark: plots of what was measured, and every number in a table."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from sglang_kit import benchmark_page

from tests.plans import load as plans_of

MEMORY = plans_of("h200-mtp")[0]["memory"]


def cell(variant: str, clients: int, tokens: float | None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    seen = {
        "output_throughput": tokens,
        "median_ttft_ms": 81.2,
        "median_tpot_ms": 12.5,
        "p99_e2e_latency_ms": 2500.0,
    }
    return {
        "id": f"{variant}{clients}",
        "host": "ct200",
        "group": "one <card>",
        "tensor_parallel": 1,
        "variant": variant,
        "concurrency": clients,
        "engine_version": "0.5.23",
        "result": "failed" if tokens is None else "measured",
        "plan": {"memory": None},
        **({} if tokens is None else {"measured": seen}),
        **more,
    }


def images(page: str) -> list[ET.Element]:
    """Parse every picture; each is well-formed XML."""
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314 - our own


def test_a_page_holds_plots_of_every_variant_and_the_table() -> None:
    found = [
        cell("none", 1, 50.0),
        cell("none", 4, 150.0),
        cell("mtp", 1, 100.0),
        cell("mtp", 4, None, reason="gone & lost"),
    ]
    page = benchmark_page.page("strategies", found, "none")
    assert "Benchmark on ct200, SGLang 0.5.23" in page
    assert "one &lt;card&gt; on ct200" in page
    told = [image.get("aria-label") or "" for image in images(page)]
    assert "Output tokens per second. none: 50.00 at 1, 150.00 at 4; mtp: 100.00 at 1" in told
    assert not any("Accepted" in text for text in told)
    assert "<td>2.00</td>" in page
    assert "gone &amp; lost" in page
    assert page.count('class="fails"') == 1
    assert "<script" not in page
    assert page == benchmark_page.page("strategies", found, "none")


def test_acceptance_and_memory_are_drawn_where_they_are_known() -> None:
    allocated = {"kv_tokens": 188_682, "state_slots": 80, "weights_bytes": 54_857_302_016}
    found = [
        cell("mtp", 1, 100.0, plan={"memory": MEMORY}, allocated=allocated, effective=16),
        cell("none", 1, 50.0, allocated={"kv_tokens": 8192}),
    ]
    found[0]["measured"]["accept_length"] = 2.5
    page = benchmark_page.page("strategies", found, "none")
    assert "Accepted tokens per step of the draft. mtp: 2.50 at 1" in page
    assert 'aria-label="mtp, memory of each GPU: ' in page
    assert '<th scope="col">mtp</th></tr>' in page
    assert '<i class="swatch weights"></i>weights</th><td>51.09</td></tr>' in page
    assert "<td>188,682</td><td>80</td><td>16</td>" in page
    assert "<td>8,192</td><td></td><td></td>" in page


def test_memory_of_a_cpu_has_no_bar() -> None:
    cpu = {**MEMORY, "card": None}
    page = benchmark_page.page(
        "m", [cell("a", 1, 1.0, plan={"memory": cpu}, allocated={"kv_tokens": 1})], "a"
    )
    assert "What was allocated" in page
    assert "Memory of each GPU" not in page


def test_a_group_without_any_result_has_its_reasons() -> None:
    page = benchmark_page.page(
        "m", [cell("ddtree", 1, None, result="refused", reason="no such algorithm")], "none"
    )
    assert images(page) == []
    assert "no such algorithm" in page


def test_a_reason_of_several_cells_is_said_once_and_their_variant_has_no_mark() -> None:
    refused = [cell("ddtree", clients, None, result="refused", reason="no such") for clients in (1, 4)]
    page = benchmark_page.page("m", [cell("none", 1, 50.0), *refused], "none")
    assert page.count("no such") == 1
    assert re.findall(r"</svg>(\w+)</li>", page) == ["none"]


def test_nothing_yet() -> None:
    assert "No results yet" in benchmark_page.page("m", [], "none")


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (1, 1), (1.1, 1.2), (2.5, 3), (7, 8), (9, 10), (159, 160), (403, 500), (0.03, 0.03)],
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert benchmark_page.ceiling(value) == pytest.approx(top)
