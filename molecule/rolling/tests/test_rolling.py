"""A change rolls, stops where it fails, and leaves what served. Each test begins where the last one ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import ROOT, main_pids, plan_of, playbook, show, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
NAMES = ["one", "two", "three"]
UNITS = [f"sglang-{name}.service" for name in NAMES]
DIES = {"SGLANG_REPLAY_DIE_AT": "Load weight end"}
STATES = "/var/lib/sglang/instances"


@pytest.fixture
def other(host: Host) -> Host:
    return host.get_host("ansible://molecule-rolling2", ansible_inventory=str(INVENTORY))


def run(name: str, *options: str, **variables: object) -> subprocess.CompletedProcess[str]:
    given = f"--extra-vars={json.dumps(variables)}"
    return playbook(INVENTORY, name, "--limit=molecule-rolling1", given, *options)


def deploy(*options: str, **variables: object) -> subprocess.CompletedProcess[str]:
    return run("deploy.yml", *options, **variables)


def state(host: Host, name: str, link: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file(f"{STATES}/{name}/{link}/state.json").content_string)
    return found


def pools(host: Host, name: str) -> dict[str, Any]:
    proof: dict[str, Any] = json.loads(host.file(f"/run/sglang/{name}/proof.json").content_string)[
        "allocated"
    ]
    return proof


def files(host: Host) -> dict[str, str]:
    listed = host.check_output("find /etc/systemd/system/sglang* /etc/sglang -type f -exec sha256sum {} +")
    return {path: digest for digest, path in (line.split() for line in listed.splitlines())}


def healthy(host: Host, name: str) -> bool:
    port = plan_of(host, name)["port"]
    question = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/health', timeout=5)"
    return bool(host.run(f'python3 -c "{question}"').rc == 0)


def told(outcome: subprocess.CompletedProcess[str]) -> str:
    return " ".join(outcome.stdout.split())


def test_a_change_that_fails_on_the_second_of_three(host: Host, other: Host) -> None:
    before, elsewhere = main_pids(host, UNITS), main_pids(other, UNITS)
    good = state(host, "two", "known-good")
    served = pools(host, "two")

    outcome = deploy("--limit=gpu_hosts", flag=4096, extra=DIES)

    assert outcome.returncode != 0
    text = told(outcome)
    assert "The roll-out ends here. two: " in text
    assert "in stage kv_cache: the main process was killed with SIGKILL" in text
    assert f"two is back on its last good state {good['id']} and serves not touched: three" in text
    after = main_pids(host, UNITS)
    assert after[UNITS[0]] != before[UNITS[0]]
    assert "4096" in plan_of(host, "one")["argv"]
    assert show(host, UNITS[0], "StatusText") == "ready"
    assert plan_of(host, "two") == good["plan"]
    assert pools(host, "two") == served
    assert healthy(host, "two")
    assert after[UNITS[2]] == before[UNITS[2]]
    assert "8192" in plan_of(host, "three")["argv"]
    assert main_pids(other, UNITS) == elsewhere
    assert state(host, "one", "known-good")["id"] == state(host, "one", "wanted")["id"]
    assert state(host, "two", "known-good")["id"] == good["id"]
    failed = state(host, "two", "wanted")["results"][-1]
    assert (failed["result"], failed["cause"]) == ("failed", "main-process-killed")
    assert host.run(f"ls {STATES}/two/failures/*/journal.log").rc == 0


@pytest.mark.usefixtures("host")  # which keeps it in its place
def test_its_history_is_told() -> None:
    outcome = run("playbooks/history.yml")
    assert outcome.returncode == 0, outcome.stdout
    kept = json.loads((ROOT / "artifacts/history.json").read_text(encoding="utf-8"))
    two = kept["molecule-rolling1"]["two"]
    assert two["running"] == two["known_good"] == two["target"] != two["wanted"]
    assert [one["results"][-1]["result"] for one in two["states"][:2]] == ["failed", "rolled_back"]
    assert two["states"][0]["by"]["commit"]
    assert "main-process-killed" in outcome.stdout


def test_an_earlier_state_comes_back_with_one_start(host: Host) -> None:
    before = main_pids(host, UNITS)
    starts = host.run("journalctl --unit sglang-one --output cat | grep --count 'Started sglang-one'").stdout
    earlier = json.loads((ROOT / "artifacts/history.json").read_text(encoding="utf-8"))
    target = earlier["molecule-rolling1"]["one"]["target"]
    outcome = run("playbooks/rollback.yml", instance="one")
    assert outcome.returncode == 0, outcome.stdout
    after = main_pids(host, UNITS)
    assert [unit for unit in UNITS if after[unit] != before[unit]] == [UNITS[0]]
    assert state(host, "one", "known-good")["id"] == state(host, "one", "wanted")["id"] == target
    assert "8192" in plan_of(host, "one")["argv"]
    now = host.run("journalctl --unit sglang-one --output cat | grep --count 'Started sglang-one'").stdout
    assert int(now) == int(starts) + 1
    unknown = run("playbooks/rollback.yml", instance="one", state="20200101T000000Z-00000000")
    assert unknown.returncode != 0
    assert "one has no state 20200101T000000Z-00000000" in told(unknown)
    assert main_pids(host, UNITS) == after


# One and two exchange their ports, three stops.
SWAP: dict[str, object] = {
    "sglang_service_instances": [
        "{{ one | combine({'port': first_port + 1}) }}",
        "{{ two | combine({'port': first_port}) }}",
        "{{ three | combine({'state': 'stopped'}) }}",
    ]
}


def steps(outcome: subprocess.CompletedProcess[str]) -> list[str]:
    """Read what is to be done."""
    return re.findall(r"msg: '?((?:start|restart|stop|prove) \w+):", outcome.stdout)


def test_what_check_mode_says_is_what_happens(host: Host) -> None:
    """Also a move in a circle: neither port is free before both have stopped."""
    assert deploy().returncode == 0
    before, old = main_pids(host, UNITS), files(host)
    predicted = deploy("--check", "--diff", **SWAP)
    assert predicted.returncode == 0, predicted.stdout
    assert (main_pids(host, UNITS), files(host)) == (before, old)

    done = deploy(**SWAP)

    assert done.returncode == 0, done.stdout
    assert steps(predicted) == steps(done) == ["stop three", "restart one", "restart two"]
    new, after = files(host), main_pids(host, UNITS)
    shown = set(
        re.findall(r"^\+\+\+ after: (/etc/(?:sglang|systemd/system)/\S+)", predicted.stdout, re.MULTILINE)
    )
    assert shown == {path for path in new if new[path] != old.get(path)} != set()
    assert [unit for unit in UNITS if after[unit] == before[unit]] == []
    assert show(host, UNITS[2], "ActiveState") == "inactive"
    assert host.run("systemctl is-enabled sglang-three").stdout.strip() == "disabled"
    assert healthy(host, "one")
    assert healthy(host, "two")
    again = deploy("--check", "--diff", **SWAP)
    assert "changed=0" in again.stdout


def test_a_circle_goes_back_as_a_whole(host: Host) -> None:
    """The ports of one are free only when two has given them back, too."""
    good = {name: state(host, name, "known-good")["id"] for name in ("one", "two")}
    outcome = deploy(extra=DIES, sglang_service_instances=["{{ one }}", "{{ two }}"])
    assert outcome.returncode != 0
    assert {name: state(host, name, "known-good")["id"] for name in good} == good
    assert healthy(host, "one")
    assert healthy(host, "two")
    for name, identifier in good.items():
        assert f"{name} is back on its last good state {identifier} and serves" in told(outcome)
        assert plan_of(host, name) == state(host, name, "known-good")["plan"]


# --- two at once ---------------------------------------------------------------------------------


@pytest.fixture
def running(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """Run a deploy that waits for an engine which takes its time."""
    slow = {"sglang_service_instances": ["{{ one }}", "{{ two }}"], "extra": {"SGLANG_REPLAY_SPEED": "0.5"}}
    command = ["ansible-playbook", f"--inventory={INVENTORY}", "deploy.yml", "--limit=molecule-rolling1"]
    with subprocess.Popen(
        [*command, f"--extra-vars={json.dumps(slow)}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        wait_until(lambda: show(host, UNITS[1], "ActiveState") == "activating")
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_second_deploy_is_told_who_is_at_work_and_a_dead_one_does_not_block(
    host: Host, running: subprocess.Popen[bytes]
) -> None:
    second = deploy()
    assert second.returncode != 0
    assert re.search(
        rf"Another run changes this host: deploy.yml, started by \w+ on \S+ \(pid {running.pid}\), holds it",
        told(second),
    )
    assert show(host, UNITS[1], "ActiveState") == "activating"
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    third = deploy(sglang_service_parallel=3)
    assert third.returncode == 0, third.stdout
    assert host.file("/run/sglang-deploy.lock").content_string == ""
    assert all(healthy(host, name) for name in NAMES)


# --- a load balancer -----------------------------------------------------------------------------

BALANCER = r"""#!/bin/sh
printf '%s %s %s\n' "$1" "$2" "$(systemctl show "sglang-$2" -p ActiveState --value)" >> /run/balancer
test ! -e /run/balancer-is-away
"""
HOOKS: dict[str, object] = {
    "sglang_service_drain": ["/usr/local/bin/balancer", "drain", "{name}"],
    "sglang_service_undrain": ["/usr/local/bin/balancer", "undrain", "{name}"],
}


def test_an_instance_leaves_the_load_balancer_before_it_stops_and_returns_when_ready(host: Host) -> None:
    host.check_output("printf '%%s' %s > /usr/local/bin/balancer", BALANCER)
    host.check_output("chmod 755 /usr/local/bin/balancer && touch /run/balancer-is-away")
    only_one: dict[str, object] = {**HOOKS, "flag": 4096, "sglang_service_instances": ["{{ one }}"]}
    assert deploy(**{**only_one, "flag": 8192}).returncode == 0
    before = main_pids(host, UNITS[:1])

    away = deploy(**only_one)

    assert away.returncode != 0
    assert "one: drain: /usr/local/bin/balancer ended with status 1" in told(away)
    assert main_pids(host, UNITS[:1]) == before
    host.check_output("rm /run/balancer /run/balancer-is-away")
    assert deploy(**only_one).returncode == 0
    calls = host.file("/run/balancer").content_string.splitlines()
    assert calls == ["drain one active", "undrain one active"]


# --- an engine of somebody else ------------------------------------------------------------------


def test_an_engine_that_runs_already_is_named_and_taken_over_when_asked(host: Host) -> None:
    plan = plan_of(host, "one")
    port = plan["port"] + 5
    argv = [str(port) if word == str(plan["port"]) else word for word in plan["argv"]]
    host.check_output(f"systemd-run --unit=mine --setenv=SGLANG_REPLAY_SPEED=100 {' '.join(argv)}")
    wait_until(lambda: host.socket(f"tcp://127.0.0.1:{port}").is_listening)
    pid = show(host, "mine", "MainPID")
    four = {
        "name": "four",
        "model": "/srv/models/tiny-gpt2",
        "port": port,
        "env": {"SGLANG_REPLAY_SPEED": "100"},
    }
    wanted: dict[str, object] = {"flag": 4096, "sglang_service_instances": ["{{ one }}", four]}
    before = files(host)

    refused = deploy(**wanted)

    assert refused.returncode != 0
    assert f"four: port {port} on 127.0.0.1: is held by pid {pid} (" in told(refused)
    assert "sglang_service_adopt: [mine.service]" in told(refused)
    assert (show(host, "mine", "MainPID"), files(host)) == (pid, before)
    taken = deploy(sglang_service_adopt=["mine"], **wanted)
    assert taken.returncode == 0, taken.stdout
    assert show(host, "mine", "ActiveState") in ("inactive", "failed")
    assert healthy(host, "four")
    assert "changed=0" in deploy(sglang_service_adopt=["mine"], **wanted).stdout
