"""Settings that are far from their defaults arrive where they belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.on_host import plan_of, playbook, show

if TYPE_CHECKING:
    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
NAME = "Chat.v2-alpha_1"
UNIT = f"sglang-{NAME}.service"
NASTY = "a \"b\" 'c' $HOME ${X} %n %% \\n `id` größe 🚀;#=\n second line"


def words_of(host: Host, path: str) -> list[str]:
    """Read a list that ends each item with NUL, as /proc has it."""
    text = host.check_output(f"base64 --wrap=0 {path} | base64 --decode | od -An -v -tx1 | tr -d ' \\n'")
    return [word.decode() for word in bytes.fromhex(text).rstrip(b"\0").split(b"\0")]


def test_it_serves_under_its_own_account(host: Host) -> None:
    assert show(host, UNIT, "StatusText") == "ready"
    pid = int(show(host, UNIT, "MainPID"))
    process = host.process.get(pid=pid)
    assert (process.user, process.group) == ("llm", "inference")
    assert host.file(f"/etc/sglang/{NAME}.env").group == "inference"


def test_every_word_and_variable_arrives_byte_for_byte(host: Host) -> None:
    plan = plan_of(host, NAME)
    engine = host.check_output(f"pgrep --parent {show(host, UNIT, 'MainPID')} --oldest")
    words = words_of(host, f"/proc/{engine}/cmdline")
    assert [word for word in plan["argv"][3:] if word not in words] == []
    assert 'größe 100% "quoted" $HOME' in words
    variables = dict(line.split("=", 1) for line in words_of(host, f"/proc/{engine}/environ"))
    assert variables["NASTY"] == NASTY
    assert {name: variables[name] for name in plan["environment"]} == plan["environment"]


def test_it_listens_where_it_was_told(host: Host) -> None:
    assert host.socket("tcp://0.0.0.0:32410").is_listening


def test_its_memory_is_bound_to_the_node_that_it_named(host: Host) -> None:
    pid = show(host, UNIT, "MainPID")
    assert " bind:0 " in host.check_output(f"cat /proc/{pid}/numa_maps")


def test_metrics_have_a_directory_of_their_own(host: Host) -> None:
    assert plan_of(host, NAME)["environment"]["PROMETHEUS_MULTIPROC_DIR"] == f"/run/sglang/{NAME}"
    assert host.file(f"/run/sglang/{NAME}").user == "llm"


def test_what_shall_not_run_does_not(host: Host) -> None:
    assert show(host, "sglang-idle", "ActiveState") == "inactive"
    assert not host.service("sglang-idle").is_enabled
    assert show(host, "sglang-gone", "LoadState") == "not-found"


def test_an_older_engine_stops_cleanly_too(host: Host) -> None:
    """0.5.15.post1 kills itself after a clean drain."""
    host.check_output(f"systemctl stop {UNIT}")
    assert (show(host, UNIT, "ActiveState"), show(host, UNIT, "Result")) == ("inactive", "success")
    outcome = playbook(INVENTORY, "playbooks/status.yml", "--limit=gpu_hosts")
    assert outcome.returncode != 0
    assert f"not as wanted: {NAME}" in outcome.stdout
    host.check_output(f"systemctl start {UNIT}")


def test_status_tells_wanted_states(host: Host, tmp_path: Path) -> None:
    options = ("--limit=gpu_hosts", f"--extra-vars=sglang_artifacts_dir={tmp_path}")
    outcome = playbook(INVENTORY, "playbooks/status.yml", *options)
    assert outcome.returncode == 0, outcome.stdout
    seen = json.loads((tmp_path / "status.json").read_text(encoding="utf-8"))["molecule-alternative"]
    states = {one["name"]: (one["wanted"], one["state"]) for one in seen["instances"]}
    assert states == {
        NAME: ("started", "ready"),
        "idle": ("stopped", "never_started"),
        "gone": ("absent", "not_installed"),
    }
    assert show(host, UNIT, "StatusText") == "ready"
