"""Which tables do people look at?

Ansible indents what it shows by eight columns: nothing here is wider than ``WIDTH``, so that it fits a
terminal of 100, except what holds a name or an answer that is longer.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from .breakdown import breakdown
from .readiness import STAGE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .breakdown import Part

WIDTH = 92
_BAR = 30
_EIGHTHS = " ▏▎▍▌▋▊▉"
_ANSWER = 32


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Align columns of text, those named in ``right`` at their end.

    Every cell may be empty, none may hold a line end.
    """
    lines = [list(headings), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    rule = "  ".join("-" * width for width in widths)
    text = [
        "  ".join(
            cell.rjust(width) if heading in right else cell.ljust(width)
            for heading, cell, width in zip(headings, line, widths)
        ).rstrip()
        for line in lines
    ]
    return [text[0], rule, *text[1:]]


def causes(verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say in one line of every instance that is not ready: state, stage and cause."""
    return [
        f"{name}: {verdict['state']} in stage {_stage(verdict['phase'] or verdict['stage'])}:"
        f" {verdict['sentence']}"
        for name, verdict in verdicts.items()
        if verdict["state"] != "ready"
    ]


def _stage(name: str) -> str:
    return STAGE_NAMES.get(name, name)


def lines(
    plans: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]] | None = None
) -> list[str]:
    """Lay out the plan alone, or beside what was proven: first all instances, then one after another."""
    if not plans:
        return ["no instances"]
    if verdicts is None:
        head, below = _plan_table(plans), [_plan_lines(plan) for plan in plans]
    else:
        head = _proof_table(plans, verdicts)
        below = [_proof_lines(plan, verdicts.get(plan["name"])) for plan in plans]
    return [*head, *(line for part in below if part for line in ("", *part))]


# --- the plan ------------------------------------------------------------------------------------

_PLAN_HEADINGS = ("instance", "GPUs", "port", "strategy", "requests", "context", "KV tokens", "full contexts")
_PLAN_NUMBERS = ("port", "requests", "context", "KV tokens", "full contexts")
_ALTERNATIVE_HEADINGS = ("requests", "KV tokens", "full contexts", "fraction", "least free", "outcome")


def _plan_table(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    return table(_PLAN_HEADINGS, [_plan_row(plan) for plan in plans], right=_PLAN_NUMBERS)


def _plan_row(plan: Mapping[str, Any]) -> list[str]:
    memory = plan["memory"] or plan  # with no memory planned: what the user asked for
    return [
        plan["name"],
        ",".join(plan["gpus"]) or "CPU",
        str(plan["port"]),
        plan["strategy"],
        _count(memory["concurrency"]),
        _count(memory["context_length"]),
        _count(memory.get("kv_tokens")),
        _count(memory.get("full_contexts")),
    ]


def _count(number: int | None) -> str:
    return "engine's" if number is None else f"{number:,}"


def _plan_lines(plan: Mapping[str, Any]) -> list[str]:
    memory = plan["memory"]
    if memory is None:
        needs = [line for need in plan["memory_needs"] for line in _entry("", need)]
        return [plan["name"], *_entry("memory", "left to the engine"), *needs]
    return [
        *textwrap.wrap(f"{plan['name']}: {cards(plan)}", WIDTH, subsequent_indent="  "),
        *_bars(memory),
        "",
        *_facts(memory),
        *_alternatives(memory),
    ]


def cards(plan: Mapping[str, Any]) -> str:
    """Name the cards that an instance is planned for, and their room."""
    gpus, card = plan["gpus"], plan["memory"].get("card")
    if not gpus:
        return "CPU"
    group = f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(gpus)} as one group"
    if not card:
        return group
    each = "" if len(gpus) == 1 else "each "
    model = f", {card['name']}" if card["name"] else ""
    room = f"{each}{card['free_gib']:.2f} of {card['total_gib']:.2f} GiB free before the start"
    return f"{group}{model}, {room}"


def _bars(memory: Mapping[str, Any]) -> Iterator[str]:
    """Write one line a part, with a bar on the scale of the whole card."""
    whole = breakdown(memory)
    for part in whole.parts:
        picture = _bar(part.planned / whole.total) if whole.total else ""
        details = ", ".join(f"{name} {size:.2f}" for name, size in part.details)
        yield f"  {part.title:<19} {part.planned:>6.2f} GiB  {picture:<{_BAR}}  {details}".rstrip()


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * _BAR * 8), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def _facts(memory: Mapping[str, Any]) -> Iterator[str]:
    before = ""
    for name, text in facts(memory):
        yield from _entry("" if name == before else name, text)
        before = name


def facts(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say in words what the settings give, what binds, and why they were chosen."""
    served = f"{memory['concurrency']:,} requests at once"
    if memory["state_slots"]:
        slots, each = memory["state_slots"], memory["slots_per_request"]
        served += f", {each} state slot{'' if each == 1 else 's'} each ({slots:,} in all)"
    contexts, length = memory["full_contexts"], memory["context_length"]
    cached = f"{memory['kv_tokens']:,} tokens, room for {contexts:,} full contexts of {length:,}"
    if memory["sliding_tokens"]:
        cached += f"; {memory['sliding_tokens']:,} tokens of sliding windows"
    found = [("serves", served), ("KV cache", cached)]
    if memory["tightest"]:
        found.append(("free", _free(memory)))
    found.append(("binds", memory["binds"]))
    found += [("why", reason) for reason in memory["reasons"]]
    found += [("note", note) for note in memory["notes"]]
    return found


def _free(memory: Mapping[str, Any]) -> str:
    least = memory["tightest"]["moment"]
    moments = [
        f"{moment['moment']} {moment['free_gib']:.2f}{' (least)' if moment['moment'] == least else ''}"
        for moment in memory["moments"]
    ]
    return f"{', '.join(moments)}; headroom asked for {memory['headroom_gib']:.2f} GiB"


def _entry(name: str, text: str) -> list[str]:
    """Write a name and its text, which hangs beside it."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"  {name:<9} ", subsequent_indent=" " * 14, break_on_hyphens=False
    )


def _alternatives(memory: Mapping[str, Any]) -> Iterator[str]:
    rows = alternatives(memory)
    if len(rows) == 1:
        return
    cells = [
        [
            f"{row['concurrency']:,}",
            f"{row['kv_tokens']:,}",
            f"{row['full_contexts']:,}",
            f"{row['memory_fraction']:.3f}",
            f"{row['tightest_gib']:.2f}",
            outcome(row),
        ]
        for row in rows
    ]
    found = table(_ALTERNATIVE_HEADINGS, cells, right=_ALTERNATIVE_HEADINGS[:-1])
    yield ""
    yield from (f"  {line}" for line in found)
    for row in rows:
        if row["fault"]:
            yield from _entry(f"{row['concurrency']:,}", row["fault"])


def outcome(row: Mapping[str, Any]) -> str:
    """Judge one row of ``alternatives``."""
    return "planned" if row["planned"] else "does not work" if row["fault"] else "works"


def alternatives(memory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the plan among what other numbers of requests would give, in their order."""
    own = {
        "concurrency": memory["concurrency"],
        "kv_tokens": memory["kv_tokens"],
        "full_contexts": memory["full_contexts"],
        "memory_fraction": memory["settings"].get("memory_fraction", 0.0),
        "tightest_gib": memory["tightest"].get("free_gib", 0.0),
        "fault": "",
    }
    rows = [{**row, "planned": False} for row in memory["alternatives"]]
    return sorted([*rows, {**own, "planned": True}], key=lambda row: int(row["concurrency"]))


# --- the proof -----------------------------------------------------------------------------------

_PROOF_HEADINGS = ("instance", "state", "start", "requests", "KV tokens", "answer")
_POOL_HEADINGS = ("pool", "planned", "allocated", "difference")


def _proof_table(plans: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [_proof_row(plan, verdicts.get(plan["name"])) for plan in plans]
    return table(_PROOF_HEADINGS, rows, right=("start", "requests", "KV tokens"))


def _proof_row(plan: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> list[str]:
    if verdict is None:
        return [plan["name"], plan["state"], "", "", "", ""]
    pools = verdict["allocated"]
    seconds = sum(stage["seconds"] or 0.0 for stage in verdict["stages"])
    served, asked = pools.get("running_requests"), plan["concurrency"]
    requests = "" if served is None else f"{served:,}" if asked is None else f"{served:,} of {asked:,}"
    answer = next((check["detail"] for check in verdict["checks"] if check["name"] == "completion"), None)
    return [
        plan["name"],
        verdict["state"].replace("_", " "),
        f"{seconds:.0f} s" if verdict["stages"] else "",
        requests,
        _count(pools["kv_tokens"]) if "kv_tokens" in pools else "",
        "" if answer is None else repr(answer if len(answer) <= _ANSWER else f"{answer[:_ANSWER]}…"),
    ]


def _proof_lines(plan: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> list[str]:
    """Say where the time of a start went, and hold the pools against the plan."""
    if verdict is None:
        return []
    spent: dict[str, float] = {}
    for stage in verdict["stages"]:  # a draft model goes through some of them again
        name = _stage(stage["name"])
        spent[name] = spent.get(name, 0.0) + (stage["seconds"] or 0.0)
    text = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in spent.items() if round(seconds))
    rows = comparison(plan["memory"], verdict["allocated"]) if plan["memory"] else []
    found = _entry("start", text) if text else []
    if rows:
        found += ["", *(f"  {line}" for line in table(_POOL_HEADINGS, rows, right=_POOL_HEADINGS[1:]))]
    return [plan["name"], *found] if found else []


_COUNTS = {"kv_tokens": "KV tokens", "state_slots": "state slots"}


def comparison(memory: Mapping[str, Any], allocated: Mapping[str, int]) -> list[list[str]]:
    """Hold what the engine reported against the plan: name, planned, allocated and the difference."""
    rows = [
        [name, f"{memory[key]:,}", f"{allocated[key]:,}", difference(allocated[key] - memory[key], "+,")]
        for key, name in _COUNTS.items()
        if key in allocated
    ]
    parts = [part for part in breakdown(memory, allocated).parts if part.measured is not None]
    return rows + [_sizes(part) for part in parts if part.key not in ("used", "other", "free")]


def _sizes(part: Part) -> list[str]:
    seen = part.measured or 0.0
    more = difference(seen - part.planned, "+.2f", " GiB")
    return [part.title, f"{part.planned:.2f} GiB", f"{seen:.2f} GiB", more]


def difference(more: float, form: str, unit: str = "") -> str:
    """Write a difference with its sign."""
    text = f"{more:{form}}"
    return f"{text}{unit}" if text.strip("+-0.") else "none"
