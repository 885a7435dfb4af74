"""How large are a model's weights, states and cached tokens on one rank?

The answer of ``model.read_config``, as frozen records of plain numbers. Weight sizes come from the tensors'
shapes as SGLang creates them (``sglang/srt/models``), rounded as PyTorch's allocator rounds them;
``Model.weight_error`` states how far that may be off. Sizes are bytes, lengths are tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .problem import Problem, ProblemsError
from .quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WHOLE = 1
"""Ways of a tensor that every tensor-parallel rank holds completely."""
ANY = 1 << 30
"""Ways of a tensor that is split however many ranks there are."""
COMPUTE_BYTES = 2
"""bfloat16 or float16: SGLang casts float32 checkpoints down (configs/model_config.py)."""


@dataclass(frozen=True)
class KvLayers:
    """Layers that cache a key and a value per KV head and token."""

    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class LatentLayers:
    """Multi-head latent attention: one compressed vector per token, the same on every rank.

    ``index_head_dim`` is the width of the sparse indexer's key (DSA), 0 without one.
    """

    layers: int
    rank: int
    rope_dim: int
    index_head_dim: int

    @property
    def token_elements(self) -> int:
        """Elements per token on every rank, all layers, without the indexer."""
        return self.layers * (self.rank + self.rope_dim)


@dataclass(frozen=True)
class StateLayers:
    """Layers with a state of fixed size per request: mamba2, GDN, KDA, lightning and short convolution.

    All of them are the same two tensors (configs/mamba_utils.py:Mamba2StateShape): a convolution window
    over ``inner + 2 * groups * state_size`` channels and ``heads`` matrices of ``head_dim x state_size``.
    """

    kind: str
    layers: int
    inner: int
    groups: int
    heads: int
    head_dim: int
    state_size: int
    kernel: int
    dtype: str  # of the matrices where neither flag nor variable says otherwise

    def channels(self, tensor_parallel: int) -> int:
        """Convolution channels on one rank; groups are repeated where the ranks do not divide them."""
        extra = 0 if self.groups % tensor_parallel == 0 else tensor_parallel - self.groups
        return (self.inner + 2 * (self.groups + extra) * self.state_size) // tensor_parallel

    def conv_elements(self, tensor_parallel: int) -> int:
        """Elements of one slot's convolution windows, all layers."""
        return self.layers * self.channels(tensor_parallel) * (self.kernel - 1)

    def matrix_elements(self, tensor_parallel: int) -> int:
        """Elements of one slot's state matrices, all layers."""
        return self.layers * (self.heads // tensor_parallel) * self.head_dim * self.state_size


@dataclass(frozen=True)
class Quantization:
    """Weight quantisation: ``bits`` per element with scales, ``None`` where it is not understood.

    ``skipped`` holds the kinds of parts that stay in the compute dtype.
    """

    method: str
    bits: float | None
    skipped: frozenset[str]


@dataclass(frozen=True)
class Part:
    """Tensors of one kind: ``count`` of them, each concatenated from ``pieces`` of (elements, ways).

    A piece is split into at most ``ways`` parts over the tensor-parallel ranks. ``bits`` per element.
    """

    kind: str
    count: int
    pieces: tuple[tuple[int, int], ...]
    bits: float = 8.0 * COMPUTE_BYTES

    def tensor_bytes(self, tensor_parallel: int) -> int:
        """Bytes of one of the tensors on one rank."""
        elements = sum(-(-size // min(tensor_parallel, ways)) for size, ways in self.pieces)
        return math.ceil(elements * self.bits / 8)


@dataclass(frozen=True)
class Table:
    """A float32 table of ``rows`` cosines and sines of ``width`` (layers/rotary_embedding/base.py)."""

    rows: int
    width: int

    def part(self) -> Part:
        """Return the table as a tensor that is no weight."""
        return Part("buffer", 1, ((self.rows * self.width, WHOLE),), bits=32.0)

    def growth(self, rows: int, *, room: int) -> int:
        """Bytes which the allocator takes more once the table is long enough for ``rows`` positions.

        The longer copy is made before the old one is dropped (utils/common.py:
        reserve_rope_cache_for_long_sequences): up to ``room`` bytes it fits into what is left over, up to
        10 MiB it takes a segment of 20 MiB, beyond that steps of 2 MiB.
        """
        new = 4 * self.width * rows
        return 0 if new <= room else self.moved(rows)

    def moved(self, rows: int) -> int:
        """Bytes which the longer copy takes where nothing is left over, less what the old one gives back."""
        old, new = (4 * self.width * count for count in (self.rows, rows))
        if rows <= self.rows:
            return 0
        return segment_bytes(new) - (segment_bytes(old) if old >= 10 * MIB else 0)


@dataclass(frozen=True)
class Extra:
    """A model's own prediction layers (MTP), which SGLang loads as a draft model.

    ``peak_parts`` are there only while it loads: its own embedding and head, which are then dropped
    for the target's (models/qwen3_5_mtp.py, models/deepseek_nextn.py).
    """

    layers: int
    kv: KvLayers | LatentLayers
    parts: tuple[Part, ...]
    peak_parts: tuple[Part, ...]


@dataclass(frozen=True)
class Model:
    """Everything the planner knows about a model. ``method`` is set for draft models only."""

    architecture: str
    hidden: int
    layers: int
    inner: int  # the widest feed-forward vector of a token, all its experts together
    heads: int
    vocabulary: int
    context_length: int
    kv: tuple[KvLayers | LatentLayers, ...]  # without the sliding layers
    sliding: KvLayers | None
    window: int
    state: StateLayers | None
    mtp: Extra | None
    parts: tuple[Part, ...]
    peak_parts: tuple[Part, ...]
    tables: tuple[Table, ...]
    quantization: Quantization | None
    kv_dtype: str  # what --kv-cache-dtype auto becomes
    multimodal: bool
    multimodal_default: bool  # False where SGLang serves the language model alone unless told otherwise
    vision_complexity: float  # layers x width^2 as SGLang reads them; 0 without a vision model
    method: str  # "", "eagle", "eagle3" or "dflash"
    block_size: int | None  # of a dflash draft
    window_unset: bool  # layers of a dflash draft have a window whose size is not in effect
    weight_error: float  # relative band of the sizes from shapes

    @property
    def latent(self) -> bool:
        """Whether the attention layers are latent (MLA)."""
        return any(isinstance(layers, LatentLayers) for layers in self.kv)

    @property
    def experts(self) -> int:
        """How many routed experts a layer has; 0 for a dense model."""
        routers = (part for part in self.parts if part.kind == "router")
        return next((part.pieces[0][0] // self.hidden for part in routers), 0)

    @property
    def kv_layers(self) -> int:
        """How many layers cache keys and values without a window."""
        return sum(layers.layers for layers in self.kv)

    def weight_bytes(self, tensor_parallel: int) -> int:
        """Size the weights on one rank, as the allocator takes it from the card."""
        return allocated(self.parts, tensor_parallel)


def allocated(parts: Iterable[Part], tensor_parallel: int) -> int:
    """Bytes which PyTorch's caching allocator takes from the card for ``parts`` on one rank.

    Tensors over 10 MiB get segments of their own in steps of 2 MiB, smaller ones share segments of
    20 MiB, those up to 1 MiB share segments of 2 MiB (c10/cuda/CUDACachingAllocator.cpp).
    """
    large = middle = small = 0
    for part in parts:
        size = part.tensor_bytes(tensor_parallel)
        if size >= 10 * MIB:
            large += part.count * round_up(size, 2 * MIB)
        elif size > MIB:
            middle += part.count * round_up(size, 512)
        else:
            small += part.count * round_up(size, 512)
    return large + round_up(middle, 20 * MIB) + round_up(small, 2 * MIB)


def segment_bytes(size: int) -> int:
    """Bytes which the allocator takes for one tensor; up to 1 MiB it finds room in what is there."""
    if size >= 10 * MIB:
        return round_up(size, 2 * MIB)
    return 20 * MIB if size > MIB else 0


def header_bytes(headers: Iterable[Mapping[str, Any]]) -> int:
    """Sum the tensors of safetensors headers (``{name: {data_offsets: [begin, end]}}``).

    Raises ``ProblemsError`` for a header without usable offsets.
    """
    total = 0
    for header in headers:
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
            if not (
                isinstance(offsets, list)
                and len(offsets) == 2  # noqa: PLR2004 - begin and end
                and all(isinstance(offset, int) for offset in offsets)
                and 0 <= offsets[0] <= offsets[1]
            ):
                raise ProblemsError([Problem("", name, "has no data_offsets", "download the file again")])
            total += offsets[1] - offsets[0]
    return total


def round_up(size: int, step: int) -> int:
    """Round up to a multiple of ``step``."""
    return -(-size // step) * step
