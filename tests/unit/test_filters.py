from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.errors import AnsibleTemplateError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader
from ansible.template import Templar, trust_as_template
from sglang_kit.plan import HostSettings

from tests.plans import FIXTURES, expected, load, recorded_verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    Evaluate = Callable[..., Any]

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PLUGINS = REPOSITORY / "filter_plugins"
SIDECARS = {place.stem: place for place in PLUGINS.glob("*.yml")}

INVENTORY = """
host:
  name: metal
  engine_version: 0.5.23
  release: /opt/sglang/releases/0.5.23
  accelerator: nvidia
  gpu_count: 4
  path: null
  reserved_gpus: [0]
base_port: 30000
instances:
  - name: chat
    model: "/srv/models/{{ family }}-8b"
    port: "{{ base_port + 1 }}"
    gpus: [1, 2]
    memory: {fraction: 0.85}
    args: {log-level: debug}
    env: {GREETING: "größe: 100 %"}
  - name: coder
    model: /srv/models/coder
    port: "{{ base_port + 2 }}"
    gpus: ["3"]
family: qwen
"""


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of Ansible as somebody would in this repository."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments],
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Evaluate an expression over the inventory above as a playbook of this project would."""
    filter_loader.add_directory(str(PLUGINS))
    inventory = tmp_path / "metal.yml"
    inventory.write_text(INVENTORY, encoding="utf-8")
    loader = DataLoader()
    variables = loader.load_from_file(str(inventory), trusted_as_template=True)

    def evaluate_expression(expression: str, **changes: object) -> Any:  # noqa: ANN401 - any value
        templar = Templar(loader, variables={**variables, **changes})
        return templar.template(trust_as_template("{{ " + expression + " }}"))

    return evaluate_expression


def test_the_plan_of_an_inventory_as_ansible_holds_it(evaluate: Evaluate) -> None:
    chat, coder = evaluate("instances | sglang_plan(host)")
    assert (chat["name"], chat["port"], chat["nccl_port"]) == ("chat", 30001, 20001)
    assert chat["model"] == "/srv/models/qwen-8b"
    assert chat["argv"][-2:] == ["--log-level", "debug"]
    assert 'GREETING="größe: 100 %"' in chat["environment_lines"]
    assert (coder["unit"], coder["gpus"]) == ("sglang-coder.service", ["3"])


def test_a_plan_holds_nothing_but_json(evaluate: Evaluate) -> None:
    plans = evaluate("instances | sglang_plan(host)")
    assert json.loads(evaluate("instances | sglang_plan(host) | to_json")) == plans


def test_every_fault_reaches_the_user_with_the_instances_name(evaluate: Evaluate) -> None:
    faulty = "[instances[0] | combine({'port': 80}), instances[1] | combine({'gpus': [0, 9]})]"
    with pytest.raises(AnsibleTemplateError) as raised:
        evaluate(f"{faulty} | sglang_plan(host)")
    told = str(raised.value)
    assert "3 problems:" in told
    assert "chat: port: 80 is not from 1024 to 65535; use 1024" in told
    assert "coder: gpus: GPU 0 is reserved for another service; free GPUs are 3" in told
    assert "coder: gpus: GPU 9 is not among this host's 4; free GPUs are 3" in told
    assert "sglang_plan" in told


def test_a_fault_of_the_host_reaches_the_user_too(evaluate: Evaluate) -> None:
    with pytest.raises(AnsibleTemplateError, match="sglang_host_reserved_gpus: '0' is not a list"):
        evaluate("instances | sglang_plan(host | combine({'reserved_gpus': '0'}))")


def test_a_lock_of_another_version_reaches_the_user(evaluate: Evaluate) -> None:
    lock = "('sglang==0.5.20 --hash=sha256:' ~ 'a' * 64)"
    assert evaluate(f"{lock} | sglang_lock('0.5.20', {{}})").startswith("sglang==0.5.20 ")
    with pytest.raises(AnsibleTemplateError, match=r"sglang_engine_lock: pins sglang==0\.5\.20"):
        evaluate(f"{lock} | sglang_lock('0.5.23', {{}})")


def test_a_fault_is_shown_with_its_place_in_the_inventory(tmp_path: Path) -> None:
    variables = tmp_path / "host_vars" / "metal.yml"
    variables.parent.mkdir()
    variables.write_text(INVENTORY.replace("[1, 2]", "[1, 9]"), encoding="utf-8")
    (tmp_path / "hosts.yml").write_text("all: {hosts: {metal: {}}}\n", encoding="utf-8")
    outcome = run_tool(
        *("ansible", "metal", "-i", str(tmp_path / "hosts.yml"), "-m", "ansible.builtin.debug"),
        *("-a", "msg={{ instances | sglang_plan(host) }}"),
    )
    assert outcome.returncode != 0
    told = " ".join((outcome.stdout + outcome.stderr).split())
    assert "chat: gpus: GPU 9 is not among this host's 4; free GPUs are 2" in told
    line = INVENTORY.splitlines().index("  - name: chat") + 1
    assert f"{variables}:{line}:" in told


def test_a_variable_that_is_nearly_known_is_told(evaluate: Evaluate) -> None:
    names = ["sglang_host_gpus", "sglang_host_gpu", "sglang_secret_of_chat"]
    assert evaluate("names | sglang_misspelt(['sglang_host_gpus'])", names=names) == [
        "sglang_host_gpu is no variable of ours: did you mean sglang_host_gpus?"
    ]


def test_variables_of_playbooks_are_known_as_those_of_roles_are() -> None:
    """Whoever gives another one to the playbooks adds it to the list of ``plan.yml``."""
    (play,) = yaml.safe_load((REPOSITORY / "playbooks/plan.yml").read_text(encoding="utf-8"))
    (known,) = (
        task["vars"]["of_playbooks"] for task in play["tasks"] if "of_playbooks" in task.get("vars", {})
    )
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "playbooks").rglob("*.yml")]
    optional = {name for text in texts for name in re.findall(r"\b(sglang_\w+) \| default\(", text)}
    roles = tuple(f"{path.name}_" for path in (REPOSITORY / "roles").iterdir())
    assert sorted(name for name in optional if not name.startswith(roles)) == known


def test_an_undefined_variable_is_named(evaluate: Evaluate) -> None:
    with pytest.raises(AnsibleTemplateError, match="'nowhere' is undefined"):
        evaluate("[{'name': 'chat', 'model': nowhere, 'port': 30000}] | sglang_plan(host)")


def test_what_is_done_follows_from_what_runs(evaluate: Evaluate) -> None:
    plans = evaluate("instances | sglang_plan(host)")
    seen = "{'chat': {'active': 'active', 'fingerprint': plans[0].fingerprint, 'holds': none}}"
    assert evaluate(f"plans | sglang_batches({seen})", plans=plans) == [
        [{"name": "coder", "action": "start", "reason": "is inactive", "group": ["coder"], "runs": {}}]
    ]
    assert len(evaluate("plans | sglang_batches({}, 2)", plans=plans)) == 1


def test_the_end_of_a_roll_out_is_told(evaluate: Evaluate) -> None:
    switched, proof = (
        {"states": {"chat": "s1"}, "stays": {}, "unrecorded": "disk full"},
        {"instances": {"chat": {"state": "ready"}}},
    )
    ends = f"{{'msg': 'disk full'}} | sglang_ending({switched}, {proof}, ['coder'])"
    assert evaluate(ends).splitlines() == [
        "The roll-out ends here.",
        "disk full",
        "chat is back on its last good state s1 and serves",
        "not touched: coder",
        "the failure is not in the history: disk full",
    ]


def test_a_report_is_lines_of_text(evaluate: Evaluate) -> None:
    told = evaluate("instances | sglang_plan(host) | sglang_report | join('\n')")
    for essential in ("instance", "chat", "coder", "1,2", "30001"):
        assert essential in told


def test_a_proof_is_lines_of_text(evaluate: Evaluate) -> None:
    plans = load("h200-mtp")
    told = evaluate("plans | sglang_report({'mtp': verdict})", plans=plans, verdict=recorded_verdict())
    assert told == expected("h200-mtp")


@pytest.fixture(scope="module")
def question() -> dict[str, Any]:
    """Bring a wish, the model's configuration and a GPU, as a playbook would hand them over."""
    configs = FIXTURES / "configs"
    return {
        "wish": {"name": "chat", "context_length": 32768, "concurrency": 16, "strategy": {"method": "mtp"}},
        "config": json.loads((configs / "qwen36-27b.json").read_text(encoding="utf-8")),
        "draft": json.loads((configs / "dflash-qwen36-27b.json").read_text(encoding="utf-8")),
        "gpu": {"name": "RTX PRO 6000", "memory_mib": 97887, "free_gib": 94.24, "compute_capability": "12.0"},
    }


def test_the_memory_of_one_instance(evaluate: Evaluate, question: dict[str, Any]) -> None:
    memory = evaluate("wish | sglang_memory(config, gpu, '0.5.23')", **question)
    assert (memory["concurrency"], memory["slots_per_request"], memory["state_slots"]) == (16, 5, 80)
    assert memory["kv_tokens"] >= 165_000
    assert memory["tightest"]["free_gib"] >= 4.0


def test_the_memory_with_a_draft_model(evaluate: Evaluate, question: dict[str, Any]) -> None:
    wish = {"context_length": 8192, "strategy": {"method": "dflash"}}
    expression = "wish | sglang_memory(config, gpu, '0.5.23', draft)"
    assert evaluate(expression, **{**question, "wish": wish})["pools_gib"]["draft_key"] > 0


def test_a_wish_that_cannot_be_met_is_refused_with_what_can(
    evaluate: Evaluate, question: dict[str, Any]
) -> None:
    wish = {**question["wish"], "concurrency": 48}
    with pytest.raises(AnsibleTemplateError, match=r"chat: .*ask for at most [0-9]+ requests"):
        evaluate("wish | sglang_memory(config, gpu, '0.5.23')", **{**question, "wish": wish})


def test_a_page_shows_what_was_measured_of_the_same_plan(evaluate: Evaluate) -> None:
    given = {"plans": load("h200-mtp"), "verdicts": {"mtp": recorded_verdict()}}
    seen = evaluate("plans | sglang_measured(verdicts)", **given)
    assert json.loads(evaluate("seen | to_json", seen=seen)) == seen
    assert ">measured<" not in evaluate("plans | sglang_page('h200')", **given)
    assert ">measured<" in evaluate("plans | sglang_page('h200', seen)", **given, seen=seen)


def test_every_filter_has_its_document_and_every_document_its_filter() -> None:
    filter_loader.add_directory(str(PLUGINS))
    plugin = filter_loader.get("sglang_plan")
    assert plugin is not None, "the filter file does not load, which Ansible tells as a warning only"
    filters = sys.modules[plugin.j2_function.__module__].FilterModule().filters()
    assert set(filters) == set(SIDECARS)


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """Read the documents of the filters as ansible-doc does."""
    outcome = run_tool("ansible-doc", "-t", "filter", "-j", *sorted(SIDECARS))
    documents: dict[str, Any] = json.loads(outcome.stdout)
    return documents


@pytest.mark.parametrize("name", sorted(SIDECARS))
def test_ansible_doc_finds_the_document(documents: dict[str, Any], name: str) -> None:
    document = documents[name]
    assert document["doc"]["filename"] == str(SIDECARS[name])
    assert document["doc"]["name"] == name
    assert document["doc"]["options"]["_input"]["required"]
    assert document["return"]["_value"]["sample"]


@pytest.mark.parametrize("name", sorted(SIDECARS))
def test_the_document_names_the_parameters_of_the_function(documents: dict[str, Any], name: str) -> None:
    filter_loader.add_directory(str(PLUGINS))
    code = filter_loader.get(name).j2_function.__code__
    _, *others = code.co_varnames[: code.co_argcount]
    options = documents[name]["doc"]["options"]
    assert set(options) == {"_input", *others}
    assert documents[name]["doc"]["positional"].split(", ") == ["_input", *others]


@pytest.mark.parametrize("name", sorted(SIDECARS))
def test_the_examples_are_tasks_that_use_the_filter(documents: dict[str, Any], name: str) -> None:
    tasks = yaml.safe_load(documents[name]["examples"])
    assert all(task["name"] for task in tasks)
    assert f"| {name}" in documents[name]["examples"]


def test_the_example_of_a_plan_can_be_planned(documents: dict[str, Any], evaluate: Evaluate) -> None:
    (task,) = yaml.safe_load(documents["sglang_plan"]["examples"])
    plans = evaluate("instances | sglang_plan(host)", **task["vars"])
    assert plans[1]["after"] == ["sglang-chat.service"]


def test_the_example_of_a_memory_plan_can_be_planned(
    documents: dict[str, Any], evaluate: Evaluate, question: dict[str, Any]
) -> None:
    (task,) = yaml.safe_load(documents["sglang_memory"]["examples"])
    expression = task["vars"]["memory"].strip("{} ")
    memory = evaluate(expression, **{**task["vars"], "config": question["config"]})
    returned = documents["sglang_memory"]["return"]["_value"]
    assert set(memory) <= set(returned["contains"])
    assert returned["sample"]["kv_tokens"] == memory["kv_tokens"]
    assert memory["binds"].startswith(returned["sample"]["binds"])


def test_the_documented_host_settings_are_the_real_ones(documents: dict[str, Any]) -> None:
    documented = documents["sglang_plan"]["doc"]["options"]["host"]["suboptions"]
    real = {field.name: field.default for field in fields(HostSettings)}
    assert set(documented) == set(real)
    for name, default in real.items():
        assert documented[name].get("required", False) == (default is MISSING)
        if default is not MISSING:
            assert documented[name].get("default") == (list(default) if default == () else default)


def test_the_files_of_secrets(evaluate: Evaluate) -> None:
    secret = {"name": "chat", "model": "/m", "port": 30001, "secrets": {"api_key": "key-0123456789"}}
    assert evaluate("given | sglang_secrets(host)", given=[secret]) == [
        {"path": "/etc/sglang/credentials/chat.api_key", "content": "key-0123456789"}
    ]
    with pytest.raises(AnsibleTemplateError, match="is not a token"):
        evaluate("given | sglang_secrets(host)", given=[{**secret, "secrets": {"api_key": "short"}}])


def test_what_is_wrong_is_told_without_an_end(evaluate: Evaluate) -> None:
    assert evaluate("instances | sglang_faults(host)") == ""
    told = evaluate("[instances[0] | combine({'port': 80})] | sglang_faults(host)")
    assert told == "chat: port: 80 is not from 1024 to 65535; use 1024"


def test_two_states_are_compared(evaluate: Evaluate) -> None:
    left, right = (
        {"title": title, "plan": evaluate("instances | sglang_plan(host)", base_port=base)[0]}
        for title, base in (("known-good", 30000), ("wanted", 31000))
    )
    told = evaluate("left | sglang_difference(right)", left=left, right=right)
    assert told["lines"][0] == "chat: known-good against wanted"
    assert any("30001" in line and "31001" in line for line in told["lines"])


MATRIX = {
    "instance": {"model": "/m", "port": 30090},
    "gpus": {"tp1": [1]},
    "variants": {"none": {}, "ddtree": {"strategy": {"method": "ddtree"}}},
    "concurrency": [1, 2],
}


def test_a_matrix_is_planned_recorded_and_shown(evaluate: Evaluate) -> None:
    outlook = evaluate("{'m': matrix} | sglang_matrix('m', host, {})", matrix=MATRIX)
    (start,) = outlook["starts"]
    assert [(one["variant"], one["result"]) for one in outlook["refused"]] == [("ddtree", "refused")] * 2
    seen = {
        "output_throughput": 5.0,
        "median_ttft_ms": 81.2,
        "median_tpot_ms": 12.5,
        "p99_e2e_latency_ms": 2500.0,
    }
    outcome = {"result": "measured", "effective": 2, "measured": seen}
    record = evaluate(
        "start | sglang_result(start.levels[0], outcome, '2026-11-30T08:00:00')", start=start, outcome=outcome
    )
    text = "\n".join(map(json.dumps, [record, *outlook["refused"]]))
    shown = evaluate("text | sglang_results('m', 'none')", text=text)
    assert [line.split() for line in shown["lines"] if "measured" in line] == [
        ["tp1", "none", "1", "5.0", "1.00", "81", "12.5", "2.50", "measured"]
    ]
    assert "<h1>m</h1>" in shown["page"]
    again = evaluate("{'m': matrix} | sglang_matrix('m', host, {}, text)", matrix=MATRIX, text=text)
    assert [one["concurrency"] for one in again["starts"][0]["levels"]] == [2]
    assert again["refused"] == []


def test_a_fault_of_a_matrix_reaches_the_user(evaluate: Evaluate) -> None:
    with pytest.raises(
        AnsibleTemplateError, match="n: matrix: is not in sglang_benchmark_matrices; there are m"
    ):
        evaluate("{'m': matrix} | sglang_matrix('n', host, {})", matrix=MATRIX)


@pytest.mark.parametrize("plugin", ["filter_plugins/sglang.py", "action_plugins/sglang_lock.py"])
def test_a_plugin_finds_the_kit_by_itself(monkeypatch: pytest.MonkeyPatch, plugin: str) -> None:
    kit = str(REPOSITORY / "module_utils")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != kit])
    runpy.run_path(str(REPOSITORY / plugin))
    assert sys.path[0] == kit
