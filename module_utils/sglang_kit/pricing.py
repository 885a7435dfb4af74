"""What do weights, one cached token and one state slot cost on one rank?

Prices are bytes and do not depend on how many there will be. Sources are files below ``sglang/srt``; where
versions differ, ``engine.py`` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .problem import Problem, ProblemsError
from .quantity import MIB
from .shapes import KvLayers, LatentLayers, Model, allocated, round_up, segment_bytes

if TYPE_CHECKING:
    from .engine import EngineFacts
    from .resolution import Card
    from .settings import Settings

_KV_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "mxfp8": 33 / 32}
_DATA_CENTRE = (9, 10)
_LOADING_ROOM = 2 * MIB
_ALL_REDUCE_ROOM = 12 * MIB
"""What the buffer of several ranks leaves of its segment (device_communicators/custom_all_reduce.py)."""
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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
    before_weights: int  # between the engine's own baseline and "Load weight begin"
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

    Raises ``ProblemsError`` for a KV dtype or split over ranks that is not understood, and for a model
    without a KV cache over the whole context.
    """
    _check_ranks(settings, model)
    ranks = attention_ranks(settings)
    split = model.sliding is not None and model.architecture in facts.split_sliding
    if split:
        _check_windows(settings, model, facts)
    element = _element_bytes(settings.kv_dtype, model, "memory.kv_dtype")
    cached = [*model.kv, *([model.sliding] if model.sliding and not split else [])]
    if not cached:
        raise ProblemsError(
            [Problem("", "model", f"no layer of {model.architecture} caches a whole context")]
        )
    key, value = (sum(part) for part in zip(*(_token_bytes(layers, ranks, element) for layers in cached)))
    sliding = _token_bytes(model.sliding, ranks, element) if split and model.sliding else (0.0, 0.0)
    loading, steady, drafted = _draft(settings, model, draft, ranks, element)
    charged = key + value + _indexer_bytes(model, element, facts)
    layers = sum(one.layers for one in cached)
    own = _charged_draft(
        settings=settings,
        model=model,
        draft=draft,
        facts=facts,
        cell=charged,
        drafted=sum(drafted),
        layers=layers,
        split=split,
    )
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
        before_weights=_before_weights(settings, model, facts, card),
        table_growth=_table_growth(settings, model, draft if facts.draft_weights_before_sizing else None),
        buffers=(1 if model.latent else 2) * layers,
    )


def _element_bytes(dtype: str, model: Model, key: str) -> float:
    """Bytes of one cached element; ``auto`` is what the model's own quantisation says."""
    name = model.kv_dtype if dtype == "auto" else dtype
    if name not in _KV_BYTES:
        known = ", ".join(sorted(_KV_BYTES))
        raise ProblemsError(
            [Problem("", key, f"the layout of {name} is not understood", f"use one of {known}")]
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


def _check_windows(settings: Settings, model: Model, facts: EngineFacts) -> None:
    """Refuse the sizing of a windows' pool that is not modelled."""
    if facts.sliding_pool_by_requests and not settings.prefix_cache and settings.running_requests:
        raise ProblemsError(
            [
                Problem(
                    "",
                    "prefix_cache",
                    f"without it SGLang {facts.version} sizes the pool of {model.architecture}'s windows by "
                    "the number of requests, which the formulas do not know",
                    "set prefix_cache: true",
                )
            ]
        )


def _before_weights(settings: Settings, model: Model, facts: EngineFacts, card: Card) -> int:
    """Bytes which the engine takes between its own baseline and the weights.

    PyTorch's streams, DeepGEMM's workspace on data-centre GPUs (a card of unknown capability counts as one),
    and the place of every expert on every layer, an int64 each (eplb/expert_location.py). Several ranks have
    made their streams before (distributed/device_communicators/pynccl.py).
    """
    if settings.device != "cuda":
        return 0
    alone = settings.tensor_parallel == 1
    room = 0 if alone else _ALL_REDUCE_ROOM
    gemm = card.capability is None or card.capability[0] in _DATA_CENTRE
    experts = model.experts if model.architecture in facts.expert_maps else 0
    places = 8 * model.layers * experts * experts
    fixed = ((facts.stream_pool_mib if alone else 0) + (facts.gemm_workspace_mib if gemm else 0)) * MIB
    return fixed + (segment_bytes(places) if places > room else 0)


def _table_growth(settings: Settings, model: Model, draft: Model | None) -> int:
    """Bytes by which rotary tables grow (reserve_rope_cache_for_long_sequences and its variables).

    A draft model is small: its loading leaves no room in which its longer table would fit.
    """
    steps = (settings.draft_steps or 0) * (settings.draft_tokens or 0)
    rows = round_up((settings.context_length or model.context_length) + 2 * steps + 256, 128)
    drafts = sum(table.moved(rows) for table in draft.tables) if draft else 0
    room = _LOADING_ROOM if settings.tensor_parallel == 1 else _ALL_REDUCE_ROOM
    return drafts + sum(table.growth(rows, room=room) for table in model.tables)


def _token_bytes(layers: KvLayers | LatentLayers, ranks: int, element: float) -> tuple[float, float]:
    """Key and value bytes of one token (mem_cache/memory_pool.py); a latent counts as key.

    Every rank has a KV head at least (configs/model_config.py:get_num_kv_heads).
    """
    if isinstance(layers, LatentLayers):
        return layers.token_elements * element, 0.0
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
    """Draft weights while loading and after, and its key and value bytes per token.

    ``element`` is the size of a cached one of the target, and of the draft unless that has a dtype of its own
    (mem_cache/kv_cache_dtype.py:configure_kv_cache_dtype).
    A draft model that is named but not described counts as nothing: ``predict`` says so.
    """
    if settings.algorithm in (None, "NGRAM") or (draft is None and settings.draft_model):
        return 0, 0, (0.0, 0.0)
    if settings.draft_kv_dtype is not None:
        key = "args.speculative-draft-kv-cache-dtype"
        element = _element_bytes(settings.draft_kv_dtype, draft or model, key)
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
    *,
    settings: Settings,
    model: Model,
    draft: Model | None,
    facts: EngineFacts,
    cell: float,
    drafted: float,
    layers: int,
    split: bool,
) -> float:
    """Bytes which the engine adds to a token for the draft's KV cache (pool_configurator.py).

    ``cell`` is the target's token over ``layers``, ``drafted`` what the draft really takes, ``split``
    whether layers with a window have a pool of their own.
    """
    if settings.algorithm in (None, "NGRAM"):
        return 0.0
    if settings.algorithm == "DFLASH":
        if facts.dflash_draft_kv == "own":
            return drafted
        own = draft.kv_layers if draft and not split else 0
        return -(-cell * (layers + own) // layers) - cell
    named = draft is not None or model.architecture in facts.own_draft_path
    if not (facts.eagle_draft_kv_charged and named) or (split and not facts.sliding_draft_charged):
        return 0.0
    own = draft.kv_layers if draft else model.mtp.layers if model.mtp else 0
    return float(int(cell * own / layers))
