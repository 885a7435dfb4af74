"""Engines that somebody ran before: shown, left alone by a deploy, and taken over when asked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.on_host import plan_of, playbook, show, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
UNITS = ("sglang-gpu-c", "sglang-gpu-d")
OWN = "my-sglang.service"
PLACE = f"/etc/systemd/system/{OWN}"
LARGE_MIB, SMALL_MIB = 20480, 1024
"""The second is too little to be in the way of a plan, and enough to be in that of a start."""

testinfra_hosts = ["ansible://molecule-eight"]


def listening(host: Host, name: str) -> int:
    """Wait for an engine with the port of an instance, and return its pid."""
    port = plan_of(host, name)["port"]
    wait_until(lambda: host.socket(f"tcp://127.0.0.1:{port}").is_listening)
    return int(host.check_output(f"pgrep --full -- '[-]-port {port} '"))


@pytest.fixture(scope="module")
def others(host: Host) -> Iterator[tuple[int, int]]:
    """Give the places of two instances to an own unit and to a process started by hand; return their pids."""
    host.check_output(f"systemctl stop {' '.join(UNITS)}")
    by_unit, by_hand = (shlex.join(plan_of(host, name)["argv"]) for name in ("gpu-c", "gpu-d"))
    text = (
        f"[Service]\nEnvironment=SGLANG_REPLAY_SPEED=100\nExecStart={by_unit}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    host.check_output(f"printf '%%s' %s >{PLACE} && systemctl daemon-reload", text)
    host.check_output(f"systemctl enable --now {OWN}")
    host.check_output(f"SGLANG_REPLAY_SPEED=100 setsid --fork {by_hand} </dev/null >/dev/null 2>&1")
    pids = listening(host, "gpu-c"), listening(host, "gpu-d")
    host.check_output(
        f"printf '2,%d,{LARGE_MIB}\\n3,%d,{SMALL_MIB}\\n' {pids[0]} {pids[1]} >/run/fake-gpus.csv"
    )
    yield pids
    host.check_output(
        f"systemctl disable --now {OWN}; rm {PLACE} /run/fake-gpus.csv; systemctl daemon-reload"
    )


def deploy(*adopted: str) -> subprocess.CompletedProcess[str]:
    given = f"--extra-vars={json.dumps({'sglang_service_adopt': adopted})}"
    return playbook(INVENTORY, "deploy.yml", "--limit=molecule-eight", given)


def test_they_are_shown_with_what_they_hold(others: tuple[int, int]) -> None:
    outcome = playbook(INVENTORY, "playbooks/status.yml", "--limit=molecule-eight")
    assert outcome.returncode != 0
    _, engines = outcome.stdout.split("Engines that no unit of ours runs")
    engines, gpus = engines.split("Others on the GPUs")
    for pid, size in zip(others, (LARGE_MIB, SMALL_MIB), strict=True):
        assert f"pid {pid} (" in engines
        assert f" (not reserved): {size} MiB, pid {pid} (" in gpus
    assert f" of {OWN}" in engines
    assert f" of {OWN}" in gpus


def refused(*adopted: str) -> str:
    outcome = deploy(*adopted)
    assert outcome.returncode != 0
    return " ".join(outcome.stdout.split())


def test_a_deploy_names_them_and_touches_nothing(host: Host, others: tuple[int, int]) -> None:
    """First who leaves too little memory for the plan, and then who is in the way of a start."""
    by_unit, by_hand = others
    text = refused()
    assert "gpu-c: gpus: GPU 2 has 75.59 GiB free, the plan counts on 94.09 GiB" in text
    assert f"(pid {by_unit} ({OWN}) holds 20.00 GiB)" in text
    assert "let a deploy take it over (sglang_service_adopt)" in text
    text = refused(OWN)
    port = plan_of(host, "gpu-d")["port"]
    assert f"gpu-d: port {port} on 127.0.0.1: is held by pid {by_hand} (" in text
    assert f"gpu-d: GPU 3: {SMALL_MIB} MiB: is held by pid {by_hand} (" in text
    assert f"let a deploy take it over: sglang_service_adopt: [{by_hand}]" in text
    assert host.run(f"kill -0 {by_unit} && kill -0 {by_hand}").rc == 0, (
        "nor is one taken over without the other"
    )
    assert {show(host, unit, "ActiveState") for unit in UNITS} == {"inactive"}


def test_they_are_taken_over_when_that_is_asked(host: Host, others: tuple[int, int]) -> None:
    by_unit, by_hand = others
    adopted = (OWN, str(by_hand))
    outcome = deploy(*adopted)
    assert outcome.returncode == 0, outcome.stdout
    assert host.run(f"kill -0 {by_unit} || kill -0 {by_hand}").rc != 0
    assert show(host, OWN, "ActiveState") in ("inactive", "failed")
    assert show(host, OWN, "UnitFileState") == "disabled"
    assert {show(host, unit, "StatusText") for unit in UNITS} == {"ready"}
    assert "changed=0" in deploy(*adopted).stdout
