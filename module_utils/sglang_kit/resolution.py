"""What does the engine make of these settings before it sizes anything?

``resolve`` does what SGLang's argument handling does with everything that decides about memory: defaults
from the smallest card, strategies, overlap, draft tokens; or it raises the very error. Sources are files
below ``sglang/srt``; where versions differ, ``engine.py`` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .quantity import MIB

if TYPE_CHECKING:
    from .engine import EngineFacts
    from .settings import Settings
    from .shapes import Model

_FORCED_PAGES = {
    "flashmla": (64,),
    "cutlass_mla": (128,),
    "trtllm_mla": (64, 32),
    "trtllm_mha": (64, 32, 16),
    "fa4": (128,),
}
"""Attention backend -> page sizes it takes, the forced one first (server_args.py)."""
_BIG_CARD_MIB = 60 * 1024
_BIG_CARD_RESERVE_MIB = 10 * 1024
_LEAST_ACTIVATION_TOKENS = 2048
_WIDE = 4  # tensor-parallel ranks from which the engine captures larger decode batches
_VISION_BASELINE = 24 * 1024.0**2  # layers x width^2 of ViT-L/14
CHUNK_OF_STATE = 64
"""Tokens that linear attention reduces to one state (FLA_CHUNK_SIZE); a page must divide it, or it a page."""


# The engine's own words (configs/model_config.py:_derive_context_length, server_args.py)
_TOO_LONG = (
    "ValueError: Warning: {whose} context_length ({wanted}) is greater than the derived "
    "context_length ({longest}). This may lead to incorrect model outputs or CUDA errors. Note that the "
    "derived context_length may differ from max_position_embeddings in the model's config. To allow "
    "overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
)
_BUFFER_WITHOUT_CACHE = (
    "ValueError: mamba extra_buffer is not compatible with --disable-radix-cache Overlap scheduling is "
    "already supported with no_buffer + disable_radix_cache. Please use --mamba-scheduler-strategy no_buffer "
    "instead."
)
_SPECULATION_WITHOUT_BUFFER = (
    "ValueError: Speculative decoding for {architecture} is not compatible with radix cache when using "
    "--mamba-scheduler-strategy no_buffer.To use radix cache with speculative decoding, please use "
    "--mamba-scheduler-strategy extra_buffer and set SGLANG_ENABLE_SPEC_V2=1."
)


@dataclass(frozen=True)
class Card:
    """The card of the rank that has least. Bytes; ``None`` where it is not known.

    ``total`` is the smallest card of the host (``nvidia-smi`` memory.total), whoever uses it: the engine's
    defaults follow it. ``free`` is what is free before the weights load. The others replace predicted
    sizes by measured ones: the weights, what is free after them, and the draft's weights while they load.
    ``capability`` is CUDA's compute capability, which decides about the attention backend. ``name`` and
    ``size``, the card's own total, are for people.
    """

    total: int | None
    free: int | None
    weights: int | None = None
    free_after_weights: int | None = None
    draft_weights: int | None = None
    capability: tuple[int, int] | None = None
    name: str = ""
    size: int | None = None


class EngineError(Exception):
    """The error that SGLang would raise, in its own words, beginning with the exception's name."""


@dataclass(frozen=True)
class Resolved:
    """Settings as the engine resolves them: nothing is left open."""

    context_length: int
    memory_fraction: float
    requested: int | None
    kv_dtype: str
    page_size: int
    attention_backend: str
    prefill_chunk: int
    graph_requests: int
    prefill_graphs: bool
    prefix_cache: bool
    overlap: bool
    state_strategy: str
    slots_per_request: int
    draft_tokens: int


def resolve(
    *, settings: Settings, model: Model, facts: EngineFacts, draft: Model | None, card: Card
) -> Resolved:
    """Resolve what the engine would.

    Raises ``EngineError`` where the engine's own checks stop the start.
    """
    prefix_cache = settings.prefix_cache and model.architecture not in facts.prefix_cache_lost
    tokens = _draft_tokens(settings, model, draft)
    overlap = settings.overlap and not _overlap_lost(settings, facts)
    strategy, overlap, page = _state_strategy(
        settings, model, facts, prefix_cache=prefix_cache, overlap=overlap, draft_tokens=tokens
    )
    requested = settings.running_requests
    if settings.algorithm is not None and requested is None:
        requested = facts.speculative_requests
    fraction, chunk, graphs, prefill = _card_defaults(settings, model, facts, card, requested)
    context = settings.context_length or model.context_length
    _check_context(settings, model, draft, context)
    if draft is not None and draft.window_unset and facts.dflash_window_checked:
        raise EngineError("ValueError: DFLASH sliding_attention layers require config.sliding_window.")
    return Resolved(
        context_length=context,
        memory_fraction=fraction,
        requested=requested,
        kv_dtype=model.kv_dtype if settings.kv_dtype == "auto" else settings.kv_dtype,
        page_size=page,
        attention_backend=_attention_backend(settings, model, card),
        prefill_chunk=chunk,
        graph_requests=graphs,
        prefill_graphs=prefill,
        prefix_cache=prefix_cache,
        overlap=overlap,
        state_strategy=strategy if model.state else "",
        slots_per_request=slots_per_request(
            facts, strategy, prefix_cache=prefix_cache, overlap=overlap, skip_lock=settings.skip_decode_lock
        )
        if model.state
        else 0,
        draft_tokens=tokens,
    )


def _check_context(settings: Settings, model: Model, draft: Model | None, context: int) -> None:
    """Refuse what target or draft were not made for: a draft gets the target's (speculative/*_worker.py)."""
    for whose, one in (("User-specified", model), ("Target model's", draft)):
        if one is not None and context > one.context_length and not settings.longer_context:
            raise EngineError(_TOO_LONG.format(whose=whose, wanted=context, longest=one.context_length))


def _overlap_lost(settings: Settings, facts: EngineFacts) -> bool:
    """Tell whether speculation forces the synchronous scheduler (server_args.py)."""
    if settings.algorithm is None:
        return False
    topk = (settings.draft_topk or 1) > 1 and facts.overlap_lost_by_topk
    old = facts.overlap_lost_by_topk and not settings.speculation_v2
    return settings.algorithm in facts.overlap_lost_by or (settings.algorithm != "NGRAM" and (topk or old))


def _draft_tokens(settings: Settings, model: Model, draft: Model | None) -> int:
    """Tokens verified per request and step; 0 without speculation.

    (server_args.py, arg_groups/speculative_hook.py:_auto_choose_speculative_params since 0.5.15)
    """
    if settings.algorithm is None:
        return 0
    if settings.algorithm == "DFLASH":
        return settings.draft_tokens or (draft.block_size if draft and draft.block_size else 16)
    if settings.algorithm == "NGRAM":
        return settings.draft_tokens or 12
    if settings.draft_steps is None:
        return 8 if model.architecture == "LlamaForCausalLM" and settings.algorithm != "STANDALONE" else 4
    if (settings.draft_topk or 1) == 1:
        return settings.draft_steps + 1
    return settings.draft_tokens or settings.draft_steps + 1


def slots_per_request(
    facts: EngineFacts, strategy: str, *, prefix_cache: bool, overlap: bool, skip_lock: bool = False
) -> int:
    """State slots that one running request needs (_calculate_mamba_ratio)."""
    if not prefix_cache:
        return 1
    extra = {"extra_buffer": 2 if overlap else 1, "extra_buffer_lazy": 1}.get(strategy, 0)
    if skip_lock and facts.skip_decode_lock:
        return 2 + extra if extra else 3
    return 3 + extra


def _state_strategy(
    settings: Settings,
    model: Model,
    facts: EngineFacts,
    *,
    prefix_cache: bool,
    overlap: bool,
    draft_tokens: int,
) -> tuple[str, bool, int]:
    """Resolve strategy, overlap and page size together (_handle_mamba_radix_cache, mamba_hook.py)."""
    page = _page_size(settings)
    if model.state is None:
        return "", overlap, page
    strategy = settings.state_strategy
    supported = model.architecture in facts.extra_buffer_architectures
    if strategy == "auto":
        buffered = (
            facts.auto_state_strategy == "overlap" and supported and prefix_cache and (overlap or page > 1)
        )
        strategy = "extra_buffer" if buffered else "no_buffer"
        if facts.auto_state_strategy == "overlap" and not buffered and prefix_cache:
            overlap = False
    if strategy.startswith("extra_buffer"):
        if not prefix_cache and facts.extra_buffer_needs_prefix_cache:
            raise EngineError(_BUFFER_WITHOUT_CACHE)
        if prefix_cache:
            _check_extra_buffer(
                settings, model, facts, supported=supported, page=page, draft_tokens=draft_tokens
            )
    elif prefix_cache:
        overlap, page = _no_buffer(settings, model, facts, overlap=overlap, page=page)
    return strategy, overlap, page


def _check_extra_buffer(
    settings: Settings, model: Model, facts: EngineFacts, *, supported: bool, page: int, draft_tokens: int
) -> None:
    if not supported:
        raise EngineError(
            f"AssertionError: mamba extra_buffer is not supported for {model.architecture} model"
        )
    if settings.device == "cpu":
        raise EngineError(
            "AssertionError: extra_buffer requires platform support for Mamba cache state snapshots."
        )
    if settings.state_strategy == "extra_buffer_lazy" and draft_tokens and not facts.lazy_with_speculation:
        raise EngineError("AssertionError: extra_buffer_lazy unsupported with spec.")
    interval = settings.track_interval
    if draft_tokens > interval:
        raise EngineError(
            f"AssertionError: mamba_track_interval {interval} must be greater than or equal to "
            f"speculative_num_draft_tokens {draft_tokens}"
        )
    if interval % page or max(CHUNK_OF_STATE, page) % min(CHUNK_OF_STATE, page):
        raise EngineError(
            f"AssertionError: mamba_track_interval {interval} must be divisible by page_size {page}"
        )


def _no_buffer(
    settings: Settings, model: Model, facts: EngineFacts, *, overlap: bool, page: int
) -> tuple[bool, int]:
    """Apply what no_buffer does to overlap and page size where there is a prefix cache."""
    if facts.no_buffer_turns_overlap_off:
        if settings.algorithm is not None:
            raise EngineError(_SPECULATION_WITHOUT_BUFFER.format(architecture=model.architecture))
        return False, 1
    if page != 1:
        raise EngineError("AssertionError: no_buffer only supports page_size=1.")
    if overlap:
        raise EngineError(
            "AssertionError: no_buffer do not support overlap schedule. "
            "Try to set disable_overlap_schedule=True."
        )
    return overlap, page


def _attention_backend(settings: Settings, model: Model, card: Card) -> str:
    """Name the attention backend: the given one, or the default of the card's generation, "" if unknown.

    (server_args.py:_get_default_attn_backend; in arg_groups/model_override_base.py of 0.5.23)
    """
    if settings.attention_backend or card.capability is None:
        return settings.attention_backend or ""
    generation = card.capability[0]
    if model.latent:
        return {9: "fa3", 10: "flashinfer"}.get(generation, "triton")
    topk = settings.draft_topk
    if topk is not None and (topk > 1 or (settings.page_size or 1) > 1):
        return "flashinfer"
    return {9: "fa3", 10: "trtllm_mha"}.get(generation, "flashinfer")


def _page_size(settings: Settings) -> int:
    """Tokens per page, as forced by an attention backend that is named."""
    page = settings.page_size or 1
    forced = _FORCED_PAGES.get(settings.attention_backend or "", (page,))
    return page if page in forced else forced[0]


def _card_defaults(
    settings: Settings, model: Model, facts: EngineFacts, card: Card, requested: int | None
) -> tuple[float, int, int, bool]:
    """Fraction, prefill chunk, decode graphs' requests and prefill graphs, from the smallest card.

    (server_args.py:_handle_gpu_memory_settings, arg_groups/memory_hook.py)
    """
    total = None if card.total is None else card.total / MIB
    row = next(
        (row for row in facts.card_defaults if total is not None and total < row.below_mib),
        facts.unknown_card,
    )
    chunk = row.prefill_chunk if settings.prefill_chunk is None else settings.prefill_chunk
    graphs = settings.graph_max_bs_decode
    if graphs is None:
        graphs = row.graph_requests_wide if settings.tensor_parallel >= _WIDE else row.graph_requests
        if facts.graph_requests_capped and requested is not None:
            graphs = min(graphs, requested)
    prefill = _prefill_graphs(settings, model, facts)
    if settings.memory_fraction is not None:
        return settings.memory_fraction, chunk, graphs, prefill
    if total is None:
        fraction = facts.unknown_card_fraction
    else:
        buckets = _prefill_buckets(settings, model, facts, chunk) if prefill else 0
        reserved = _reserved_mib(
            settings, model, facts, chunk=chunk, graphs=graphs, buckets=buckets, total=total
        )
        fraction = round((total - reserved) / total, 3)
    return fraction * _vision_factor(settings, model), chunk, graphs, prefill


def _reserved_mib(
    settings: Settings,
    model: Model,
    facts: EngineFacts,
    *,
    chunk: int,
    graphs: int,
    buckets: int,
    total: float,
) -> float:
    """MiB which the engine keeps free for activations and graphs when it derives the fraction."""
    tokens = chunk if chunk > 0 else settings.prefill_tokens
    reserved = 512 + max(tokens, _LEAST_ACTIVATION_TOKENS) * 1.5 + settings.tensor_parallel / 8 * 1024
    if settings.decode_graphs or facts.graph_reserve_when_disabled:
        reserved += graphs * 2
    if settings.attention_data_parallel > 1:
        reserved += graphs * settings.attention_data_parallel * (4.5 if graphs > 300 else 3)  # noqa: PLR2004
    if buckets:
        reserved += 1.5 * 1024 if model.latent else buckets * 8
    if total > _BIG_CARD_MIB:
        reserved = max(reserved, _BIG_CARD_RESERVE_MIB)
    if settings.algorithm is not None:
        extra = dict(facts.fraction_reserve_mib)
        reserved += extra.get(settings.algorithm, extra["*"])
    return reserved


def is_multimodal(settings: Settings, model: Model) -> bool:
    """Whether the engine serves more than text (configs/model_config.py)."""
    return model.multimodal and (
        model.multimodal_default if settings.multimodal is None else settings.multimodal
    )


def _vision_factor(settings: Settings, model: Model) -> float:
    """Share of the fraction that a vision model leaves (adjust_mem_fraction_for_vlm)."""
    if not is_multimodal(settings, model):
        return 1.0
    complexity = model.vision_complexity / _VISION_BASELINE
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))


def _prefill_graphs(settings: Settings, model: Model, facts: EngineFacts) -> bool:
    """Tell whether prefill graphs are captured (_handle_piecewise_cuda_graph, cuda_graph_hook.py)."""
    return (
        settings.prefill_graphs
        and settings.device == "cuda"
        and model.architecture not in facts.prefill_graphs_lost
        and (not is_multimodal(settings, model) or model.architecture in facts.prefill_graphs_multimodal)
        and (facts.prefill_graphs_latent or not model.latent)
        and (facts.prefill_graphs_with_attention_dp or settings.attention_data_parallel == 1)
    )


_BUCKETS = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
)
"""Token counts of prefill graphs up to 4,096; one every 512 tokens from there."""


def _prefill_buckets(settings: Settings, model: Model, facts: EngineFacts, chunk: int) -> int:
    """Count the prefill graphs (_generate_piecewise_cuda_graph_tokens)."""
    largest = chunk
    if model.latent:
        largest = facts.mla_prefill_graph_tokens
        if facts.mla_prefill_graph_capped:
            largest = min(largest, chunk)
    if settings.total_tokens is not None:
        largest = min(largest, settings.total_tokens)
    if facts.prefill_graph_capped_by_context and settings.context_length is not None:
        largest = min(largest, settings.context_length)
    return len([size for size in _BUCKETS if size <= largest]) + max(0, (largest - 4096) // 512)
