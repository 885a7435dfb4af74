from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_kit.config_reader import MAX_JSON_BYTES, read_json
from sglang_kit.model import NotUnderstoodError, read_config
from sglang_kit.problem import ProblemsError
from sglang_kit.quantity import GIB, MIB
from sglang_kit.shapes import (
    KvLayers,
    LatentLayers,
    Part,
    StateLayers,
    Table,
    allocated,
    header_bytes,
)

CONFIGS = Path(__file__).parent.parent / "fixtures" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))


def config(name: str) -> dict[str, Any]:
    found = json.loads((CONFIGS / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def parameters(name: str) -> float:
    """Billions of parameters in the checkpoint, without prediction layers and buffers."""
    parts = read_config(config(name)).parts
    return sum(p.count * sum(size for size, _ in p.pieces) for p in parts if p.kind != "buffer") / 1e9


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("deepseek-v2-lite", 15.71),
        ("deepseek-v3", 671.03),
        ("falcon-h1-7b", 7.59),
        ("gemma-2-9b", 9.24),
        ("gemma-3-27b", 27.43),
        ("gpt-oss-20b", 20.91),
        ("kimi-linear-48b-a3b", 49.12),
        ("lfm2-8b-a1b", 8.34 + 0.134),  # SGLang keeps a copy of the tied head
        ("llama-3.1-8b", 8.03),
        ("llama-4-scout", 108.64),
        ("mistral-7b-v0.3", 7.25),
        ("mixtral-8x7b", 46.70),
        ("nemotron-3-nano-30b-a3b", 31.58),
        ("nemotron-h-8b", 8.10),
        ("qwen2-57b-a14b", 57.41),
        ("qwen2-7b", 7.62),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-8b", 8.19),
        ("qwen3-next-80b-a3b", 79.67),
        ("qwen3-vl-8b", 8.77),
    ],
)
def test_parameters_are_those_published(name: str, published: float) -> None:
    assert parameters(name) == pytest.approx(published, rel=0.001)


def test_hybrid_layers() -> None:
    model = read_config(config("qwen36-27b"))
    assert model.kv == (KvLayers(16, 4, 256, 256),)
    assert model.state == StateLayers("gdn", 48, 6144, 16, 48, 128, 128, 4, "float32")
    assert model.context_length == 262144
    assert model.multimodal
    assert model.multimodal_default
    assert model.mtp is not None
    assert model.mtp.kv == KvLayers(1, 4, 256, 256)


def test_state_of_a_slot() -> None:
    state = read_config(config("qwen36-27b")).state
    assert state is not None
    assert state.matrix_elements(1) * 4 == 144 * MIB
    assert state.conv_elements(1) * 2 == 2.8125 * MIB
    assert state.matrix_elements(8) * 8 == state.matrix_elements(1)


def test_groups_are_repeated_where_ranks_do_not_divide_them() -> None:
    state = read_config(config("falcon-h1-7b")).state
    assert state is not None
    assert (state.groups, state.channels(1), state.channels(4)) == (1, 3584, (3072 + 2 * 4 * 256) // 4)


@pytest.mark.parametrize(
    ("name", "kind", "layers"),
    [
        ("nemotron-h-8b", "mamba2", 24),
        ("falcon-h1-7b", "mamba2", 44),
        ("kimi-linear-48b-a3b", "kda", 20),
        ("bailing-lightning", "lightning", 15),
        ("lfm2-1.2b", "short_conv", 10),
        ("qwen3-next-80b-a3b", "gdn", 36),
    ],
)
def test_kinds_of_state(name: str, kind: str, layers: int) -> None:
    state = read_config(config(name)).state
    assert state is not None
    assert (state.kind, state.layers) == (kind, layers)


def test_a_short_convolution_has_no_matrices() -> None:
    state = read_config(config("lfm2-1.2b")).state
    assert state is not None
    assert state.matrix_elements(4) == 0
    assert state.conv_elements(1) == 10 * 2048 * 2


def test_latent_attention() -> None:
    model = read_config(config("deepseek-v3.2"))
    assert model.kv == (LatentLayers(61, 512, 64, 128),)
    assert model.latent
    assert not read_config(config("qwen3-8b")).latent


@pytest.mark.parametrize(
    ("name", "full", "sliding", "window"),
    [
        ("gemma-3-27b", 10, 52, 1024),
        ("gemma-2-9b", 21, 21, 4096),
        ("gpt-oss-20b", 12, 12, 128),
        ("llama-4-scout", 12, 36, 8192),
    ],
)
def test_sliding_layers(name: str, full: int, sliding: int, window: int) -> None:
    model = read_config(config(name))
    assert model.sliding is not None
    assert (model.kv_layers, model.sliding.layers, model.window) == (full, sliding, window)


def test_drafts_say_what_they_are_for() -> None:
    drafts = {name: read_config(config(name)) for name in NAMES if "eagle" in name or "dflash" in name}
    assert {name: draft.method for name, draft in drafts.items()} == {
        "dflash-qwen36-27b": "dflash",
        "dflash-qwen36-27b-unset": "dflash",
        "eagle-llama-3-8b": "eagle",
        "eagle3-llama-3.1-8b": "eagle3",
    }
    assert drafts["dflash-qwen36-27b"].block_size == 16
    nested = config("dflash-qwen36-27b")
    del nested["block_size"]
    assert read_config(nested).block_size is None
    nested["dflash_config"]["block_size"] = 8
    assert read_config(nested).block_size == 8
    plain = config("llama-3.1-8b") | {"draft_vocab_size": 32000}
    assert read_config(plain).method == "eagle3"


def test_context_follows_the_rope_scaling() -> None:
    plain = config("mistral-7b-v0.3")
    assert read_config(plain).context_length == 32768
    assert read_config(plain | {"rope_scaling": {"factor": 4.0, "type": "linear"}}).context_length == 131072
    yarn = {"factor": 4.0, "original_max_position_embeddings": 8192}
    assert read_config(plain | {"rope_scaling": yarn}).context_length == 32768
    llama = {"factor": 4.0, "rope_type": "llama3"}
    assert read_config(plain | {"rope_scaling": llama}).context_length == 32768


def test_weights_of_measured_models() -> None:
    assert read_config(config("qwen3-8b")).weight_bytes(1) / GIB == pytest.approx(15.28, abs=0.005)
    assert read_config(config("qwen36-27b")).weight_bytes(1) / GIB == pytest.approx(51.05, rel=0.001)
    mtp = read_config(config("qwen36-27b")).mtp
    assert mtp is not None
    assert allocated((*mtp.parts, *mtp.peak_parts), 1) / GIB == pytest.approx(5.53, abs=0.005)
    assert allocated(mtp.parts, 1) / GIB == pytest.approx(0.79, abs=0.005)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tiny-gpt2"])
def test_ranks_share_the_weights(name: str) -> None:
    model = read_config(config(name))
    one, two, eight = (model.weight_bytes(ranks) for ranks in (1, 2, 8))
    assert one > two > eight >= one // 8
    assert 0 < model.weight_error <= (0.2 if name == "gpt-oss-20b" else 0.1)


@pytest.mark.parametrize(
    ("quantization", "gib"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 9.09),
        ({"quant_method": "fp8"}, 8.81),
        ({"quant_method": "fp8", "ignore": ["model.layers.*.mlp"]}, 14.1),
        ({"quant_method": "fp8", "ignore": ["model.layers.3.mlp"]}, 8.81),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 5.8),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 5.6),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 6.0),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 8.81),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16, "type": "float"}}},
            },
            6.0,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            8.81,
        ),
    ],
)
def test_quantised_weights(quantization: dict[str, Any], gib: float) -> None:
    model = read_config(config("qwen3-8b") | {"quantization_config": quantization})
    assert model.weight_bytes(1) / GIB == pytest.approx(gib, rel=0.03)
    assert model.weight_error == 0.1


def test_quantised_kv_cache() -> None:
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert read_config(config("qwen3-8b") | {"quantization_config": quantization}).kv_dtype == "fp8_e4m3"
    assert read_config(config("qwen3-8b")).kv_dtype == "auto"


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "mystery"},
        {"quant_method": "modelopt", "quant_algo": "W4A8"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}},
    ],
)
def test_an_unknown_quantisation_is_refused(quantization: dict[str, Any]) -> None:
    with pytest.raises(
        NotUnderstoodError, match=r"is not understood: its memory cannot be planned; known are fp8, .* pin"
    ):
        read_config(config("qwen3-8b") | {"quantization_config": quantization})


def test_text_models_below_others() -> None:
    text = config("qwen3-8b")
    nested = {"architectures": ["Qwen3ForCausalLM"], "thinker_config": {"text_config": text}}
    assert read_config(nested).kv == read_config(text).kv
    assert read_config({"architectures": ["Qwen3ForCausalLM"], "llm_config": text}).kv == read_config(text).kv


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen3-8b", {"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not understood"),
        ("qwen3-8b", {"architectures": None}, "architectures: is missing"),
        ("qwen3-8b", {"architectures": []}, "architectures: is missing"),
        ("qwen3-8b", {"architectures": "Qwen3ForCausalLM"}, "is not a list of texts"),
        ("qwen3-8b", {"architectures": [1]}, "is not a list of texts"),
        ("qwen3-8b", {"hidden_size": "4096"}, "hidden_size: '4096' is no whole number"),
        ("qwen3-8b", {"hidden_size": True}, "hidden_size: True is no whole number"),
        ("qwen3-8b", {"hidden_size": -1}, "hidden_size: -1 is not between 1 and"),
        ("qwen3-8b", {"hidden_size": 10**30}, "hidden_size: a huge number is not between"),
        ("qwen3-8b", {"hidden_size": None}, "hidden_size: is missing"),
        ("qwen3-8b", {"hidden_size": [1, 2]}, "hidden_size: a list of 2 is no whole number"),
        ("qwen3-8b", {"hidden_size": "x" * 500}, "xxx... is no whole number"),
        ("qwen3-8b", {"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000 is not between 1 and 4096"),
        ("qwen3-8b", {"tie_word_embeddings": "no"}, "'no' is neither true nor false"),
        ("qwen3-8b", {"rope_scaling": [1]}, "rope_scaling: a list of 1 is no object"),
        ("qwen3-8b", {"rope_scaling": {"factor": "8"}}, "rope_scaling.factor: '8' is no number"),
        ("qwen3-8b", {"rope_scaling": {"factor": -8}}, "rope_scaling.factor: -8 is not between 0.01"),
        ("qwen3-8b", {"rope_scaling": {"rope_type": 3}}, "rope_scaling.rope_type: 3 is no text"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types: names 1 layers of 24"),
        ("gpt-oss-20b", {"layer_types": ["x"] * 200_000}, "layer_types: has 200000 items, at most"),
        ("nemotron-h-8b", {"hybrid_override_pattern": ""}, "is missing or empty"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "MX*-"}, "blocks that are not understood: 'X'"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M" * 5000}, "has 5000 blocks, at most 4096"),
        ("falcon-h1-7b", {"mamba_n_heads": 7}, "7 does not divide the inner width 3072"),
        ("kimi-linear-48b-a3b", {"linear_attn_config": {}}, "kda_layers: is missing or empty"),
        ("lfm2-1.2b", {"full_attn_idxs": None}, "layer_types: names no attention layer"),
        ("lfm2-8b-a1b", {"layer_types": ["full_attention"]}, "layer_types: names 1 layers of 24"),
        ("eagle3-llama-3.1-8b", {"num_hidden_layers": 2}, "EAGLE3 drafts have one layer, not 2"),
    ],
)
def test_faulty_configs_are_refused_by_key(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        read_config(config(name) | change, where="chat")
    assert message in str(caught.value)
    assert all(problem.where == "chat" for problem in caught.value.problems)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ProblemsError) as caught:
        read_config(config("qwen3-8b") | {"hidden_size": "x", "vocab_size": -1, "num_hidden_layers": None})
    assert len(caught.value.problems) == 3


def test_variants_that_the_public_configs_do_not_have() -> None:
    nano = config("nemotron-3-nano-30b-a3b")
    latent = read_config(nano | {"moe_latent_size": 1024})
    assert latent.weight_bytes(1) < read_config(nano).weight_bytes(1)
    bare = read_config(nano | {"moe_shared_expert_intermediate_size": 0})
    assert bare.weight_bytes(1) < read_config(nano).weight_bytes(1)
    mtp = read_config(nano | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}).mtp
    assert mtp is not None
    assert mtp.kv == KvLayers(1, 2, 128, 128)
    named = nano | {"layers_block_type": ["mamba", "attention", "moe"], "hybrid_override_pattern": None}
    assert read_config(named).layers == 3
    no_attention = read_config(nano | {"hybrid_override_pattern": "MEM-"})
    assert no_attention.kv == ()
    dense = config("kimi-linear-48b-a3b") | {"num_experts": None, "first_k_dense_replace": 0}
    assert read_config(dense).weight_bytes(1) < read_config(config("kimi-linear-48b-a3b")).weight_bytes(1)
    plain = config("bailing-lightning") | {"num_experts": None}
    assert read_config(plain).weight_bytes(1) < read_config(config("bailing-lightning")).weight_bytes(1)
    shallow = config("deepseek-v2-lite") | {"n_routed_experts": None}
    assert read_config(shallow).weight_bytes(1) < read_config(config("deepseek-v2-lite")).weight_bytes(1)
    sparse = config("qwen3-30b-a3b") | {"mlp_only_layers": [0, 1]}
    assert read_config(sparse).weight_bytes(1) < read_config(config("qwen3-30b-a3b")).weight_bytes(1)
    expanded = read_config(config("falcon-h1-7b") | {"mamba_d_ssm": None})
    assert expanded.state is not None
    assert expanded.state.inner == 6144
    bfloat = read_config(config("falcon-h1-7b") | {"mamba_ssm_dtype": "bfloat16"}).state
    odd = read_config(config("falcon-h1-7b") | {"mamba_ssm_dtype": "int3"}).state
    assert bfloat is not None
    assert odd is not None
    assert (bfloat.dtype, odd.dtype) == ("bfloat16", "float32")
    text_only = config("qwen36-27b")
    del text_only["vision_config"]
    assert not read_config(text_only).multimodal
    without_mtp = config("qwen36-27b")
    without_mtp["text_config"]["mtp_num_hidden_layers"] = 0
    assert read_config(without_mtp).mtp is None
    gemma = config("gemma-3-27b")
    del gemma["vision_config"]
    assert not read_config(gemma).multimodal
    scout = config("llama-4-scout")
    del scout["vision_config"]
    scout["text_config"]["interleave_moe_layer_step"] = 2
    assert read_config(scout).weight_bytes(1) < read_config(config("llama-4-scout")).weight_bytes(1)
    fixed = config("lfm2-1.2b") | {"block_auto_adjust_ff_dim": False}
    assert read_config(fixed).weight_bytes(1) > read_config(config("lfm2-1.2b")).weight_bytes(1)
    pixtral = config("mistral-7b-v0.3") | {"architectures": ["Mistral3ForConditionalGeneration"]}
    vision = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "image_size": 1540}
    assert read_config(pixtral | {"vision_config": vision}).vision_complexity == 24 * 1024**2
    dense_next = config("qwen3-next-80b-a3b") | {"num_experts": 0}
    assert read_config(dense_next).weight_bytes(1) < read_config(config("qwen3-next-80b-a3b")).weight_bytes(1)


def test_the_allocator_rounds_by_size() -> None:
    assert allocated([Part("norm", 3, ((100, 1),))], 1) == 2 * MIB
    assert allocated([Part("mlp", 3, ((MIB, 1),))], 1) == 20 * MIB
    assert allocated([Part("mlp", 2, ((10 * MIB + 1, 1),))], 1) == 2 * 22 * MIB
    assert allocated([], 1) == 0


@pytest.mark.parametrize(
    ("rows", "wanted", "mib"),
    [(8192, 8192, 0), (8192, 8448, 0), (8192, 33024, 20), (131072, 131456, 2), (8192, 131456, 20)],
)
def test_tables_grow_as_the_allocator_takes_it(rows: int, wanted: int, mib: int) -> None:
    width = 36 if rows == 8192 else 128
    assert Table(rows, width).growth(wanted, room=2 * MIB) == mib * MIB


def test_a_small_table_that_becomes_large_takes_all_of_it() -> None:
    assert Table(8192, 128).growth(131072, room=2 * MIB) == 64 * MIB


def test_a_table_grows_for_nothing_where_there_is_room() -> None:
    assert Table(8192, 36).growth(33024, room=12 * MIB) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ('{"a": ', "is no JSON"),
        ("[1]", "holds a list where an object belongs"),
        ("[" * 200_000, "is nested too deep"),
        (b"\xff\xfe\x00", "is no JSON"),
        ('{"a": "' + "x" * MAX_JSON_BYTES + '"}', "has 4194313 bytes, at most 4194304 are read"),
    ],
)
def test_unreadable_files(text: str | bytes, message: str) -> None:
    with pytest.raises(ProblemsError, match=message):
        read_json(text, where="chat")


def test_a_readable_file() -> None:
    assert read_json('{"a": 1}') == {"a": 1}


def test_sizes_from_headers() -> None:
    header = {"__metadata__": {"format": "pt"}, "a": {"data_offsets": [0, 6]}, "b": {"data_offsets": [6, 8]}}
    assert header_bytes([header, {"c": {"data_offsets": [0, 2]}}]) == 10


@pytest.mark.parametrize(
    "tensor",
    [None, {}, {"data_offsets": [1]}, {"data_offsets": ["0", "1"]}, {"data_offsets": [5, 1]}],
)
def test_a_header_without_offsets(tensor: object) -> None:
    with pytest.raises(ProblemsError, match="x: has no data_offsets"):
        header_bytes([{"x": tensor}])


@pytest.mark.parametrize("content", [None, [], "text", 1])
def test_a_configuration_is_an_object(content: object) -> None:
    with pytest.raises(ProblemsError, match=r"chat: config\.json: holds .* where an object belongs"):
        read_config(content, where="chat")  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=400)
@given(data=st.data())
def test_no_change_of_a_config_ends_in_a_traceback(data: st.DataObject) -> None:
    found = config(data.draw(st.sampled_from(NAMES)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = found
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            inner = place[key]
            if not isinstance(inner, dict) or not inner or data.draw(st.booleans()):
                break
            place = inner
        if data.draw(st.booleans()):
            place[key] = data.draw(JSON)
        else:
            del place[key]
        if not place:
            break
    try:
        model = read_config(found)
    except ProblemsError:
        return
    assert allocated(model.parts, 1) > 0


@settings(max_examples=200)
@given(text=st.binary(max_size=60) | st.text(max_size=60))
def test_no_text_ends_in_a_traceback(text: str | bytes) -> None:
    try:
        found = read_json(text)
    except ProblemsError:
        return
    assert isinstance(found, dict)
