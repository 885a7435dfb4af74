"""What takes the memory of a GPU, planned and as the engine allocated it?

Reads the ``memory`` of a plan (``planner.Plan.as_dict`` with ``card``) and the ``allocated`` of a verdict
(``journal.Allocated.as_dict``). Sizes are GiB on one rank: both texts and pictures are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .quantity import gib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Part:
    """One use of the memory; ``measured`` is None where the engine said nothing of it."""

    key: str
    title: str
    planned: float
    measured: float | None = None
    details: tuple[tuple[str, float], ...] = ()
    """What it consists of, where that is more than one thing."""


@dataclass(frozen=True)
class Breakdown:
    """The parts of one GPU in the order of a start. ``total`` is the card's size, None on a CPU."""

    total: float | None
    parts: tuple[Part, ...]

    @property
    def is_measured(self) -> bool:
        """Whether the engine reported any pool."""
        return any(part.measured is not None for part in self.parts)


@dataclass(frozen=True)
class _Pool:
    """Where the sizes of a part stand: title of a detail -> key of ``pools_gib``; keys of ``allocated``."""

    key: str
    title: str
    planned: Mapping[str, str]
    measured: tuple[str, ...] = ()


_POOLS = (
    _Pool("weights", "weights", {"": "weights"}, ("weights_bytes",)),
    _Pool("draft", "draft weights", {"": "draft_weights"}, ("draft_weights_bytes",)),
    _Pool("state", "state cache", {"conv": "conv", "SSM": "ssm"}, ("conv_bytes", "ssm_bytes")),
    _Pool(
        "intermediate",
        "intermediate states",
        {"conv": "intermediate_conv", "SSM": "intermediate_ssm"},
        ("intermediate_conv_bytes", "intermediate_ssm_bytes"),
    ),
    _Pool("kv", "KV cache", {"K": "key", "V": "value"}, ("kv_bytes", "swa_kv_bytes")),
    _Pool("draft-kv", "draft KV cache", {"K": "draft_key", "V": "draft_value"}, ("draft_kv_bytes",)),
    _Pool("graphs", "graphs", {"": "graphs"}, ("graphs_bytes",)),
    _Pool("activations", "activations", {"": "activations"}),
)


def breakdown(memory: Mapping[str, Any], allocated: Mapping[str, int] | None = None) -> Breakdown:
    """Lay out what is planned and, where known, what was allocated.

    What the pools do not explain (tables, buffers, libraries) is ``other``; what was taken before the start
    is ``used``. Where no card is known, as on a CPU, there is neither, and nothing ``free``.
    """
    seen = allocated or {}
    parts = [part for part in (_part(pool, memory, seen) for pool in _POOLS) if part.planned or part.measured]
    card = memory.get("card")
    if not card or not memory["moments"]:
        return Breakdown(None, tuple(parts))
    total, before = card["total_gib"], card["free_gib"]
    left = memory["moments"][-1]["free_gib"]
    used = _rest(total, [before])
    other = _rest(before, [*(part.planned for part in parts), left])
    before_seen, left_seen = _gib(seen, "free_before_bytes"), _gib(seen, "free_bytes")
    used_seen = other_seen = None
    if before_seen is not None and left_seen is not None:
        used_seen = _rest(total, [before_seen])
        other_seen = _rest(before_seen, [*(part.measured or 0.0 for part in parts), left_seen])
        # The engine measures what is left before the first request: activations are not taken yet.
        left_seen = _rest(left_seen, [memory["pools_gib"]["activations"]])
    return Breakdown(
        total,
        (
            Part("used", "in use before", used, used_seen),
            *parts,
            Part("other", "other", other, other_seen),
            Part("free", "free", left, left_seen),
        ),
    )


def _part(pool: _Pool, memory: Mapping[str, Any], seen: Mapping[str, int]) -> Part:
    sizes = memory["pools_gib"]
    details = tuple((title, sizes[key]) for title, key in pool.planned.items() if title and sizes[key])
    known = [gib(seen[key]) for key in pool.measured if key in seen]
    dropped = 0.0
    if pool.key == "draft" and sizes["draft_weights_loading"] > sizes["draft_weights"]:
        # The engine reports the draft with the embedding and head that it drops later.
        dropped = sizes["draft_weights_loading"] - sizes["draft_weights"]
        details = (("while loading", sizes["draft_weights_loading"]),)
    return Part(
        key=pool.key,
        title=pool.title,
        planned=round(sum(sizes[key] for key in pool.planned.values()), 2),
        measured=_rest(sum(known), [dropped]) if known else None,
        details=details,
    )


def _rest(whole: float, taken: Sequence[float]) -> float:
    """Return what is left of a whole; never less than nothing, for the sizes are rounded."""
    return max(0.0, round(whole - sum(taken), 2))


def _gib(seen: Mapping[str, int], key: str) -> float | None:
    return gib(seen[key]) if key in seen else None


def measured(
    plans: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Keep what the ready instances allocated, with the fingerprint of the plan that they run."""
    return {
        plan["name"]: {"fingerprint": plan["fingerprint"], "allocated": verdicts[plan["name"]]["allocated"]}
        for plan in plans
        if verdicts.get(plan["name"], {}).get("state") == "ready"
    }


def allocated_by(plan: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any]]) -> Mapping[str, int]:
    """Look up what ``measured`` kept of a plan: nothing where another one was measured."""
    kept = seen.get(plan["name"], {})
    pools: Mapping[str, int] = kept["allocated"] if kept.get("fingerprint") == plan["fingerprint"] else {}
    return pools
