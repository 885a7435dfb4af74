"""How much of each pool will there be?

``predict`` is the forward function: settings, model, engine version and card in, every pool out, or the very
error SGLang would raise. It follows SGLang step by step, and its arithmetic where that decides about the last
token: SGLang sizes in floating-point GiB (``_profile_available_bytes``), so this room does, too, between
bytes in and bytes out. Sources are files below ``sglang/srt``; where versions differ, ``engine.py`` says how.

The order of a start up to 0.5.12: target weights, target pools, target graphs, draft weights, draft pool,
draft graphs. Since 0.5.15: target weights, draft weights, target pools, draft pool, all graphs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .pricing import demand
from .problem import Problem, ProblemsError
from .quantity import GIB, MIB
from .resolution import CHUNK_OF_STATE, EngineError, is_multimodal, resolve
from .shapes import COMPUTE_BYTES

if TYPE_CHECKING:
    from .engine import EngineFacts
    from .pricing import Demand
    from .resolution import Card, Resolved
    from .settings import Settings
    from .shapes import Model, StateLayers

BACKEND_BYTES = 98 * MIB
"""Attention backend and libraries right after the pools, measured on an H200 with triton."""
FLASHINFER_BYTES = 404 * MIB
"""What flashinfer takes more: its workspace of 384 MiB and indices, measured there, too."""
LIBRARY_BYTES = 256 * MIB
"""Sampling, matrix libraries and compiled kernels once requests run: an allowance."""
GRAPH_BYTES = 64 * MIB
"""What the first graph of a model brings along, whatever its size; this and the next: measured on an H200."""
STATE_GRAPH_BYTES = 480 * MIB
"""The same for a model with states."""
DRAFT_GRAPH_BYTES = 100 * MIB
"""The same for both phases of a draft."""
GRAPH_LAYER_BYTES = MIB // 16
"""One layer of one graph."""


@dataclass(frozen=True)
class Moment:
    """How much of the card is free at one moment of the start or while serving."""

    name: str
    free: int


@dataclass(frozen=True)
class Prediction:
    """Every pool of one rank in bytes, and what it serves. ``error`` is SGLang's, "" where it starts.

    Pools are 0 where the start ends before them. ``key_bytes`` and ``value_bytes`` are the target's KV
    cache (all of it in ``key_bytes`` for latent attention), ``draft_*`` the draft's.
    """

    error: str
    resolved: Resolved | None
    weights: int = 0
    draft_weights: int = 0
    draft_weights_loading: int = 0
    state_slots: int = 0
    conv_bytes: int = 0
    ssm_bytes: int = 0
    intermediate_conv_bytes: int = 0
    intermediate_ssm_bytes: int = 0
    kv_tokens: int = 0
    sliding_tokens: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    draft_key_bytes: int = 0
    draft_value_bytes: int = 0
    running_requests: int = 0
    graph_bytes: int = 0
    activation_bytes: int = 0
    moments: tuple[Moment, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Both tensors of the state cache with their intermediate copies."""
        return self.conv_bytes + self.ssm_bytes + self.intermediate_conv_bytes + self.intermediate_ssm_bytes

    @property
    def kv_bytes(self) -> int:
        """The target's and the draft's KV cache."""
        return self.key_bytes + self.value_bytes + self.draft_key_bytes + self.draft_value_bytes

    @property
    def tightest(self) -> Moment:
        """The moment with least free memory (the first of several)."""
        return min(self.moments, key=lambda moment: moment.free)


@dataclass(frozen=True)
class Start:
    """Everything that the sizing reads: arguments as given and as resolved, prices, model and version."""

    settings: Settings
    resolved: Resolved
    price: Demand
    model: Model
    facts: EngineFacts


@dataclass(frozen=True)
class Pools:
    """Sizes that the engine derives from its budget: slots, tokens, requests."""

    state_slots: int
    kv_tokens: int
    sliding_tokens: int
    running_requests: int


def predict(
    *, settings: Settings, model: Model, facts: EngineFacts, card: Card, draft: Model | None = None
) -> Prediction:
    """Predict every pool of one rank, or the error that ends the start.

    Raises ``ProblemsError`` for what the formulas do not know (a layout, a split, a missing draft).
    """
    try:
        resolved = resolve(settings=settings, model=model, facts=facts, draft=draft, card=card)
    except EngineError as error:
        return Prediction(error=str(error), resolved=None)
    price = demand(settings=settings, model=model, facts=facts, draft=draft, card=card)
    return forward(Start(settings, resolved, price, model, facts), card)


def forward(start: Start, card: Card) -> Prediction:
    """Predict from resolved settings and prices (``predict`` makes both)."""
    before, after = free_memory(start, card)
    price = start.price
    try:
        pools = size_pools(start, before=before, after=after)
    except EngineError as error:
        return Prediction(
            error=str(error),
            resolved=start.resolved,
            weights=price.weights,
            draft_weights=price.draft_weights,
            draft_weights_loading=price.draft_loading,
        )
    found = _lay_out(start, pools)
    if before is None or after is None:
        return found
    moments = _moments(found, start, int(after * GIB))
    short = next((moment for moment in moments if moment.free < 0), None)
    refusal = f"torch.OutOfMemoryError: CUDA out of memory. ({short.name})" if short else ""
    return replace(found, moments=moments, error=refusal)


def free_memory(start: Start, card: Card) -> tuple[float | None, float | None]:
    """Return GiB free before the weights load and when the pools are sized, as the engine measures them.

    The engine takes its baseline before it creates its streams (model_runner.py:init_torch_distributed)
    and logs "Load weight begin" after: what is free there, and is given here, is ``before_weights`` less.
    Between "Load weight end" and the sizing, rotary tables shorter than the context grow
    (utils/common.py:reserve_rope_cache_for_long_sequences). ``None`` on a CPU with free memory unknown.
    """
    if card.free is None:
        return None, None
    price, facts = start.price, start.facts
    on_card = start.settings.device == "cuda"
    before = (card.free + price.before_weights) / GIB
    left = card.free - price.weights if card.free_after_weights is None else card.free_after_weights
    if facts.draft_weights_before_sizing:
        left -= price.draft_loading
    return before, (left - (price.table_growth if on_card else 0)) / GIB


def size_pools(start: Start, *, before: float | None, after: float | None) -> Pools:
    """Size the pools from the budget (GiB free ``before`` the weights and ``after`` them).

    Raises ``EngineError`` where nothing can be served.
    """
    settings, page = start.settings, start.resolved.page_size
    if before is None or after is None:
        if settings.total_tokens is None:
            raise ProblemsError(
                [Problem("", "free memory", "is not known", "measure it, or set --max-total-tokens")]
            )
        slots, tokens = 0, settings.total_tokens
    else:
        slots, rest = _budget(start, before, after)
        cell = start.price.cell + settings.swa_ratio * start.price.sliding_cell
        tokens = int(int(rest * GIB) // cell)
        if settings.total_tokens is not None:
            tokens = min(tokens, settings.total_tokens)
    tokens = tokens // page * page
    if tokens <= 0:
        raise EngineError("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    return Pools(slots, tokens, _sliding_tokens(tokens, start), _requests(tokens, slots, start))


def _budget(start: Start, before: float, after: float) -> tuple[int, float]:
    """State slots and the GiB for the KV cache (_profile_available_bytes)."""
    if after <= 0:
        raise EngineError("torch.OutOfMemoryError: CUDA out of memory.")
    settings, resolved, facts = start.settings, start.resolved, start.facts
    rest = after - before * (1 - resolved.memory_fraction)
    if facts.multimodal_reserve_mib and is_multimodal(settings, start.model):
        reserve = settings.multimodal_cache_mib
        rest -= (facts.multimodal_reserve_mib if reserve is None else reserve) / 1024
    slots = 0
    if start.model.state is not None:
        slots, rest = _state_slots(rest, start)
    if rest <= 0 and facts.weights_leave_nothing_error:
        least = 1 - after / before
        raise EngineError(
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
            f"{resolved.memory_fraction}. Raise --mem-fraction-static above "
            f"{math.ceil(least * 1000) / 1000:.3f} (minimum viable = 1 - available/pre = {least:.4f}). "
            "If using speculative decoding, draft weights are now counted."
        )
    return slots, rest


def _state_slots(rest: float, start: Start) -> tuple[int, float]:
    """State slots and the GiB left for the KV cache (handle_max_mamba_cache)."""
    settings, resolved, price, facts = start.settings, start.resolved, start.price, start.facts
    ranks = settings.attention_data_parallel
    requested = None if resolved.requested is None else resolved.requested // ranks
    if requested is not None and facts.requests_at_least_one:
        requested = max(1, requested)
    pinned = None if settings.state_slots is None else settings.state_slots // ranks
    if pinned is None and not resolved.prefix_cache:
        pinned = requested
    share = settings.state_ratio / (1 + settings.state_ratio)
    tokens, per_request = resolved.draft_tokens, resolved.slots_per_request
    padding = facts.state_padding_slots
    if facts.state_reserve_follows == "requested":
        rest -= price.slot * (requested or 0) * tokens / GIB
        slots = int(rest * share * GIB // price.slot) if pinned is None else pinned
        return slots, rest - slots * price.slot / GIB
    if pinned is not None:
        slots = pinned
    elif tokens:
        fixed = price.slot * (1 + tokens) * padding
        slots = int((rest * share * GIB - fixed) // (price.slot * (1 + tokens / per_request)))
    else:
        slots = int((rest * share * GIB - price.slot * padding) // price.slot)
    if tokens:
        served = min(requested or 0, slots // per_request)
        rest -= price.slot * (served + padding) * tokens / GIB
    if slots <= 0:
        raise EngineError(
            "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
            f"max_mamba_cache_size={slots} (total_rest_memory={rest:.2f} GB, "
            f"mamba_cache_per_req={price.slot / MIB:.2f} MB). Try: (1) reduce --max-running-requests, "
            "(2) increase --mem-fraction-static, (3) reduce --speculative-num-draft-tokens, or "
            "(4) use GPUs with more memory."
        )
    return slots, rest - (slots + padding) * price.slot / GIB


def _sliding_tokens(tokens: int, start: Start) -> int:
    """Tokens of the pool for layers with a window (HybridSWAPoolConfigurator)."""
    if not start.price.sliding_cell:
        return 0
    page, window = start.resolved.page_size, start.model.window
    sliding = int(tokens * start.settings.swa_ratio) // page * page
    if start.facts.swa_pool_checked and window + page >= sliding:
        raise EngineError(
            f"ValueError: SWA pool ({sliding} tokens) cannot hold even one request: the prefill admission "
            f"floor is sliding_window_size ({window}) + page_size ({page}). Increase --swa-full-tokens-ratio "
            "or the total KV budget."
        )
    return sliding


def _requests(tokens: int, slots: int, start: Start) -> int:
    """Count the requests that run at once (_resolve_max_num_reqs); raises where there are none."""
    resolved, facts = start.resolved, start.facts
    estimate = max(2048, min(4096, int(tokens / resolved.context_length * 512)))
    if resolved.requested is None:
        requests = min(estimate, tokens // 2)
    else:
        wanted = resolved.requested // start.settings.attention_data_parallel
        if facts.requests_at_least_one:
            wanted = max(1, wanted)
        requests = min(wanted, estimate if facts.requests_bound == "estimate" else tokens // 2)
    hybrid = start.model.state is not None
    if hybrid:
        requests = min(requests, slots // resolved.slots_per_request)
    if requests <= 0:
        text = facts.too_small_error if hybrid else "AssertionError: max_running_request is zero"
        raise EngineError(text.format(slots=slots, ratio=resolved.slots_per_request, requests=requests))
    return requests


def activation_bytes(start: Start, requests: int) -> int:
    """Estimate the working set of a forward pass besides weights and caches.

    The widest layer holds three feed-forward and four hidden vectors of a prefill chunk at once, a layer
    with states what ``_state_token_bytes`` says, and the logits of the verified tokens are there in float32,
    twice. docs/memory.md has the measurements.
    """
    model, resolved, ranks = start.model, start.resolved, start.settings.tensor_parallel
    tokens = resolved.prefill_chunk if resolved.prefill_chunk > 0 else start.settings.prefill_tokens
    wide = 3 * -(-model.inner // ranks) + 4 * model.hidden
    logits = 2 * 4 * -(-model.vocabulary // ranks) * requests * max(1, resolved.draft_tokens)
    per_token = wide * COMPUTE_BYTES + (_state_token_bytes(model.state, ranks) if model.state else 0)
    return LIBRARY_BYTES + tokens * per_token + logits


def _state_token_bytes(state: StateLayers, ranks: int) -> int:
    """Bytes of one token in a layer with states (fla/chunk.py).

    Its channels before and after the convolution, four vectors a head, a row of the chunk's float32 matrix,
    and its share of the states between chunks.
    """
    head = 4 * state.head_dim * COMPUTE_BYTES + 4 * CHUNK_OF_STATE
    states = state.head_dim * state.state_size * COMPUTE_BYTES // CHUNK_OF_STATE
    return 2 * COMPUTE_BYTES * state.channels(ranks) + -(-state.heads // ranks) * (head + states)


def graph_bytes(start: Start, requests: int) -> tuple[int, int]:
    """Estimate what the CUDA graphs of the target and of a draft keep.

    For decode: 1 MiB a verified token of the largest batch, and GRAPH_LAYER_BYTES a layer and graph; a draft
    keeps its float32 logits four times. For prefill 8 MiB a bucket.
    """
    settings, resolved, model = start.settings, start.resolved, start.model
    total = draft = 0
    if settings.decode_graphs and settings.device == "cuda":
        batch = min(resolved.graph_requests, requests)
        rows, graphs = batch * max(1, resolved.draft_tokens), min(batch, 8 + batch // 8)
        total += STATE_GRAPH_BYTES if model.state else GRAPH_BYTES
        total += rows * MIB + graphs * model.layers * GRAPH_LAYER_BYTES
        if settings.algorithm not in (None, "NGRAM"):
            draft = DRAFT_GRAPH_BYTES + 4 * 4 * -(-model.vocabulary // settings.tensor_parallel) * rows
    if resolved.prefill_graphs:
        total += 8 * MIB * len(range(0, resolved.prefill_chunk, 512))
        total += 16 * model.hidden * resolved.prefill_chunk
    return total, draft


def _lay_out(start: Start, pools: Pools) -> Prediction:
    """Lay out the pools that were sized (mem_cache/memory_pool.py)."""
    resolved, price, state = start.resolved, start.price, start.model.state
    requests, tokens = pools.running_requests, resolved.draft_tokens
    slots = pools.state_slots + 1 if state else 0
    copies = (requests + 1) * tokens if state else 0
    windows = price.conv * copies
    if state and state.kernel > 1 and start.facts.conv_window_dedup and (start.settings.draft_topk or 1) == 1:
        columns = tokens + state.kernel - 2 if tokens else 0
        windows = price.conv // (state.kernel - 1) * (requests + 1) * columns
    rows = pools.kv_tokens + resolved.page_size
    sliding = pools.sliding_tokens + resolved.page_size if price.sliding_cell else 0
    return Prediction(
        error="",
        resolved=resolved,
        weights=price.weights,
        draft_weights=price.draft_weights,
        draft_weights_loading=price.draft_loading,
        state_slots=pools.state_slots,
        conv_bytes=price.conv * slots,
        ssm_bytes=price.ssm * slots,
        intermediate_conv_bytes=windows,
        intermediate_ssm_bytes=price.ssm * copies,
        kv_tokens=pools.kv_tokens,
        sliding_tokens=pools.sliding_tokens,
        key_bytes=int(price.key * rows + price.sliding_key * sliding),
        value_bytes=int(price.value * rows + price.sliding_value * sliding),
        draft_key_bytes=int(price.draft_key * rows),
        draft_value_bytes=int(price.draft_value * rows),
        running_requests=requests,
        graph_bytes=sum(graph_bytes(start, requests)),
        activation_bytes=activation_bytes(start, requests),
    )


def _moments(found: Prediction, start: Start, after: int) -> tuple[Moment, ...]:
    """Walk through the start and say what is free after each step."""
    resolved, price, facts = start.resolved, start.price, start.facts
    table = (found.running_requests + 1) * (resolved.context_length + 4 + resolved.draft_tokens) * 4
    target = found.state_bytes + found.key_bytes + found.value_bytes + price.buffers * MIB + table
    drafts = found.draft_key_bytes + found.draft_value_bytes
    dropped = price.draft_loading - price.draft_weights
    backend = BACKEND_BYTES + (FLASHINFER_BYTES if resolved.attention_backend == "flashinfer" else 0)
    if facts.draft_weights_before_sizing:
        steps = [
            ("pools allocated", target),
            ("draft pool allocated", drafts),
            ("draft model trimmed", -dropped),
            ("graphs captured", found.graph_bytes + backend),
        ]
    else:
        own, draft_graphs = graph_bytes(start, found.running_requests)
        steps = [
            ("pools allocated", target),
            ("graphs captured", own + backend),
            ("draft model loaded", price.draft_loading),
            ("draft pool allocated", drafts),
            ("draft model trimmed", -dropped),
            ("draft graphs captured", draft_graphs),
        ]
    moments = [Moment("weights loaded", after)]
    for name, taken in [*steps, ("serving", found.activation_bytes)]:
        if taken:
            moments.append(Moment(name, moments[-1].free - taken))
    return tuple(moments)
