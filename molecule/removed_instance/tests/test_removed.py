"""An instance that leaves the inventory leaves the host, and only it; and a host is cleared."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.on_host import journal, main_pids, playbook, show, wait_until

if TYPE_CHECKING:
    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
STRANGERS = "/etc/systemd/system/sglang-of-somebody-else.service"
UNITS = ["sglang-leaves.service", "sglang-stays.service"]


def told(host: Host) -> list[str]:
    """Return what the load balancer was told since the last time."""
    return str(host.check_output("cat /run/balancer && rm /run/balancer")).splitlines()


def test_a_name_that_there_is_not_is_answered_with_those_that_there_are(host: Host) -> None:
    before = main_pids(host, UNITS)

    def asked(name: str) -> tuple[int, str]:
        options = ("--limit=gpu_hosts", "--extra-vars=instance=leave")
        outcome = playbook(INVENTORY, f"playbooks/{name}.yml", *options)
        return outcome.returncode, outcome.stdout

    names = ("diff", "history", "rollback", "status", "why")
    with ThreadPoolExecutor() as pool:
        for name, (status, said) in zip(names, pool.map(asked, names), strict=True):
            assert status != 0, name
            assert "leave: is no instance of this host; known are leaves, stays" in said, name
    status, said = asked("remove")
    assert status != 0
    assert "One of them goes by a deploy: take leave out of" in " ".join(said.split())
    assert main_pids(host, UNITS) == before


def test_it_is_stopped_first_and_its_files_go(host: Host) -> None:
    host.check_output(f"printf '[Service]\\nExecStart=/bin/true\\n' >{STRANGERS}")
    kept = show(host, "sglang-stays", "MainPID")
    invocation = show(host, "sglang-leaves", "InvocationID")
    remaining = json.dumps({"sglang_service_instances": ["{{ stays }}"]})

    dry = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts", "--check", f"--extra-vars={remaining}")
    assert dry.returncode == 0, dry.stdout
    assert "stop and remove leaves: it is not in the inventory any more" in dry.stdout
    assert show(host, "sglang-leaves", "ActiveState") == "active"

    empty = json.dumps({"sglang_service_instances": []})
    refused = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts", f"--extra-vars={empty}")
    assert refused.returncode != 0
    assert "lists no instance, and this host has leaves, stays" in refused.stdout
    assert show(host, "sglang-leaves", "ActiveState") == "active"

    assert told(host) == ["undrain stays active", "undrain leaves active"]
    outcome = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts", f"--extra-vars={remaining}")
    assert outcome.returncode == 0, outcome.stdout
    assert told(host) == ["drain leaves active"]
    assert "Deactivated successfully" in journal(host, f"INVOCATION_ID={invocation} _PID=1")
    assert show(host, "sglang-leaves", "LoadState") == "not-found"
    assert host.run("pgrep --full /etc/sglang/leaves.plan.json").stdout == ""
    left = host.check_output("find /etc /run/sglang /run/systemd -name '*leaves*'")
    assert left == ""
    assert show(host, "sglang-stays", "MainPID") == kept
    assert show(host, "sglang-stays", "StatusText") == "ready"
    assert host.file(STRANGERS).exists


def test_a_deploy_after_it_changes_nothing(host: Host) -> None:
    kept = show(host, "sglang-stays", "MainPID")
    remaining = json.dumps({"sglang_service_instances": ["{{ stays }}"]})
    outcome = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts", f"--extra-vars={remaining}")
    assert outcome.returncode == 0, outcome.stdout
    assert "changed=0" in outcome.stdout
    assert show(host, "sglang-stays", "MainPID") == kept


def test_it_comes_back_as_it_was(host: Host) -> None:
    kept = show(host, "sglang-stays", "MainPID")
    outcome = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts")
    assert outcome.returncode == 0, outcome.stdout
    wait_until(lambda: show(host, "sglang-leaves", "StatusText") == "ready")
    assert show(host, "sglang-stays", "MainPID") == kept


def test_a_host_is_not_cleared_while_the_load_balancer_refuses(host: Host) -> None:
    before = main_pids(host, UNITS)
    assert told(host) == ["undrain leaves active"]
    host.check_output("touch /run/balancer-refuses-stays")
    outcome = playbook(INVENTORY, "playbooks/remove.yml", "--limit=gpu_hosts")
    assert outcome.returncode != 0
    assert "stays: drain: /bin/sh ended with status 1" in outcome.stdout
    assert told(host) == ["drain leaves active", "drain stays active", "undrain leaves active"]
    assert main_pids(host, UNITS) == before
    assert host.file("/run/sglang-deploy.lock").content_string == "", "the next one need not wait"


def test_a_host_can_be_cleared(host: Host) -> None:
    host.check_output("rm /run/balancer-refuses-stays && systemctl stop sglang-leaves")
    outcome = playbook(INVENTORY, "playbooks/remove.yml", "--limit=gpu_hosts")
    assert outcome.returncode == 0, outcome.stdout
    assert told(host) == ["drain stays active"], "what does not run need not be taken out"
    assert host.run("pgrep --uid sglang").stdout == ""
    said = re.findall(r"^ +(/etc/\S+)$", outcome.stdout, re.MULTILINE)
    assert "/etc/systemd/system/sglang-stays.service" in said
    assert [path for path in said if host.file(path).exists] == [], "it says what it removes"
    assert (
        host.check_output("find /etc/sglang /etc/systemd/system -name '*stays*' -o -name 'sglang.target'")
        == ""
    )
    assert host.file(STRANGERS).exists
    assert host.file("/srv/models/tiny-gpt2/config.json").exists
