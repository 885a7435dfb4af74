"""A change rolls, stops where it fails, and leaves what served. Each test begins where the last one ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import ROOT, journal, main_pids, plan_of, playbook, show, wait_until

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


def test_going_back_to_what_runs_starts_nothing(host: Host) -> None:
    before = main_pids(host, UNITS)
    outcome = run("playbooks/rollback.yml", instance="two")
    assert outcome.returncode == 0, outcome.stdout
    assert "which ran already" in outcome.stdout
    assert state(host, "two", "wanted")["id"] == state(host, "two", "known-good")["id"]
    assert main_pids(host, UNITS) == before


def test_a_last_good_state_that_hangs_is_started_once(host: Host) -> None:
    before, good = main_pids(host, UNITS), state(host, "two", "known-good")["id"]
    engine = host.check_output(f"pgrep --parent {before[UNITS[1]]}")
    # A signal that ends it reaches a frozen process when it thaws.
    stops = "systemctl show sglang-two --property ActiveState --value | grep --quiet deactivating"
    thaw = f"until {stops}; do sleep 0.2; done; kill -CONT {engine}"
    host.check_output(f"kill -STOP {engine} && systemd-run --unit=thaw sh -c '{thaw}'")
    outcome = run("playbooks/rollback.yml", instance="two", state=good)
    assert outcome.returncode != 0
    assert f"two is back on its last good state {good} and serves" in told(outcome)
    assert healthy(host, "two")
    after = main_pids(host, UNITS)
    assert [unit for unit in UNITS if after[unit] != before[unit]] == [UNITS[1]]
    results = [one["result"] for one in state(host, "two", "known-good")["results"]]
    assert results[-2:] == ["failed", "rolled_back"]


def test_a_host_that_does_not_serve_ends_a_roll_out_before_any_host_is_changed(
    host: Host, other: Host
) -> None:
    before, elsewhere = main_pids(host, UNITS), main_pids(other, UNITS)
    engine = other.check_output(f"pgrep --parent {elsewhere[UNITS[2]]}")
    other.check_output(f"kill -STOP {engine}")
    outcome = deploy("--limit=gpu_hosts", extra={"GREETING": "new"})
    other.check_output(f"kill -CONT {engine}")
    assert outcome.returncode != 0
    text = told(outcome)
    assert "No instance was touched: one that shall keep running does not serve" in text
    assert "three: " in text
    assert "restart two: " in text
    assert "undefined" not in text
    assert (main_pids(host, UNITS), main_pids(other, UNITS)) == (before, elsewhere)


def test_an_earlier_state_comes_back_with_one_start(host: Host) -> None:
    before = main_pids(host, UNITS)
    starts = journal(host, "--unit sglang-one").count("Started sglang-one")
    earlier = json.loads((ROOT / "artifacts/history.json").read_text(encoding="utf-8"))
    target = earlier["molecule-rolling1"]["one"]["target"]
    outcome = run("playbooks/rollback.yml", instance="one")
    assert outcome.returncode == 0, outcome.stdout
    after = main_pids(host, UNITS)
    assert [unit for unit in UNITS if after[unit] != before[unit]] == [UNITS[0]]
    assert state(host, "one", "known-good")["id"] == state(host, "one", "wanted")["id"] == target
    assert "8192" in plan_of(host, "one")["argv"]
    assert journal(host, "--unit sglang-one").count("Started sglang-one") == starts + 1
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


# Names and processes of its own, as another machine has; all of it ends with its first process, also ssh.
CONTROLLER = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def running(host: Host, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let bob deploy from a controller called lab; the second engine takes longer than the test."""
    slow = {"sglang_service_instances": ["{{ one }}", "{{ two }}"], "extra": {"SGLANG_REPLAY_SPEED": "0.1"}}
    command = ["ansible-playbook", f"--inventory={INVENTORY}", "deploy.yml", "--limit=molecule-rolling1"]
    with subprocess.Popen(
        [
            *CONTROLLER,
            *("sh", "-c", 'hostname lab && exec "$@"', "-"),
            *command,
            f"--extra-vars={json.dumps(slow)}",
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "LOGNAME": "bob", "ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path)},
    ) as process:
        # Where they have exchanged something before, both start at once.
        wait_until(
            lambda: (
                show(host, UNITS[1], "ActiveState") == "activating"
                and "0" not in main_pids(host, UNITS[:2]).values()
            )
        )
        yield process
        process.kill()


def test_a_second_controller_is_told_who_is_at_work_and_a_dead_one_does_not_block(
    host: Host, running: subprocess.Popen[bytes]
) -> None:
    before, old, now = main_pids(host, UNITS), files(host), datetime.now(timezone.utc)
    second = deploy()
    assert second.returncode != 0
    held = re.search(
        r"deploy.yml, started by bob on lab \(pid \d+\), holds it since (\S+)\.",
        told(second),
    )
    assert held
    assert timedelta() < now - datetime.fromisoformat(held[1]) < timedelta(minutes=10)
    assert (main_pids(host, UNITS), files(host)) == (before, old)
    assert show(host, UNITS[1], "ActiveState") == "activating"
    running.kill()
    running.wait()
    third = deploy(sglang_service_parallel=3)
    assert third.returncode == 0, third.stdout
    assert host.file("/run/sglang-deploy.lock").content_string == ""
    assert all(healthy(host, name) for name in NAMES)


def test_what_differs_from_another_host_is_told(host: Host) -> None:
    """Both have the same of the inventory, and run it; their places differ by nature."""
    given = {"instance": "one", "against": "molecule-rolling2/one", "state": "running"}
    same = run("playbooks/diff.yml", **given)
    assert same.returncode == 0, same.stdout
    found = json.loads((ROOT / "artifacts/diff/molecule-rolling1/one.json").read_text(encoding="utf-8"))
    assert (found["left"]["on"], found["right"]["on"]) == ("molecule-rolling1", "molecule-rolling2")
    assert {row["name"] for row in found["differences"]} == {"--port", "--nccl-port"}

    changed = run("playbooks/diff.yml", **{**given, "state": "inventory"}, flag=4096)
    assert changed.returncode == 0, changed.stdout
    assert re.search(r"memory flag +--max-total-tokens +4096 +8192", changed.stdout)

    for against, answer in {
        "molecule-rolling2/four": "four: is no instance of this host; known are one, three, two",
        "molecule-rolling3/one": "HOST one of molecule-rolling1, molecule-rolling2",
    }.items():
        wrong = run("playbooks/diff.yml", **{**given, "against": against})
        assert wrong.returncode != 0
        assert answer in told(wrong)
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
