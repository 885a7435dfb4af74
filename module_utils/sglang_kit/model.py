"""What does this ``config.json`` mean: layers by kind, heads, state shapes, weights?

``read_config`` turns the file of a target or draft model into a frozen ``Model``. It reads defensively: a
malformed file ends in one ``ProblemsError`` with every fault, an architecture that is not understood is
refused by name. One function reads a family of architectures; ``_FAMILIES`` at the end lists them.
Sources are named as files below ``sglang/srt`` of SGLang 0.5.11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable

from .config_reader import Reader, shown
from .problem import Collector, Problem, ProblemsError
from .shapes import (
    ANY,
    WHOLE,
    Extra,
    KvLayers,
    LatentLayers,
    Model,
    Part,
    Quantization,
    StateLayers,
    Table,
    round_up,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAX_LAYERS = 4096
_MAX_CONTEXT = 1 << 31


class NotUnderstoodError(ProblemsError):
    """A model that the engine may well serve, and whose memory cannot be planned."""

    def __init__(self, where: str, key: str, name: str, known: str) -> None:
        """Name what is not understood, what would be, and the way around."""
        fault = f"{name} is not understood: its memory cannot be planned"
        remedy = f"known are {known}; to serve it without a plan of its memory, pin memory.fraction"
        super().__init__([Problem(where, key, fault, remedy)])


def read_config(config: Mapping[str, Any], *, where: str = "") -> Model:
    """Read a target's or draft's configuration.

    Raises ``ProblemsError`` with every fault, ``NotUnderstoodError`` for an architecture or a quantisation
    that no formula here is for.
    """
    problems = Collector()
    root = Reader(config, problems, where)
    names = root.texts("architectures")
    if not names and not problems.problems:
        problems.add(where, "architectures", "is missing", "copy the model's config.json again")
    problems.check()
    family = _FAMILIES.get(names[0])
    if family is None:
        raise NotUnderstoodError(where, "architectures", names[0], ", ".join(sorted(_FAMILIES)))
    model = family(names[0], root)
    problems.check()
    if model.quantization is not None and model.quantization.bits is None:
        known = "fp8, mxfp4, nvfp4, int8, awq, gptq and compressed tensors"
        raise NotUnderstoodError(where, "quantization_config", model.quantization.method, known)
    return model


@dataclass(frozen=True)
class _Shape:
    """The numbers that every decoder has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    positions: int
    rope_dim: int
    tied: bool

    def kv(self, layers: int) -> KvLayers:
        return KvLayers(layers, self.kv_heads, self.head_dim, self.head_dim)


def _shape(text: Reader, *, tied: bool = False, head_dim: int | None = None) -> _Shape:
    """Read what every decoder has; ``tied`` and ``head_dim`` are the architecture's own defaults."""
    hidden = text.integer("hidden_size", "n_embd")
    heads = text.integer("num_attention_heads", "n_head", most=65536)
    width = text.integer(
        "head_dim", "attention_head_dim", default=head_dim or max(1, hidden // heads), most=65536
    )
    positions = _positions(text)
    share = text.number("partial_rotary_factor", default=1.0, least=0.0, most=1.0)
    share = text.section("rope_parameters").number(
        "partial_rotary_factor", default=share, least=0.0, most=1.0
    )
    return _Shape(
        hidden=hidden,
        layers=text.integer("num_hidden_layers", "n_layer", most=_MAX_LAYERS),
        heads=heads,
        kv_heads=text.integer("num_key_value_heads", default=heads, most=65536),
        head_dim=width,
        vocabulary=text.integer("vocab_size"),
        context=_context(text, positions),
        positions=positions,
        rope_dim=int(width * share),
        tied=text.flag("tie_word_embeddings", default=tied),
    )


def _positions(text: Reader) -> int:
    """Positions that the model was made for (utils/hf_transformers/common.py:CONTEXT_LENGTH_KEYS)."""
    return text.integer(
        "max_sequence_length",
        "seq_length",
        "max_seq_len",
        "model_max_length",
        "max_position_embeddings",
        "n_positions",
        default=2048,
        most=_MAX_CONTEXT,
    )


def _context(text: Reader, positions: int) -> int:
    """Longest context (utils/hf_transformers/common.py:get_context_length)."""
    rope = text.section("rope_scaling", "rope_parameters")
    if rope.has("original_max_position_embeddings") or rope.text("rope_type") == "llama3":
        return positions
    return max(1, int(positions * rope.number("factor", default=1.0, least=0.01, most=1e6)))


def _matrix(kind: str, count: int, rows: int, columns: int, ways: int = ANY) -> Part:
    return Part(kind, count, ((rows * columns, ways),))


def _vectors(count: int, elements: int) -> Part:
    """Norms, biases and the like: whole on every rank, never quantised."""
    return Part("norm", count, ((elements, WHOLE),))


def _ends(shape: _Shape) -> tuple[Part, ...]:
    """Embedding, head and the last norm."""
    embedding = _matrix("embedding", 1, shape.vocabulary, shape.hidden)
    head = () if shape.tied else (replace(embedding, kind="head"),)
    return (embedding, *head, _vectors(1, shape.hidden))


def _rope(shape: _Shape, *, count: int = 1) -> tuple[Table, ...]:
    """``count`` rotary tables over all positions."""
    return (Table(shape.positions, shape.rope_dim),) * count if shape.rope_dim else ()


def _attention(
    shape: _Shape, count: int, *, gate: bool = False, bias: int = 0, width: int = 0, norms: int = 2
) -> tuple[Part, ...]:
    """Attention of ``count`` layers with ``norms`` norms each; ``gate`` doubles the query projection.

    ``width`` is the input's where it is not the hidden size; ``bias`` counts bias elements per layer.
    """
    rows = width or shape.hidden
    query = shape.heads * shape.head_dim
    key_value = 2 * shape.kv_heads * shape.head_dim
    fused = ((rows * query * (2 if gate else 1), shape.heads), (rows * key_value, shape.kv_heads))
    return (
        Part("attention", count, fused),
        _matrix("attention", count, query, shape.hidden, shape.heads),
        _vectors(count, norms * shape.hidden + bias),
    )


def _mlp(hidden: int, inner: int, count: int, *, gated: bool = True, kind: str = "mlp") -> tuple[Part, ...]:
    up = 2 if gated else 1
    return (_matrix(kind, count, up * inner, hidden), _matrix(kind, count, inner, hidden))


def _experts(
    hidden: int, inner: int, experts: int, count: int, *, shared: int = 0, gated: bool = True
) -> tuple[Part, ...]:
    """Routed experts, fused over all experts, their router, and shared experts of ``shared`` inner width."""
    up = 2 if gated else 1
    routed = (
        _matrix("experts", count, experts * up * inner, hidden),
        _matrix("experts", count, experts * inner, hidden),
        _matrix("router", count, experts, hidden, WHOLE),
    )
    return (*routed, *_mlp(hidden, shared, count, gated=gated, kind="shared")) if shared else routed


def _routed(text: Reader) -> int:
    """How many experts see a token."""
    return text.integer("num_experts_per_tok", "num_experts_per_token", default=1, most=65536)


def _latent_attention(text: Reader, hidden: int, heads: int, count: int) -> tuple[Part, ...]:
    """Latent attention with the absorbed copy of ``kv_b`` (deepseek_common/deepseek_weight_loader.py)."""
    rank = text.integer("kv_lora_rank")
    nope = text.integer("qk_nope_head_dim")
    rope = text.integer("qk_rope_head_dim", least=0)
    value = text.integer("v_head_dim")
    query_rank = text.integer("q_lora_rank", default=0, least=0)
    query = heads * (nope + rope)
    expansion = _matrix("attention", count, rank, heads * (nope + value), heads)
    queries = (
        (
            _matrix("attention", count, query_rank, hidden, WHOLE),
            _matrix("attention", count, query, query_rank, heads),
        )
        if query_rank
        else (_matrix("attention", count, query, hidden, heads),)
    )
    return (
        *queries,
        _matrix("attention", count, rank + rope, hidden, WHOLE),
        expansion,
        replace(expansion, kind="buffer"),
        _matrix("attention", count, heads * value, hidden, heads),
        _vectors(count, 2 * hidden + rank + query_rank),
    )


def _indexer(text: Reader, hidden: int, count: int) -> tuple[Part, ...]:
    """Sparse attention's indexer (DSA): its queries come from the query latent."""
    heads = text.integer("index_n_heads", default=1)
    width = text.integer("index_head_dim")
    return (
        _matrix("attention", count, heads * width, text.integer("q_lora_rank"), WHOLE),
        _matrix("attention", count, width + heads, hidden, WHOLE),
    )


def _delta_net(state: StateLayers, hidden: int) -> tuple[Part, ...]:
    """Gated delta net (models/qwen3_5.py:Qwen3_5GatedDeltaNet)."""
    channels = state.channels(1)
    return (
        _matrix("linear_attention", state.layers, channels + state.inner, hidden),
        _matrix("linear_attention", state.layers, 2 * state.heads, hidden),
        _matrix("norm", state.layers, channels, state.kernel),
        _matrix("linear_attention", state.layers, state.inner, hidden),
        _vectors(state.layers, 2 * hidden + 2 * state.heads + state.head_dim),
    )


def _mamba2(state: StateLayers, hidden: int) -> tuple[Part, ...]:
    """Mamba2 mixer (layers/attention/mamba/mamba.py:MambaMixer2)."""
    channels = state.channels(1)
    return (
        _matrix("linear_attention", state.layers, channels + state.inner + state.heads, hidden),
        _matrix("norm", state.layers, channels, state.kernel + 1),
        _matrix("linear_attention", state.layers, state.inner, hidden),
        _vectors(state.layers, hidden + 3 * state.heads + state.inner),
    )


def _kda(state: StateLayers, hidden: int) -> tuple[Part, ...]:
    """Kimi delta attention (models/kimi_linear.py:KimiDeltaAttention)."""
    inner = state.heads * state.head_dim
    low_rank = state.head_dim
    return (
        _matrix("linear_attention", state.layers, 3 * inner, hidden),
        _matrix("linear_attention", 2 * state.layers, low_rank, hidden, WHOLE),
        _matrix("linear_attention", 2 * state.layers, inner, low_rank),
        _matrix("linear_attention", state.layers, state.heads, hidden),
        _matrix("norm", state.layers, 3 * inner, state.kernel),
        _matrix("linear_attention", state.layers, inner, hidden),
        _vectors(state.layers, 2 * hidden + 2 * inner + state.heads + state.head_dim),
    )


def _lightning(state: StateLayers, hidden: int) -> tuple[Part, ...]:
    """Lightning attention (models/bailing_moe_linear.py)."""
    inner = state.heads * state.head_dim
    return (
        _matrix("linear_attention", state.layers, 3 * inner, hidden),
        _matrix("linear_attention", 2 * state.layers, inner, hidden),
        _vectors(state.layers, 2 * hidden + inner),
    )


def _short_conv(state: StateLayers, hidden: int) -> tuple[Part, ...]:
    """Gated short convolution (models/lfm2.py:Lfm2ShortConv)."""
    return (
        _matrix("linear_attention", state.layers, 3 * hidden, hidden),
        _matrix("norm", state.layers, hidden, state.kernel),
        _matrix("linear_attention", state.layers, hidden, hidden),
        _vectors(state.layers, 2 * hidden),
    )


def _vision(vision: Reader, out: int, *, gated: bool = False, merge: int = 1) -> tuple[Part, ...]:
    """Vision transformer with a two-layer projector that joins ``merge`` patches (models/qwen3_vl.py)."""
    hidden = vision.integer("hidden_size", default=1024)
    layers = vision.integer("depth", "num_hidden_layers", default=24, most=_MAX_LAYERS)
    inner = vision.integer("intermediate_size", default=4 * hidden)
    patch = vision.integer("patch_size", default=14, most=4096)
    channels = vision.integer("in_channels", "num_channels", default=3, most=4096)
    frames = vision.integer("temporal_patch_size", default=1, most=4096)
    image = vision.integer("image_size", default=patch, most=65536)
    positions = vision.integer("num_position_embeddings", default=max(1, image // patch) ** 2)
    joined = hidden * merge
    return (
        _matrix("vision", layers, 4 * hidden, hidden),
        *_mlp(hidden, inner, layers, gated=gated, kind="vision"),
        _vectors(layers, 9 * hidden + inner),
        _matrix("vision", 1, hidden, channels * frames * patch * patch, WHOLE),
        _matrix("vision", 1, positions, hidden),
        _matrix("vision", 1 + len(vision.integers("deepstack_visual_indexes")), joined, joined + out),
    )


def _vision_table(vision: Reader) -> tuple[Table, ...]:
    """Rotary table of Qwen's vision model: 8,192 positions of half a head (models/qwen3_vl.py)."""
    heads = vision.integer("num_heads", default=16, most=65536)
    return (Table(8192, vision.integer("hidden_size", default=1024) // heads // 2),)


_LINEAR_KINDS = frozenset({"attention", "mlp", "experts", "shared", "linear_attention"})
_SKIPPED_KINDS = {
    "self_attn": {"attention"},
    "attention": {"attention"},
    "linear_attn": {"linear_attention"},
    "mixer": {"linear_attention"},
    "conv": {"linear_attention"},
    "mlp": {"mlp", "experts", "shared"},
    "experts": {"experts"},
    "shared_expert": {"shared"},
    "shared_experts": {"shared"},
}
_FIXED_BITS = {"fp8": 8.0, "fbgemm_fp8": 8.0, "w8a8_fp8": 8.0, "w8a8_int8": 8.0, "mxfp4": 4.25}
_LAID_OUT_ANEW = {"mxfp4": 0.2}
"""Error bands of methods whose tensors are replaced while they load: that leaves gaps (seen on an H200)."""
_GROUPED = ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round")
_FP4_BITS = 4.5  # one 8 bit scale for 16 elements


def _quantization(root: Reader) -> Quantization | None:
    config = root.section("quantization_config", "compression_config")
    method = (config.text("quant_method") or config.text("quant_algo")).lower()
    if not method:
        return None
    skipped: set[str] = set()
    for name in ("modules_to_not_convert", "ignore", "ignored_layers"):
        for pattern in config.texts(name):
            words = pattern.replace("*", ".").replace("$", ".").split(".")
            named = [word for word in words if word]
            if named and not any(word.isdigit() for word in words):
                skipped |= _SKIPPED_KINDS.get(named[-1], set())
    return Quantization(method, _bits(config, method), frozenset(skipped))


def _bits(config: Reader, method: str) -> float | None:
    """Bits per quantised element with its share of scales and zero points; None if not understood."""
    algorithm = config.text("quant_algo").upper()
    if method.startswith("modelopt") or method == algorithm.lower():
        return _FP4_BITS if "FP4" in algorithm else 8.0 if "FP8" in algorithm else None
    if method in _GROUPED:
        bits = config.integer("bits", "w_bit", default=4, most=16)
        group = config.integer("group_size", "q_group_size", default=128, least=-1)
        return bits + ((16 + bits) / group if group > 0 else 0)
    if method == "compressed-tensors":
        weights = next((group.section("weights") for group in config.sections("config_groups")), None)
        if weights is None or not weights.has("num_bits"):
            return None
        bits = weights.integer("num_bits", most=16)
        group = weights.integer("group_size", default=-1, least=-1)
        scale = 8 if weights.text("type") == "float" else 16
        return bits + (scale / group if group > 0 else 0)
    block = config.integers("weight_block_size")
    scales = 32 / (block[0] * block[1]) if len(block) == 2 and min(block) > 0 else 0.0  # noqa: PLR2004
    return _FIXED_BITS[method] + scales if method in _FIXED_BITS else None


def _quantized(parts: tuple[Part, ...], quantization: Quantization | None) -> tuple[Part, ...]:
    if quantization is None or quantization.bits is None:
        return parts
    bits = quantization.bits
    kinds = _LINEAR_KINDS - quantization.skipped
    return tuple(replace(part, bits=bits) if part.kind in kinds else part for part in parts)


@dataclass(frozen=True)
class _Build:
    """What a family found; ``_model`` makes a ``Model`` of it."""

    shape: _Shape
    inner: int
    parts: tuple[Part, ...]
    kv: tuple[KvLayers | LatentLayers, ...]
    sliding: KvLayers | None = None
    window: int = 0
    state: StateLayers | None = None
    mtp: Extra | None = None
    peak_parts: tuple[Part, ...] = ()
    vision: tuple[Part, ...] = ()
    multimodal_default: bool = True
    method: str = ""
    block_size: int | None = None
    window_unset: bool = False
    tables: tuple[Table, ...] = ()


def _model(architecture: str, root: Reader, build: _Build) -> Model:
    quantization = _quantization(root)
    settings = root.section("quantization_config")
    mtp = build.mtp
    vision = root.section("vision_config")
    complexity = (
        vision.integer("num_hidden_layers", default=24, most=_MAX_LAYERS)
        * vision.integer("hidden_size", default=1024) ** 2
    )
    return Model(
        architecture=architecture,
        hidden=build.shape.hidden,
        inner=build.inner,
        layers=build.shape.layers,
        heads=build.shape.heads,
        vocabulary=build.shape.vocabulary,
        context_length=build.shape.context,
        kv=tuple(layers for layers in build.kv if layers.layers),
        sliding=build.sliding if build.sliding and build.sliding.layers else None,
        window=build.window,
        state=build.state if build.state and build.state.layers else None,
        mtp=replace(mtp, parts=_quantized(mtp.parts, quantization)) if mtp and mtp.layers else None,
        parts=(
            *_quantized(build.parts, quantization),
            *build.vision,
            *(table.part() for table in build.tables),
        ),
        peak_parts=build.peak_parts,
        tables=build.tables,
        quantization=quantization,
        kv_dtype="fp8_e4m3" if settings.text("kv_cache_quant_algo").upper() == "FP8" else "auto",
        multimodal=bool(build.vision),
        multimodal_default=bool(build.vision) and build.multimodal_default,
        vision_complexity=float(complexity) if build.vision else 0.0,
        method=build.method,
        block_size=build.block_size,
        window_unset=build.window_unset,
        weight_error=_weight_error(quantization, mixed=any(part.kind == "experts" for part in build.parts)),
    )


def _weight_error(quantization: Quantization | None, *, mixed: bool) -> float:
    if quantization:
        return _LAID_OUT_ANEW.get(quantization.method, 0.1)
    return 0.03 if mixed else 0.01


def _text(root: Reader) -> Reader:
    """Open the language model's part (utils/hf_transformers/common.py:get_hf_text_config)."""
    for name in ("thinker_config", "llm_config", "language_config", "text_config"):
        if root.has(name):
            section = root.section(name)
            return section.section("text_config") if section.has("text_config") else section
    return root


def _moe_layers(text: Reader, layers: int) -> tuple[bool, ...]:
    """Tell which layers are mixtures of experts in Qwen's way."""
    step = text.integer("decoder_sparse_step", default=1, most=_MAX_LAYERS)
    dense = set(text.integers("mlp_only_layers"))
    return tuple(at not in dense and (at + 1) % step == 0 for at in range(layers))


def _inner(text: Reader, experts: int, *, shared: int = 0) -> int:
    """Widest feed-forward vector of a token: of the dense layer, or of all experts that see it."""
    if not experts:
        return text.integer("intermediate_size")
    width = text.integer("moe_intermediate_size", "intermediate_size")
    always = text.integer("shared_expert_intermediate_size", default=shared * width, least=0)
    return _routed(text) * width + always


def _qwen_mlp(text: Reader, hidden: int, layers: int, experts: int) -> tuple[Part, ...]:
    """Feed-forward parts of ``layers`` Qwen layers, dense where ``experts`` is 0."""
    if not experts:
        return _mlp(hidden, text.integer("intermediate_size"), layers)
    sparse = sum(_moe_layers(text, layers))
    shared = text.integer("shared_expert_intermediate_size", default=0, least=0)
    return (
        *_experts(hidden, text.integer("moe_intermediate_size"), experts, sparse, shared=shared),
        *(_mlp(hidden, text.integer("intermediate_size"), layers - sparse) if layers > sparse else ()),
    )


def _dense(architecture: str, root: Reader) -> Model:
    """Llama, Mistral, Mixtral, Qwen2 and Qwen3, dense or mixture of experts, also below a vision model."""
    text = _text(root)
    shape = _shape(text)
    qwen = architecture.startswith("Qwen")
    experts = text.integer("num_experts", "num_local_experts", default=0, least=0, most=65536)
    bias = (shape.heads + 2 * shape.kv_heads) * shape.head_dim if architecture.startswith("Qwen2") else 0
    feed_forward = (
        _experts(shape.hidden, text.integer("intermediate_size"), experts, shape.layers)
        if experts and not qwen
        else _qwen_mlp(text, shape.hidden, shape.layers, experts)
    )
    vision = root.section("vision_config") if root.has("vision_config") else None
    merge = vision.integer("spatial_merge_size", default=2, most=64) ** 2 if vision and qwen else 1
    parts = (*_ends(shape), *_attention(shape, shape.layers, bias=bias + 2 * shape.head_dim), *feed_forward)
    eagle3 = root.has("draft_vocab_size") or root.has("eagle_config")
    build = _Build(
        shape=shape,
        inner=_inner(text, experts),
        parts=parts,
        kv=(shape.kv(shape.layers),),
        vision=_vision(vision, shape.hidden, gated=not qwen, merge=merge) if vision else (),
        method="eagle3" if eagle3 else "",
        tables=(*_rope(shape), *(_vision_table(vision) if vision and qwen else ())),
    )
    return _model(architecture, root, build)


def _hybrid_qwen(architecture: str, root: Reader) -> Model:
    """Qwen3-Next, Qwen3.5 and Qwen3.6 (configs/qwen3_next.py): every n-th layer is full attention."""
    text = _text(root)
    shape = _shape(text, head_dim=256)
    interval = text.integer("full_attention_interval", default=4, most=_MAX_LAYERS)
    full = shape.layers // interval
    heads = text.integer("linear_num_value_heads")
    value_dim = text.integer("linear_value_head_dim")
    state = StateLayers(
        kind="gdn",
        layers=shape.layers - full,
        inner=heads * value_dim,
        groups=text.integer("linear_num_key_heads"),
        heads=heads,
        head_dim=value_dim,
        state_size=text.integer("linear_key_head_dim"),
        kernel=text.integer("linear_conv_kernel_dim", default=4, most=1024),
        dtype=_state_dtype(text),
    )
    experts = text.integer("num_experts", default=0, least=0, most=65536)
    vision = root.section("vision_config") if root.has("vision_config") else None
    merge = vision.integer("spatial_merge_size", default=2, most=64) ** 2 if vision else 1
    extra = text.integer("mtp_num_hidden_layers", default=1, least=0, most=_MAX_LAYERS)
    mtp = (
        _matrix("mtp", 1, shape.hidden, 2 * shape.hidden, WHOLE),
        *_attention(shape, extra, gate=True),
        *_qwen_mlp(text, shape.hidden, extra, experts),
    )
    build = _Build(
        shape=shape,
        inner=_inner(text, experts),
        parts=(
            *_ends(shape),
            *_attention(shape, full, gate=True, bias=2 * shape.head_dim),
            *_delta_net(state, shape.hidden),
            *_qwen_mlp(text, shape.hidden, shape.layers, experts),
        ),
        kv=(shape.kv(full),),
        state=state,
        mtp=Extra(extra, shape.kv(extra), mtp, _ends(replace(shape, tied=False))[:2]),
        vision=_vision(vision, shape.hidden, merge=merge) if vision else (),
        tables=(*_rope(shape), *(_vision_table(vision) if vision else ())),
    )
    return _model(architecture, root, build)


def _state_dtype(text: Reader) -> str:
    """Read the matrices' dtype (configs/mamba_utils.py:mamba2_state_dtype: unknown names mean float32)."""
    name = text.text("mamba_ssm_dtype", default="float32")
    return name if name in ("float32", "bfloat16", "float16") else "float32"


def _deepseek(architecture: str, root: Reader) -> Model:
    """DeepSeek V2, V3 and V3.2 (models/deepseek_v2.py)."""
    text = _text(root)
    shape = _shape(text)
    dense = text.integer("first_k_dense_replace", default=0, least=0, most=_MAX_LAYERS)
    experts = text.integer("n_routed_experts", default=0, least=0, most=65536)
    step = text.integer("moe_layer_freq", default=1, most=_MAX_LAYERS)
    sparse = sum(at >= dense and at % step == 0 for at in range(shape.layers)) if experts else 0
    index = text.integer("index_head_dim", default=0, least=0) if text.has("index_topk") else 0
    rank, rope = text.integer("kv_lora_rank"), text.integer("qk_rope_head_dim", least=0)
    extra = text.integer("num_nextn_predict_layers", default=0, least=0, most=_MAX_LAYERS)

    def layers(count: int, moe: int) -> tuple[Part, ...]:
        inner = text.integer("moe_intermediate_size", default=1)
        shared = text.integer("n_shared_experts", default=0, least=0, most=65536) * inner
        return (
            *_latent_attention(text, shape.hidden, shape.heads, count),
            *(_indexer(text, shape.hidden, count) if index else ()),
            *(_experts(shape.hidden, inner, experts, moe, shared=shared) if moe else ()),
            *(_mlp(shape.hidden, text.integer("intermediate_size"), count - moe) if count > moe else ()),
        )

    mtp = (
        (
            _matrix("mtp", extra, shape.hidden, 2 * shape.hidden, WHOLE),
            *layers(extra, extra if experts else 0),
        )
        if extra
        else ()
    )
    build = _Build(
        shape=shape,
        inner=_inner(text, experts, shared=text.integer("n_shared_experts", default=0, least=0, most=65536)),
        parts=(*_ends(shape), *layers(shape.layers, sparse)),
        kv=(LatentLayers(shape.layers, rank, rope, index),),
        mtp=Extra(extra, LatentLayers(extra, rank, rope, index), mtp, _ends(replace(shape, tied=False))[:2]),
        tables=_rope(replace(shape, rope_dim=rope)),
    )
    return _model(architecture, root, build)


def _sliding_layers(text: Reader, layers: int, *, default: Callable[[int], bool]) -> int:
    """Count the layers with a window: by ``layer_types``, else by the architecture's own pattern."""
    types = text.texts("layer_types")
    if not types:
        return sum(default(at) for at in range(layers))
    if len(types) != layers:
        text.fault("layer_types", f"names {len(types)} layers of {layers}")
    return types.count("sliding_attention")


def _gemma(architecture: str, root: Reader) -> Model:
    """Gemma 2 and 3 (models/gemma3_causal.py): most layers have a window, the embedding is the head."""
    text = _text(root)
    shape = _shape(text, tied=True, head_dim=256)
    third = "Gemma3" in architecture
    pattern = text.integer("sliding_window_pattern", default=6 if third else 2, most=_MAX_LAYERS)
    sliding = _sliding_layers(text, shape.layers, default=lambda at: (at + 1) % pattern != 0)
    vision = root.section("vision_config") if root.has("vision_config") else None
    build = _Build(
        shape=shape,
        inner=text.integer("intermediate_size"),
        parts=(
            *_ends(shape),
            *_attention(shape, shape.layers, bias=2 * shape.head_dim, norms=4),
            *_mlp(shape.hidden, text.integer("intermediate_size"), shape.layers),
        ),
        kv=(shape.kv(shape.layers - sliding),),
        sliding=shape.kv(sliding),
        window=text.integer("sliding_window", default=4096, most=_MAX_CONTEXT),
        vision=_vision(vision, shape.hidden) if vision else (),
        multimodal_default=False,
        tables=_rope(shape, count=2 if third else 1),
    )
    return _model(architecture, root, build)


def _gpt_oss(architecture: str, root: Reader) -> Model:
    """gpt-oss (models/gpt_oss.py): windows on every other layer, biases everywhere, experts in MXFP4."""
    shape = _shape(root, head_dim=64)
    sliding = _sliding_layers(root, shape.layers, default=lambda at: at % 2 == 0)
    experts = root.integer("num_local_experts", "num_experts", most=65536)
    inner = root.integer("intermediate_size")
    bias = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.hidden + shape.heads + experts
    build = _Build(
        shape=shape,
        inner=_routed(root) * inner,
        parts=(
            *_ends(shape),
            *_attention(shape, shape.layers, bias=bias),
            *_experts(shape.hidden, inner, experts, shape.layers),
            _vectors(shape.layers, experts * (2 * inner + shape.hidden)),
        ),
        kv=(shape.kv(shape.layers - sliding),),
        sliding=shape.kv(sliding),
        window=root.integer("sliding_window", default=128, most=_MAX_CONTEXT),
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


def _llama4(architecture: str, root: Reader) -> Model:
    """Llama 4 (models/llama4.py): three of four layers attend within a chunk."""
    text = _text(root)
    shape = _shape(text)
    experts = text.integer("num_local_experts", default=1, most=65536)
    step = text.integer("interleave_moe_layer_step", default=1, most=_MAX_LAYERS)
    sparse = shape.layers // step
    inner = text.integer("intermediate_size")
    sliding = sum((at + 1) % 4 != 0 for at in range(shape.layers))
    dense = shape.layers - sparse
    vision = root.section("vision_config") if root.has("vision_config") else None
    build = _Build(
        shape=shape,
        inner=(_routed(text) + 1) * inner,
        parts=(
            *_ends(shape),
            *_attention(shape, shape.layers),
            *_experts(shape.hidden, inner, experts, sparse, shared=inner),
            *(_mlp(shape.hidden, text.integer("intermediate_size_mlp"), dense) if dense else ()),
        ),
        kv=(shape.kv(shape.layers - sliding),),
        sliding=shape.kv(sliding),
        window=text.integer("attention_chunk_size", default=8192, most=_MAX_CONTEXT),
        vision=_vision(vision, shape.hidden) if vision else (),
        multimodal_default=False,
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


_NEMOTRON_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_blocks(text: Reader, pattern: str, names: str) -> tuple[str, ...]:
    """Read a stack of blocks: a list of names, or a text with a letter each."""
    blocks = text.texts(names) or tuple(_NEMOTRON_BLOCKS.get(letter, letter) for letter in text.text(pattern))
    unknown = sorted(set(blocks) - set(_NEMOTRON_BLOCKS.values()))
    if unknown:
        text.fault(pattern, f"has blocks that are not understood: {shown(' '.join(unknown))}")
    if len(blocks) > _MAX_LAYERS:
        text.fault(pattern, f"has {len(blocks)} blocks, at most {_MAX_LAYERS} are read")
        return ()
    return blocks


def _nemotron(architecture: str, root: Reader) -> Model:
    """Nemotron-H (configs/nemotron_h.py): one mixer or feed-forward block per layer."""
    text = _text(root)
    blocks = _nemotron_blocks(text, "hybrid_override_pattern", "layers_block_type")
    if not blocks:
        text.fault("hybrid_override_pattern", "is missing or empty")
    shape = replace(_shape(text, head_dim=128), layers=max(1, len(blocks)))
    heads = text.integer("mamba_num_heads")
    head_dim = text.integer("mamba_head_dim")
    state = StateLayers(
        kind="mamba2",
        layers=blocks.count("mamba"),
        inner=heads * head_dim,
        groups=text.integer("n_groups", "mamba_n_groups", default=8),
        heads=heads,
        head_dim=head_dim,
        state_size=text.integer("ssm_state_size", default=128),
        kernel=text.integer("conv_kernel", "mamba_d_conv", default=4, most=1024),
        dtype=_state_dtype(text),
    )

    def parts(blocks: tuple[str, ...]) -> tuple[Part, ...]:
        attention, mlp, moe = (blocks.count(kind) for kind in ("attention", "mlp", "moe"))
        found = _attention(shape, attention, norms=1) if attention else ()
        if mlp:
            found += _mlp(shape.hidden, text.integer("intermediate_size"), mlp, gated=False)
        if moe:
            width = text.integer("moe_latent_size", default=shape.hidden)
            shared = text.integer("moe_shared_expert_intermediate_size", default=0, least=0)
            inner, experts = (
                text.integer("moe_intermediate_size"),
                text.integer("n_routed_experts", most=65536),
            )
            found += _experts(width, inner, experts, moe, gated=False)
            found += _mlp(shape.hidden, shared, moe, gated=False, kind="shared") if shared else ()
            found += (_matrix("mlp", 2 * moe, width, shape.hidden),) if width != shape.hidden else ()
        return found

    extra = text.integer("num_nextn_predict_layers", default=0, least=0, most=_MAX_LAYERS)
    drafts = _nemotron_blocks(text, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if extra else ()
    mtp = (_matrix("mtp", extra, shape.hidden, 2 * shape.hidden, WHOLE), *parts(drafts)) if extra else ()
    build = _Build(
        shape=shape,
        inner=text.integer("intermediate_size"),
        parts=(*_ends(shape), *parts(blocks), *_mamba2(state, shape.hidden)),
        kv=(shape.kv(blocks.count("attention")),),
        state=state,
        mtp=Extra(extra, shape.kv(drafts.count("attention")), mtp, _ends(replace(shape, tied=False))[:2]),
    )
    return _model(architecture, root, build)


def _falcon_h1(architecture: str, root: Reader) -> Model:
    """Falcon-H1 (models/falcon_h1.py): attention and mamba2 side by side in every layer, a float32 head."""
    shape = _shape(root)
    heads = root.integer("mamba_n_heads", default=128)
    inner = root.integer(
        "mamba_d_ssm", default=root.integer("mamba_expand", default=2, most=1024) * shape.hidden
    )
    state = StateLayers(
        kind="mamba2",
        layers=shape.layers,
        inner=inner,
        groups=root.integer("mamba_n_groups", default=1),
        heads=heads,
        head_dim=max(1, inner // heads),
        state_size=root.integer("mamba_d_state", default=256),
        kernel=root.integer("mamba_d_conv", default=4, most=1024),
        dtype=_state_dtype(root),
    )
    if inner % heads:
        root.fault("mamba_n_heads", f"{heads} does not divide the inner width {inner}")
    build = _Build(
        shape=shape,
        inner=root.integer("intermediate_size"),
        parts=(
            *(replace(part, bits=32.0) if part.kind == "head" else part for part in _ends(shape)),
            *_attention(shape, shape.layers),
            *_mamba2(state, shape.hidden),
            *_mlp(shape.hidden, root.integer("intermediate_size"), shape.layers),
        ),
        kv=(shape.kv(shape.layers),),
        state=state,
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


def _kimi_linear(architecture: str, root: Reader) -> Model:
    """Kimi-Linear (configs/kimi_linear.py): Kimi delta attention and latent attention, experts."""
    shape = _shape(root)
    linear = root.section("linear_attn_config")
    kda = {at for at in linear.integers("kda_layers") if 1 <= at <= shape.layers}
    if not kda:
        linear.fault("kda_layers", "is missing or empty")
    full = shape.layers - len(kda)
    heads, head_dim = linear.integer("num_heads"), linear.integer("head_dim")
    state = StateLayers(
        kind="kda",
        layers=len(kda),
        inner=3 * heads * head_dim,
        groups=0,
        heads=heads,
        head_dim=head_dim,
        state_size=head_dim,
        kernel=linear.integer("short_conv_kernel_size", default=4, most=1024),
        dtype="float32",
    )
    return _latent_hybrid(
        architecture, root, shape=shape, state=state, state_parts=_kda(state, shape.hidden), full=full
    )


def _bailing(architecture: str, root: Reader) -> Model:
    """Ling and Ring 2.5 (configs/bailing_hybrid.py): lightning attention, every n-th layer latent."""
    shape = _shape(root)
    group = root.integer("layer_group_size", default=1, most=_MAX_LAYERS)
    full = shape.layers // group
    state = StateLayers(
        kind="lightning",
        layers=shape.layers - full,
        inner=0,
        groups=0,
        heads=shape.heads,
        head_dim=shape.head_dim,
        state_size=shape.head_dim,
        kernel=1,
        dtype="float32",
    )
    rope = root.integer("qk_rope_head_dim", least=0)
    return _latent_hybrid(
        architecture,
        root,
        shape=shape,
        state=state,
        state_parts=_lightning(state, shape.hidden),
        full=full,
        tables=_rope(replace(shape, rope_dim=rope)),
    )


def _latent_hybrid(
    architecture: str,
    root: Reader,
    *,
    shape: _Shape,
    state: StateLayers,
    state_parts: Iterable[Part],
    full: int,
    tables: tuple[Table, ...] = (),
) -> Model:
    """Linear attention beside ``full`` latent layers, with or without experts."""
    experts = root.integer("num_experts", default=0, least=0, most=65536)
    dense = (
        root.integer("first_k_dense_replace", default=0, least=0, most=_MAX_LAYERS)
        if experts
        else shape.layers
    )
    inner = root.integer("moe_intermediate_size", default=1)
    shared = root.integer("num_shared_experts", default=0, least=0, most=65536) * inner
    rank, rope = root.integer("kv_lora_rank"), root.integer("qk_rope_head_dim", least=0)
    sparse = max(0, shape.layers - dense)
    build = _Build(
        shape=shape,
        inner=_routed(root) * inner + shared if experts else root.integer("intermediate_size"),
        parts=(
            *_ends(shape),
            *state_parts,
            *_latent_attention(root, shape.hidden, shape.heads, full),
            *(_experts(shape.hidden, inner, experts, sparse, shared=shared) if sparse else ()),
            *_mlp(shape.hidden, root.integer("intermediate_size"), shape.layers - sparse),
        ),
        kv=(LatentLayers(full, rank, rope, 0),),
        state=state,
        tables=tables,
    )
    return _model(architecture, root, build)


def _lfm2(architecture: str, root: Reader) -> Model:
    """LFM2 (models/lfm2.py): gated short convolutions and attention; a tied head is a copy."""
    shape = _shape(root, tied=True)
    types = root.texts("layer_types")
    full = types.count("full_attention") if types else len(root.integers("full_attn_idxs"))
    if not full:
        root.fault("layer_types", "names no attention layer")
    if types and len(types) != shape.layers:
        root.fault("layer_types", f"names {len(types)} layers of {shape.layers}")
    state = StateLayers(
        kind="short_conv",
        layers=max(0, shape.layers - full),
        inner=shape.hidden,
        groups=1,
        heads=0,
        head_dim=shape.hidden,
        state_size=0,
        kernel=root.integer("conv_L_cache", most=1024),
        dtype="float32",
    )
    experts = root.integer("num_experts", default=0, least=0, most=65536)
    dense = (
        root.integer("num_dense_layers", default=2, least=0, most=_MAX_LAYERS) if experts else shape.layers
    )
    sparse = max(0, shape.layers - dense)
    inner = root.integer("block_ff_dim", "intermediate_size")
    if root.flag("block_auto_adjust_ff_dim", default=not experts):
        step = root.integer("block_multiple_of", default=256)
        share = root.number("block_ffn_dim_multiplier", default=1.0, least=0.01, most=100.0)
        inner = round_up(int(share * int(2 * inner / 3)), step)
    build = _Build(
        shape=shape,
        inner=inner,
        parts=(
            *_ends(replace(shape, tied=False)),
            *_attention(shape, full, bias=2 * shape.head_dim),
            *_short_conv(state, shape.hidden),
            *_mlp(shape.hidden, inner, shape.layers - sparse),
            *(
                _experts(shape.hidden, root.integer("moe_intermediate_size"), experts, sparse)
                if sparse
                else ()
            ),
        ),
        kv=(shape.kv(full),),
        state=state,
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


def _gpt2(architecture: str, root: Reader) -> Model:
    """GPT-2 (models/gpt2.py): learned positions, biases, no rotary table."""
    shape = _shape(root, tied=True)
    inner = root.integer("n_inner", default=4 * shape.hidden)
    build = _Build(
        shape=shape,
        inner=inner,
        parts=(
            *_ends(shape),
            _matrix("embedding", 1, shape.context, shape.hidden, WHOLE),
            *_attention(shape, shape.layers, bias=4 * shape.hidden, norms=4),
            *_mlp(shape.hidden, inner, shape.layers, gated=False),
            _vectors(shape.layers, inner + shape.hidden),
        ),
        kv=(shape.kv(shape.layers),),
    )
    return _model(architecture, root, build)


def _eagle(architecture: str, root: Reader) -> Model:
    """EAGLE draft (models/llama_eagle.py): embedding and head become the target's once loaded."""
    shape = _shape(root)
    build = _Build(
        shape=shape,
        inner=root.integer("intermediate_size"),
        parts=(
            _matrix("mtp", 1, shape.hidden, 2 * shape.hidden, WHOLE),
            *_attention(shape, shape.layers),
            *_mlp(shape.hidden, root.integer("intermediate_size"), shape.layers),
        ),
        kv=(shape.kv(shape.layers),),
        peak_parts=_ends(replace(shape, tied=False))[:2],
        method="eagle",
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


def _eagle3(architecture: str, root: Reader) -> Model:
    """EAGLE3 draft (models/llama_eagle3.py): one layer over two inputs, a head of its own vocabulary.

    The layer's first projections are replaced while it is built, and stay until Python collects garbage.
    """
    shape = _shape(root)
    target = root.integer("target_hidden_size", default=shape.hidden)
    vocabulary = root.integer("draft_vocab_size", default=shape.vocabulary)
    if shape.layers != 1:
        root.fault("num_hidden_layers", f"EAGLE3 drafts have one layer, not {shape.layers}")
    build = _Build(
        shape=shape,
        inner=root.integer("intermediate_size"),
        parts=(
            _matrix("mtp", 1, shape.hidden, 3 * target, WHOLE),
            *_attention(shape, shape.layers, width=2 * shape.hidden, norms=4),
            *_mlp(shape.hidden, root.integer("intermediate_size"), shape.layers),
            _matrix("head", 1, vocabulary, shape.hidden),
            *_attention(shape, 1)[:1],
            *_mlp(shape.hidden, root.integer("intermediate_size"), 1),
        ),
        kv=(shape.kv(shape.layers),),
        peak_parts=(_matrix("embedding", 1, shape.vocabulary, shape.hidden),),
        method="eagle3",
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


def _window_in_effect(text: Reader) -> bool:
    """Tell whether a size stands and transformers keeps it (models/qwen3/configuration_qwen3.py)."""
    return text.has("sliding_window") and text.flag("use_sliding_window", default=False)


def _dflash(architecture: str, root: Reader) -> Model:
    """DFlash draft (models/dflash.py): a few layers and a projection of target features, no vocabulary."""
    text = _text(root)
    shape = _shape(text)
    settings = root.section("dflash_config")
    features = len(settings.integers("target_layer_ids") or root.integers("target_layer_ids")) or shape.layers
    block = settings if settings.has("block_size") else root
    build = _Build(
        shape=shape,
        inner=text.integer("intermediate_size"),
        parts=(
            _matrix("mtp", 1, shape.hidden, features * shape.hidden, WHOLE),
            *_attention(shape, shape.layers, bias=2 * shape.head_dim),
            *_mlp(shape.hidden, text.integer("intermediate_size"), shape.layers),
        ),
        kv=(shape.kv(shape.layers),),
        method="dflash",
        block_size=block.integer("block_size", most=65536) if block.has("block_size") else None,
        window_unset="sliding_attention" in text.texts("layer_types") and not _window_in_effect(text),
        tables=_rope(shape),
    )
    return _model(architecture, root, build)


_FAMILIES: dict[str, Callable[[str, Reader], Model]] = {
    "LlamaForCausalLM": _dense,
    "MistralForCausalLM": _dense,
    "Mistral3ForConditionalGeneration": _dense,
    "MixtralForCausalLM": _dense,
    "Qwen2ForCausalLM": _dense,
    "Qwen2MoeForCausalLM": _dense,
    "Qwen3ForCausalLM": _dense,
    "Qwen3MoeForCausalLM": _dense,
    "Qwen3VLForConditionalGeneration": _dense,
    "Qwen3VLMoeForConditionalGeneration": _dense,
    "Qwen3NextForCausalLM": _hybrid_qwen,
    "Qwen3_5ForConditionalGeneration": _hybrid_qwen,
    "Qwen3_5MoeForConditionalGeneration": _hybrid_qwen,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "DeepseekV32ForCausalLM": _deepseek,
    "Gemma2ForCausalLM": _gemma,
    "Gemma3ForCausalLM": _gemma,
    "Gemma3ForConditionalGeneration": _gemma,
    "GptOssForCausalLM": _gpt_oss,
    "Llama4ForConditionalGeneration": _llama4,
    "NemotronHForCausalLM": _nemotron,
    "FalconH1ForCausalLM": _falcon_h1,
    "KimiLinearForCausalLM": _kimi_linear,
    "BailingMoeV2_5ForCausalLM": _bailing,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2,
    "GPT2LMHeadModel": _gpt2,
    "LlamaForCausalLMEagle": _eagle,
    "LlamaForCausalLMEagle3": _eagle3,
    "DFlashDraftModel": _dflash,
}
