from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import engine
from sglang_kit.fingerprint import VARIABLE
from sglang_kit.plan import HostSettings, plan_host, read_host, secret_files
from sglang_kit.problem import ProblemsError
from sglang_kit.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

RELEASE = "/opt/sglang/releases/0.5.23-0123456789ab"
HOST = {"name": "metal", "engine_version": "0.5.23", "release": RELEASE}
GPU_HOST = {**HOST, "accelerator": "nvidia", "gpu_count": 8}


def definition(**changes: object) -> dict[str, object]:
    return {"name": "chat", "model": "/srv/models/qwen", "port": 30000, **changes}


def plans(*instances: object, **host: object) -> list[dict[str, Any]]:
    return plan_host(instances=list(instances), settings=read_host({**HOST, **host}))


def plan(on: Mapping[str, object] = HOST, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any key
    (planned,) = plans(definition(**changes), **on)
    return planned


def problems(*instances: object, **host: object) -> list[str]:
    with pytest.raises(ProblemsError) as raised:
        plans(*instances, **host)
    return [str(problem) for problem in raised.value.problems]


def value_of(planned: dict[str, Any], flag: str) -> str:
    argv: list[str] = planned["argv"]
    return argv[argv.index(flag) + 1]


def test_a_plan_says_where_everything_of_an_instance_is() -> None:
    planned = plan()
    assert planned["unit"] == "sglang-chat.service"
    assert planned["unit_file"] == "/etc/systemd/system/sglang-chat.service"
    assert planned["environment_file"] == "/etc/sglang/chat.env"
    assert planned["plan_file"] == "/etc/sglang/chat.plan.json"
    assert planned["argv"][0] == f"{RELEASE}/bin/python"
    assert planned["description"] == "SGLang chat (qwen)"


def test_a_plan_is_plain_json_and_says_the_same_every_time() -> None:
    planned = plan(args={"cuda-graph-bs-decode": [1, 2]}, env={"OMP_NUM_THREADS": 8})
    assert json.loads(json.dumps(planned)) == planned
    assert plan(args={"cuda-graph-bs-decode": [1, 2]}, env={"OMP_NUM_THREADS": 8}) == planned


def test_plans_keep_the_order_of_the_inventory() -> None:
    named = [planned["name"] for planned in plans(definition(name="b"), definition(name="a", port=30001))]
    assert named == ["b", "a"]
    assert plans() == []


def test_the_launcher_gets_the_plan_and_the_engines_command_line() -> None:
    words = plan()["exec_start"].replace(" \\\n", " ").split()
    assert words[:5] == [
        ":/usr/bin/python3",
        "-IB",
        "/opt/sglang/kit",
        "launch",
        "/etc/sglang/chat.plan.json",
    ]
    assert words[5:] == ["--", *plan()["argv"]]


def test_the_environment_carries_the_fingerprint() -> None:
    planned = plan(env={VARIABLE: "mine"})
    assert planned["environment"][VARIABLE] == planned["fingerprint"]
    assert f'{VARIABLE}="{planned["fingerprint"]}"' in planned["environment_lines"]
    assert len(planned["environment_lines"]) == len(planned["environment"])


@pytest.mark.parametrize(
    "changes",
    [
        {"context_length": 8192},
        {"concurrency": 4},
        {"prefix_cache": False},
        {"memory": {"fraction": 0.5}},
        {"args": {"log-level": "debug"}},
        {"env": {"NCCL_DEBUG": "INFO"}},
        {"host": "::1"},
        {"nccl_port": 50000},
        {"model": "/srv/models/other"},
        {"host": "::1", "port": 30001},
        {"served_model_name": "other"},
    ],
)
def test_what_the_engine_would_notice_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert plan(**changes)["fingerprint"] != plan()["fingerprint"]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "stopped"},
        {"canary": False},
        {"accept_overrides": ["a"]},
        {"shared": True},
        {"host": "127.0.0.1"},
    ],
)
def test_what_concerns_us_alone_does_not(changes: dict[str, Any]) -> None:
    assert plan(**changes)["fingerprint"] == plan()["fingerprint"]


def test_another_release_changes_the_fingerprint() -> None:
    assert plan({"release": f"{RELEASE}x"})["fingerprint"] != plan()["fingerprint"]


TEMPLATE = "# a comment\n[Unit]\nDescription=x\n\n[Service]\nLimitNOFILE=1024\n"


@pytest.mark.parametrize(
    "settings",
    [{"user": "other"}, {"group": "other"}, {"unit_template": TEMPLATE.replace("1024", "4096")}],
)
def test_what_the_units_text_says_changes_the_fingerprint(settings: dict[str, str]) -> None:
    common = {"unit_template": TEMPLATE}
    assert plan({**common, **settings})["fingerprint"] != plan(common)["fingerprint"]


def test_replaced_model_files_change_the_fingerprint_and_those_of_others_do_not() -> None:
    model = plan()["model"]
    seen = [
        plan({"model_fingerprints": marks})["fingerprint"] for marks in (None, {model: "a.b"}, {model: "a.c"})
    ]
    assert len(set(seen)) == 3
    assert plan({"model_fingerprints": {"/other": "a.b"}})["fingerprint"] == seen[0]


def test_what_people_read_in_it_does_not() -> None:
    other = TEMPLATE.replace("# a comment", "; another").replace("=x", "=y").replace("\n\n", "\n")
    assert plan({"unit_template": other})["fingerprint"] == plan({"unit_template": TEMPLATE})["fingerprint"]


def test_what_the_user_pins_is_said_and_the_rest_left_to_the_engine() -> None:
    pinned = plan(
        context_length=8192,
        concurrency=4,
        prefix_cache=False,
        memory={
            "fraction": 0.85,
            "kv_dtype": "fp8_e4m3",
            "state_slots": 64,
            "state_ratio": 0.5,
            "state_dtype": "bfloat16",
        },
    )
    assert value_of(pinned, "--context-length") == "8192"
    assert value_of(pinned, "--max-running-requests") == "4"
    assert value_of(pinned, "--mem-fraction-static") == "0.85"
    assert value_of(pinned, "--kv-cache-dtype") == "fp8_e4m3"
    assert value_of(pinned, "--max-mamba-cache-size") == "64"
    assert value_of(pinned, "--mamba-full-memory-ratio") == "0.5"
    assert value_of(pinned, "--mamba-ssm-dtype") == "bfloat16"
    assert "--disable-radix-cache" in pinned["argv"]
    assert "--disable-radix-cache" not in plan()["argv"]
    assert "--context-length" not in plan()["argv"]


def test_a_host_without_gpus_serves_on_its_cpu() -> None:
    assert value_of(plan(), "--device") == "cpu"
    assert value_of(plan(GPU_HOST, gpus=[0]), "--device") == "cuda"


def test_gpus_fit_the_host() -> None:
    assert problems(definition(gpus=[0])) == [
        "chat: gpus: this host has no GPU; write `gpus: []` to serve on the CPU"
    ]
    assert problems(definition(), **GPU_HOST) == [
        "chat: gpus: is empty on a GPU host; name the GPUs, as in `gpus: [0]`"
    ]


def test_reserved_gpus_and_ports_are_kept_off() -> None:
    found = problems(
        definition(gpus=[0, 1]), **{**GPU_HOST, "gpu_count": 2}, reserved_gpus=[0], reserved_ports=["30000"]
    )
    assert found == [
        "chat: port: 30000 is also a reserved port of this host; 30001 is free in this inventory",
        "chat: gpus: GPU 0 is reserved for another service; use another GPU",
    ]


def test_an_absent_instance_is_as_if_it_were_not_there() -> None:
    old = definition(name="old", gpus=[0], state="absent")
    assert [planned["name"] for planned in plans(old, definition(gpus=[0]), **GPU_HOST)] == ["chat"]
    assert plans(old, definition(gpus=[0]), **GPU_HOST) == plans(definition(gpus=[0]), **GPU_HOST)
    assert plans({**old, "gpus": [0, 1]}) == []


def test_a_stopped_instance_keeps_its_ports_and_gpus() -> None:
    stopped = definition(name="old", state="stopped")
    assert problems(stopped, definition()) == [
        "chat: port: 30000 is also port of old; 30001 is free in this inventory"
    ]
    assert plan(state="stopped")["state"] == "stopped"


def test_on_a_shared_gpu_one_waits_for_the_other() -> None:
    pair = definition(gpus=[0], shared=True), definition(name="b", port=30001, gpus=[0], shared=True)
    assert [planned["after"] for planned in plans(*pair, **GPU_HOST)] == [[], ["sglang-chat.service"]]


def test_every_fault_of_every_instance_and_of_the_host_at_once() -> None:
    found = problems(
        definition(port=1, args={"log-levle": "debug"}),
        definition(name="coder", gpus=[9], memory={"fraction": 2}),
        definition(name="third", gpus=[9], port=30001, args={"port": 1}),
        **{**GPU_HOST, "engine_version": "0.5.1"},
    )
    told = "\n".join(found)
    for essential in (
        "SGLang '0.5.1' is not a version",
        engine.SUPPORTED[-1],
        "chat: port: 1 is not from 1024 to 65535; use 1024",
        "chat: gpus: is empty",
        "--log-levle",
        "coder: memory.fraction: 2 is not between 0 and 1",
        "coder: gpus: GPU 9 is not among this host's 8; free GPUs are 0, 1, 2, 3, 4, 5, 6, 7",
        "third: gpus: GPU 9 is also wanted by coder",
        "third: args.port: is said by the key `port`",
    ):
        assert essential in told


def test_an_untested_engine_is_planned_where_that_is_asked_for() -> None:
    planned = plan({"engine_version": "0.5.99", "allow_untested": True})
    assert planned["engine_version"] == "0.5.99"


def test_specifiers_of_systemd_in_names_are_literal() -> None:
    planned = plan(served_model_name="100%n $HOME `x`", env={"A": "$HOME `x` 100%"})
    assert planned["description"] == "SGLang chat (100%%n $HOME `x`)"
    assert '"100%%n $HOME `x`"' in planned["exec_start"]
    assert 'A="\\$HOME \\`x\\` 100%"' in planned["environment_lines"]


def test_500_instances_of_a_host() -> None:
    crowd = [definition(name=f"i{number}", port=2000 + number) for number in range(500)]
    planned = plans(*crowd)
    ports = [port for one in planned for port in (one["port"], one["nccl_port"])]
    assert len(set(ports)) == 1000
    assert len({one["fingerprint"] for one in planned}) == 500


def test_host_settings_that_are_left_out_or_null_have_their_defaults() -> None:
    bare = HostSettings(name="metal", engine_version="0.5.23", release=RELEASE)
    assert read_host(HOST) == bare
    assert read_host({**HOST, "path": None, "gpu_count": None, "reserved_gpus": None}) == bare
    assert read_host({**HOST, "something_newer": 1}) == bare


def test_host_settings_are_read() -> None:
    settings = read_host({**GPU_HOST, "reserved_gpus": [0, "GPU-8c"], "reserved_ports": [8000, "22"]})
    assert settings.reserved_gpus == ("0", "GPU-8c")
    assert settings.reserved_ports == (8000, 22)
    assert (settings.accelerator, settings.gpu_count) == ("nvidia", 8)


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ({"reserved_gpus": 0}, "host: sglang_host_reserved_gpus: 0 is not a list; write [0]"),
        ({"reserved_gpus": "10"}, "host: sglang_host_reserved_gpus: '10' is not a list; write [10]"),
        ({"reserved_gpus": ["00"]}, "host: sglang_host_reserved_gpus: '00' is not a GPU index or UUID"),
        ({"reserved_ports": 8000}, "host: sglang_host_reserved_ports: 8000 is not a list; write [8000]"),
        (
            {"reserved_ports": ["8000-8100"]},
            "host: sglang_host_reserved_ports: '8000-8100' is not a port number",
        ),
        ({"reserved_ports": [True]}, "host: sglang_host_reserved_ports: 'True' is not a port number"),
        (
            {"memory_gib": "512 GiB"},
            "host: sglang_host_memory_gib: '512 GiB' is not a size in GiB; write a number, as in 512",
        ),
        (
            {"memory_gib": -1},
            "host: sglang_host_memory_gib: -1 is not a size in GiB; write a number, as in 512",
        ),
    ],
)
def test_what_is_reserved_is_never_misread(host: dict[str, object], told: str) -> None:
    assert problems(**host) == [told]


def test_every_misread_reservation_at_once() -> None:
    assert len(problems(reserved_gpus=["x", "y"], reserved_ports=["http", None])) == 4


CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
QWEN, DFLASH = "/srv/models/qwen36-27b", "/srv/models/qwen36-27b-dflash"
MODELS = {
    QWEN: json.loads((CONFIGS / "qwen36-27b.json").read_text()),
    DFLASH: json.loads((CONFIGS / "dflash-qwen36-27b.json").read_text()),
}
CARDS = [{"count": 8, "memory_mib": 97_887, "free_gib": 94.24, "compute_capability": "12.0"}]
WISH = {
    "model": QWEN,
    "gpus": [1],
    "context_length": 32_768,
    "concurrency": 16,
    "strategy": {"method": "mtp"},
}


def planned_on_gpus(
    *instances: object, models: dict[str, dict[str, Any]] = MODELS, **host: object
) -> list[dict[str, Any]]:
    settings = read_host({**GPU_HOST, "gpus": CARDS, **host})
    return plan_host(instances=list(instances), settings=settings, models=models)


def test_memory_is_planned_and_rendered() -> None:
    (planned,) = planned_on_gpus(definition(**WISH))
    memory = planned["memory"]
    assert memory["concurrency"] == 16
    assert value_of(planned, "--mem-fraction-static") == f"{memory['settings']['memory_fraction']}"
    assert value_of(planned, "--max-mamba-cache-size") == str(memory["state_slots"])
    assert value_of(planned, "--mamba-radix-cache-strategy") == "extra_buffer"
    assert value_of(planned, "--speculative-algorithm") == "EAGLE"
    assert value_of(planned, "--device") == "cuda"


def test_what_args_say_is_not_said_twice() -> None:
    (planned,) = planned_on_gpus(definition(**WISH, args={"chunked-prefill-size": 2048}))
    assert planned["argv"].count("--chunked-prefill-size") == 1
    assert value_of(planned, "--chunked-prefill-size") == "2048"


def test_cards_are_measured_where_none_are_declared() -> None:
    seen = {
        "index": 1,
        "uuid": "GPU-a",
        "name": "RTX",
        "compute_capability": "12.0",
        "memory_total_bytes": 97_887 << 20,
        "memory_free_bytes": 94 << 30,
    }
    (planned,) = planned_on_gpus(definition(**WISH), gpus=[], seen_gpus=[seen])
    assert planned["memory"]["kv_tokens"] > 165_000


def test_without_model_or_cards_the_wish_is_rendered_and_the_memory_left_to_the_engine() -> None:
    strategy = {"method": "dflash", "draft_model": "/srv/models/unknown", "draft_tokens": 8}
    (no_draft,) = planned_on_gpus(definition(**{**WISH, "strategy": strategy}))
    assert no_draft["memory"] is None
    assert value_of(no_draft, "--speculative-algorithm") == "DFLASH"
    assert value_of(no_draft, "--speculative-draft-model-path") == "/srv/models/unknown"
    (need,) = no_draft["memory_needs"]
    assert "sglang_model_catalog: {path: /srv/models/unknown, config: COPY}" in need
    (no_cards,) = planned_on_gpus(definition(**WISH), gpus=[])
    assert no_cards["memory"] is None
    (need,) = no_cards["memory_needs"]
    assert "sglang_host_gpus: [{count: 8, memory_mib: 97887}]" in need
    assert value_of(no_cards, "--max-running-requests") == "16"


def test_a_gpu_that_is_declared_by_another_name_is_not_known() -> None:
    (planned,) = planned_on_gpus(definition(**{**WISH, "gpus": ["GPU-a"]}))
    assert planned["memory"] is None
    (need,) = planned["memory_needs"]
    assert need.startswith("GPU GPU-a is not known: name one of 0, 1")


def test_a_draft_model_is_planned_with_its_target() -> None:
    strategy = {"method": "dflash", "draft_model": DFLASH}
    (planned,) = planned_on_gpus(definition(**{**WISH, "strategy": strategy, "concurrency": 4}))
    assert planned["memory"]["pools_gib"]["draft_weights"] > 0


def test_faults_of_memory_are_reported_with_all_others() -> None:
    with pytest.raises(ProblemsError) as raised:
        planned_on_gpus(
            definition(**{**WISH, "concurrency": 400}),
            definition(name="typo", port=30001, gpus=[2], kontext=1),
        )
    misspelt, too_many = (str(problem) for problem in raised.value.problems)
    assert misspelt.startswith("typo: kontext: is not a known key")
    assert too_many.startswith("chat: memory: nothing is left for the KV cache: 94.24 GiB are free")
    assert "ask for at most 23 requests" in too_many


def test_a_configuration_may_be_the_text_of_its_file() -> None:
    settings = read_host({**GPU_HOST, "gpus": CARDS})
    text = json.dumps(MODELS[QWEN])
    assert plan_host(
        instances=[definition(**WISH)], settings=settings, models={QWEN: text}
    ) == planned_on_gpus(definition(**WISH))
    with pytest.raises(
        ProblemsError, match=f"chat: {QWEN}/config.json: config.json: is no JSON: .*; copy the"
    ):
        plan_host(instances=[definition(**WISH)], settings=settings, models={QWEN: text[:100]})


def test_numa_nodes_and_patience_are_handed_on() -> None:
    planned = plan(numa_nodes=[0, 1], stage_seconds={"weights": 3600})
    assert (planned["numa_nodes"], planned["stage_seconds"]) == ([0, 1], {"weights": 3600})
    patient = plan(stage_seconds={"weights": 3600})
    assert patient["fingerprint"] == plan()["fingerprint"] != planned["fingerprint"]


@pytest.mark.parametrize("host", [{"memory_gib": "15"}, {"seen_memory_bytes": 15 * GIB}])
def test_main_memory_is_counted(host: dict[str, Any]) -> None:
    first, second = definition(**WISH), definition(**{**WISH, "name": "code", "port": 30100, "gpus": [2]})
    assert planned_on_gpus(first, **host)
    assert planned_on_gpus(first, second, memory_gib=16, seen_memory_bytes=15 * GIB)
    with pytest.raises(ProblemsError, match=r"need 16\.00 GiB of main memory, the host has 15\.00 GiB"):
        planned_on_gpus(first, second, **host)


NEW = {QWEN: {"architectures": ["NewForCausalLM"]}}


def test_a_model_that_is_not_understood_is_refused_by_name() -> None:
    with pytest.raises(ProblemsError, match=r"chat: /srv/models/qwen36-27b/config.json: .*NewForCausalLM"):
        planned_on_gpus(definition(**WISH), models=NEW)


def test_a_model_that_is_not_understood_is_served_with_a_pinned_fraction() -> None:
    (planned,) = planned_on_gpus(definition(**WISH, memory={"fraction": 0.8}), models=NEW)
    assert planned["memory"] is None
    assert planned["memory_needs"] == [
        f"{QWEN}: NewForCausalLM is not understood: its memory cannot be planned"
    ]
    assert value_of(planned, "--mem-fraction-static") == "0.8"
    assert value_of(planned, "--max-running-requests") == "16"


# --- secrets and pins ----------------------------------------------------------------------------

SECRETS = {"api_key": "key-0123456789", "hf_token": "hf_0123456789"}


def test_a_plan_names_the_files_of_secrets_and_holds_none() -> None:
    planned = plan(secrets=SECRETS)
    assert planned["secrets"] == {
        "api_key": "/etc/sglang/credentials/chat.api_key",
        "hf_token": "/etc/sglang/credentials/chat.hf_token",
    }
    assert not [value for value in SECRETS.values() if value in json.dumps(planned)]
    assert planned["argv"] == plan()["argv"]


def test_a_changed_key_is_another_fingerprint() -> None:
    marks = {
        plan(secrets=secrets)["fingerprint"]
        for secrets in (None, SECRETS, {**SECRETS, "api_key": "new-0123456789"})
    }
    assert len(marks) == 3
    assert plan(secrets=SECRETS)["fingerprint"] in marks


def test_the_files_of_secrets_hold_them() -> None:
    settings = read_host(HOST)
    instances = [
        definition(secrets=SECRETS),
        definition(name="open", port=30001),
        definition(name="old", port=30002, secrets=SECRETS, state="absent"),
    ]
    assert secret_files(instances=instances, settings=settings) == [
        {"path": "/etc/sglang/credentials/chat.api_key", "content": "key-0123456789"},
        {"path": "/etc/sglang/credentials/chat.hf_token", "content": "hf_0123456789"},
    ]
    with pytest.raises(ProblemsError, match="is not a list of instances"):
        secret_files(instances="chat", settings=settings)


def test_a_plan_says_what_the_user_pinned() -> None:
    assert plan(context_length=4096)["pinned"]["context_length"] == "context_length"
    assert "context_length" not in plan()["pinned"]


def test_metrics_are_written_to_a_directory_of_their_own() -> None:
    def directory(**changes: Any) -> str | None:  # noqa: ANN401 - any key
        found: str | None = plan(**changes)["environment"].get("PROMETHEUS_MULTIPROC_DIR")
        return found

    assert directory() is None
    assert directory(args={"enable-metrics": True}) == "/run/sglang/chat"
    assert directory(args={"enable-metrics": True}, env={"PROMETHEUS_MULTIPROC_DIR": "/srv/m"}) == "/srv/m"


def test_a_cpu_gets_a_grammar_backend_that_runs_there() -> None:
    assert value_of(plan({**HOST, "engine_version": "0.5.15.post1"}), "--grammar-backend") == "llguidance"
    assert "--grammar-backend" not in plan()["argv"]
    (on_gpu,) = planned_on_gpus(definition(**WISH), engine_version="0.5.15.post1")
    assert "--grammar-backend" not in on_gpu["argv"]


def test_hooks_are_the_instances_own_or_those_of_all() -> None:
    host = {"drain": ["/bin/lb", "drain"], "undrain": "https://lb.example/{name}"}
    planned = plan({**HOST, **host}, drain=["/bin/own", 1])
    assert (planned["drain"], planned["undrain"]) == (["/bin/own", "1"], "https://lb.example/{name}")
    assert (plan()["drain"], plan()["undrain"]) == (None, None)


def test_a_hook_of_all_that_is_none_is_refused() -> None:
    with pytest.raises(ProblemsError, match="host: sglang_service_drain: 'lb' is not the absolute path"):
        read_host({**HOST, "drain": ["lb"]})
