"""How an SGLang version names, defaults and sizes things: one table, no copy per version.

Every row of ``_HISTORY`` is a fact with the versions at which it took a new value; it holds until the
next row says otherwise. ``facts`` reads the table for one version. Sources are named as
``file`` (relative to ``sglang/srt``) of the first version that has the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .problem import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Mapping

SUPPORTED = ("0.5.11", "0.5.12.post1", "0.5.15.post1", "0.5.18", "0.5.20", "0.5.23")

_ALGORITHM_OF_METHOD = {
    "mtp": "EAGLE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "dflash": "DFLASH",
    "ddtree": "DDTREE",
    "ngram": "NGRAM",
}


class UnknownVersionError(ProblemsError):
    """A version that has no row in the table."""


@dataclass(frozen=True)
class Build:
    """What was found in a build of one's own (``engine_probe.py``).

    ``flags`` are rows of name, kind, type, field and choices joined by ``|``; None before it is installed,
    when nothing but the engine itself can say what it takes.
    """

    flags: tuple[tuple[str, ...], ...] | None = None
    algorithms: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the flags."""
        return frozenset(row[0] for row in self.flags or ())


def read_build(raw: Mapping[str, Any] | None) -> Build | None:
    """Read what a probe wrote; nothing in it stands for a build that is not installed yet."""
    if raw is None:
        return None
    flags = raw.get("flags")
    rows = None if flags is None else tuple(tuple(row) for row in flags)
    return Build(rows, tuple(raw.get("algorithms", ())))


@dataclass(frozen=True)
class CardDefaults:
    """What SGLang derives from the smallest card of the host, one line of its table.

    ``below_mib`` bounds the card's total memory in MiB; ``prefill_chunk`` is in tokens,
    ``graph_requests`` the largest decode batch captured with fewer than four tensor-parallel ranks,
    ``graph_requests_wide`` with four or more.
    """

    below_mib: int
    prefill_chunk: int
    graph_requests: int
    graph_requests_wide: int


@dataclass(frozen=True)
class EngineFacts:
    """Everything the kit knows about one version. Numbers are bytes, tokens or requests as named."""

    version: str
    basis: str  # the supported version whose row answers (differs from version only where untested)
    build: Build | None  # what was found in a build of one's own; None for a released engine

    # Order and size of the pools
    stream_pool_mib: int  # taken between the engine's own baseline and "Load weight begin"
    gemm_workspace_mib: int  # likewise, on GPUs of capability 9 and 10
    expert_maps: tuple[str, ...]  # architectures that then place a map of every layer's experts, too
    draft_weights_before_sizing: bool  # with the draft's own embedding and head, which are dropped later
    state_reserve_follows: str  # "requested" or "served" requests
    state_padding_slots: int  # slots charged besides the usable ones
    eagle_draft_kv_charged: bool  # a draft model's KV cache is part of the cell
    dflash_draft_kv: str  # "scaled" from the target's cell, or the draft's "own" geometry
    split_sliding: tuple[str, ...]  # architectures with a smaller pool for the layers with a window
    sliding_pool_by_requests: (
        bool  # without prefix cache the smaller pool follows the requests, not the ratio
    )
    sliding_draft_charged: bool  # a draft's KV cache is charged with such pools, too
    latent_scales_charged: bool  # the scales of an fp8 latent with indexer (DSA) are part of the cell
    conv_window_dedup: bool  # intermediate conv windows overlap instead of repeating
    requests_bound: str  # what a user's --max-running-requests is clamped to: "estimate" or "half_tokens"
    requests_at_least_one: bool
    multimodal_reserve_mib: int
    swa_pool_checked: bool
    dflash_window_checked: bool
    weights_leave_nothing_error: bool
    too_small_error: str

    # Hybrid (mamba, linear attention) models
    auto_state_strategy: str  # "no_buffer", or "overlap": extra_buffer where overlap or paging wants it
    state_strategies: tuple[str, ...]
    extra_buffer_architectures: tuple[str, ...]
    prefix_cache_lost: tuple[str, ...]  # hybrid architectures that lose the prefix cache
    lazy_with_speculation: bool
    extra_buffer_needs_prefix_cache: bool
    no_buffer_turns_overlap_off: bool  # else it must be off already
    speculation_needs_extra_buffer: bool  # else no_buffer without overlap will do, too
    skip_decode_lock: bool  # SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK is read

    # Speculative decoding
    algorithms: tuple[str, ...]
    overlap_lost_by: tuple[str, ...]
    overlap_lost_by_topk: bool
    own_draft_path: tuple[str, ...]  # architectures whose prediction layers are loaded as a draft model path
    speculative_requests: int  # --max-running-requests where speculation is on and it is not set

    # Defaults that follow the card
    card_defaults: tuple[CardDefaults, ...]
    unknown_card: CardDefaults
    unknown_card_fraction: float
    fraction_reserve_mib: tuple[tuple[str, int], ...]  # extra reserve by algorithm, "*" for the others
    graph_reserve_when_disabled: bool
    disable_graphs_is_both: bool  # --disable-cuda-graph covers the prefill graphs, too
    prefill_graphs_lost: tuple[str, ...]  # architectures that get no prefill graphs
    prefill_graphs_multimodal: tuple[str, ...]  # the only multimodal architectures that get them
    prefill_graphs_latent: bool
    prefill_graphs_with_attention_dp: bool
    graph_requests_capped: bool  # decode graphs stop at --max-running-requests
    mla_prefill_graph_tokens: int
    mla_prefill_graph_capped: bool  # by the prefill chunk
    prefill_graph_capped_by_context: bool

    # Names
    flags: tuple[tuple[str, str], ...]
    xgrammar_on_cpu: bool  # else a JSON schema ends the scheduler there
    environment: tuple[tuple[str, str], ...]  # variables the version needs, whatever the instance
    cache_variables: tuple[tuple[str, str], ...]  # variable -> folder below the cache directory
    python_first: tuple[int, int]
    python_last: tuple[int, int]  # the newest one for which every dependency has a wheel

    def flag(self, meaning: str) -> str:
        """Name of the flag that means ``meaning`` in this version.

        Raises ``KeyError`` for a meaning that the version cannot express: callers know their meanings;
        ``ProblemsError`` for one that a build of one's own has lost.
        """
        if self.build is not None and not self.has_flag(meaning):
            lost = f"this build of SGLang {self.version} has no flag for {meaning.replace('_', ' ')}"
            raise ProblemsError([Problem("", "engine_version", lost)])
        return dict(self.flags)[meaning]

    def has_flag(self, meaning: str) -> bool:
        """Whether this version can express ``meaning``."""
        return meaning in dict(self.flags)

    def algorithm(self, method: str) -> str | None:
        """Name the ``--speculative-algorithm`` of a strategy method; None for ``none``.

        Raises ``ProblemsError`` where the version has no such algorithm.
        """
        name = _ALGORITHM_OF_METHOD.get(method)
        if method != "none" and name not in self.algorithms:
            known = [one for one, algorithm in _ALGORITHM_OF_METHOD.items() if algorithm in self.algorithms]
            raise ProblemsError(
                [
                    Problem(
                        "",
                        "strategy.method",
                        f"SGLang {self.version} has no speculative algorithm for {method!r}",
                        f"use one of none, {', '.join(known)}, or an engine that registers {name}",
                    )
                ]
            )
        return name

    def cache_environment(self, directory: str) -> dict[str, str]:
        """Variables that put every compiled-kernel cache below ``directory``."""
        return {
            variable: f"{directory}/{folder}" if folder else directory
            for variable, folder in self.cache_variables
        }


_FLAGS: dict[str, tuple[tuple[str, str], ...]] = {
    "model": (("0.5.11", "--model-path"),),
    "served_model_name": (("0.5.11", "--served-model-name"),),
    "host": (("0.5.11", "--host"),),
    "port": (("0.5.11", "--port"),),
    "nccl_port": (("0.5.11", "--nccl-port"),),
    "device": (("0.5.11", "--device"),),
    "tensor_parallel": (("0.5.11", "--tp-size"),),
    "attention_data_parallel": (("0.5.23", "--attn-dp-size"),),
    "context_length": (("0.5.11", "--context-length"),),
    "memory_fraction": (("0.5.11", "--mem-fraction-static"),),
    "running_requests": (("0.5.11", "--max-running-requests"),),
    "total_tokens": (("0.5.11", "--max-total-tokens"),),
    "kv_dtype": (("0.5.11", "--kv-cache-dtype"),),
    "page_size": (("0.5.11", "--page-size"),),
    "prefill_chunk": (("0.5.11", "--chunked-prefill-size"),),
    "prefill_tokens": (("0.5.11", "--max-prefill-tokens"),),
    "mixed_chunk": (("0.5.11", "--enable-mixed-chunk"),),
    "attention_backend": (("0.5.11", "--attention-backend"),),
    "disable_prefix_cache": (("0.5.11", "--disable-radix-cache"),),
    "disable_overlap": (("0.5.11", "--disable-overlap-schedule"),),
    "disable_graphs": (("0.5.11", "--disable-cuda-graph"),),
    "graph_max_bs_decode": (
        ("0.5.11", "--cuda-graph-max-bs"),
        ("0.5.15.post1", "--cuda-graph-max-bs-decode"),
    ),
    "graph_list_decode": (("0.5.11", "--cuda-graph-bs"), ("0.5.15.post1", "--cuda-graph-bs-decode")),
    "disable_decode_graphs": (("0.5.15.post1", "--disable-decode-cuda-graph"),),
    "enable_multimodal": (("0.5.11", "--enable-multimodal"),),
    "language_only": (("0.5.11", "--language-only"),),
    "language_model_only": (("0.5.18", "--language-model-only"),),
    "draft_block": (("0.5.11", "--speculative-dflash-block-size"),),
    "swa_ratio": (("0.5.11", "--swa-full-tokens-ratio"),),
    "mamba_strategy": (
        ("0.5.11", "--mamba-scheduler-strategy"),
        ("0.5.15.post1", "--mamba-radix-cache-strategy"),
    ),
    "state_slots": (("0.5.11", "--max-mamba-cache-size"),),
    "state_ratio": (("0.5.11", "--mamba-full-memory-ratio"),),
    "state_dtype": (("0.5.11", "--mamba-ssm-dtype"),),
    "track_interval": (("0.5.11", "--mamba-track-interval"),),
    "algorithm": (("0.5.11", "--speculative-algorithm"),),
    "draft_model": (("0.5.11", "--speculative-draft-model-path"),),
    "draft_steps": (("0.5.11", "--speculative-num-steps"),),
    "draft_topk": (("0.5.11", "--speculative-eagle-topk"),),
    "draft_tokens": (("0.5.11", "--speculative-num-draft-tokens"),),
    "draft_kv_dtype": (("0.5.18", "--speculative-draft-kv-cache-dtype"),),
    "hierarchical_cache": (("0.5.11", "--enable-hierarchical-cache"),),
    "hierarchical_size": (("0.5.11", "--hicache-size"),),
    "hierarchical_ratio": (("0.5.11", "--hicache-ratio"),),
    "grammar_backend": (("0.5.11", "--grammar-backend"),),
    "api_key": (("0.5.11", "--api-key"),),
    "admin_api_key": (("0.5.11", "--admin-api-key"),),
}

_UNBOUNDED_MIB = 1 << 62

# server_args.py:_handle_gpu_memory_settings; arg_groups/memory_hook.py since 0.5.20.
_CARDS = (
    CardDefaults(20 * 1024, 2048, 8, 8),
    CardDefaults(35 * 1024, 2048, 24, 80),
    CardDefaults(60 * 1024, 4096, 32, 160),
    CardDefaults(160 * 1024, 8192, 256, 512),
    CardDefaults(_UNBOUNDED_MIB, 16384, 512, 512),
)
_CARDS_0520 = (_CARDS[0], CardDefaults(35 * 1024, 4096, 48, 160), *_CARDS[2:])

# Third-party caches follow SGLANG_CACHE_DIR by themselves since 0.5.18 (environ.py:
# redirect_third_party_caches); before, every library has its own variable.
_CACHES = (
    ("SGLANG_CACHE_DIR", "sglang"),
    ("SGLANG_DG_CACHE_DIR", "deep_gemm"),
    ("TRITON_CACHE_DIR", "triton"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("CUDA_CACHE_PATH", "nv"),
    ("FLASHINFER_WORKSPACE_BASE", ""),
)

# A crash otherwise waits up to 65 s for py-spy and a CUDA core dump, holding the GPU's memory.
_NO_DUMPS = (("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "0"), ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "0"))

_ASSERTION = "AssertionError: max_running_request is zero"
_TOO_SMALL = (
    "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
    "max_mamba_cache_size={slots}, mamba_ratio={ratio}, resulting max_num_reqs={requests}. "
    "Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static, or "
    "(3) use GPUs with more memory."
)

_ALGORITHMS = ("DFLASH", "EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
_GDN = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
_MAMBA2 = ("BailingMoeV2_5ForCausalLM", "FalconH1ForCausalLM", "NemotronHForCausalLM")
_EXPERT_MAPS = (
    "BailingMoeV2_5ForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GptOssForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
_STATE_STRATEGIES = ("auto", "no_buffer", "extra_buffer")

_HISTORY: dict[str, tuple[tuple[str, Any], ...]] = {
    # model_runner.py: forward_stream, the first stream, makes torch create its whole pool of streams;
    # measured on an H200 with 0.5.11, 0.5.12.post1 and 0.5.15.post1
    "stream_pool_mib": (("0.5.11", 70),),
    # layers/deep_gemm_wrapper/entrypoint.py:update_deep_gemm_config: set_pdl makes DeepGEMM's runtime
    # create its workspace of cuBLASLt
    "gemm_workspace_mib": (("0.5.11", 0), ("0.5.15.post1", 32)),
    # models/*.py:get_model_config_for_expert_location, eplb/expert_location.py
    "expert_maps": (("0.5.11", _EXPERT_MAPS),),
    # managers/scheduler.py: the draft worker is built before the pools since 0.5.15.
    "draft_weights_before_sizing": (("0.5.11", False), ("0.5.15.post1", True)),
    # model_executor/model_runner_kv_cache_mixin.py:handle_max_mamba_cache
    "state_reserve_follows": (("0.5.11", "requested"), ("0.5.15.post1", "served")),
    # mem_cache/kv_cache_configurator.py:_handle_max_mamba_cache
    "state_padding_slots": (("0.5.11", 0), ("0.5.18", 1)),
    # model_executor/pool_configurator.py:DefaultPoolConfigurator
    "eagle_draft_kv_charged": (("0.5.11", False), ("0.5.15.post1", True)),
    "dflash_draft_kv": (("0.5.11", "scaled"), ("0.5.18", "own")),
    # configs/model_config.py:is_hybrid_swa_model (of the architectures that model.py reads)
    "split_sliding": (("0.5.11", ("Llama4ForConditionalGeneration", "GptOssForCausalLM")),),
    # model_executor/pool_configurator.py:SWAChunkCapPoolConfigurator, SWARequestCapPoolConfigurator
    "sliding_pool_by_requests": (("0.5.11", False), ("0.5.15.post1", True)),
    "sliding_draft_charged": (("0.5.11", False), ("0.5.15.post1", True)),
    "latent_scales_charged": (("0.5.11", False), ("0.5.18", True)),
    # mem_cache/memory_pool.py:conv_window_dedup_enabled
    "conv_window_dedup": (("0.5.11", False), ("0.5.15.post1", True)),
    # _resolve_max_num_reqs
    "requests_bound": (("0.5.11", "estimate"), ("0.5.15.post1", "half_tokens")),
    "requests_at_least_one": (("0.5.11", False), ("0.5.23", True)),
    # mem_cache/kv_cache_configurator.py:mm_runtime_reservation_gb (SGLANG_VLM_CACHE_SIZE_MB)
    "multimodal_reserve_mib": (("0.5.11", 0), ("0.5.18", 100)),
    # speculative/dflash_utils.py:get_dflash_attention_sliding_window_size
    "dflash_window_checked": (("0.5.11", False), ("0.5.15.post1", True)),
    # model_executor/pool_configurator.py:validate_swa_pool_size
    "swa_pool_checked": (("0.5.11", False), ("0.5.20", True)),
    # _profile_available_bytes, handle_max_mamba_cache
    "weights_leave_nothing_error": (("0.5.11", False), ("0.5.15.post1", True)),
    # managers/tp_worker.py; _resolve_max_num_reqs
    "too_small_error": (("0.5.11", _ASSERTION), ("0.5.15.post1", _TOO_SMALL)),
    # server_args.py:_handle_mamba_radix_cache; arg_groups/overrides.py:_mamba_radix_cache_resolution
    "auto_state_strategy": (("0.5.11", "no_buffer"), ("0.5.15.post1", "overlap")),
    "state_strategies": (
        ("0.5.11", _STATE_STRATEGIES),
        ("0.5.15.post1", (*_STATE_STRATEGIES, "extra_buffer_lazy")),
    ),
    "extra_buffer_architectures": (
        ("0.5.11", _GDN),
        ("0.5.15.post1", (*_GDN, *_MAMBA2)),
        ("0.5.18", (*_GDN, *_MAMBA2, "KimiLinearForCausalLM")),
    ),
    "prefix_cache_lost": (
        ("0.5.11", ("KimiLinearForCausalLM", "BailingMoeV2_5ForCausalLM")),
        ("0.5.15.post1", ()),
    ),
    "lazy_with_speculation": (("0.5.11", False), ("0.5.18", True)),
    "extra_buffer_needs_prefix_cache": (("0.5.11", True), ("0.5.15.post1", False)),
    "no_buffer_turns_overlap_off": (("0.5.11", True), ("0.5.15.post1", False)),
    "speculation_needs_extra_buffer": (("0.5.11", True), ("0.5.15.post1", False)),
    "skip_decode_lock": (("0.5.11", False), ("0.5.18", True)),
    # speculative/spec_info.py:SpeculativeAlgorithm
    "algorithms": (
        ("0.5.11", _ALGORITHMS),
        ("0.5.12.post1", (*_ALGORITHMS, "FROZEN_KV_MTP")),
        ("0.5.18", (*_ALGORITHMS, "FROZEN_KV_MTP", "DSPARK")),
        ("0.5.20", (*_ALGORITHMS, "FROZEN_KV_MTP", "DSPARK", "UNO")),
    ),
    # server_args.py:_handle_speculative_decoding (the synchronous first worker generation)
    "overlap_lost_by": (
        ("0.5.11", ("DFLASH", "NGRAM")),
        ("0.5.12.post1", ("DFLASH", "NGRAM", "FROZEN_KV_MTP")),
        ("0.5.15.post1", ()),
    ),
    "overlap_lost_by_topk": (("0.5.11", True), ("0.5.15.post1", False)),
    "own_draft_path": (
        (
            "0.5.11",
            ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "BailingMoeV2_5ForCausalLM"),
        ),
    ),
    "speculative_requests": (("0.5.11", 48),),
    # server_args.py:_handle_gpu_memory_settings, later arg_groups/memory_hook.py
    "card_defaults": (("0.5.11", _CARDS), ("0.5.20", _CARDS_0520)),
    "unknown_card": (("0.5.11", CardDefaults(_UNBOUNDED_MIB, 4096, 160, 160)),),
    "unknown_card_fraction": (("0.5.11", 0.88), ("0.5.20", 0.95)),
    "fraction_reserve_mib": (
        ("0.5.11", (("STANDALONE", 6144), ("NGRAM", 0), ("*", 4096))),
        ("0.5.15.post1", (("*", 0),)),
    ),
    "graph_reserve_when_disabled": (("0.5.11", True), ("0.5.15.post1", False)),
    "disable_graphs_is_both": (("0.5.11", False), ("0.5.15.post1", True)),
    # server_args.py:_handle_piecewise_cuda_graph, _disable_breakable_cudagraph_if_incompatible since 0.5.15
    "prefill_graphs_lost": (
        ("0.5.11", ("DeepseekV32ForCausalLM", "Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM")),
        ("0.5.15.post1", ()),
        ("0.5.20", ("KimiLinearForCausalLM",)),
    ),
    "prefill_graphs_multimodal": (("0.5.11", ()), ("0.5.18", _GDN[1:])),
    "prefill_graphs_latent": (("0.5.11", True), ("0.5.15.post1", False), ("0.5.18", True)),
    "prefill_graphs_with_attention_dp": (("0.5.11", False), ("0.5.18", True)),
    "graph_requests_capped": (("0.5.11", False), ("0.5.23", True)),
    "mla_prefill_graph_tokens": (("0.5.11", 2048), ("0.5.23", 8192)),
    "mla_prefill_graph_capped": (("0.5.11", False), ("0.5.23", True)),
    "prefill_graph_capped_by_context": (("0.5.11", False), ("0.5.15.post1", True), ("0.5.18", False)),
    # constrained/xgrammar_backend.py:apply_vocab_mask
    "xgrammar_on_cpu": (("0.5.11", False), ("0.5.23", True)),
    # environ.py
    "environment": (("0.5.11", (("SGLANG_ENABLE_SPEC_V2", "1"),)), ("0.5.15.post1", _NO_DUMPS)),
    "cache_variables": (("0.5.11", _CACHES), ("0.5.18", (("SGLANG_CACHE_DIR", "sglang"),))),
    # The wheels' Requires-Python; outlines 0.1.11 pins an outlines-core without wheels for Python 3.13.
    "python_first": (("0.5.11", (3, 10)), ("0.5.23", (3, 11))),
    "python_last": (("0.5.11", (3, 12)),),
}

_VERSION = re.compile(
    r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\.?post(\d{1,6}))?"
    r"(?:(?:a|b|rc)\d{1,6})?(?:\.?dev\d{1,6})?(?:\+[a-z0-9.]+)?"
)


def version_key(version: str) -> tuple[int, ...]:
    """Read a version as a sortable tuple, ``.postN`` last; what builds of one's own append is left out.

    Raises ``UnknownVersionError`` for anything but ``X.Y.Z`` and what may follow it (PEP 440).
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise _unknown(version)
    return tuple(int(part or 0) for part in match.groups())


@lru_cache(maxsize=64)
def facts(version: str, *, allow_untested: bool = False, build: Build | None = None) -> EngineFacts:
    """Facts of ``version``.

    ``allow_untested`` answers for another release with the newest supported one that is not after it
    (the oldest where there is none). A ``build`` of one's own has the flags and algorithms that were found
    in it, whatever it calls its version; before it is installed, any algorithm.
    Raises ``UnknownVersionError`` with the supported versions.
    """
    basis = version if version in SUPPORTED else _nearest(version, allow_untested=allow_untested)
    values = {name: _at(history, basis) for name, history in _HISTORY.items()}
    if build is not None:
        values["algorithms"] = build.algorithms or tuple(_ALGORITHM_OF_METHOD.values())
    flags = ((meaning, _name(history, basis, build)) for meaning, history in _FLAGS.items())
    return EngineFacts(
        version=version,
        basis=basis,
        build=build,
        flags=tuple((meaning, flag) for meaning, flag in flags if flag is not None),
        **values,
    )


def _name(history: tuple[tuple[str, Any], ...], basis: str, build: Build | None) -> Any:  # noqa: ANN401 - as _at
    """Name a flag as its version does, or as a build does that names it as another version."""
    name = _at(history, basis)
    if build is None or build.flags is None or name in build.names:
        return name
    return next((other for _, other in reversed(history) if other in build.names), None)


def _at(history: tuple[tuple[str, Any], ...], version: str) -> Any:  # noqa: ANN401 - rows differ in type
    """Find the newest value of a row that is not after ``version``; None before the first."""
    position = SUPPORTED.index(version)
    return next((value for first, value in reversed(history) if SUPPORTED.index(first) <= position), None)


def _nearest(version: str, *, allow_untested: bool) -> str:
    if not allow_untested:
        raise _unknown(version)
    key = version_key(version)
    return max(
        (known for known in SUPPORTED if version_key(known) <= key), key=version_key, default=SUPPORTED[0]
    )


def _unknown(version: str) -> UnknownVersionError:
    return UnknownVersionError(
        [
            Problem(
                "",
                "engine_version",
                f"SGLang {version!r} is not a version this was tested with",
                f"use one of {', '.join(SUPPORTED)}",
            )
        ]
    )
