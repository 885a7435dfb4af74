"""The memory page in a real browser: at a phone's and a desk's width, in light and in dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sglang_kit.breakdown import breakdown, measured
from sglang_kit.chart import page

from tests.plans import load, recorded_verdict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.chromium import Chromium

PLANS = [*load("six-instances"), *load("h200-mtp")]
SEEN = measured(PLANS, {"mtp": recorded_verdict()})
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    place: Path = tmp_path_factory.mktemp("page") / "ct200.html"
    place.write_text(page("ct200", PLANS, SEEN), encoding="utf-8")
    return place.as_uri()


@pytest.fixture
def shown(browser: Chromium, address: str, window: tuple[int, str]) -> Chromium:
    width, scheme = window
    browser.show(address, width=width, scheme=scheme)
    browser.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.ask("innerWidth") == width
    assert browser.ask("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    return browser


def test_nothing_reaches_over_the_edge(shown: Chromium) -> None:
    assert shown.over_the_edge() == []


def test_nothing_but_the_page_is_asked_for(shown: Chromium, address: str) -> None:
    assert (shown.requests, shown.complaints) == ([address], [])


def test_the_widths_of_the_bars_are_the_numbers(shown: Chromium) -> None:
    drawn = shown.ask(
        "[...document.querySelectorAll('.bar:not(.measured)')].map(bar => [...bar.children]"
        ".map(part => part.getBoundingClientRect().width / bar.getBoundingClientRect().width))"
    )
    with_gpus = [plan for plan in PLANS if plan["memory"] and plan["gpus"]]
    bars = [breakdown(plan["memory"]) for plan in with_gpus for _ in plan["gpus"]]
    assert len(drawn) == len(bars)
    for shares, bar in zip(drawn, bars, strict=True):
        assert bar.total is not None
        assert shares == [
            pytest.approx(part.planned / bar.total, abs=0.005) for part in bar.parts if part.planned
        ]


def test_a_label_is_whole_or_not_there(shown: Chromium) -> None:
    """Whatever stands on the first line of a part lies within it."""
    cut = shown.ask(
        "[...document.querySelectorAll('.part b')].filter(label => {"
        " const box = label.getBoundingClientRect(), part = label.parentElement.getBoundingClientRect();"
        " return box.top < part.bottom - 1 && box.right > part.right + 1;"
        "}).map(label => label.textContent)"
    )
    assert cut == []


def test_bars_have_names_for_those_who_cannot_see_them(shown: Chromium) -> None:
    names = shown.names("image")
    assert len(names) == 9  # a GPU each, and what was measured on one
    assert all(" GiB" in name and name.startswith("GPU ") for name in names)


def test_the_scheme_is_followed(browser: Chromium, address: str) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        browser.show(address, width=1280, scheme=scheme)
        colours[scheme] = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert colours["light"] != colours["dark"]


def test_a_picture_can_be_taken(shown: Chromium) -> None:
    assert shown.screenshot().startswith(PNG)
