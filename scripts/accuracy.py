#!/usr/bin/env python3
"""Write the table of docs/memory.md that holds predictions against measured starts.

    python scripts/accuracy.py            (with --check it only says whether the table is stale)

Every row of ``tests/fixtures/measured`` goes through ``sglang_kit.predict``, as anyone may do by hand.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit.predict import predict_row  # noqa: E402 - found by the line above

FIXTURES = ROOT / "tests" / "fixtures"
DOCUMENT = ROOT / "docs" / "memory.md"
BLOCK = re.compile(r"(<!-- accuracy -->\n).*?(<!-- end -->)", re.DOTALL)
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
             "free_before_gib", "implied", "mamba_slots",
             *(("free_after_weights_gib",) if weights_known else ()))  # fmt: skip
    given = {key: row[key] for key in known if key in row}
    return Comparison(row, predict_row(given, base=FIXTURES))


def table() -> str:
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


def _pair(found: Comparison, key: str) -> str:
    if key not in found.measured:
        return ""
    predicted, measured = found.predicted[key], found.measured[key]
    return f"{measured:,} exact" if predicted == measured else f"{predicted:,} for {measured:,}"


def main() -> int:
    """Rewrite the table, or check it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    fresh = BLOCK.sub(lambda block: f"{block[1]}{table()}\n{block[2]}", text)
    if "--check" in sys.argv[1:]:
        return int(fresh != text)
    DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
