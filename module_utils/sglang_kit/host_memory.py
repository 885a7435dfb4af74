"""Do the instances of a host fit into its memory: on GPUs that they share, and in main memory?

Engines on one GPU start one after the other, and each measures what the earlier ones left
(``_profile_available_bytes``): ``plan_shared`` plans them in that order, each within its share. Sizes are
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .planner import Plan, default_headroom, plan
from .problem import Problem, ProblemsError
from .quantity import GIB, MIB, human
from .resolution import Card

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .engine import EngineFacts
    from .memory import Prediction
    from .rules import Wish
    from .shapes import Model

CONTEXT_BYTES = 616 * MIB
"""CUDA context and libraries of one rank, outside of everything the engine counts (measured on an H200)."""
COMMUNICATOR_BYTES = 870 * MIB
"""What NCCL and the all-reduce of several ranks take of each card before the weights (measured, two H200)."""
RANK_BYTES = 5 * GIB
"""Main memory of one rank: interpreter, torch, compiled kernels, pinned buffers (observed 3 to 5 GiB)."""
FRONT_BYTES = 3 * GIB
"""Main memory of the HTTP server and detokenizer of one instance together."""
_BALANCED = 0.9


@dataclass(frozen=True)
class Request:
    """One instance to plan: what it is, what it wants, and the GPUs that it takes."""

    name: str
    gpus: tuple[str, ...]
    model: Model
    draft: Model | None
    facts: EngineFacts
    wish: Wish


def taken_bytes(found: Prediction, card: Card) -> int:
    """Bytes of ``card`` which a serving instance holds, its CUDA context included."""
    return (card.free or 0) - found.moments[-1].free + CONTEXT_BYTES


def plan_shared(requests: Sequence[Request], cards: Mapping[str, Card]) -> dict[str, Plan]:
    """Plan instances in their start order; ``cards`` says what each GPU has before the first one starts.

    An instance that shares a GPU gets what is free divided by those still to start there, itself included;
    one without a GPU is planned for the CPU.
    Raises ``ProblemsError`` with the faults of all.
    """
    free = {gpu: card.free or 0 for gpu, card in cards.items()}
    plans: dict[str, Plan] = {}
    problems: list[Problem] = []
    for position, request in enumerate(requests):
        shared = COMMUNICATOR_BYTES if len(request.gpus) > 1 else 0
        # Without a GPU the engine serves on the CPU and sizes its pool by the tokens that it is given.
        own = [replace(cards[gpu], free=free[gpu] - shared) for gpu in request.gpus] or [Card(None, None)]
        card = min(own, key=lambda card: card.free or 0)
        sharers = max(
            (sum(gpu in later.gpus for later in requests[position:]) for gpu in request.gpus), default=1
        )
        problems += _unbalanced(request, free)
        try:
            found = plan(
                model=request.model,
                draft=request.draft,
                facts=request.facts,
                card=card,
                wish=_within_share(request.wish, card, sharers),
                where=request.name,
            )
        except ProblemsError as error:
            problems += error.problems
            continue
        plans[request.name] = found
        for gpu in request.gpus:
            free[gpu] -= taken_bytes(found.prediction, card) + shared
    if problems:
        raise ProblemsError(problems)
    return plans


def _unbalanced(request: Request, free: Mapping[str, int]) -> list[Problem]:
    """Note ranks whose free memory differs by more than a tenth: the engine would not start.

    (model_executor/model_runner.py:init_torch_distributed, distributed/bootstrap.py since 0.5.18)
    """
    if len(request.gpus) < 2 or not request.wish.base.balance_checked:  # noqa: PLR2004 - a pair differs
        return []
    poor, rich = (choose(request.gpus, key=lambda gpu: free[gpu]) for choose in (min, max))
    if free[poor] >= _BALANCED * free[rich]:
        return []
    return [
        Problem(
            request.name,
            "gpus",
            f"GPU {poor} has {human(free[poor])} free, GPU {rich} {human(free[rich])}: SGLang refuses "
            "to start where one has less than nine tenths of another",
            f"free memory on GPU {poor}, or set SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 in env",
        )
    ]


def _within_share(wish: Wish, card: Card, sharers: int) -> Wish:
    """Keep the others' share free by a headroom that includes it."""
    if sharers == 1 or wish.memory.fraction is not None:
        return wish
    pinned = wish.memory.headroom_gib
    own = default_headroom(card) / GIB if pinned is None else pinned
    others = (card.free or 0) / GIB * (sharers - 1) / sharers
    return replace(wish, memory=replace(wish.memory, headroom_gib=own / sharers + others))


def host_bytes(found: Plan) -> int:
    """Count the main memory which a planned instance needs, its hierarchical cache included.

    That cache is a size in 10^9 bytes a rank, or a multiple of the pools on the card, twice as much unless
    told otherwise (mem_cache/memory_pool_host.py:HostKVCache).
    """
    settings, pools = found.settings, found.prediction
    cache = 0
    if settings.hierarchical_cache:
        on_card = pools.kv_bytes + pools.conv_bytes + pools.ssm_bytes
        cache = settings.hierarchical_gb * 10**9 or int(settings.hierarchical_ratio * on_card)
    return FRONT_BYTES + settings.tensor_parallel * (RANK_BYTES + cache)


def check_host_memory(needs: Iterable[tuple[str, int]], *, total: int) -> list[Problem]:
    """Note where the instances together need more main memory than the host has."""
    listed = list(needs)
    needed = sum(size for _, size in listed)
    if needed <= total:
        return []
    parts = ", ".join(f"{name} {human(size)}" for name, size in listed)
    return [
        Problem(
            "host",
            "memory",
            f"the instances need {human(needed)} of main memory, the host has {human(total)} ({parts})",
            "run fewer instances here, or make the hierarchical caches smaller",
        )
    ]
