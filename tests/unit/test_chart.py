from __future__ import annotations

import copy
import math
import re
from html.parser import HTMLParser
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.breakdown import breakdown, measured
from sglang_kit.chart import COLOURS, page

from tests.plans import load, recorded_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

PLANS = load("six-instances")
CHAT = PLANS[0]
VOID = {"meta"}
*ORDER, _ = COLOURS  # what is free has no colour


class Elements(HTMLParser):
    """Reads a page strictly: every element is closed in its turn, nothing stands in a wrong place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data))

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == name]

    def text(self, name: str) -> list[str]:
        return [text for tag, text in self.texts if tag == name]


def test_equal_plans_give_equal_bytes() -> None:
    assert page("ct200", copy.deepcopy(PLANS), {}) == page("ct200", PLANS, {})


def test_a_page_needs_nothing_else() -> None:
    text = page("ct200", PLANS, {})
    found = Elements(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found.found}
    assert not re.search(r"https?:|url\(|@import|\bsrc=|\bhref=", text)
    policy = found.of("meta")[2]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_instance_has_its_section_and_every_gpu_its_bar() -> None:
    found = Elements(page("ct200", PLANS, {}))
    assert found.text("h2") == ["chat", "long", "dense", "windows", "unknown", "tiny"]
    bars = [bar["aria-label"] or "" for bar in found.of("div") if bar.get("role") == "img"]
    assert [bar.partition(":")[0] for bar in bars] == [
        f"GPU {gpu} as planned" for gpu in (1, 4, 5, 6, 7, 2, 3)
    ]


def test_a_bar_says_its_numbers_and_draws_them() -> None:
    text = page("ct200", [CHAT], {})
    found = Elements(text)
    label = next(bar["aria-label"] for bar in found.of("div") if bar.get("role") == "img")
    assert label == (
        "GPU 1 as planned: in use before 1.35 GiB, weights 51.09 GiB, draft weights 0.79 GiB, "
        "state cache 11.61 GiB, intermediate states 9.65 GiB, KV cache 11.52 GiB, draft KV cache 0.72 GiB, "
        "graphs 1.46 GiB, activations 1.48 GiB, other 0.55 GiB, free 5.37 GiB"
    )
    widths = [float(width) for width in re.findall(r'class="part [\w-]+" style="width:([\d.]+)%"', text)]
    parts = breakdown(CHAT["memory"]).parts
    assert widths == [pytest.approx(100 * part.planned / 95.59, abs=0.001) for part in parts]
    assert sum(widths) == pytest.approx(100, abs=0.05)


def test_every_part_has_a_colour_in_its_place() -> None:
    keys = [part.key for part in breakdown(CHAT["memory"]).parts]
    assert keys == list(COLOURS)


def test_what_was_measured_stands_beside_the_same_plan() -> None:
    plans = load("h200-mtp")
    seen = measured(plans, {"mtp": recorded_verdict()})
    found = Elements(page("h200", plans, seen))
    planned, allocated = [bar["aria-label"] or "" for bar in found.of("div") if bar.get("role") == "img"]
    assert "GPU 0 as planned: in use before 46.83 GiB, weights 51.09 GiB" in planned
    assert "GPU 0 as measured: in use before 46.83 GiB, weights 51.05 GiB" in allocated
    assert "graphs" not in allocated  # not said by this version
    assert "activations 1.42 GiB" in allocated  # room is kept for them
    head, cells = found.text("th"), found.text("td")
    assert {"planned", "measured", "difference"} <= set(head)
    assert {"51.05", "-0.04"} <= set(cells)


def test_what_was_measured_of_another_plan_is_not_shown() -> None:
    seen = {"chat": {"fingerprint": "another", "allocated": {"weights_bytes": 1}}}
    assert page("ct200", PLANS, seen) == page("ct200", PLANS, {})


def test_reasons_alternatives_and_command_line_are_there() -> None:
    found = Elements(page("ct200", [CHAT], {}))
    told = " ".join(text for _, text in found.texts)
    memory = CHAT["memory"]
    for essential in (memory["binds"], *memory["reasons"], *memory["notes"], *CHAT["argv"]):
        assert essential in told
    assert "does not work" in told
    assert any("smaller than one context" in text for text in found.text("td"))


def test_the_chosen_setting_is_marked_in_words() -> None:
    found = Elements(page("ct200", [CHAT], {}))
    assert found.text("td").count("planned") == 1
    assert "least" in found.text("small")


def test_only_one_choice_makes_no_table() -> None:
    assert "What other numbers" not in page("ct200", [PLANS[2]], {})


def test_an_instance_without_planned_memory_says_why() -> None:
    assert "Memory is left to the engine: the config.json of /srv/models/private" in page("h", [PLANS[4]], {})


def test_a_host_without_instances() -> None:
    assert "<p>No instances.</p>" in page("ct200", [], {})


def test_everything_is_escaped() -> None:
    evil = """<b x="1">&amp;'</b>"""
    plan: dict[str, Any] = copy.deepcopy(CHAT)
    plan.update(name=evil, argv=["python", evil], engine_version=evil, gpus=[evil], model=evil)
    memory = plan["memory"]
    memory["card"]["name"] = memory["binds"] = evil
    memory["reasons"] = memory["notes"] = [evil]
    memory["alternatives"][0]["fault"] = evil
    memory["moments"][0]["moment"] = evil
    found = Elements(page(evil, [plan, {**plan, "memory": None, "memory_needs": [evil]}], {}))
    assert not any("x" in attributes for attributes in found.of("b"))
    told = " ".join(text for _, text in found.texts)
    assert told.count(evil) >= 11
    assert any(evil in (bar.get("aria-label") or "") for bar in found.of("div"))


# --- colours -------------------------------------------------------------------------------------


def linear(colour: str) -> list[float]:
    """Linear light of red, green and blue (sRGB)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(light: Sequence[float]) -> float:
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio as WCAG defines it."""
    darker, lighter = sorted((luminance(linear(one)), luminance(linear(other))))
    return (lighter + 0.05) / (darker + 0.05)


VISION = {
    # Linear light -> what is seen (Viénot, Brettel and Mollon 1999; Brettel's plane for tritanopia)
    "any": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.112, 0.888, 0.0), (0.112, 0.888, 0.0), (0.004, -0.004, 1.0)),
    "deuteranopia": ((0.293, 0.707, 0.0), (0.293, 0.707, 0.0), (-0.022, 0.022, 1.0)),
    "tritanopia": ((1.015, 0.114, -0.129), (-0.013, 0.932, 0.081), (-0.013, 0.932, 0.081)),
}


def seen_as(colour: str, vision: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as it is seen."""
    light = linear(colour)
    red, green, blue = (
        min(1.0, max(0.0, sum(factor * part for factor, part in zip(row, light, strict=True))))
        for row in VISION[vision]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, vision: str) -> float:
    pairs = zip(seen_as(one, vision), seen_as(other, vision), strict=True)
    return math.hypot(*(a - b for a, b in pairs))


@pytest.mark.parametrize("key", ORDER)
def test_labels_can_be_read_on_their_fill(key: str) -> None:
    fill, ink, dark_fill, dark_ink = COLOURS[key]
    assert contrast(fill, ink) >= 4.5
    assert contrast(dark_fill, dark_ink) >= 4.5


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", [0, 2], ids=["light", "dark"])
def test_neighbours_differ_for_every_kind_of_colour_vision(vision: str, scheme: int) -> None:
    # Parts may be absent: any two that are at most three apart may become neighbours.
    near = {pair for first in range(len(ORDER)) for pair in combinations(ORDER[first : first + 4], 2)}
    close = {
        f"{one} {other}": round(distance(COLOURS[one][scheme], COLOURS[other][scheme], vision), 1)
        for one, other in sorted(near | set(pairwise(ORDER)))
        if distance(COLOURS[one][scheme], COLOURS[other][scheme], vision) < 15
    }
    assert close == {}
