"""What does a benchmark look like?

``page`` writes one HTML file that needs nothing else, like the memory plan's. Lines are told apart by the
shape of their marks as well as by colour, and every number stands in the table below. Equal input gives equal
bytes.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from .benchmark import FAILED, MEASURED, ordered, speedup
from .breakdown import breakdown
from .chart import COLOURS, bar, document, grid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .benchmark import Record
    from .breakdown import Part

    Sizes = Sequence[tuple[Part, float]]
    """Parts of a GPU's memory with what they take, in GiB."""
    Series = Mapping[str, Sequence[tuple[int, float]]]
    """Points (clients, value) by variant."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 440, 250, 56, 34, 12, 16
_CEILINGS = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
_MARKS = (
    '<circle r="4"/>',
    '<rect x="-4" y="-4" width="8" height="8"/>',
    '<path d="M0-5 5 4H-5Z"/>',
    '<path d="M0-6 5 0 0 6-5 0Z"/>',
    '<path d="M-5-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z"/>',
    '<path d="M0 5 5-4H-5Z"/>',
)
_LIGHT = ("#1f4e8c", "#b8500c", "#0b7565", "#7a3e9d", "#5f6470", "#a3290f")
_DARK = ("#8fc1ee", "#f5b574", "#5fd3a8", "#c79be8", "#a3aab8", "#ff9d82")

_INK = "".join(f".s{at} {{ fill: {ink}; stroke: {ink}; }}\n" for at, ink in enumerate(_LIGHT))
_DARK_INK = "".join(f".s{at} {{ fill: {ink}; stroke: {ink}; }}\n" for at, ink in enumerate(_DARK))
_STYLE = f"""
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr));
  gap: 1rem 2rem; }}
figure {{ margin: 1rem 0 0; }}
figcaption {{ font-size: .95rem; font-weight: 600; }}
svg {{ width: 100%; height: auto; overflow: visible; }}
svg text {{ fill: var(--soft); font-size: 11px; }}
.axis {{ stroke: var(--line); }}
.key {{ display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; margin: .75rem 0 0;
  padding: 0; }}
.key svg {{ width: 14px; height: 14px; margin-right: .4em; vertical-align: -2px; }}
{_INK}polyline {{ fill: none; stroke-width: 2; }}
.bars {{ margin-top: 1.75rem; }}
section > div:not([class]) {{ overflow-x: auto; }}
@media (max-width: 30rem) {{ figure svg text {{ font-size: 14px; }} }}
@media (prefers-color-scheme: dark) {{
{_DARK_INK}polyline {{ fill: none; }}
}}
"""

_PLOTS = (
    ("Output tokens per second", "output_throughput", 1.0),
    ("Median time per output token, ms", "median_tpot_ms", 1.0),
    ("Median time to the first token, ms", "median_ttft_ms", 1.0),
    ("99 % of the requests end within, s", "p99_e2e_latency_ms", 1000.0),
    ("Accepted tokens per step of the draft", "accept_length", 1.0),
)
"""Title, key of ``measured`` and divisor of each plot."""


def page(name: str, found: Sequence[Record], baseline: str) -> str:
    """Write the results of a matrix."""
    versions = ", ".join(sorted({one["engine_version"] for one in found}))
    hosts = ", ".join(sorted({one["host"] for one in found}))
    about = f"Benchmark on {hosts}, SGLang {versions}" if found else "No results yet"
    rows = ordered(found, [baseline])
    variants = list(dict.fromkeys(one["variant"] for one in rows))
    groups = dict.fromkeys((one["host"], one["group"]) for one in rows)
    sections = [
        _section([one for one in rows if (one["host"], one["group"]) == group], variants, baseline)
        for group in groups
    ]
    heading = f'<h1>{escape(name)}</h1>\n<p class="soft">{escape(about)}</p>'
    return document(f"Benchmark {name}", [heading, *sections], _STYLE)


def _section(found: Sequence[Record], variants: Sequence[str], baseline: str) -> str:
    first = found[0]
    title = f"{first['group']} on {first['host']}"
    plots = [
        plot(caption, series, variants)
        for caption, key, divisor in _PLOTS
        if (series := _series(found, key, divisor))
    ]
    parts = [
        f"<h2>{escape(title)}</h2>",
        f'<p class="soft">tensor parallel {first["tensor_parallel"]}</p>',
        f'<div class="plots">{"".join(plots)}</div>{_key(found, variants)}' if plots else "",
        _memory(found),
        _table(found, baseline),
    ]
    return "\n".join(["<section>", *filter(None, parts), "</section>"])


def _series(found: Sequence[Record], key: str, divisor: float) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, list[tuple[int, float]]] = {}
    for one in found:
        value = one["measured"].get(key) if one["result"] == MEASURED else None
        if value is not None:
            points.setdefault(one["variant"], []).append((one["concurrency"], value / divisor))
    return points


def _key(found: Sequence[Record], variants: Sequence[str]) -> str:
    """Explain the marks of what is drawn; a variant has the same mark in every section."""
    drawn = {one["variant"] for one in found if one["result"] == MEASURED}
    items = "".join(
        f'<li><svg viewBox="-7 -7 14 14" aria-hidden="true"><g class="s{at % len(_MARKS)}">'
        f"{_MARKS[at % len(_MARKS)]}</g></svg>{escape(variant)}</li>"
        for at, variant in enumerate(variants)
        if variant in drawn
    )
    return f'<ul class="key">{items}</ul>'


def plot(caption: str, series: Series, variants: Sequence[str]) -> str:
    """Draw values over concurrency; its levels stand at equal distances, the values begin at 0."""
    levels = sorted({level for points in series.values() for level, _ in points})
    top = ceiling(max(value for points in series.values() for _, value in points))
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(levels) - 1)
    across = {level: _LEFT + (at * step if len(levels) > 1 else step / 2) for at, level in enumerate(levels)}
    parts = [_row(top * share / 4, top) for share in range(5)]
    parts += [
        f'<text x="{place:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{level}</text>'
        for level, place in across.items()
    ]
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 2}" text-anchor="middle">clients</text>')
    told = []
    for variant, points in series.items():
        at = variants.index(variant) % len(_MARKS)
        places = [(across[level], _down(value, top), level, value) for level, value in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
        marks = "".join(
            f'<g transform="translate({x:.1f} {y:.1f})">{_MARKS[at]}'
            f"<title>{escape(variant)}, {level} clients: {value:,.2f}</title></g>"
            for x, y, level, value in places
        )
        parts.append(f'<g class="s{at}"><polyline points="{line}"/>{marks}</g>')
        told.append(f"{variant}: {', '.join(f'{value:,.2f} at {level}' for level, value in points)}")
    text = escape(f"{caption}. {'; '.join(told)}")
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{text}">{"".join(parts)}</svg></figure>'
    )


def _row(value: float, top: float) -> str:
    y = _down(value, top)
    return (
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>'
    )


def _down(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top


def ceiling(value: float) -> float:
    """Round up to a number whose quarters are round, too, and of which little stays above the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in _CEILINGS if value <= power * factor)


def _memory(found: Sequence[Record]) -> str:
    """Draw what each start allocated on one GPU."""
    starts: dict[str, Record] = {one["variant"]: one for one in found if one.get("allocated")}
    drawn: dict[str, Sizes] = {}
    bars = []
    for variant, one in starts.items():
        memory = one["plan"].get("memory")
        whole = breakdown(memory, one["allocated"]) if memory else None
        if whole is None or not whole.total:
            continue
        sizes = [(part, part.planned if part.measured is None else part.measured) for part in whole.parts]
        drawn[variant] = [(part, size) for part, size in sizes if size]
        picture = bar(f"{variant}, memory of each GPU", drawn[variant], whole.total, "bar measured")
        bars.append(f"<small>{escape(variant)}</small>{picture}")
    rows = [
        f'<tr><th scope="row">{escape(variant)}</th><td>{_count(one["allocated"].get("kv_tokens"))}</td>'
        f"<td>{_count(one['allocated'].get('state_slots'))}</td><td>{_count(one.get('effective'))}</td></tr>"
        for variant, one in starts.items()
    ]
    if not rows:
        return ""
    told = grid("What was allocated", ["", "KV tokens", "state slots", "requests at once"], rows)
    return f'<div class="gpu bars">{"".join(bars)}</div>{_parts(drawn)}{told}' if bars else told


def _parts(drawn: Mapping[str, Sizes]) -> str:
    """Tell what the colours of the bars are, and every size."""
    titles = {part.key: part.title for sizes in drawn.values() for part, _ in sizes}
    columns = [{part.key: f"{size:.2f}" for part, size in sizes} for sizes in drawn.values()]
    rows = [
        f'<tr><th scope="row"><i class="swatch {key}"></i>{titles[key]}</th>'
        + "".join(f"<td>{column.get(key, '')}</td>" for column in columns)
        + "</tr>"
        for key in COLOURS
        if key in titles
    ]
    return grid("Memory of each GPU, as allocated, GiB", ["", *map(escape, drawn)], rows)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


_HEADINGS = ("", "clients", "tokens/s", "of baseline", "TTFT ms", "TPOT ms", "p99 s", "accepted", "result")


def _table(found: Sequence[Record], baseline: str) -> str:
    rows = []
    for one, following in zip(found, [*found[1:], {}]):
        seen = one.get("measured", {})
        ratio = speedup(one, found, baseline)
        cells = [
            f"{one['concurrency']:,}",
            _number(seen.get("output_throughput"), ",.1f"),
            _number(ratio, ".2f"),
            _number(seen.get("median_ttft_ms"), ",.0f"),
            _number(seen.get("median_tpot_ms"), ",.1f"),
            _number(seen.get("p99_e2e_latency_ms", 0) / 1000 or None, ",.2f"),
            _number(seen.get("accept_length"), ".2f"),
        ]
        kind = "works" if one["result"] == MEASURED else "fails" if one["result"] == FAILED else "soft"
        data = "".join(f"<td>{cell}</td>" for cell in cells)
        head = f'<th scope="row">{escape(one["variant"])}</th>'
        rows.append(f'<tr>{head}{data}<td class="{kind}">{one["result"]}</td></tr>')
        if one.get("reason") and _why(one) != _why(following):
            rows.append(f'<tr><td colspan="9" class="words why">{escape(one["reason"])}</td></tr>')
    return grid("All results", _HEADINGS, rows)


def _why(one: Mapping[str, Any]) -> tuple[str, str]:
    return one.get("variant", ""), one.get("reason", "")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
