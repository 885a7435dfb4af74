"""What does the memory plan of a host look like?

``page`` writes one HTML file that needs nothing else: no script, no network, no image. It reads the same
plans as ``report.py`` and says the same; every bar has a text beside it, and the order of its parts is that
of the table below it, so that nothing is told by colour alone. Equal input gives equal bytes.
"""

from __future__ import annotations

import shlex
from html import escape
from typing import TYPE_CHECKING, Any

from .breakdown import Part, allocated_by, breakdown
from .report import alternatives, cards, difference, facts, outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .breakdown import Breakdown

COLOURS = {
    "used": ("#5f6470", "#ffffff", "#6a707d", "#ffffff"),
    "weights": ("#1f4e8c", "#ffffff", "#3d78c2", "#ffffff"),
    "draft": ("#6fa8dc", "#10243d", "#8fc1ee", "#10243d"),
    "state": ("#b8500c", "#ffffff", "#b9560f", "#ffffff"),
    "intermediate": ("#f2a65a", "#3a1d02", "#f5b574", "#3a1d02"),
    "kv": ("#0b7565", "#ffffff", "#12806f", "#ffffff"),
    "draft-kv": ("#7fd1bd", "#06332b", "#94dccb", "#06332b"),
    "graphs": ("#7a3e9d", "#ffffff", "#9459b8", "#ffffff"),
    "activations": ("#e3c341", "#332a00", "#e8cd5c", "#332a00"),
    "other": ("#6b707b", "#ffffff", "#666c78", "#ffffff"),
    "free": ("transparent", "inherit", "transparent", "inherit"),
}
"""Part -> fill and ink on light, fill and ink on dark; neighbours differ for every kind of colour vision."""

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --ink: #1a1d23; --soft: #565d6a; --line: #dde0e6;
  --card: #ffffff; --tint: #f0f4fa; --good: #0b6e4f; --bad: #a3290f; }
@media (prefers-color-scheme: dark) { :root { --page: #121417; --ink: #e7e9ee; --soft: #a3aab8;
  --line: #333843; --card: #1b1e24; --tint: #242a34; --good: #5fd3a8; --bad: #ff9d82; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 2rem 1rem 3rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
main { max-width: 62rem; margin: 0 auto; }
h1, h2 { overflow-wrap: anywhere; line-height: 1.2; margin: 0; }
h3 { font-size: .95rem; margin: 1.75rem 0 .4rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  padding: 1.25rem; margin-top: 1.25rem; }
.big { display: flex; flex-wrap: wrap; gap: .75rem 2.5rem; margin: 1rem 0 1.25rem; padding: 0;
  list-style: none; }
.big b { display: block; font-size: 1.5rem; line-height: 1.25; font-weight: 600; }
.gpu { display: grid; grid-template-columns: max-content 1fr; gap: .25rem .75rem; align-items: center;
  margin: .5rem 0 0; }
.gpu small { color: var(--soft); }
.bar { display: flex; height: 2.25rem; border-radius: .4rem; overflow: hidden; }
.bar.measured { height: 1.25rem; }
/* A label that has no room beside the strut wraps below the bar, out of sight. */
.part { display: flex; flex-wrap: wrap; overflow: hidden; box-shadow: inset -1px 0 var(--card); }
.part::before { content: ""; width: .4rem; height: 100%; }
.part b { padding-right: .4rem; font-size: .8rem; font-weight: 500; line-height: 2.25rem;
  white-space: nowrap; }
.measured .part b { line-height: 1.25rem; font-size: .7rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 2.5rem;
  align-items: start; }
.part.free { border: 1px dashed var(--soft); border-radius: 0 .4rem .4rem 0; box-shadow: none; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .4rem; border-top: 1px solid var(--line); vertical-align: top; }
thead th { border-top: 0; color: var(--soft); font-weight: 500; }
tbody th { font-weight: 500; }
th:first-child, .words { text-align: left; }
th small { display: block; color: var(--soft); font-weight: 400; }
.why { border-top: 0; padding-top: 0; color: var(--soft); }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin-right: .5em; }
.swatch.free { border: 1px dashed var(--soft); }
.chosen { background: var(--tint); }
.works { color: var(--good); }
.fails { color: var(--bad); }
.level { width: 45%; }
.level i { display: block; height: .7rem; margin-top: .35rem; border-radius: .2rem; background: var(--soft); }
.chosen .level i { background: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; margin: 1.5rem 0 0; }
dt { color: var(--soft); }
dd { margin: 0; grid-column: 2; min-width: 0; }
details { margin-top: 1.25rem; }
summary { cursor: pointer; }
pre { white-space: pre-wrap; background: var(--tint); border-radius: .5rem; padding: .75rem;
  margin: .5rem 0 0; font-size: .8rem; overflow-wrap: anywhere; }
@media (max-width: 30rem) {
  body { padding: 1.25rem .6rem 2rem; }
  section { padding: 1rem .75rem; }
  table { font-size: .8rem; }
  th, td { padding: .3rem .2rem; }
  .big { gap: .5rem 1.5rem; }
  .big b { font-size: 1.2rem; }
  .gpu { grid-template-columns: 1fr; }
  dl { grid-template-columns: 1fr; gap: .15rem; }
  dt { margin-top: .5rem; }
  dd { grid-column: 1; }
  dd + dd { margin-top: .3rem; }
}
"""


def page(host: str, plans: Sequence[Mapping[str, Any]], seen: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the page of one host; ``seen`` is what ``breakdown.measured`` kept of earlier starts."""
    versions = sorted({plan["engine_version"] for plan in plans})
    engine = f", SGLang {', '.join(versions)}" if versions else ""
    sections = [_section(plan, allocated_by(plan, seen)) for plan in plans] or ["<p>No instances.</p>"]
    heading = f'<h1>{escape(host)}</h1>\n<p class="soft">Memory plan{escape(engine)}</p>'
    return document(f"Memory plan of {host}", [heading, *sections])


def document(title: str, parts: Sequence[str], style: str = "") -> str:
    """Put parts of HTML into a page that loads nothing and runs nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}{_colours()}{style}</style>",
            "<main>",
            *parts,
            "</main>",
            "</html>\n",
        ]
    )


def _colours() -> str:
    """Give every part its fill and ink, in both schemes."""
    light = [f".{key} {{ background: {row[0]}; color: {row[1]}; }}" for key, row in COLOURS.items()]
    dark = [f".{key} {{ background: {row[2]}; color: {row[3]}; }}" for key, row in COLOURS.items()]
    return "\n".join([*light, "@media (prefers-color-scheme: dark) {", *dark, "}", ""])


def _section(plan: Mapping[str, Any], allocated: Mapping[str, int]) -> str:
    memory = plan["memory"]
    name = f"<h2>{escape(plan['name'])}</h2>"
    command = (
        f"<details><summary>Command line</summary><pre>{escape(shlex.join(plan['argv']))}</pre></details>"
    )
    if memory is None:
        parts = [f"<p>Memory is left to the engine: {escape('; '.join(plan['memory_needs']))}.</p>"]
    else:
        found = breakdown(memory, allocated)
        parts = [
            f'<p class="soft">{escape(cards(plan))}</p>',
            _big(memory),
            *(_gpu(gpu, found, found.total) for gpu in plan["gpus"] if found.total),
            f'<div class="pair">{_parts_table(found)}{_moments(memory)}</div>',
            _alternatives(memory),
            _facts(memory),
        ]
    return "\n".join(["<section>", name, *filter(None, parts), command, "</section>"])


def _big(memory: Mapping[str, Any]) -> str:
    numbers = [
        (f"{memory['concurrency']:,}", "requests at once"),
        (f"{memory['kv_tokens']:,}", "KV tokens"),
        (f"{memory['full_contexts']:,}", f"full contexts of {memory['context_length']:,}"),
    ]
    if memory["tightest"]:
        numbers.append((f"{memory['tightest']['free_gib']:.2f} GiB", "free at the tightest moment"))
    items = "".join(f'<li><b>{number}</b><span class="soft">{name}</span></li>' for number, name in numbers)
    return f'<ul class="big">{items}</ul>'


def _gpu(gpu: str, found: Breakdown, total: float) -> str:
    """Draw a GPU's bar as planned, and below it as measured."""
    name = f"GPU {gpu}"
    planned = [(part, part.planned) for part in found.parts]
    rows = [f"<b>{escape(name)}</b>{bar(f'{name} as planned', planned, total, 'bar')}"]
    if found.is_measured:
        # Activations come with the first request; room is kept for them.
        sizes = [(part, part.planned if part.key == "activations" else part.measured) for part in found.parts]
        seen = [(part, size) for part, size in sizes if size is not None]
        rows.append(f"<small>measured</small>{bar(f'{name} as measured', seen, total, 'bar measured')}")
    return f'<div class="gpu">{"".join(rows)}</div>'


def bar(name: str, sizes: Sequence[tuple[Part, float]], total: float, kind: str) -> str:
    """Draw sizes in GiB as one bar; ``kind`` is its class."""
    told = ", ".join(f"{part.title} {size:.2f} GiB" for part, size in sizes)
    parts = "".join(
        f'<div class="part {part.key}" style="width:{100 * size / total:.3f}%" title="{text}">{label}</div>'
        for part, size in sizes
        if size
        for text, label in [(f"{part.title} {size:.2f} GiB", f"<b>{part.title}</b><b>{size:.2f}</b>")]
    )
    return f'<div class="{kind}" role="img" aria-label="{escape(name)}: {told}">{parts}</div>'


def grid(caption: str, headings: Sequence[str], rows: Sequence[str]) -> str:
    """Lay out rows of HTML below their headings."""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = "\n".join(rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f"<div><h3>{caption}</h3>\n{table}</div>"


def _parts_table(found: Breakdown) -> str:
    headings = ["", "planned", "measured", "difference"] if found.is_measured else ["", "planned"]
    rows = []
    for part in found.parts:
        details = ", ".join(f"{name} {size:.2f}" for name, size in part.details)
        small = f"<small>{details}</small>" if details else ""
        cells = [f"{part.planned:.2f}"]
        if found.is_measured:
            seen = part.measured
            cells += ["", ""] if seen is None else [f"{seen:.2f}", difference(seen - part.planned, "+.2f")]
        swatch = f'<i class="swatch {part.key}"></i>'
        data = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{swatch}{part.title}{small}</th>{data}</tr>')
    return grid("Memory of each GPU, GiB" if found.total else "Memory, GiB", headings, rows)


def _facts(memory: Mapping[str, Any]) -> str:
    rows: list[str] = []
    before = ""
    for name, text in facts(memory):
        if name == "free":  # the table of moments says it
            continue
        term = "" if name == before else f"<dt>{name}</dt>"
        rows.append(f"{term}<dd>{escape(text)}</dd>")
        before = name
    return f"<dl>{''.join(rows)}</dl>"


def _moments(memory: Mapping[str, Any]) -> str:
    moments = memory["moments"]
    if not moments:
        return ""
    most = max(moment["free_gib"] for moment in moments) or 1.0
    rows = []
    for moment in moments:
        least = moment["moment"] == memory["tightest"]["moment"]
        share = 100 * max(0.0, moment["free_gib"]) / most
        chosen, mark = (' class="chosen"', "<small>least</small>") if least else ("", "")
        rows.append(
            f'<tr{chosen}><th scope="row">{escape(moment["moment"])} {mark}</th>'
            f'<td class="level"><i style="width:{share:.3f}%"></i></td><td>{moment["free_gib"]:.2f}</td></tr>'
        )
    return grid("Free after each step of the start, GiB", ["", "", "free"], rows)


_ALTERNATIVE_HEADINGS = ("requests", "KV tokens", "full contexts", "least free", "outcome")


def _alternatives(memory: Mapping[str, Any]) -> str:
    listed = alternatives(memory)
    if len(listed) == 1:
        return ""
    return grid(
        "What other numbers of requests would give",
        _ALTERNATIVE_HEADINGS,
        [_alternative(row) for row in listed],
    )


def _alternative(row: Mapping[str, Any]) -> str:
    """Write a row, and below it the reason why it does not work."""
    chosen = ' class="chosen"' if row["planned"] else ""
    cells = "".join(f"<td>{cell}</td>" for cell in _numbers(row))
    kind = "fails" if row["fault"] else "works"
    why = f'\n<tr><td colspan="5" class="words why">{escape(row["fault"])}</td></tr>' if row["fault"] else ""
    return (
        f'<tr{chosen}><th scope="row">{row["concurrency"]:,}</th>{cells}'
        f'<td class="{kind}">{outcome(row)}</td></tr>{why}'
    )


def _numbers(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{row['kv_tokens']:,}", f"{row['full_contexts']:,}", f"{row['tightest_gib']:.2f}"
