"""Run SGLang's own sizing code with made-up memory; started with a release's Python by test_live_sizing.

Reads a JSON list of cases on stdin and prints one of results: tokens, slots and requests, or the error.
Nothing is allocated and no card is needed: only what the engine reads from its surroundings is replaced.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

logging.disable(logging.CRITICAL)
GIB = 1 << 30
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"
Opaque = Any  # objects of the engine


class Anything(SimpleNamespace):
    """A namespace whose unset names are false."""

    def __getattr__(self, name: str) -> Opaque:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def replace_everywhere(name: str, value: Opaque) -> None:
    """Replace a function in every module that imported it by name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang") and name in vars(module):
            setattr(module, name, value)


def algorithm(case: dict[str, Any]) -> Opaque:
    room = import_module("sglang.srt.speculative.spec_info")
    return room.SpeculativeAlgorithm.from_string(case["algorithm"])


def server_args(case: dict[str, Any]) -> Anything:
    return Anything(
        max_mamba_cache_size=case["slots"],
        max_running_requests=case["requested"],
        mamba_full_memory_ratio=case["ratio"],
        disable_radix_cache=not case["prefix_cache"],
        disable_overlap_schedule=not case["overlap"],
        speculative_num_draft_tokens=case["draft_tokens"] or None,
        speculative_algorithm=case["algorithm"],
        speculative_eagle_topk=1,
        speculative_num_steps=3,
        max_total_tokens=case["total_tokens"],
        mem_fraction_static=case["fraction"],
        page_size=case["page_size"],
        swa_full_tokens_ratio=0.8,
        chunked_prefill_size=8192,
        dp_size=1,
        tp_size=case["ranks"],
        enable_mamba_extra_buffer=lambda: case["strategy"].startswith("extra_buffer"),
        enable_mamba_extra_buffer_lazy=lambda: case["strategy"] == "extra_buffer_lazy",
        disaggregation_mode="null",
        nsa_prefill_backend="flashmla_sparse",
        dsa_prefill_backend="flashmla_sparse",
    )


@cache
def _model_config(folder: str, context_length: int, split: bool) -> Opaque:
    room = import_module("sglang.srt.configs.model_config")
    return room.ModelConfig(
        model_path=folder, context_length=context_length, disable_hybrid_swa_memory=not split
    )


def model_config(case: dict[str, Any]) -> Opaque:
    return _model_config(case["folder"], case["context_length"], case["split"])


def is_latent(config: Opaque) -> bool:
    return bool(config.attention_arch == import_module("sglang.srt.configs.model_config").AttentionArch.MLA)


def kv_dtype(case: dict[str, Any]) -> Opaque:
    torch = import_module("torch")
    return {"auto": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}[case["kv_dtype"]]


def mixin(case: dict[str, Any]) -> dict[str, Any]:
    """Size with ModelRunnerKVCacheMixin (up to 0.5.15)."""
    room = import_module("sglang.srt.model_executor.model_runner_kv_cache_mixin")
    import_module("sglang.srt.model_executor.pool_configurator")  # for the replacements
    runners = import_module("sglang.srt.model_executor.model_runner")

    group = SimpleNamespace(world_size=1, cpu_group=None)
    replace_everywhere("get_attention_tp_size", lambda: case["ranks"])
    replace_everywhere("get_world_group", lambda: group)
    replace_everywhere("get_available_gpu_memory", lambda *_, **__: case["after"])
    config = model_config(case)
    runner = runners.ModelRunner.__new__(runners.ModelRunner)
    args = server_args(case)
    runner.__dict__.update(
        _linear_attn_registry_cache=getattr(runners, "_UNSET", None),
        device="cuda",
        gpu_id=0,
        server_args=args,
        model_config=config,
        mem_fraction_static=case["fraction"],
        spec_algorithm=algorithm(case),
        is_draft_worker=False,
        dp_size=1,
        pp_size=1,
        kv_cache_dtype=kv_dtype(case),
        use_mla_backend=is_latent(config),
        is_hybrid_swa=config.is_hybrid_swa,
        sliding_window_size=config.sliding_window_size,
        start_layer=0,
        end_layer=max(config.num_hidden_layers, config.num_attention_layers),
        num_effective_layers=max(config.num_hidden_layers, config.num_attention_layers),
        dflash_draft_num_layers=case["draft_layers"] if case["algorithm"] == "DFLASH" else None,
        eagle_draft_num_layers=case["draft_layers"] if case["algorithm"] in ("EAGLE", "EAGLE3") else None,
    )
    found = room.ModelRunnerKVCacheMixin._resolve_memory_pool_config(  # noqa: SLF001 - the function to compare with
        runner, case["before"]
    )
    if found.max_running_requests <= 0:
        raise AssertionError("max_running_request is zero")
    return {
        "tokens": found.max_total_num_tokens,
        "requests": found.max_running_requests,
        "slots": args.max_mamba_cache_size if runner.mambaish_config else 0,
        "sliding": found.swa_max_total_num_tokens or 0,
    }


def configurator(case: dict[str, Any]) -> dict[str, Any]:
    """Size with KVCacheConfigurator (since 0.5.18)."""
    room = import_module(CONFIGURATOR)
    import_module("sglang.srt.model_executor.pool_configurator")  # for the replacements

    args = server_args(case)
    args.__dict__["_swa_full_tokens_ratio_explicitly_set"] = False
    mamba = Anything(
        enable_mamba_extra_buffer=case["strategy"].startswith("extra_buffer") and case["prefix_cache"],
        enable_mamba_extra_buffer_lazy=case["strategy"] == "extra_buffer_lazy",
    )
    graph = Anything(cuda_graph_config=Anything(prefill=Anything()))
    context = SimpleNamespace(override=lambda _source, **values: args.__dict__.update(values))
    parallel = Anything(
        attn_tp_size=case["ranks"], attn_dcp_size=1, attn_cp_size=1, pp_size=1, launch_world_size=1,
        world_group=SimpleNamespace(world_size=1, cpu_group=None), attn_dp_size=1,
    )  # fmt: skip
    for name, value in {
        "get_schedule": args,
        "get_memory": args,
        "get_spec": args,
        "get_disagg": args,
        "get_mm": args,
        "get_model": args,
        "get_exec": Anything(mamba=mamba, graph=graph, kernel=args),
        "get_parallel": parallel,
        "get_context": context,
    }.items():
        replace_everywhere(name, lambda value=value: value)
    replace_everywhere("get_world_group", lambda: parallel.world_group)
    replace_everywhere("configured_pp_size", lambda: 1)
    replace_everywhere("mamba_extra_buffer_enabled", lambda: mamba.enable_mamba_extra_buffer)
    replace_everywhere("mamba_extra_buffer_lazy_enabled", lambda: mamba.enable_mamba_extra_buffer_lazy)
    replace_everywhere("get_available_gpu_memory", lambda *_, **__: case["after"])
    config = model_config(case)
    layers = max(config.num_hidden_layers, config.num_attention_layers)
    spec = Anything(
        eagle_draft_num_layers=case["draft_layers"] if case["algorithm"] in ("EAGLE", "EAGLE3") else None,
        dflash_draft_num_layers=case["draft_layers"] if case["algorithm"] == "DFLASH" else None,
        dflash_draft_cell_size_per_token=case["draft_cell"] if case["algorithm"] == "DFLASH" else None,
    )
    sizing = room.KVCacheConfigurator.__new__(room.KVCacheConfigurator)
    for name, value in {
        "device": "cuda", "gpu_id": 0, "attn_dp_size": 1, "pp_size": 1, "model_config": config,
        "server_args": args, "is_draft_worker": False, "post_capture_kv_active": False,
        "kv_cache_dtype": kv_dtype(case),
        "kv_cache_dtype_str": case["kv_dtype"], "page_size": case["page_size"],
        "model_dtype": import_module("torch").bfloat16,
        "sliding_window_size": config.sliding_window_size, "spec_algorithm": algorithm(case),
        "spec_aux_config": spec, "is_hybrid_swa": config.is_hybrid_swa, "is_hybrid_swa_compress": False,
        "use_mla_backend": is_latent(config), "kv_shard_spec": None,
        "kv_shard_size": 1, "extra_mamba_cache_bytes_per_req": 0, "draft_parallel_layout": None,
        "dflash_draft_cell_size_per_token": case["draft_cell"] if case["algorithm"] == "DFLASH" else None,
        "mambaish_config": room.mambaish_config(config), "hybrid_gdn_config": room.hybrid_gdn_config(config),
        "hybrid_kda_config": getattr(room, "hybrid_kda_config", lambda _: None)(config),
        "layer_info": Anything(
            start_layer=0, end_layer=layers, num_effective_layers=layers,
            full_attention_layer_ids=getattr(config, "full_attention_layer_ids", None) or [],
            swa_attention_layer_ids=getattr(config, "swa_attention_layer_ids", None) or [],
        ),
        "ps": Anything(attn_dp_size=1, pp_size=1),
    }.items():  # fmt: skip
        with suppress(AttributeError):  # this version has no such slot
            setattr(sizing, name, value)
    found = sizing._resolve_memory_pool_config(case["before"])  # noqa: SLF001 - likewise
    return {
        "tokens": found.max_total_num_tokens,
        "requests": found.max_running_requests,
        "slots": args.max_mamba_cache_size if sizing.mambaish_config else 0,
        "sliding": found.swa_max_total_num_tokens or 0,
    }


def answer(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return configurator(case) if find_spec(CONFIGURATOR) else mixin(case)
    except (RuntimeError, ValueError, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print("RESULTS" + json.dumps([answer(case) for case in json.load(sys.stdin)]))  # noqa: T201 - the answer
