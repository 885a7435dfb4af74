"""Which tables do people look at?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .quantity import human

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns of text; every cell may be empty, none may hold a line end."""
    lines = [list(headings), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    rule = "  ".join("-" * width for width in widths)
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return [text[0], rule, *text[1:]]


def failures(verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say for every instance that is not ready: state, stage, cause, evidence and what to change."""
    lines: list[str] = []
    for cause, verdict in zip(causes(verdicts), _not_ready(verdicts).values()):
        lines.append(cause)
        lines += [f"  | {line}" for part in verdict["evidence"] for line in part["text"].splitlines()]
        if verdict["remedy"]:
            lines.append(f"  what to do: {verdict['remedy']}")
    return lines


def causes(verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say the same in one line each."""
    return [
        f"{name}: {verdict['state']} in stage {verdict['phase'] or verdict['stage']}: {verdict['sentence']}"
        for name, verdict in _not_ready(verdicts).items()
    ]


def _not_ready(verdicts: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: verdict for name, verdict in verdicts.items() if verdict["state"] != "ready"}


_PLAN_HEADINGS = ("instance", "GPUs", "port", "context", "requests", "strategy", "fingerprint")
_PROOF_HEADINGS = ("instance", "unit", "stages (s)", "KV tokens", "K + V", "requests", "answer")


def lines(
    plans: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]] | None = None
) -> list[str]:
    """Lay out the plan alone, or beside what was proven (predicted / allocated)."""
    if not plans:
        return ["no instances"]
    if verdicts is None:
        return table(_PLAN_HEADINGS, [_plan_row(plan) for plan in plans])
    return table(_PROOF_HEADINGS, [_proof_row(plan, verdicts.get(plan["name"])) for plan in plans])


def _plan_row(plan: Mapping[str, Any]) -> list[str]:
    return [
        plan["name"],
        ",".join(plan["gpus"]) or "CPU",
        str(plan["port"]),
        str(plan["context_length"] or "model's"),
        str(plan["concurrency"] or "planned"),
        plan["strategy"],
        plan["fingerprint"],
    ]


def _proof_row(plan: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> list[str]:
    if verdict is None:
        return [plan["name"], plan["state"], "", "", "", "", ""]
    pools = verdict["allocated"]
    stages = [f"{stage['name']} {stage['seconds']:.0f}" for stage in verdict["stages"] if stage["seconds"]]
    answer = next((check["detail"] for check in verdict["checks"] if check["name"] == "completion"), "")
    return [
        plan["name"],
        verdict["state"],
        ", ".join(stages),
        str(pools.get("kv_tokens", "")),
        human(pools["kv_bytes"]) if "kv_bytes" in pools else "",
        str(pools.get("running_requests", "")),
        repr(answer[:24]),
    ]
