from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from ansible.parsing.dataloader import DataLoader
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit import engine
from sglang_kit.instance import (
    GROUPS,
    KEYS,
    MAPS,
    METHODS,
    STATES,
    UNKNOWN_PORT,
    Instance,
    MemoryPins,
    Strategy,
    read_instances,
)
from sglang_kit.problem import Collector, Problem, ProblemsError

if TYPE_CHECKING:
    from pathlib import Path

JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def definition(**changes: object) -> dict[str, object]:
    return {"name": "chat", "model": "/srv/models/qwen", "port": 30000, **changes}


def read(*items: object) -> tuple[Instance, ...]:
    found = Collector()
    instances = read_instances(list(items), found)
    found.check()
    return instances


def read_one(**changes: object) -> Instance:
    (instance,) = read(definition(**changes))
    return instance


def problems(raw: object) -> list[Problem]:
    found = Collector()
    read_instances(raw, found)
    return found.problems


def the_problem(**changes: object) -> Problem:
    """Of the one faulty key that is given."""
    (problem,) = problems([definition(**changes)])
    assert problem.where in ["chat", changes.get("name"), "instance 1"]
    return problem


def test_what_is_left_out_has_its_default() -> None:
    assert read_one() == Instance(
        name="chat", model="/srv/models/qwen", served_model_name="qwen", port=30000, gpus=(), host="127.0.0.1"
    )


def test_null_is_the_same_as_left_out() -> None:
    optional = {*KEYS, *MAPS, *GROUPS} - {"name", "model", "port"}
    assert read_one(**dict.fromkeys(optional)) == read_one()
    assert read_one(strategy={"steps": None}, memory={"fraction": None}) == read_one()


def test_everything_can_be_said() -> None:
    instance = read_one(
        served_model_name="Qwen 3.6 (größer)",
        gpus=[1, "2", "GPU-8c3ab6f1-aaaa-bbbb-cccc-000000000000", "MIG-GPU-8c3ab6f1/1/0"],
        host="0.0.0.0",  # noqa: S104 - what users write
        secrets={"hf_token": "hf_0123456789"},
        nccl_port=40000,
        context_length=32768,
        concurrency=48,
        prefix_cache=False,
        strategy={
            "method": "eagle3",
            "draft_model": "/srv/models/draft/",
            "steps": 3,
            "topk": 1,
            "draft_tokens": 4,
        },
        memory={
            "fraction": 0.85,
            "kv_dtype": "fp8_e4m3",
            "state_slots": 64,
            "state_ratio": 0.9,
            "state_dtype": "bfloat16",
            "headroom_gib": 2,
        },
        args={"enable-metrics": True, "enable-lora": False, "cuda-graph-bs": [1, 2], "log-level": "debug"},
        env={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 8, "_SHARE": 0.5, "EMPTY": ""},
        shared=True,
        accept_exposed=True,
        accept_overrides=["attention_backend"],
        state="stopped",
        canary=False,
    )
    assert instance.gpus == ("1", "2", "GPU-8c3ab6f1-aaaa-bbbb-cccc-000000000000", "MIG-GPU-8c3ab6f1/1/0")
    assert instance.tensor_parallel == 4
    assert instance.strategy == Strategy("eagle3", "/srv/models/draft", steps=3, topk=1, draft_tokens=4)
    assert instance.memory == MemoryPins(0.85, "fp8_e4m3", 64, 0.9, "bfloat16", 2.0)
    assert instance.args == {
        "enable-metrics": True,
        "enable-lora": False,
        "cuda-graph-bs": ("1", "2"),
        "log-level": "debug",
    }
    assert instance.env == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "_SHARE": "0.5", "EMPTY": ""}
    assert (instance.served_model_name, instance.state) == ("Qwen 3.6 (größer)", "stopped")
    assert instance.accept_overrides == ("attention_backend",)
    assert not instance.prefix_cache
    assert not instance.canary
    assert instance.shared


def test_unit_and_ranks() -> None:
    assert read_one().unit == "sglang-chat.service"
    assert read_one().tensor_parallel == 1
    assert read_one(gpus=[0]).tensor_parallel == 1
    assert read_one(gpus=list(range(8))).tensor_parallel == 8


def test_numbers_may_be_texts_as_templates_and_command_lines_give_them() -> None:
    instance = read_one(
        port="30000", concurrency="48", memory={"fraction": "0.9", "state_ratio": "2", "headroom_gib": "0"}
    )
    assert (instance.port, instance.concurrency) == (30000, 48)
    assert instance.memory == MemoryPins(fraction=0.9, state_ratio=2.0, headroom_gib=0.0)


def test_values_as_ansible_tags_them_come_out_as_plain_ones(tmp_path: Path) -> None:
    inventory = tmp_path / "metal.yml"
    inventory.write_text(
        """
        - name: chat
          model: /srv/models/qwen
          port: 30000
          gpus: [0, "1"]
          host: 127.0.0.1
          concurrency: 48
          memory: {fraction: 0.85}
          strategy: {method: mtp, steps: 3}
          env: {NCCL_DEBUG: INFO}
          accept_overrides: [attention_backend]
        """
    )
    raw: Any = DataLoader().load_from_file(str(inventory))
    assert type(raw[0]["name"]) is not str, "the loader no longer tags: the test lost its point"
    (instance,) = read(*raw)
    values = (
        instance.name,
        instance.model,
        instance.served_model_name,
        instance.host,
        *instance.gpus,
        *instance.env,
        *instance.env.values(),
        *instance.accept_overrides,
        instance.strategy.method,
    )
    assert {type(value) for value in values} == {str}
    assert type(instance.port) is int
    assert type(instance.memory.fraction) is float


@pytest.mark.parametrize("name", ["a", "0", "a..b", "Qwen3.6-27B_x", "a" * 64, "x.service"])
def test_names_of_units(name: str) -> None:
    assert read_one(name=name).unit == f"sglang-{name}.service"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("-x", "use 'x'"),
        ("x-", "use 'x'"),
        (".", ""),
        ("..", ""),
        ("a/b", "use 'a-b'"),
        ("a b", "use 'a-b'"),
        ("a@b", "use 'a-b'"),
        ("größe", "use 'gr-e'"),
        ("模型", ""),
        ("a" * 65, f"use '{'a' * 64}'"),
        (f"{'a' * 63}-{'b' * 9}", f"use '{'a' * 63}'"),
        ("chat%i", "use 'chat-i'"),
        ("$(reboot)", "use 'reboot'"),
    ],
)
def test_a_name_that_is_no_unit_name_is_shown_with_one_that_is(name: str, remedy: str) -> None:
    problem = the_problem(name=name)
    assert (problem.where, problem.key, problem.remedy) == (name, "name", remedy)
    assert problem.message == (
        f"{name!r} cannot name a systemd unit: letters, digits, '.', '_' and '-' inside, 64 at most"
    )


@given(st.text(min_size=1))
def test_the_suggested_name_is_a_good_one(name: str) -> None:
    for problem in problems([definition(name=name)]):
        if problem.remedy:
            suggestion = problem.remedy.removeprefix("use '").removesuffix("'")
            assert read_one(name=suggestion).name == suggestion


@pytest.mark.parametrize("key", ["name", "served_model_name", "host"])
@pytest.mark.parametrize("value", ["", "  ", [], {}, ["chat"], "\t"])
def test_a_text_has_to_say_something(key: str, value: object) -> None:
    problem = the_problem(**{key: value})
    assert (problem.key, problem.message) == (key, f"{value!r} is not a non-empty text")


@pytest.mark.parametrize("value", [8, 3.6, True])
def test_yaml_reads_bare_words_as_numbers(value: object) -> None:
    problem = the_problem(served_model_name=value)
    assert problem.message == f"{value!r} is not a text"
    assert problem.remedy == "quote it"


@pytest.mark.parametrize("end", ["\n", "\r", "\0", "\x1b", "\x7f", "\ud83d", "\t"])
@pytest.mark.parametrize("key", ["name", "model", "served_model_name", "host"])
def test_no_value_can_add_a_line_to_a_unit(key: str, end: str) -> None:
    value = f"/x{end}User=root"
    problem = the_problem(**{key: value})
    assert problem.key == key
    assert problem.message == f"{value!r} holds a line end or another control character"


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("Qwen/Qwen3-8B", "write /srv/models/Qwen/Qwen3-8B"),
        ("qwen/", "write /srv/models/qwen"),
        ("/", "write /srv/models/NAME"),
        ("//", "write /srv/models/NAME"),
    ],
)
def test_a_model_is_a_directory_on_the_host(path: str, remedy: str) -> None:
    problem = the_problem(model=path)
    assert problem == Problem("chat", "model", f"{path!r} is not an absolute path below /", remedy)


def test_a_slash_at_the_end_of_a_path_means_nothing() -> None:
    assert read_one(model="/srv/models/qwen//") == read_one()


@pytest.mark.parametrize(
    ("key", "value", "limits", "remedy"),
    [
        ("port", 80, "1024 to 65535", "use 1024"),
        ("port", 65536, "1024 to 65535", "use 65535"),
        ("port", -1, "1024 to 65535", "use 1024"),
        ("nccl_port", 10**30, "1024 to 65535", "use 65535"),
        ("context_length", 7, "8 to 100000000", "use 8"),
        ("concurrency", 0, "1 to 1000000", "use 1"),
        ("concurrency", "0", "1 to 1000000", "use 1"),
    ],
)
def test_a_number_out_of_range_is_shown_with_the_nearest_that_works(
    key: str, value: object, limits: str, remedy: str
) -> None:
    assert the_problem(**{key: value}) == Problem("chat", key, f"{value} is not from {limits}", remedy)


@pytest.mark.parametrize("value", [True, 8192.0, math.nan, "8k", "", "-8", " 8", "٨", [8192], {}, "9" * 190])
def test_a_count_is_a_whole_number(value: object) -> None:
    problem = the_problem(context_length=value)
    assert problem.message == f"{value!r} is not a whole number from 8 to 100000000"


@pytest.mark.parametrize(
    ("key", "value", "limits"),
    [
        ("fraction", 0, "0 and 1"),
        ("fraction", 1, "0 and 1"),
        ("fraction", 85, "0 and 1"),
        ("fraction", -0.1, "0 and 1"),
        ("fraction", math.nan, "0 and 1"),
        ("fraction", math.inf, "0 and 1"),
        ("state_ratio", 0.0, "0 and 1000"),
        ("state_ratio", 10**400, "0 and 1000"),
        ("headroom_gib", -1, "0 and 10000"),
        ("headroom_gib", math.nan, "0 and 10000"),
    ],
)
def test_a_share_outside_its_limits(key: str, value: float, limits: str) -> None:
    problem = the_problem(memory={key: value})
    assert (problem.key, problem.message) == (f"memory.{key}", f"{value} is not between {limits}")


@pytest.mark.parametrize("value", [True, "85 %", "", "nan", "-1", "1e3", [0.8], {}])
def test_a_share_is_a_number(value: object) -> None:
    problem = the_problem(memory={"fraction": value})
    assert problem.message == f"{value!r} is not a number between 0 and 1"


def test_no_headroom_at_all_may_be_asked_for() -> None:
    assert read_one(memory={"headroom_gib": 0}).memory.headroom_gib == 0.0


@pytest.mark.parametrize("key", ["prefix_cache", "shared", "canary"])
@pytest.mark.parametrize("value", [1, 0, "true", "yes", []])
def test_a_switch_is_true_or_false(key: str, value: object) -> None:
    assert the_problem(**{key: value}).message == f"{value!r} is not true or false"


@pytest.mark.parametrize(
    ("changes", "key", "message", "remedy"),
    [
        (
            {"state": "start"},
            "state",
            "'start' is none of started, stopped, absent",
            "did you mean 'started'?",
        ),
        (
            {"state": True},
            "state",
            "True is none of started, stopped, absent",
            f"known are {', '.join(STATES)}",
        ),
        (
            {"memory": {"state_dtype": "bfloat"}},
            "memory.state_dtype",
            "'bfloat' is none of float32, bfloat16, float16",
            "did you mean 'bfloat16'?",
        ),
        (
            {"strategy": {"method": ["eagle"]}},
            "strategy.method",
            f"['eagle'] is none of {', '.join(METHODS)}",
            "did you mean 'eagle'?",
        ),
    ],
)
def test_a_choice_is_shown_with_the_nearest_one(
    changes: dict[str, object], key: str, message: str, remedy: str
) -> None:
    assert the_problem(**changes) == Problem("chat", key, message, remedy)


@pytest.mark.parametrize(
    ("gpus", "message", "remedy"),
    [
        (0, "0 is not a list of GPU indices or UUIDs", "write [0]"),
        ("0,1", "'0,1' is not a list of GPU indices or UUIDs", "write [0,1]"),
        ([True], "True: neither a GPU index nor a GPU or MIG UUID", ""),
        ([[0, 1]], "[0, 1]: neither a GPU index nor a GPU or MIG UUID", ""),
        ([-1, 0.0, ""], "-1, 0.0, : neither a GPU index nor a GPU or MIG UUID", ""),
        ([None], "None: neither a GPU index nor a GPU or MIG UUID", ""),
        ([1000], "1000: neither a GPU index nor a GPU or MIG UUID", ""),
        (["00", "07"], "00, 07: neither a GPU index nor a GPU or MIG UUID", ""),
        (["GPU-", "gpu-8c"], "GPU-, gpu-8c: neither a GPU index nor a GPU or MIG UUID", ""),
        ([0, 1, "0"], "[0, 1, 0] names a GPU twice", ""),
    ],
)
def test_gpus_that_are_none(gpus: object, message: str, remedy: str) -> None:
    assert the_problem(gpus=gpus) == Problem("chat", "gpus", message, remedy)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [("attention_backend", "'attention_backend' is not a list"), ([["a"]], "['a'] is not a non-empty text")],
)
def test_accepted_overrides_are_a_list_of_names(overrides: object, message: str) -> None:
    assert the_problem(accept_overrides=overrides).message == message


def test_a_hook_that_is_none() -> None:
    assert the_problem(drain=["lb"]) == Problem(
        "chat", "drain", "'lb' is not the absolute path of a program", ""
    )


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--log-level", "write 'log-level'"),
        ("log_level", "write 'log-level'"),
        ("Log Level", "write 'log-level'"),
        ("log-level=debug", "write 'log-level-debug'"),
        ("", ""),
        ("--", ""),
        (1, "write '1'"),
    ],
)
def test_flags_are_named_without_their_dashes(flag: object, remedy: str) -> None:
    assert the_problem(args={flag: True}) == Problem(
        "chat", f"args.{flag}", "is not a flag's name without its leading dashes", remedy
    )


@pytest.mark.parametrize("value", [None, {"a": 1}, [[1]], [True], [None], [{"a": 1}]])
def test_a_flag_has_a_scalar_or_a_list_of_scalars(value: object) -> None:
    problem = the_problem(args={"json-model-override-args": value})
    culprit = value[0] if isinstance(value, list) else value
    assert problem.key == "args.json-model-override-args"
    assert problem.message == f"{culprit!r} is neither a text nor a number"
    assert problem.remedy == "write it as a quoted text"


def test_a_list_of_values_smuggles_no_other_flag_in() -> None:
    problem = the_problem(args={"lora-paths": ["a", "--port", "--host=::", "-x", "-1x"]})
    assert problem.key == "args.lora-paths"
    assert problem.message == "--port, --host=::, -x, -1x would be read as a flag"
    assert problem.remedy == "give each flag a key of its own"
    assert read_one(args={"scales": [-1, -0.5, "-.5"]}).args == {"scales": ("-1", "-0.5", "-.5")}


@pytest.mark.parametrize("name", ["1ST", "A-B", "", "A=B", "GRÖSSE", "A\n", 1])
def test_names_that_no_shell_variable_has(name: object) -> None:
    problem = the_problem(env={name: "x"})
    assert problem.key == f"env.{name}"
    assert problem.message.startswith("cannot name an environment variable")


@pytest.mark.parametrize("value", [True, None, ["a"], {"a": 1}])
def test_a_variable_holds_a_text(value: object) -> None:
    problem = the_problem(env={"NCCL_DEBUG": value})
    assert problem == Problem(
        "chat",
        "env.NCCL_DEBUG",
        f"{value!r} is neither a text nor a number",
        "write it as a quoted text",
    )


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_characters_that_no_process_can_be_given(value: str) -> None:
    for key, name in (("env", "GREETING"), ("args", "greeting")):
        problem = the_problem(**{key: {name: value}})
        assert problem.key == f"{key}.{name}"
        assert problem.message == f"{value!r} holds a character that no program can be given"


def test_variables_may_hold_several_lines() -> None:
    assert read_one(env={"SCRIPT": "a\r\n\tb\n"}).env == {"SCRIPT": "a\r\n\tb\n"}


def test_numa_nodes() -> None:
    assert read_one(numa_nodes=[0, "1"]).numa_nodes == (0, 1)
    assert the_problem(numa_nodes=0) == Problem(
        "chat", "numa_nodes", "0 is not a list of NUMA nodes", "write [0]"
    )
    assert the_problem(numa_nodes=[-1]).message == "-1 is not from 0 to 1023"


def test_limits_of_stages() -> None:
    assert read_one(stage_seconds={"weights": 1200}).stage_seconds == {"weights": 1200}
    assert the_problem(stage_seconds={"weight": 1200}) == Problem(
        "chat", "stage_seconds.weight", "is no stage of a start", "did you mean 'weights'?"
    )
    assert the_problem(stage_seconds={"weights": 0}).message == "0 is not from 1 to 86400"


@pytest.mark.parametrize("key", sorted({*MAPS, *GROUPS} - {"secrets"}))
@pytest.mark.parametrize("value", [[], "x", 0, False])
def test_maps_and_groups_are_mappings(key: str, value: object) -> None:
    assert the_problem(**{key: value}) == Problem(
        "chat", key, f"{value!r} is not a mapping of keys to values"
    )


def test_secrets_are_no_part_of_what_is_shown() -> None:
    assert the_problem(secrets="key-0123456789") == Problem(
        "chat", "secrets", "this is not a mapping of keys to values"
    )
    secrets = {"api_key": "key-0123456789", "admin_api_key": "admin-0123456789=="}
    instance = read_one(secrets=secrets)
    assert instance.secrets.given == secrets
    assert "0123456789" not in repr(instance)


@pytest.mark.parametrize("value", ["short", "with space", 'quo"te-0123', "line\nend-0123", 123456789, ""])
def test_a_secret_is_a_token_and_a_bad_one_is_not_repeated(value: object) -> None:
    assert the_problem(secrets={"api_key": value}) == Problem(
        "chat",
        "secrets.api_key",
        "is not a token of 8 to 512 letters, digits and any of '-._~+/'",
        "make another one",
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpu-host", "fe80::1"])  # noqa: S104 - what users write
def test_an_exposed_server_asks_for_a_key_unless_it_is_said_explicitly(host: str) -> None:
    assert the_problem(host=host) == Problem(
        "chat",
        "host",
        f"{host} can be reached from other machines, and nobody is asked for a key",
        "give secrets.api_key, or say accept_exposed: true",
    )
    assert the_problem(host=host, secrets={"admin_api_key": "key-0123456789"}).key == "host"
    assert read_one(host=host, secrets={"api_key": "key-0123456789"}).host == host
    assert read_one(host=host, accept_exposed=True).accept_exposed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_a_loopback_address_needs_no_key(host: str) -> None:
    assert read_one(host=host).host == host


@pytest.mark.parametrize(
    ("changes", "key", "remedy"),
    [
        ({"gpu": [0]}, "gpu", "did you mean 'gpus'?"),
        ({"strategie": {}}, "strategie", "did you mean 'strategy'?"),
        ({"environment": {}}, "environment", "known are name, model, "),
        ({"memory": {"mem_fraction": 0.8}}, "memory.mem_fraction", "did you mean 'fraction'?"),
        ({"strategy": {"draft": "/x"}}, "strategy.draft", "did you mean 'draft_model'?"),
        ({"strategy": {1: 2}}, "strategy.1", "known are method, draft_model, "),
    ],
)
def test_an_unknown_key_is_shown_with_the_nearest_known(
    changes: dict[str, object], key: str, remedy: str
) -> None:
    problem = the_problem(**changes)
    assert (problem.key, problem.message) == (key, "is not a known key")
    assert problem.remedy.startswith(remedy)


def test_what_must_be_said() -> None:
    first, second, third = problems([{}])
    assert [str(first), str(second), str(third)] == [
        "instance 1: name: is missing; name it as its unit shall be called after 'sglang-'",
        "instance 1: model: is missing; give the model's directory on the host",
        "instance 1: port: is missing; choose one from 1024 to 65535",
    ]


def test_a_faulty_value_is_shown_without_its_end() -> None:
    message = f"'{'9' * 199}... is not a whole number from 8 to 100000000"
    assert the_problem(context_length="9" * 5000).message == message


@pytest.mark.parametrize("shape", [dict, list])
def test_instances_in_a_wrong_shape_do_not_show_their_secrets(shape: type) -> None:
    one = {"name": "chat", "secrets": {"api_key": "key-0123456789"}}
    shown = [str(problem) for problem in problems({"chat": one} if shape is dict else [[one]])]
    assert shown == [
        "host: sglang_service_instances: a dict of 1 is not a list of instances"
        if shape is dict
        else "instance 1: a list of 1 is not a mapping of keys to values"
    ]


@pytest.mark.parametrize("raw", [None, "chat", {"chat": 1}, 1])
def test_the_instances_are_a_list(raw: object) -> None:
    assert problems(raw) == [
        Problem("host", "sglang_service_instances", f"{raw!r} is not a list of instances")
    ]


def test_no_instances_at_all() -> None:
    assert read() == ()


def test_an_item_that_is_no_mapping_is_named_by_its_place() -> None:
    assert [str(problem) for problem in problems([definition(), "coder", None])] == [
        "instance 2: 'coder' is not a mapping of keys to values",
        "instance 3: None is not a mapping of keys to values",
    ]


def test_a_name_twice() -> None:
    raw = [definition(), definition(name="coder"), definition(), definition()]
    assert problems(raw) == [
        Problem("chat", "name", "3 instances have this name", "rename all but one"),
    ]


def test_all_faults_of_all_instances_at_once() -> None:
    with pytest.raises(ProblemsError) as raised:
        read(
            definition(port=1, context_length="long", env={"1": "x", "2": "y"}, args={"a b": 1, "ok": 1}),
            definition(name="coder", gpus=[0, 0], memory={"fraction": 2, "kv": 1}),
        )
    assert [(problem.where, problem.key) for problem in raised.value.problems] == [
        ("chat", "port"),
        ("chat", "context_length"),
        ("chat", "args.a b"),
        ("chat", "env.1"),
        ("chat", "env.2"),
        ("coder", "gpus"),
        ("coder", "memory.fraction"),
        ("coder", "memory.kv"),
    ]


def test_an_unsound_instance_takes_part_in_the_checks_across_instances() -> None:
    found = Collector()
    chat, nameless = read_instances([definition(port="?", gpus=[3]), {"gpus": [4], "model": "x"}], found)
    assert (chat.port, chat.gpus) == (UNKNOWN_PORT, ("3",))
    assert (nameless.name, nameless.gpus) == ("instance 2", ("4",))


@pytest.mark.parametrize("method", ["eagle", "eagle3", "dflash", "ddtree"])
def test_methods_with_a_draft_model(method: str) -> None:
    assert read_one(strategy={"method": method, "draft_model": "/d"}).strategy.draft_model == "/d"
    problem = the_problem(strategy={"method": method, "steps": 3})
    assert problem.key == "strategy.draft_model"
    assert problem.message == f"is missing: {method} speculates with a draft model of its own"
    assert "mtp" in problem.remedy


@pytest.mark.parametrize("method", ["none", "mtp", "ngram"])
def test_methods_without_a_draft_model(method: str) -> None:
    problem = the_problem(strategy={"method": method, "draft_model": "/d"})
    assert problem.key == "strategy.draft_model"
    assert problem.message == f"is not used by method {method}"
    assert problem.remedy == "use one of eagle, eagle3, dflash, ddtree, or remove it"


def test_numbers_without_a_method() -> None:
    found = problems([definition(strategy={"steps": 3, "topk": 1, "draft_tokens": 4})])
    assert [problem.key for problem in found] == ["strategy.steps", "strategy.topk", "strategy.draft_tokens"]
    assert {problem.message for problem in found} == {"is not used by method none"}
    assert read_one(strategy={"method": "mtp", "steps": 3}).strategy.steps == 3


@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        ({"method": "eagel", "draft_model": "/d", "steps": 3}, "strategy.method"),
        ({"method": "eagle", "draft_model": "d"}, "strategy.draft_model"),
        ({"metod": "mtp", "steps": 3}, "strategy.metod"),
    ],
)
def test_a_misspelt_strategy_is_one_fault_and_not_several(strategy: object, key: str) -> None:
    assert the_problem(strategy=strategy).key == key


def test_the_methods_are_the_engines() -> None:
    assert ("none", *engine._ALGORITHM_OF_METHOD) == METHODS  # noqa: SLF001 - the table itself


@given(
    st.dictionaries(st.sampled_from([*KEYS, *MAPS, *GROUPS, "x"]), JSON_LIKE)
    | st.fixed_dictionaries({"strategy": JSON_LIKE, "memory": JSON_LIKE, "args": JSON_LIKE, "env": JSON_LIKE})
)
def test_whatever_is_given_is_read_or_refused_by_name(raw: dict[str, object]) -> None:
    found = Collector()
    (instance,) = read_instances([raw], found)
    assert isinstance(instance, Instance)
    for problem in found.problems:
        assert problem.where
        assert problem.key
        assert problem.message
