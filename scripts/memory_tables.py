#!/usr/bin/env python3
"""Write the generated tables of docs/memory.md.

    python scripts/memory_tables.py       (with --check it only says whether one is stale)

Every row of ``tests/fixtures/measured`` goes through ``sglang_kit.predict``, as anyone may do by hand; the
worked example is a plan like any other.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit.engine import facts  # noqa: E402 - found by the line above
from sglang_kit.instance import Strategy  # noqa: E402
from sglang_kit.model import read_config  # noqa: E402
from sglang_kit.planner import Plan, plan  # noqa: E402
from sglang_kit.predict import predict_row  # noqa: E402
from sglang_kit.quantity import GIB, from_gib, from_mib, human  # noqa: E402
from sglang_kit.resolution import Card  # noqa: E402
from sglang_kit.rules import Wish  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FIXTURES = ROOT / "tests" / "fixtures"
DOCUMENT = ROOT / "docs" / "memory.md"
BLOCK = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = (
    "| start | tokens: predicted | measured | off by | slots | requests | tightest: predicted | measured |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


@dataclass(frozen=True)
class Comparison:
    """A measured start, what was predicted of it, and how far the KV tokens are apart."""

    measured: dict[str, Any]
    predicted: dict[str, Any]

    @property
    def kv_error_mib(self) -> float:
        """Predicted less measured tokens, as MiB of the KV cache with the draft's."""
        predicted, measured = self.predicted["kv_tokens"], self.measured["kv_tokens"]
        cache = sum(self.predicted.get(key, 0.0) for key in ("k_gib", "v_gib", "draft_k_gib", "draft_v_gib"))
        return float((predicted - measured) * cache * 1024 / predicted)


def rows() -> list[dict[str, Any]]:
    """Read all measured starts."""
    files = sorted((FIXTURES / "measured").glob("*.json"))
    return [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


def compare(row: dict[str, Any], *, weights_known: bool = True) -> Comparison:
    """Predict a measured start, with the free memory after its weights or with shapes alone."""
    known = ("case", "sglang_version", "model_config", "draft_model_config", "argv", "gpu_total_mib",
             "compute_capability", "free_before_gib", "implied", "mamba_slots",
             *(("free_after_weights_gib", "draft_weights_gib") if weights_known else ()))  # fmt: skip
    given = {key: row[key] for key in known if key in row}
    return Comparison(row, predict_row(given, base=FIXTURES))


def accuracy() -> str:
    """Render one line per measured start."""
    return "\n".join((*HEAD, *(_line(compare(row)) for row in rows())))


def _line(found: Comparison) -> str:
    measured, predicted = found.measured, found.predicted
    name = f"`{measured['case']}`"
    if "error" in measured:
        same = "the same error" if predicted["error"] == measured["error"] else "another error"
        return f"| {name} | {same} | | | | | | |"
    cells = [name]
    if "kv_tokens" in predicted:
        cells += [
            f"{predicted['kv_tokens']:,}",
            f"{measured['kv_tokens']:,}",
            f"{found.kv_error_mib:+.1f} MiB",
        ]
    else:
        cells += ["", "", ""]
    cells += [_pair(found, "mamba_slots"), _pair(found, "max_running_requests")]
    least = measured.get("free_least_gib")
    cells += ["", ""] if least is None else [f"{predicted['free_least_gib']:.2f} GiB", f"{least:.2f} GiB"]
    return f"| {' | '.join(cells)} |"


def summary() -> str:
    """Render how far all starts are off, by how free memory was known."""
    known: dict[str, list[float]] = {"in bytes": [], "as printed, to 10 MiB": []}
    refused = 0
    for row in rows():
        found = compare(row)
        if "kv_tokens" in found.measured:
            off = abs(found.predicted["kv_tokens"] / found.measured["kv_tokens"] - 1)
            known["in bytes" if "free_gib" in row else "as printed, to 10 MiB"].append(100 * off)
        elif "error" in row:
            refused += found.predicted["error"] == row["error"]
    head = ("free memory", "starts", "median", "worst")
    cells = (
        (how, str(len(off)), f"{statistics.median(off):.3f} %", f"{max(off):.3f} %")
        for how, off in known.items()
    )
    return _rows(head, (*cells, ("refused", str(refused), "the same words", "")))


def reserve() -> str:
    """Render what is left after graphs and under load, for the starts that show it."""
    cells = []
    for row in rows():
        graphs = "free_gib" in row and "--disable-cuda-graph" not in row["argv"]
        if "error" in row or not graphs:
            continue
        found = compare(row)
        end = row["free_gib"][-1][1]
        least = row.get("free_under_load_gib")
        prompt = next((size for when, size in row["card_free_gib"] if when.startswith("after")), None)
        cells.append(
            (
                f"`{row['case']}`",
                f"{found.predicted['free_at_end_gib']:.2f} GiB",
                f"{end:.2f} GiB",
                f"{found.predicted['free_at_end_gib'] - end:+.2f} GiB",
                f"{found.predicted['free_serving_gib']:.2f} GiB" if least else "",
                f"{least:.2f} GiB" if least else "",
                f"{end - prompt:.2f} GiB" if prompt else "",
            )
        )
    head = ("start", "free with graphs: predicted", "measured", "off by", "under load: predicted", "measured",
            "one prompt takes")  # fmt: skip
    return _rows(head, cells)


def _pair(found: Comparison, key: str) -> str:
    if key not in found.measured:
        return ""
    predicted, measured = found.predicted[key], found.measured[key]
    return f"{measured:,} exact" if predicted == measured else f"{predicted:,} for {measured:,}"


@cache
def _example() -> Plan:
    """Plan the worked example: a hybrid 27B model that drafts with its own prediction layer."""
    config = json.loads((FIXTURES / "configs" / "qwen36-27b.json").read_text(encoding="utf-8"))
    return plan(
        model=read_config(config),
        draft=None,
        facts=facts("0.5.11"),
        card=Card(total=from_mib(143_771), free=from_gib(93.57)),
        wish=Wish(strategy=Strategy("mtp", steps=3), context_length=8192),
    )


def pools() -> str:
    """Render the pools of the worked example with their arithmetic."""
    found, values = _example().prediction, dict(_example().values)
    slots, requests, tokens = values["state_slots"], values["running_requests"], values["draft_tokens"]
    rows = f"{found.kv_tokens:,} tokens + 1 page"
    lines = [
        ("weights", "tensors from the config, rounded as PyTorch's allocator does", found.weights),
        ("state, convolution", f"({slots} + 1) slots x 48 layers x 10,240 channels x 3 x 2 bytes",
         found.conv_bytes),
        ("state, matrices", f"({slots} + 1) slots x 48 layers x 48 heads x 128 x 128 x 4 bytes",
         found.ssm_bytes),
        ("intermediate convolution", f"({requests} + 1) requests x {tokens} tokens x one slot's",
         found.intermediate_conv_bytes),
        ("intermediate matrices", f"({requests} + 1) requests x {tokens} tokens x one slot's",
         found.intermediate_ssm_bytes),
        ("keys", f"({rows}) x 16 layers x 4 heads x 256 x 2 bytes", found.key_bytes),
        ("values", "the same", found.value_bytes),
        ("the draft's keys and values", f"({rows}) x 1 layer x 4 heads x 512 x 2 bytes",
         found.draft_key_bytes + found.draft_value_bytes),
        ("draft weights, while loading", "with an embedding and a head of its own",
         found.draft_weights_loading),
        ("draft weights, afterwards", "both replaced by the target's", found.draft_weights),
        ("graphs", "estimate, from measured starts: requests x tokens, layers, the draft's logits",
         found.graph_bytes),
        ("activations", "estimate: one prefill chunk through the widest layers, logits, libraries",
         found.activation_bytes),
    ]  # fmt: skip
    return _rows(("pool", "arithmetic", "size"), ((name, text, human(size)) for name, text, size in lines))


def moments() -> str:
    """Render what is free in the course of the worked example's start."""
    found = _example().prediction
    return _rows(("moment", "free"), ((one.name, f"{one.free / GIB:.2f} GiB") for one in found.moments))


def alternatives() -> str:
    """Render what other numbers of requests would give."""
    found = _example()
    plan_line = (found.prediction.kv_tokens, found.full_contexts, found.prediction.tightest.free, "the plan")
    lines = {
        one.concurrency: (one.kv_tokens, one.full_contexts, one.tightest_bytes, one.fault)
        for one in found.alternatives
    }
    lines[found.prediction.running_requests] = plan_line
    cells = (
        (str(requests), f"{tokens:,}", str(contexts), human(tightest), note)
        for requests, (tokens, contexts, tightest, note) in sorted(lines.items())
    )
    return _rows(("requests", "KV tokens", "full contexts", "tightest", ""), cells)


def _rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


TABLES: dict[str, Callable[[], str]] = {
    "summary": summary,
    "accuracy": accuracy,
    "reserve": reserve,
    "pools": pools,
    "moments": moments,
    "alternatives": alternatives,
}


def fresh(text: str) -> str:
    """Return the document with its tables written anew."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block['name']]()}\n{block[3]}", text)


def main() -> int:
    """Rewrite the tables, or check them."""
    text = DOCUMENT.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(fresh(text) != text)
    DOCUMENT.write_text(fresh(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
