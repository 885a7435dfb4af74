from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import engine
from sglang_kit.command import check_arguments, engine_argv, engine_environment, remedy
from sglang_kit.instance import Instance
from sglang_kit.problem import Problem

from scripts import flags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_kit.instance import Argument

VERSIONS = pytest.mark.parametrize("version", engine.SUPPORTED)
NEWEST = engine.facts(engine.SUPPORTED[-1])
PYTHON = "/opt/sglang/releases/a/bin/python"


def instance(**changes: Any) -> Instance:  # noqa: ANN401 - any key may be changed
    sound = {"name": "chat", "model": "/srv/models/qwen", "served_model_name": "qwen", "port": 30000}
    return Instance(**{**sound, **changes})


def argv(
    *, settings: Mapping[str, Argument] | None = None, facts: engine.EngineFacts = NEWEST, **changes: object
) -> tuple[str, ...]:
    return engine_argv(instance=instance(**changes), facts=facts, python=PYTHON, settings=settings or {})


def environment(*, facts: engine.EngineFacts = NEWEST, **changes: Any) -> dict[str, str]:  # noqa: ANN401 - likewise
    places = {
        "release": "/opt/sglang/releases/a",
        "cache_directory": "/var/cache/sglang",
        "library_path": "",
        "cuda_home": "",
        "path": "/usr/bin:/bin",
    }
    own = {key: changes.pop(key) for key in list(changes) if key in places}
    return engine_environment(instance=instance(**changes), facts=facts, **{**places, **own})


def test_the_least_command_line() -> None:
    assert argv() == (
        *(PYTHON, "-m", "sglang.launch_server"),
        *("--model-path", "/srv/models/qwen"),
        *("--served-model-name", "qwen"),
        *("--host", "127.0.0.1"),
        *("--port", "30000"),
    )


def test_ports_and_ranks_follow_where_there_are_any() -> None:
    assert argv(nccl_port=40000, gpus=("0", "1"))[11:] == ("--nccl-port", "40000", "--tp-size", "2")
    assert argv(gpus=("0",)) == argv()


def test_settings_are_named_as_the_version_names_them() -> None:
    old, new = engine.facts("0.5.11"), engine.facts("0.5.15.post1")
    settings: dict[str, Argument] = {
        "mamba_strategy": "extra_buffer",
        "memory_fraction": 0.85,
        "disable_prefix_cache": True,
    }
    assert argv(settings=settings, facts=old)[11:] == (
        *("--mamba-scheduler-strategy", "extra_buffer"),
        *("--mem-fraction-static", "0.85"),
        "--disable-radix-cache",
    )
    assert "--mamba-radix-cache-strategy" in argv(settings=settings, facts=new)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--flag"]),
        (False, []),
        (8, ["--flag", "8"]),
        (0, ["--flag", "0"]),
        (1, ["--flag", "1"]),
        (0.5, ["--flag", "0.5"]),
        ("", ["--flag", ""]),
        ("a b", ["--flag", "a b"]),
        ('{"a": -1}', ["--flag", '{"a": -1}']),
        (-1, ["--flag=-1"]),
        ("--x", ["--flag=--x"]),
        (("1", "2"), ["--flag", "1", "2"]),
        ((), ["--flag"]),
    ],
)
def test_values_of_the_users_flags(value: Argument, words: list[str]) -> None:
    assert list(argv(args={"flag": value})) == [*argv(), *words]


def test_the_users_flags_stand_last_in_their_order() -> None:
    words = argv(settings={"context_length": 8192}, args={"log-level": "debug", "enable-metrics": True})
    assert words[-5:] == ("--context-length", "8192", "--log-level", "debug", "--enable-metrics")


def test_a_fine_instance_has_no_problem() -> None:
    sound = instance(
        args={"log-level": "debug", "cuda-graph-bs-decode": ("1", "2")}, env={"NCCL_DEBUG": "INFO"}
    )
    assert check_arguments(sound, NEWEST) == []


def test_an_unknown_flag_is_named_with_the_nearest() -> None:
    (problem,) = check_arguments(instance(args={"log-levle": "debug"}), NEWEST)
    assert problem.where == "chat"
    assert "--log-levle" in str(problem)
    assert "--log-level" in problem.remedy


def test_a_bare_flag_that_needs_a_value() -> None:
    (problem,) = check_arguments(instance(args={"log-level": True}), NEWEST)
    assert (problem.where, problem.message) == ("chat", "needs a value")


OWNED = {
    "model": "model",
    "served_model_name": "served_model_name",
    "host": "host",
    "port": "port",
    "nccl_port": "nccl_port",
    "context_length": "context_length",
    "running_requests": "concurrency",
    "tensor_parallel": "gpus",
    "disable_prefix_cache": "prefix_cache",
    "algorithm": "strategy.method",
    "draft_model": "strategy.draft_model",
    "draft_steps": "strategy.steps",
    "draft_topk": "strategy.topk",
    "draft_tokens": "strategy.draft_tokens",
    "memory_fraction": "memory.fraction",
    "kv_dtype": "memory.kv_dtype",
    "state_slots": "memory.state_slots",
    "state_ratio": "memory.state_ratio",
    "state_dtype": "memory.state_dtype",
}


@VERSIONS
@pytest.mark.parametrize("meaning", OWNED)
def test_what_a_key_says_no_flag_says_under_any_of_its_names(meaning: str, version: str) -> None:
    facts = engine.facts(version)
    name = facts.flag(meaning)
    (options,) = [action["opts"] for action in flags.read_dumps()[version].values() if name in action["opts"]]
    for option in options:
        flag = option.removeprefix("--")
        problems = check_arguments(instance(args={flag: "1"}), facts)
        assert problems[0] == Problem(
            "chat",
            f"args.{flag}",
            f"is said by the key `{OWNED[meaning]}`",
            "list the GPUs there, or none for the CPU"
            if OWNED[meaning] == "gpus"
            else f"move the value to `{OWNED[meaning]}`",
        )


def test_the_gpus_are_not_chosen_by_a_variable() -> None:
    assert check_arguments(instance(env={"CUDA_VISIBLE_DEVICES": "0"}), NEWEST) == [
        Problem(
            "chat",
            "env.CUDA_VISIBLE_DEVICES",
            "is said by the key `gpus`",
            "list the GPUs there, or none for the CPU",
        )
    ]


def test_the_environment_of_an_instance_without_gpus() -> None:
    variables = environment()
    assert variables["PATH"] == "/opt/sglang/releases/a/bin:/usr/bin:/bin"
    assert variables["HOME"] == "/var/lib/sglang/home"
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "LD_LIBRARY_PATH"} & set(variables)


def test_gpus_are_counted_as_nvidia_smi_counts_them() -> None:
    variables = environment(gpus=("2", "0"))
    assert variables["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_cuda_and_library_paths_where_the_host_has_them() -> None:
    variables = environment(cuda_home="/usr/local/cuda", library_path="/opt/lib")
    assert variables["CUDA_HOME"] == "/usr/local/cuda"
    assert variables["LD_LIBRARY_PATH"] == "/opt/lib"


def test_loopback_never_goes_through_a_proxy() -> None:
    variables = environment()
    assert variables["NO_PROXY"] == variables["no_proxy"]
    assert {"127.0.0.1", "localhost"} <= set(variables["NO_PROXY"].split(","))


@VERSIONS
def test_every_cache_lies_in_the_cache_directory(version: str) -> None:
    facts = engine.facts(version)
    variables = environment(facts=facts)
    caches = {"XDG_CACHE_HOME", *dict(facts.cache_variables)}
    assert {variables[name].startswith("/var/cache/sglang") for name in caches} == {True}


@VERSIONS
def test_the_version_has_the_variables_that_it_needs(version: str) -> None:
    facts = engine.facts(version)
    assert dict(facts.environment).items() <= environment(facts=facts).items()


def test_nothing_is_fetched_from_a_hub() -> None:
    assert environment()["HF_HUB_OFFLINE"] == "1"


def test_the_users_variables_win() -> None:
    variables = environment(env={"PATH": "/mine", "HF_HUB_OFFLINE": "0", "MINE": "x"})
    assert (variables["PATH"], variables["HF_HUB_OFFLINE"], variables["MINE"]) == ("/mine", "0", "x")


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_is_no_variable(variable: str) -> None:
    (problem,) = check_arguments(instance(env={variable: "hf_0123456789"}), NEWEST)
    assert (problem.key, problem.message) == (f"env.{variable}", "is said by the key `secrets.hf_token`")
    assert "0123456789" not in str(problem)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("no_buffer only supports page_size=1.", "`args.page-size`"),
        ("argument --tensor-parallel-size: invalid int value: 'x'", "`gpus`"),
        ("not compatible with --disable-radix-cache, --disable-radix-cache", "`prefix_cache`"),
        ("speculative_num_steps=3 needs --page-size 16", "`strategy.steps` or `args.page-size`"),
        ("set the env var SGLANG_ALLOW_THIS=1", "`env.SGLANG_ALLOW_THIS`"),
    ],
)
def test_what_the_engine_names_is_said_in_keys_of_the_instance(words: str, keys: str) -> None:
    assert remedy(words, engine.facts("0.5.23"), {}) == f"change {keys}"


def test_words_that_name_nothing_make_no_remedy() -> None:
    assert remedy("extra_buffer requires the platform's support", engine.facts("0.5.23"), {}) == ""
