"""The page of a benchmark in a real browser: plots that can be read, and nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.benchmark import MEASURED, records
from sglang_kit.benchmark_page import page

from tests.plans import FIXTURES, load, recorded_verdict

if TYPE_CHECKING:
    from tests.browser.chromium import Chromium

RECORD = records((FIXTURES / "benchmark/results.jsonl").read_text(encoding="utf-8"))
"""What the playbook kept of the real engine on a CPU: four cells measured, two refused, two failed."""
VARIANTS = ("autoregressive", "mtp", "dflash", "eagle", "eagle3", "ngram")
LEAST_CONTRAST = 3.0
"""Of lines and marks against what is behind them (WCAG 2.2, 1.4.11)."""
LEAST_TEXT = 9
"""Height of the smallest text in pixels."""


def example(variant: str, clients: int) -> dict[str, Any]:
    """Make a cell of a GPU: with accepted tokens and a bar of its memory, which no CPU has."""
    at = VARIANTS.index(variant)
    seen = {
        "output_throughput": 40.0 * clients**0.7 * (1 + at / 4),
        "median_ttft_ms": 60.0 + 9 * clients,
        "median_tpot_ms": 24.0 / (1 + at / 4) + clients / 4,
        "p99_e2e_latency_ms": 3000.0 + 120 * clients,
        **({"accept_length": 1.4 + at / 3} if at else {}),
    }
    return {
        "host": "ct200",
        "group": "tp1",
        "tensor_parallel": 1,
        "variant": variant,
        "concurrency": clients,
        "engine_version": "0.5.23",
        "result": MEASURED,
        "effective": 16,
        "allocated": recorded_verdict()["allocated"],
        "measured": seen,
        "plan": load("h200-mtp")[0],
    }


FOUND = [*RECORD, *(example(variant, clients) for variant in VARIANTS for clients in (1, 4, 16))]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = Path(tmp_path_factory.mktemp("page"), "report.html")
    place.write_text(page("strategies", FOUND, "autoregressive"), encoding="utf-8")
    return place.as_uri()


@pytest.fixture
def shown(browser: Chromium, address: str, window: tuple[int, str]) -> Chromium:
    width, scheme = window
    browser.show(address, width=width, scheme=scheme)
    return browser


def test_nothing_reaches_over_the_edge(shown: Chromium) -> None:
    assert shown.over_the_edge() == []


def test_nothing_but_the_page_is_asked_for(shown: Chromium, address: str) -> None:
    assert (shown.requests, shown.complaints) == ([address], [])


def test_plots_have_names_for_those_who_cannot_see_them(shown: Chromium) -> None:
    names = shown.names("image")
    speeds = [name for name in names if name.startswith("Output tokens per second. ")]
    for group in ("cpu", "tp1"):
        drawn = [one for one in FOUND if one["group"] == group and one["result"] == MEASURED]
        for one in drawn:
            told = f"{one['measured']['output_throughput']:,.2f} at {one['concurrency']}"
            assert any(one["variant"] in name and told in name for name in speeds)
    assert sum(name.startswith("Accepted tokens") for name in names) == 1
    assert sum(", memory of each GPU: " in name for name in names) == len(VARIANTS)


def test_only_what_is_drawn_is_explained(shown: Chromium) -> None:
    keys = shown.ask("[...document.querySelectorAll('.key')].map(key => key.innerText.split('\\n'))")
    assert keys == [["plain", "chunked"], [*VARIANTS]]


def test_marks_stand_at_their_values(shown: Chromium) -> None:
    """The axes give the scale: what is measured in pixels are the numbers of the record."""
    plots = shown.ask(
        "[...document.querySelectorAll('figure svg')].map(plot => {"
        " const middle = one => {"
        "   const box = one.getBoundingClientRect(); return box.top + box.height / 2; };"
        " const lines = [...plot.querySelectorAll('.axis')].map(middle);"
        " const numbers = [...plot.querySelectorAll('text[text-anchor=end]')].map(one => one.textContent);"
        " const marks = [...plot.querySelectorAll('g[transform]')].map("
        "   mark => [mark.querySelector('title').textContent, middle(mark)]);"
        " return [lines[0], lines.at(-1), Number(numbers.at(-1).replaceAll(',', '')), marks]; })"
    )
    marks = 0
    for bottom, top, most, drawn in plots:
        for title, at in drawn:
            value = float(title.rpartition(": ")[2].replace(",", ""))
            assert (bottom - at) / (bottom - top) * most == pytest.approx(value, abs=most / 50)
            marks += 1
    measured = [one["measured"] for one in FOUND if one["result"] == MEASURED]
    assert marks == 4 * len(measured) + sum("accept_length" in one for one in measured)


def test_text_is_large_enough_and_does_not_overlap(shown: Chromium) -> None:
    texts = shown.ask(
        "[...document.querySelectorAll('figure svg')].map("
        " plot => [...plot.querySelectorAll('text')].map(one => {"
        "  const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; }))"
    )
    for plot in texts:
        assert min(bottom - top for _, top, _, bottom in plot) >= LEAST_TEXT
        for at, (left, top, right, bottom) in enumerate(plot):
            for other in plot[at + 1 :]:
                assert left >= other[2] or right <= other[0] or top >= other[3] - 2 or bottom <= other[1] + 2


def test_lines_can_be_told_from_what_is_behind_them(shown: Chromium) -> None:
    colours = shown.ask(
        "[...document.querySelectorAll('figure svg > g')].map("
        " one => [getComputedStyle(one).stroke, getComputedStyle(one.closest('section')).backgroundColor])"
    )
    assert len({stroke for stroke, _ in colours}) == len(VARIANTS)
    for stroke, behind in colours:
        light, dark = sorted((luminance(stroke), luminance(behind)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= LEAST_CONTRAST


def luminance(colour: str) -> float:
    """Compute the relative luminance of ``rgb(r, g, b)`` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)
