#!/usr/bin/env python3
"""Turn the results of tests/gpu/measure.py into rows of tests/fixtures/measured.

    python scripts/measured_rows.py --cases CASES.json --logs DIRECTORY --what TEXT --into FILE.json

A case without a log was not started and makes no row; every other one does, with the error that ended it
where it did not get ready. Free memory is exact: the engine prints it to 10 MiB, the line before in bytes. Of
several ranks it is that of the one which has least, as the engine itself takes it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit.journal import allocated, parse_text, read  # noqa: E402 - found by the line above
from sglang_kit.quantity import GIB  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sglang_kit.journal import Event

LOOK = re.compile(r"\[free\] (\d+) \S+(?: (\d+))?")
RANK = re.compile(r"\[[^]]* TP(\d+)\]")
CARD = re.compile(r"\[card\] (\d+) (.*)")
PRINTED = re.compile(r"(?:avail mem=|available_gpu_mem=)([\d.]+) GB")
KV = re.compile(r"KV Cache is allocated.*?#tokens: (\d+), KV? size: ([\d.]+) GB")
READY = "The server is fired up and ready to roll!"
KEPT = ("case", "model_config", "draft_model_config", "sglang_version", "argv", "environment", "load",
        "free_under_load_gib")  # fmt: skip
POOLS = {
    "mamba_slots": "state_slots",
    "kv_tokens": "total_tokens",
    "max_running_requests": "running_requests",
}
SIZES = {
    "conv_gib": "conv_bytes",
    "ssm_gib": "ssm_bytes",
    "intermediate_ssm_gib": "intermediate_ssm_bytes",
    "intermediate_conv_gib": "intermediate_conv_bytes",
}


def rank(line: str) -> int:
    """Tell which rank says a line; an engine of one rank does not say."""
    found = RANK.match(line)
    return int(found[1]) if found else 0


def exact(lines: Sequence[str], of_rank: int) -> Iterator[tuple[int, str]]:
    """Yield what was free for a rank, in bytes, at each line that prints it, with the line."""
    last = 0
    for line in lines:
        look = LOOK.match(line)
        if look and int(look[2] or 0) == of_rank:
            last = int(look[1])
        found = PRINTED.search(line)
        rounding = 0.006
        if found and rank(line) == of_rank and abs(last / GIB - float(found[1])) < rounding:
            yield last, line


def least(lines: Sequence[str]) -> list[tuple[int, str]]:
    """List what was free for the rank that has least, at each line that prints it, with the line."""
    found: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for one in sorted({rank(line) for line in lines}):
        times: Counter[str] = Counter()
        for size, line in exact(lines, one):
            name = moment(line)
            found.setdefault((name, times[name]), []).append((size, line))
            times[name] += 1
    return [min(same) for same in found.values()]


def row(case: dict[str, Any], text: str, card: dict[str, Any]) -> dict[str, Any]:
    """Make the row of one start."""
    lines = text.splitlines()
    free = least(lines)
    text = "\n".join(line for line in lines if rank(line) == 0)
    events = list(read(parse_text(number, line) for number, line in enumerate(text.splitlines(), 1)))
    pools = allocated(events).as_dict()
    begins, ends = (
        [size for size, line in free if mark in line] for mark in ("Load weight begin", "Load weight end")
    )
    made: dict[str, Any] = {key: case[key] for key in KEPT if key in case}
    made.update(card)
    if begins:
        made["free_before_gib"] = _gib(begins[0])
    if ends:
        made["weights_gib"] = _gib(begins[0] - ends[0])
        made["free_after_weights_gib"] = _gib(ends[0])
    if len(ends) > 1:
        made["draft_weights_gib"] = _gib(begins[1] - ends[1])
    made.update({name: pools[key] for name, key in POOLS.items() if key in pools})
    made.update({name: round(pools[key] / GIB, 2) for name, key in SIZES.items() if key in pools})
    made.update(cache(KV.findall(text), drafts=len(ends) > 1))
    fraction = re.search(r"mem_fraction_static=([\d.]+)", text)
    if fraction:
        made["mem_fraction_static"] = float(fraction[1])
    pool_ends = [size for size, line in free if "Memory pool end" in line]
    if pool_ends:
        made["free_after_target_pools_gib"] = _gib(pool_ends[0])
    made["free_gib"] = [[moment(line), _gib(size)] for size, line in free]
    cards = {when: int(size) for size, when in CARD.findall(text)}
    made["card_free_gib"] = [[when, _gib(size)] for when, size in cards.items()]
    if READY not in text:
        made["error"] = error(events)
    return made


def cache(allocations: Sequence[tuple[str, str]], *, drafts: bool) -> dict[str, float]:
    """Read the KV caches: the target's and the draft's, or those of layers with and without a window."""
    tokens, keys = [int(one[0]) for one in allocations], [float(one[1]) for one in allocations]
    if not keys:
        return {}
    if drafts:
        return {"k_gib": keys[0], "draft_k_gib": keys[1]}
    windows = {"sliding_tokens": min(tokens)} if len(tokens) > 1 else {}
    return {**windows, "k_gib": round(sum(keys), 2)}


def moment(line: str) -> str:
    """Name the moment of a line that prints free memory."""
    return re.split(r"[.,=]", line.partition("] ")[2], maxsplit=1)[0]


def error(events: Sequence[Event]) -> str:
    """Tell what ended the start: the last exception of its first traceback."""
    raised = [event.raised for event in events if event.raised]
    return f"{raised[0][-1].type}: {raised[0][-1].message}" if raised else ""


def _gib(size: int) -> float:
    return round(size / GIB, 6)


def main() -> int:
    """Write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--what", required=True, help="where, when and how it was measured")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--gpu-total-mib", type=int, default=143_771)
    parser.add_argument("--compute-capability", default="9.0")
    given = parser.parse_args()
    cases = json.loads(given.cases.read_text(encoding="utf-8"))
    logs = {case["case"]: given.logs / f"{case['case']}.log" for case in cases}
    card = {"gpu_total_mib": given.gpu_total_mib, "compute_capability": given.compute_capability}
    rows = [
        row(case, logs[case["case"]].read_text(encoding="utf-8", errors="replace"), card)
        for case in cases
        if logs[case["case"]].exists()
    ]
    text = json.dumps({"what": given.what, "rows": rows}, indent=1)
    given.into.write_text(re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s+\]", _joined, text) + "\n", encoding="utf-8")
    return 0


def _joined(lines: re.Match[str]) -> str:
    """Put a list of plain values on one line."""
    return "[" + re.sub(r"\s*\n\s*", " ", lines[1]) + "]"


if __name__ == "__main__":
    sys.exit(main())
