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

from .problem import Problem, ProblemsError
from .quantity import GIB, MIB
from .resolution import Card, EngineError, Resolved, is_multimodal, resolve
from .shapes import COMPUTE_BYTES, KvLayers, LatentLayers, Model, allocated, round_up

if TYPE_CHECKING:
    from .engine import EngineFacts
    from .settings import Settings

_KV_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "mxfp8": 33 / 32}
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BACKEND_BYTES = 98 * MIB
"""Attention backend and libraries right after the pools, measured on an H200 with triton."""
FLASHINFER_BYTES = 404 * MIB
"""What flashinfer takes more: its workspace of 384 MiB and indices, measured there, too."""
LIBRARY_BYTES = 256 * MIB
"""Sampling, matrix libraries and compiled kernels once requests run: an allowance."""
GRAPH_BYTES = 512 * MIB
"""One phase of CUDA graphs of one model, measured on an H200 (0.50 GiB), plus 2 MiB per request."""


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
    slack_bytes: int = 0
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
class Demand:
    """What one token, one state slot and the models cost one rank under given settings. Bytes."""

    weights: int
    draft_loading: int  # draft weights with the embedding and head that are dropped later
    draft_weights: int
    cell: float  # what the engine charges per token
    sliding_cell: float  # the part of it per token of the sliding pool, before the ratio
    key: float  # of one token, all layers but the sliding ones where these have their own pool
    value: float
    sliding_key: float
    sliding_value: float
    draft_key: float
    draft_value: float
    conv: int  # of one slot
    ssm: int
    table_growth: int  # of rotary tables that are shorter than the context
    buffers: int  # tensors of the KV cache: each is rounded up to 2 MiB, 1 MiB on average

    @property
    def slot(self) -> int:
        """One state slot (configs/mamba_utils.py:mamba_cache_per_req)."""
        return self.conv + self.ssm


def attention_ranks(settings: Settings) -> int:
    """Ranks that share the attention of one replica (layers/dp_attention.py)."""
    return max(1, settings.tensor_parallel // settings.attention_data_parallel)


def demand(
    *, settings: Settings, model: Model, facts: EngineFacts, draft: Model | None, card: Card
) -> Demand:
    """Price weights, tokens and slots on one rank.

    Raises ``ProblemsError`` for a KV dtype, quantisation or split over ranks that is not understood.
    """
    _check_ranks(settings, model)
    ranks = attention_ranks(settings)
    split = model.sliding is not None and model.architecture in facts.split_sliding
    element = kv_element_bytes(settings, model)
    cached = [*model.kv, *([model.sliding] if model.sliding and not split else [])]
    key, value = (sum(part) for part in zip(*(_token_bytes(layers, ranks, element) for layers in cached)))
    sliding = _token_bytes(model.sliding, ranks, element) if split and model.sliding else (0.0, 0.0)
    loading, steady, drafted = _draft(settings, model, draft, ranks, element)
    charged = key + value + _indexer_bytes(model, element, facts)
    own = _charged_draft(settings, model, draft, facts, charged, sum(drafted), split=split)
    state = model.state
    state_bytes = _STATE_BYTES.get(settings.state_dtype or (state.dtype if state else ""), 4)
    conv_bytes = _STATE_BYTES.get(settings.conv_dtype, 2)
    return Demand(
        weights=model.weight_bytes(settings.tensor_parallel) if card.weights is None else card.weights,
        draft_loading=loading if card.draft_weights is None else card.draft_weights,
        draft_weights=steady,
        cell=charged + own,
        sliding_cell=sum(sliding),
        key=key,
        value=value,
        sliding_key=sliding[0],
        sliding_value=sliding[1],
        draft_key=drafted[0],
        draft_value=drafted[1],
        conv=state.conv_elements(ranks) * conv_bytes if state else 0,
        ssm=state.matrix_elements(ranks) * state_bytes if state else 0,
        table_growth=_table_growth(settings, model),
        buffers=(1 if model.latent else 2) * sum(layers.layers for layers in cached),
    )


def kv_element_bytes(settings: Settings, model: Model) -> float:
    """Bytes of one cached element.

    Raises ``ProblemsError`` for a dtype whose layout is not understood.
    """
    name = model.kv_dtype if settings.kv_dtype == "auto" else settings.kv_dtype
    if name not in _KV_BYTES:
        known = ", ".join(sorted(_KV_BYTES))
        raise ProblemsError(
            [Problem("", "memory.kv_dtype", f"the layout of {name} is not understood", f"use one of {known}")]
        )
    return _KV_BYTES[name]


def _check_ranks(settings: Settings, model: Model) -> None:
    """Refuse a split that SGLang's ``divide`` would not take (distributed/utils.py)."""
    ranks = attention_ranks(settings)
    state = model.state
    parts = {"attention heads": model.heads, "state heads": state.heads if state else 0}
    problems = [
        Problem("", "gpus", f"{count} {name} cannot be split over {ranks} ranks", _rank_remedy(model, ranks))
        for name, count in parts.items()
        if count % ranks
    ]
    if problems:
        raise ProblemsError(problems)


def _rank_remedy(model: Model, ranks: int) -> str:
    heads = [model.heads, *([model.state.heads] if model.state else [])]
    fits = [count for count in range(1, 2 * ranks) if all(number % count == 0 for number in heads)]
    return f"use {max(fits, key=lambda count: (-abs(count - ranks), count))} GPUs"


def _table_growth(settings: Settings, model: Model) -> int:
    """Bytes by which rotary tables grow (reserve_rope_cache_for_long_sequences and its variables)."""
    steps = (settings.draft_steps or 0) * (settings.draft_tokens or 0)
    rows = round_up((settings.context_length or model.context_length) + 2 * steps + 256, 128)
    return sum(table.growth(rows) for table in model.tables)


def _token_bytes(layers: KvLayers | LatentLayers, ranks: int, element: float) -> tuple[float, float]:
    """Key and value bytes of one token (mem_cache/memory_pool.py); a latent counts as key."""
    if isinstance(layers, LatentLayers):
        return layers.token_elements(ranks) * element, 0.0
    per_dim = layers.layers * max(1, layers.kv_heads // ranks) * element
    return per_dim * layers.head_dim, per_dim * layers.v_head_dim


def _indexer_bytes(model: Model, element: float, facts: EngineFacts) -> float:
    """Bytes of the sparse indexer's keys and of an fp8 latent's scales (DSA; pool_configurator.py)."""
    total = 0.0
    for layers in model.kv:
        if isinstance(layers, LatentLayers) and layers.index_head_dim:
            total += layers.layers * (layers.index_head_dim + layers.index_head_dim // 128 * 4)
            if element == 1.0 and facts.latent_scales_charged:
                total += layers.layers * (layers.rank // 128 * 4 + layers.rope_dim)
    return total


def _draft(
    settings: Settings, model: Model, draft: Model | None, ranks: int, element: float
) -> tuple[int, int, tuple[float, float]]:
    """Draft weights while loading and after, and its key and value bytes per token."""
    if settings.algorithm in (None, "NGRAM"):
        return 0, 0, (0.0, 0.0)
    wide = settings.tensor_parallel
    if draft is not None:
        loading = allocated((*draft.parts, *draft.peak_parts), wide)
        tokens = [_token_bytes(layers, ranks, element) for layers in draft.kv]
        return loading, draft.weight_bytes(wide), (sum(k for k, _ in tokens), sum(v for _, v in tokens))
    if model.mtp is not None:
        loading = allocated((*model.mtp.parts, *model.mtp.peak_parts), wide)
        return loading, allocated(model.mtp.parts, wide), _token_bytes(model.mtp.kv, ranks, element)
    raise ProblemsError(
        [
            Problem(
                "",
                "strategy",
                f"{model.architecture} has no prediction layers of its own and no draft model is given",
                "name a draft_model, or use the method ngram or none",
            )
        ]
    )


def _charged_draft(
    settings: Settings,
    model: Model,
    draft: Model | None,
    facts: EngineFacts,
    cell: float,
    drafted: float,
    *,
    split: bool,
) -> float:
    """Bytes which the engine adds to a token for the draft's KV cache (pool_configurator.py)."""
    if settings.algorithm in (None, "NGRAM"):
        return 0.0
    if settings.algorithm == "DFLASH":
        if facts.dflash_draft_kv == "own":
            return drafted
        layers = draft.kv_layers if draft and not split else 0
        return -(-cell * (model.kv_layers + layers) // model.kv_layers) - cell
    named = draft is not None or model.architecture in facts.own_draft_path
    if not (facts.eagle_draft_kv_charged and named) or (split and not facts.sliding_draft_charged):
        return 0.0
    layers = draft.kv_layers if draft else model.mtp.layers if model.mtp else 0
    return float(int(cell * layers / model.kv_layers))


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
    return forward(settings=settings, resolved=resolved, price=price, model=model, facts=facts, card=card)


def forward(
    *,
    settings: Settings,
    resolved: Resolved,
    price: Demand,
    model: Model,
    facts: EngineFacts,
    card: Card,
) -> Prediction:
    """Predict from resolved settings and prices (``predict`` makes both)."""
    before, after = free_memory(settings=settings, price=price, facts=facts, card=card)
    try:
        pools = size_pools(
            settings=settings,
            resolved=resolved,
            price=price,
            model=model,
            facts=facts,
            before=before,
            after=after,
        )
    except EngineError as error:
        return Prediction(
            error=str(error),
            resolved=resolved,
            weights=price.weights,
            draft_weights=price.draft_weights,
            draft_weights_loading=price.draft_loading,
        )
    return _fill(settings, resolved, price, pools, model, facts, before=before, after=after)


def free_memory(
    *, settings: Settings, price: Demand, facts: EngineFacts, card: Card
) -> tuple[float | None, float | None]:
    """Return GiB free before the weights load and when the pools are sized, as the engine measures them.

    The engine takes its baseline before it creates its streams (model_runner.py:init_torch_distributed) and
    logs "Load weight begin" after: what is free there, and is given here, is ``stream_pool_mib`` less. Between
    "Load weight end" and the sizing, rotary tables shorter than the context grow
    (utils/common.py:reserve_rope_cache_for_long_sequences). ``None`` on a CPU with free memory unknown.
    """
    if card.free is None:
        return None, None
    on_card = settings.device == "cuda"
    before = card.free / GIB + (facts.stream_pool_mib / 1024 if on_card else 0)
    left = card.free - price.weights if card.free_after_weights is None else card.free_after_weights
    if facts.draft_weights_before_sizing:
        left -= price.draft_loading
    return before, (left - (price.table_growth if on_card else 0)) / GIB


def size_pools(
    *,
    settings: Settings,
    resolved: Resolved,
    price: Demand,
    model: Model,
    facts: EngineFacts,
    before: float | None,
    after: float | None,
) -> Pools:
    """Size the pools from the budget (GiB free ``before`` the weights and ``after`` them).

    Raises ``EngineError`` where nothing can be served.
    """
    slots = 0
    if before is None or after is None:
        if settings.total_tokens is None:
            raise ProblemsError(
                [Problem("", "free memory", "is not known", "measure it, or set --max-total-tokens")]
            )
        tokens = settings.total_tokens // resolved.page_size * resolved.page_size
        return Pools(slots, tokens, 0, _requests(tokens, slots, settings, resolved, model, facts))
    if after <= 0:
        raise EngineError("torch.OutOfMemoryError: CUDA out of memory.")
    rest = after - before * (1 - resolved.memory_fraction)
    if facts.multimodal_reserve_mib and is_multimodal(settings, model):
        reserve = settings.multimodal_cache_mib
        rest -= (facts.multimodal_reserve_mib if reserve is None else reserve) / 1024
    if model.state is not None:
        slots, rest = _state_slots(rest, settings, resolved, price, facts)
    if rest <= 0 and facts.weights_leave_nothing_error:
        least = 1 - after / before
        raise EngineError(
            f"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
            f"{resolved.memory_fraction}. Raise --mem-fraction-static above {math.ceil(least * 1000) / 1000:.3f} "
            f"(minimum viable = 1 - available/pre = {least:.4f}). If using speculative decoding, draft weights "
            "are now counted."
        )
    tokens = int(int(rest * GIB) // (price.cell + settings.swa_ratio * price.sliding_cell))
    if settings.total_tokens is not None:
        tokens = min(tokens, settings.total_tokens)
    tokens = tokens // resolved.page_size * resolved.page_size
    if tokens <= 0:
        raise EngineError("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    sliding = _sliding_tokens(tokens, settings, resolved, price, model, facts)
    return Pools(slots, tokens, sliding, _requests(tokens, slots, settings, resolved, model, facts))


def _state_slots(
    rest: float, settings: Settings, resolved: Resolved, price: Demand, facts: EngineFacts
) -> tuple[int, float]:
    """State slots and the GiB left for the KV cache (handle_max_mamba_cache)."""
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


def _sliding_tokens(
    tokens: int, settings: Settings, resolved: Resolved, price: Demand, model: Model, facts: EngineFacts
) -> int:
    """Tokens of the pool for layers with a window (HybridSWAPoolConfigurator)."""
    if not price.sliding_cell:
        return 0
    page = resolved.page_size
    sliding = int(tokens * settings.swa_ratio) // page * page
    if facts.swa_pool_checked and model.window + page >= sliding:
        raise EngineError(
            f"ValueError: SWA pool ({sliding} tokens) cannot hold even one request: the prefill admission floor "
            f"is sliding_window_size ({model.window}) + page_size ({page}). Increase --swa-full-tokens-ratio or "
            "the total KV budget."
        )
    return sliding


def _requests(
    tokens: int, slots: int, settings: Settings, resolved: Resolved, model: Model, facts: EngineFacts
) -> int:
    """Requests that run at once (_resolve_max_num_reqs); raises where there are none."""
    estimate = max(2048, min(4096, int(tokens / resolved.context_length * 512)))
    if resolved.requested is None:
        requests = min(estimate, tokens // 2)
    else:
        wanted = resolved.requested // settings.attention_data_parallel
        if facts.requests_at_least_one:
            wanted = max(1, wanted)
        requests = min(wanted, estimate if facts.requests_bound == "estimate" else tokens // 2)
    if model.state is not None:
        requests = min(requests, slots // resolved.slots_per_request)
    if requests <= 0:
        text = (
            facts.too_small_error
            if model.state is not None
            else "AssertionError: max_running_request is zero"
        )
        raise EngineError(text.format(slots=slots, ratio=resolved.slots_per_request, requests=requests))
    return requests


def activation_bytes(model: Model, resolved: Resolved, settings: Settings, requests: int) -> int:
    """Estimate the working set of a forward pass besides weights and caches.

    The widest layer holds three feed-forward and four hidden vectors of a prefill chunk at once, and
    the logits of the verified tokens in float32, twice. The chunk's part was measured to 3 % (Qwen3-8B,
    8,192 tokens: 0.84 GiB).
    """
    tokens = resolved.prefill_chunk if resolved.prefill_chunk > 0 else settings.prefill_tokens
    wide = 3 * -(-model.inner // settings.tensor_parallel) + 4 * model.hidden
    logits = (
        2 * 4 * -(-model.vocabulary // settings.tensor_parallel) * requests * max(1, resolved.draft_tokens)
    )
    return LIBRARY_BYTES + tokens * wide * COMPUTE_BYTES + logits


def graph_bytes(settings: Settings, resolved: Resolved, model: Model, requests: int) -> int:
    """Estimate what CUDA graphs keep: GRAPH_BYTES and 2 MiB a request for decode, 8 MiB a prefill bucket.

    A draft's graphs took a third of the target's.
    """
    total = 0
    if settings.decode_graphs:
        total += GRAPH_BYTES + 2 * MIB * min(resolved.graph_requests, requests)
        if settings.algorithm not in (None, "NGRAM"):
            total += total // 3
    if resolved.prefill_graphs:
        total += (
            8 * MIB * len(range(0, resolved.prefill_chunk, 512)) + 16 * model.hidden * resolved.prefill_chunk
        )
    return total


def _fill(
    settings: Settings,
    resolved: Resolved,
    price: Demand,
    pools: Pools,
    model: Model,
    facts: EngineFacts,
    *,
    before: float | None,
    after: float | None,
) -> Prediction:
    """Lay out the pools that were sized (mem_cache/memory_pool.py), and the moments of the start."""
    slots = pools.state_slots + 1 if model.state else 0
    copies = (pools.running_requests + 1) * resolved.draft_tokens if model.state else 0
    windows = copies
    if facts.conv_window_dedup and model.state and resolved.draft_tokens and (settings.draft_topk or 1) == 1:
        columns = resolved.draft_tokens + model.state.kernel - 2
        windows_bytes = price.conv * (pools.running_requests + 1) * columns // max(1, model.state.kernel - 1)
    else:
        windows_bytes = price.conv * windows
    rows = pools.kv_tokens + resolved.page_size
    sliding_rows = pools.sliding_tokens + resolved.page_size if price.sliding_cell else 0
    found = Prediction(
        error="",
        resolved=resolved,
        weights=price.weights,
        draft_weights=price.draft_weights,
        draft_weights_loading=price.draft_loading,
        state_slots=pools.state_slots,
        conv_bytes=price.conv * slots,
        ssm_bytes=price.ssm * slots,
        intermediate_conv_bytes=windows_bytes,
        intermediate_ssm_bytes=price.ssm * copies,
        kv_tokens=pools.kv_tokens,
        sliding_tokens=pools.sliding_tokens,
        key_bytes=int(price.key * rows + price.sliding_key * sliding_rows),
        value_bytes=int(price.value * rows + price.sliding_value * sliding_rows),
        draft_key_bytes=int(price.draft_key * rows),
        draft_value_bytes=int(price.draft_value * rows),
        running_requests=pools.running_requests,
        slack_bytes=0 if before is None else int(before * (1 - resolved.memory_fraction) * GIB),
        graph_bytes=graph_bytes(settings, resolved, model, pools.running_requests),
        activation_bytes=activation_bytes(model, resolved, settings, pools.running_requests),
    )
    if after is None:
        return found
    moments = _moments(found, resolved, price, facts, after=int(after * GIB))
    if min(moment.free for moment in moments) < 0:
        moment = next(moment for moment in moments if moment.free < 0)
        return replace(
            found, moments=moments, error=f"torch.OutOfMemoryError: CUDA out of memory. ({moment.name})"
        )
    return replace(found, moments=moments)


def _moments(
    found: Prediction,
    resolved: Resolved,
    price: Demand,
    facts: EngineFacts,
    *,
    after: int,
) -> tuple[Moment, ...]:
    """Walk through the start and say what is free after each step."""
    table = (found.running_requests + 1) * (resolved.context_length + 4 + resolved.draft_tokens) * 4
    target = found.state_bytes + found.key_bytes + found.value_bytes + price.buffers * MIB + table
    drafts = found.draft_key_bytes + found.draft_value_bytes
    dropped = price.draft_loading - price.draft_weights
    backend = BACKEND_BYTES + (FLASHINFER_BYTES if resolved.attention_backend == "flashinfer" else 0)
    if facts.draft_weights_before_sizing:
        steps = [
            ("pools allocated", target + drafts),
            ("draft model trimmed", -dropped),
            ("graphs captured", found.graph_bytes + backend),
        ]
    else:
        own = found.graph_bytes * 3 // 4 if drafts else found.graph_bytes
        steps = [
            ("pools allocated", target),
            ("graphs captured", own + backend),
            ("draft model loaded", price.draft_loading),
            ("draft pool allocated", drafts),
            ("draft model trimmed", -dropped),
            ("draft graphs captured", found.graph_bytes - own),
        ]
    moments = [Moment("weights loaded", after)]
    for name, taken in [*steps, ("serving", found.activation_bytes)]:
        if taken:
            moments.append(Moment(name, moments[-1].free - taken))
    return tuple(moments)
