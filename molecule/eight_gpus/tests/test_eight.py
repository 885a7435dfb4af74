"""Eight instances on one host: deployed as cheaply as one, each with a life of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.on_host import journal, main_pids, plan_of, playbook, processes_of, show, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
UNITS = [f"sglang-gpu-{letter}.service" for letter in "abcdefgh"]
VICTIM = "sglang-gpu-c.service"

testinfra_hosts = ["ansible://molecule-eight"]


@pytest.fixture
def drop_in(host: Host) -> Iterator[str]:
    """Give a file for settings of the victim that are gone after the test."""
    directory = f"/run/systemd/system/{VICTIM}.d"
    host.check_output(f"mkdir -p {directory}")
    yield f"{directory}/test.conf"
    host.check_output(f"rm -r {directory} && systemctl daemon-reload && systemctl restart {VICTIM}")


@pytest.fixture
def stopped(host: Host, drop_in: str) -> str:
    """Stop the victim, and let it not try again by itself; give its unit."""
    host.check_output(f"printf '[Service]\\nRestart=no\\n' >{drop_in} && systemctl daemon-reload")
    host.check_output(f"systemctl stop {VICTIM}")
    return VICTIM


@pytest.fixture
def holder(host: Host, stopped: str) -> Iterator[str]:
    """Let a stranger hold 20 GiB of the victim's GPU; give the stranger's unit."""
    assert show(host, stopped, "ActiveState") == "inactive"
    host.check_output("systemd-run --quiet --unit=holder sleep infinity")
    host.check_output(f"echo 2,{show(host, 'holder.service', 'MainPID')},20480 >/run/fake-gpus.csv")
    yield "holder.service"
    host.check_output("rm -f /run/fake-gpus.csv && systemctl stop holder")


@pytest.fixture
def squatter(host: Host, stopped: str) -> Iterator[str]:
    """Let a stranger take the victim's port; give the stranger's unit."""
    assert show(host, stopped, "ActiveState") == "inactive"
    host.check_output("systemd-run --quiet --unit=squatter python3 -m http.server 32120 --bind 127.0.0.1")
    wait_until(lambda: host.socket("tcp://127.0.0.1:32120").is_listening)
    yield "squatter.service"
    host.check_output("systemctl stop squatter")


def engine_of(host: Host, launcher: str) -> str:
    return str(host.check_output(f"pgrep --parent {launcher} --oldest"))


def test_all_of_them_serve(host: Host) -> None:
    assert {unit: show(host, unit, "StatusText") for unit in UNITS} == dict.fromkeys(UNITS, "ready")


def test_each_has_a_gpu_of_its_own(host: Host) -> None:
    for index, (unit, pid) in enumerate(main_pids(host, UNITS).items()):
        environment = host.check_output(f"tr '\\0' '\\n' </proc/{engine_of(host, pid)}/environ")
        assert f"CUDA_VISIBLE_DEVICES={index}" in environment.split("\n"), unit
        assert show(host, unit, "DevicePolicy") == "closed"
    planned = plan_of(host, "gpu-h")
    assert planned["gpus"] == ["7"]
    assert planned["memory"]["kv_tokens"] == 8192


def test_a_deploy_that_changes_nothing_takes_as_many_tasks_for_eight_as_for_one(host: Host) -> None:
    before = main_pids(host, UNITS)
    outcome = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts")
    assert outcome.returncode == 0, outcome.stdout
    counts = dict(re.findall(r"^molecule-(\w+) +: (.*\S)", outcome.stdout, re.MULTILINE))
    assert "changed=0" in counts["one"]
    assert counts["eight"] == counts["one"]
    assert main_pids(host, UNITS) == before


def test_changing_one_restarts_one(host: Host) -> None:
    before = main_pids(host, UNITS)
    changed = ("deploy.yml", "--limit=molecule-eight", "--extra-vars=changed_letter=e", "--diff")
    outcome = playbook(INVENTORY, *changed)
    assert outcome.returncode == 0, outcome.stdout
    after = main_pids(host, UNITS)
    assert [unit for unit in UNITS if after[unit] != before[unit]] == ["sglang-gpu-e.service"]
    assert set(re.findall(r"^\+\+\+ after: (\S+\.service)", outcome.stdout, re.MULTILINE)) == {
        "/etc/systemd/system/sglang-gpu-e.service"
    }
    assert playbook(INVENTORY, "deploy.yml", "--limit=molecule-eight").returncode == 0


@pytest.mark.parametrize("victim", ["launcher", "engine"])
def test_a_killed_process_is_never_an_active_unit_without_an_engine(
    host: Host, drop_in: str, victim: str
) -> None:
    host.check_output(f"printf '[Service]\\nRestartSec=100ms\\n' >{drop_in} && systemctl daemon-reload")
    before = main_pids(host, UNITS)
    invocation = show(host, VICTIM, "InvocationID")
    launcher = before[VICTIM]
    engine = engine_of(host, launcher)
    host.check_output(f"kill -KILL {launcher if victim == 'launcher' else engine}")
    wait_until(lambda: show(host, VICTIM, "InvocationID") != invocation)
    assert host.run(f"kill -0 {launcher} {engine}").rc != 0
    wait_until(lambda: show(host, VICTIM, "ActiveState") == "active")
    assert show(host, VICTIM, "StatusText") == "ready"
    assert show(host, VICTIM, "NRestarts") == "1"
    after = main_pids(host, UNITS)
    assert [unit for unit in UNITS if after[unit] != before[unit]] == [VICTIM]


def test_no_process_survives_a_stop_while_loading(host: Host, drop_in: str) -> None:
    text = "[Service]\\nEnvironment=SGLANG_REPLAY_HANG_AT=KV\\\\x20Cache\\n"
    host.check_output(f"printf '{text}' >{drop_in} && systemctl daemon-reload")
    host.check_output(f"systemctl restart --no-block {VICTIM}")
    wait_until(lambda: show(host, VICTIM, "StatusText").startswith("loading: KV cache"))
    assert len(processes_of(host, VICTIM)) >= 2
    host.check_output(f"systemctl stop {VICTIM}")
    assert (show(host, VICTIM, "ActiveState"), show(host, VICTIM, "Result")) == ("inactive", "success")
    assert processes_of(host, VICTIM) == []
    assert host.run("pgrep --full /etc/sglang/gpu-c.plan.json").stdout == ""


def test_a_start_that_fails_in_a_row_ends_and_refuses_no_other_one(host: Host, drop_in: str) -> None:
    text = "[Service]\\nRestartSec=100ms\\nEnvironment=SGLANG_REPLAY_DIE_AT=Load\\\\x20weight\\n"
    host.check_output(f"printf '{text}' >{drop_in} && systemctl daemon-reload && systemctl stop {VICTIM}")
    for _ in range(3):  # as often as somebody tries; systemd's own limit would refuse the sixth start
        assert host.run(f"systemctl start {VICTIM}").rc != 0
        wait_until(lambda: show(host, VICTIM, "ActiveState") == "failed")
        assert show(host, VICTIM, "NRestarts") == "2"
        last = journal(host, "--identifier=sglang-gpu-c --lines 1")
        assert "start 3 in a row that did not become ready" in last


def test_the_target_stops_and_starts_all(host: Host) -> None:
    host.check_output("systemctl stop sglang.target")
    # The target itself is down at once; its instances drain.
    wait_until(lambda: {show(host, unit, "ActiveState") for unit in UNITS} == {"inactive"})
    assert {show(host, unit, "Result") for unit in UNITS} == {"success"}
    assert host.run("pgrep --uid sglang").stdout == ""
    host.check_output("systemctl start sglang.target")
    wait_until(lambda: {show(host, unit, "ActiveState") for unit in UNITS} == {"active"})


def test_a_held_port_refuses_the_start_and_is_named(host: Host, squatter: str) -> None:
    assert host.run(f"systemctl start {VICTIM}").rc != 0
    pid = show(host, squatter, "MainPID")
    last = journal(host, "--identifier=sglang-gpu-c --lines 1")
    assert f"port 32120 on 127.0.0.1 is held by pid {pid} (" in last
    assert f"of {squatter}" in last
    seen = playbook(INVENTORY, "playbooks/status.yml", "--limit=molecule-eight")
    assert seen.returncode != 0
    assert "gpu-c: port 32120 on 127.0.0.1 is held by" in seen.stdout


def test_a_held_gpu_refuses_the_start_and_is_named_until_it_is_free(host: Host, holder: str) -> None:
    assert host.run(f"systemctl start {VICTIM}").rc != 0
    last = journal(host, "--identifier=sglang-gpu-c --lines 1")
    assert f"GPU 2: 20480 MiB are held by pid {show(host, holder, 'MainPID')} (" in last
    assert f"of {holder}" in last
    host.check_output("rm /run/fake-gpus.csv")
    host.check_output(f"systemctl start {VICTIM}")
    assert show(host, VICTIM, "StatusText") == "ready"


def test_exposure_is_low(host: Host) -> None:
    text = host.check_output(f"systemd-analyze security --no-pager {VICTIM}")
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", text)
    assert exposure is not None
    assert float(exposure[1]) <= 3.0
    assert host.check_output(f"systemd-analyze verify {VICTIM} 2>&1") == ""


def test_status_is_for_people_and_for_programs(host: Host) -> None:
    wait_until(lambda: show(host, VICTIM, "StatusText") == "ready")
    outcome = playbook(INVENTORY, "playbooks/status.yml", "--limit=molecule-eight")
    assert outcome.returncode == 0, outcome.stdout
    assert len(re.findall(r"gpu-[a-h] +started +ready", outcome.stdout)) == len(UNITS)
