"""Which of the engine's arguments decide about memory, and what does this command line say of them?

``Settings`` holds them by meaning (``engine.py`` knows the version's flag for each); ``None`` leaves a value
to the engine. ``read_argv`` reads a command line as the engine's own parser would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Callable

from .engine_flags import check_flags, known_flags
from .problem import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .engine import EngineFacts


@dataclass(frozen=True)
class Settings:
    """Arguments that decide about memory, by meaning, with the engine's defaults."""

    device: str = "cuda"
    tensor_parallel: int = 1
    attention_data_parallel: int = 1
    context_length: int | None = None
    memory_fraction: float | None = None
    running_requests: int | None = None
    total_tokens: int | None = None
    kv_dtype: str = "auto"
    page_size: int | None = None
    prefill_chunk: int | None = None
    prefill_tokens: int = 16384
    graph_max_bs_decode: int | None = None
    decode_graphs: bool = True
    prefill_graphs: bool = True
    prefix_cache: bool = True
    overlap: bool = True
    mixed_chunk: bool = False
    multimodal: bool | None = None
    attention_backend: str | None = None
    swa_ratio: float = 0.8
    state_strategy: str = "auto"
    state_slots: int | None = None
    state_ratio: float = 0.9
    state_dtype: str | None = None
    track_interval: int = 256
    algorithm: str | None = None
    draft_model: bool = False
    draft_steps: int | None = None
    draft_topk: int | None = None
    draft_tokens: int | None = None
    draft_kv_dtype: str | None = None
    hierarchical_cache: bool = False  # a second cache in pinned main memory
    hierarchical_gb: int = 0  # its size on one rank, in 10^9 bytes; 0 follows the ratio
    hierarchical_ratio: float = 2.0  # to the pools on the card
    # Environment variables of the engine
    speculation_v2: bool = True  # SGLANG_ENABLE_SPEC_V2
    skip_decode_lock: bool = False  # SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK
    conv_dtype: str = "bfloat16"  # SGLANG_MAMBA_CONV_DTYPE
    longer_context: bool = False  # SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN
    multimodal_cache_mib: int | None = None  # SGLANG_VLM_CACHE_SIZE_MB
    balance_checked: bool = True  # SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK


_SIZE = re.compile(r"(?P<whole>\d+)(?P<binary>[KMGT]i)?|(?P<number>\d+(?:\.\d+)?)(?P<decimal>[kMGT])")
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T"))},
    **{unit: 1024**power for power, unit in enumerate(("", "Ki", "Mi", "Gi", "Ti")) if unit},
}


def size(text: str) -> int:
    """Read what SGLang calls a human readable integer: 8k is 8,000, 8Ki is 8,192.

    (utils/common.py:human_readable_int) Raises ``ValueError`` for anything else.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    unit = match["binary"] or match["decimal"] or ""
    return int(Decimal(match["whole"] or match["number"]) * _UNITS[unit])


def _algorithm(text: str) -> str:
    return "EAGLE" if text.upper() == "NEXTN" else text.upper()


def _truth(text: str) -> bool:
    """Read a variable as SGLang does (environ.py:EnvBool)."""
    return text.lower() in ("true", "1", "yes", "y")


_VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "device": ("device", str),
    "tensor_parallel": ("tensor_parallel", int),
    "attention_data_parallel": ("attention_data_parallel", int),
    "context_length": ("context_length", size),
    "memory_fraction": ("memory_fraction", float),
    "running_requests": ("running_requests", int),
    "total_tokens": ("total_tokens", size),
    "kv_dtype": ("kv_dtype", str),
    "page_size": ("page_size", int),
    "prefill_chunk": ("prefill_chunk", int),
    "prefill_tokens": ("prefill_tokens", size),
    "graph_max_bs_decode": ("graph_max_bs_decode", int),
    "graph_list_decode": ("graph_max_bs_decode", int),
    "attention_backend": ("attention_backend", str),
    "swa_ratio": ("swa_ratio", float),
    "mamba_strategy": ("state_strategy", str),
    "state_slots": ("state_slots", int),
    "state_ratio": ("state_ratio", float),
    "state_dtype": ("state_dtype", str),
    "track_interval": ("track_interval", int),
    "algorithm": ("algorithm", _algorithm),
    "draft_model": ("draft_model", bool),
    "draft_steps": ("draft_steps", int),
    "draft_topk": ("draft_topk", int),
    "draft_tokens": ("draft_tokens", int),
    "draft_block": ("draft_tokens", int),
    "draft_kv_dtype": ("draft_kv_dtype", str),
    "hierarchical_size": ("hierarchical_gb", int),
    "hierarchical_ratio": ("hierarchical_ratio", float),
}
"""Meaning of a flag with values -> field, and how a value is read; of several values the largest counts."""

_LIMITS: dict[str, tuple[float, float]] = {
    "tensor_parallel": (1, 1024),
    "attention_data_parallel": (1, 1024),
    "context_length": (1, 10**9),
    "memory_fraction": (-1, 10),
    "swa_ratio": (0, 1000),
    "state_ratio": (0, 1000),
    "draft_steps": (0, 4096),
    "draft_topk": (0, 4096),
    "draft_tokens": (0, 4096),
}
_ANY = (-1, 10**12)
"""Least and most of a value for which the formulas hold; the engine takes more, and dies later."""

_SWITCHES: dict[str, tuple[str, bool]] = {
    "disable_prefix_cache": ("prefix_cache", False),
    "disable_overlap": ("overlap", False),
    "disable_graphs": ("decode_graphs", False),
    "disable_decode_graphs": ("decode_graphs", False),
    "mixed_chunk": ("mixed_chunk", True),
    "hierarchical_cache": ("hierarchical_cache", True),
    "enable_multimodal": ("multimodal", True),
    "language_only": ("multimodal", False),
    "language_model_only": ("multimodal", False),
}
"""Meaning of a flag without a value -> field, and what the flag makes of it."""

_NOT_MODELLED = frozenset(
    {
        "attn_cp_size",
        "cpu_offload_gb",
        "cuda_graph_config",
        "dcp_size",
        "disaggregation_mode",
        "dllm_algorithm",
        "dtype",
        "enable_hisparse",
        "enable_linear_replayssm",
        "enable_linear_replayssm_spec",
        "enable_lora",
        "enable_two_batch_overlap",
        "enable_unified_memory",
        "json_model_override_args",
        "lora_paths",
        "moe_a2a_backend",
        "offload_group_size",
        "pp_size",
        "quantization",
        "speculative_adaptive",
        "torchao_config",
    }
)
"""Fields that move memory in ways the formulas do not know."""

_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "SGLANG_ENABLE_SPEC_V2": ("speculation_v2", _truth),
    "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": ("skip_decode_lock", _truth),
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": ("longer_context", _truth),
    "SGLANG_MAMBA_CONV_DTYPE": ("conv_dtype", str),
    "SGLANG_MAMBA_SSM_DTYPE": ("state_dtype", str),
    "SGLANG_VLM_CACHE_SIZE_MB": ("multimodal_cache_mib", int),
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": ("balance_checked", _truth),
}


@dataclass(frozen=True)
class CommandLine:
    """What a command line and environment say: settings, and the flags that no formula knows."""

    settings: Settings
    not_modelled: tuple[str, ...]


def read_argv(
    argv: Sequence[str], *, facts: EngineFacts, environment: Mapping[str, str] | None = None, where: str = ""
) -> CommandLine:
    """Read the engine's words (without interpreter and module) and its environment.

    Raises ``ProblemsError`` with every word that the version's parser would refuse.
    """
    problems = check_flags(facts.version, argv, build=facts.build, where=where, key="argv")
    if problems:
        raise ProblemsError(problems)
    given = _given(argv, facts)
    found: dict[str, Any] = {}
    for variable, value in (environment or {}).items():
        if variable in _VARIABLES:
            name, read = _VARIABLES[variable]
            found[name] = _value([value], read, _LIMITS.get(name, _ANY), problems, f"env.{variable}")
    for meaning, (name, read) in _VALUES.items():
        if facts.has_flag(meaning) and _field(facts, meaning) in given:
            limits = _LIMITS.get(name, _ANY)
            found[name] = _value(given[_field(facts, meaning)], read, limits, problems, facts.flag(meaning))
    for meaning, (name, result) in _SWITCHES.items():
        if facts.has_flag(meaning) and _field(facts, meaning) in given:
            found[name] = result
    if "enable_dp_attention" in given:
        name, values = "attention_data_parallel", given.get("dp_size", ["1"])
        found[name] = _value(values, int, _LIMITS[name], problems, "--dp-size")
    if problems:
        raise ProblemsError([replace(problem, where=where) for problem in problems])
    found.update(_graphs_off(argv, given, facts))
    unknown = sorted(field for field in given if field in _NOT_MODELLED)
    return CommandLine(Settings(**found), tuple(f"--{field.replace('_', '-')}" for field in unknown))


def _given(argv: Sequence[str], facts: EngineFacts) -> dict[str, list[str]]:
    """Values by the parser's field, so that a flag and its aliases are one; the last one wins.

    What only a build of one's own knows, which is not installed yet, is passed over with its values.
    """
    known = known_flags(facts.version, facts.build)
    given: dict[str, list[str]] = {}
    values: list[str] = []
    for word in argv:
        if word.startswith("--"):
            name, equals, inline = word.partition("=")
            values = [inline] if equals else []
            if name in known:
                given[known[name].field] = values
        else:
            values.append(word)
    return given


def _field(facts: EngineFacts, meaning: str) -> str:
    return known_flags(facts.version, facts.build)[facts.flag(meaning)].field


def _value(
    values: list[str],
    read: Callable[[str], Any],
    limits: tuple[float, float],
    problems: list[Problem],
    key: str,
) -> Any:  # noqa: ANN401 - fields differ in type
    """Read the values of one flag, the largest of several; what cannot be read is noted."""
    shown = repr(" ".join(values)[:80])
    try:
        largest = max(read(value) for value in values)
    except ValueError:
        problems.append(Problem("", key, f"{shown} is no value of it"))
        return None
    least, most = limits
    if isinstance(largest, (int, float)) and not least <= largest <= most:
        problems.append(Problem("", key, f"{shown} is not from {least:g} to {most:g}"))
        return None
    return largest


def _graphs_off(argv: Sequence[str], given: Mapping[str, list[str]], facts: EngineFacts) -> dict[str, bool]:
    """Tell which kinds of graphs the command line switches off (arg_groups/cuda_graph_hook.py)."""
    off: dict[str, bool] = {}
    both = facts.disable_graphs_is_both and "disable_cuda_graph" in given
    if both or not {"--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"}.isdisjoint(argv):
        off["prefill_graphs"] = False
    for phase in ("prefill", "decode"):
        backend = given.get(f"cuda_graph_backend_{phase}")
        if backend:  # an explicit backend wins over the switches
            off[f"{phase}_graphs"] = backend != ["disabled"]
    return off
