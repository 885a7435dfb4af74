"""What a deploy leaves on a host: units that run what was planned, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import journal, plan_of, playbook, show

if TYPE_CHECKING:
    import subprocess

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
INSTANCES = ["first", "second"]


@pytest.fixture(params=INSTANCES)
def plan(host: Host, request: pytest.FixtureRequest) -> dict[str, Any]:
    return plan_of(host, request.param)


def environment(host: Host, pid: str) -> dict[str, str]:
    text = host.check_output(f"tr '\\0' '\\n' </proc/{pid}/environ")
    return dict(line.split("=", 1) for line in text.splitlines())


def deploy(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    return playbook(INVENTORY, "deploy.yml", f"--limit={host.backend.host}", *options)


def test_the_unit_runs_and_comes_back_at_boot(host: Host, plan: dict[str, Any]) -> None:
    service = host.service(plan["unit"])
    assert service.is_running
    assert service.is_enabled
    assert show(host, plan["unit"], "StatusText") == "ready"
    assert host.service("sglang.target").is_enabled


def test_it_listens_on_loopback(host: Host, plan: dict[str, Any]) -> None:
    assert host.socket(f"tcp://127.0.0.1:{plan['port']}").is_listening
    assert not host.socket(f"tcp://0.0.0.0:{plan['port']}").is_listening


@pytest.mark.parametrize(
    ("path", "group", "mode"),
    [
        ("/etc/systemd/system/sglang-first.service", "root", 0o644),
        ("/etc/systemd/system/sglang.target", "root", 0o644),
        ("/etc/sglang/first.env", "sglang", 0o640),
        ("/etc/sglang/first.plan.json", "sglang", 0o640),
        ("/etc/sglang/files.json", "root", 0o644),
        # The engines' account must not be able to put a link where root writes.
        ("/var/lib/sglang", "root", 0o755),
        ("/var/lib/sglang/instances", "sglang", 0o750),
    ],
)
def test_files_have_their_owner_and_mode(host: Host, path: str, group: str, mode: int) -> None:
    file = host.file(path)
    assert (file.user, file.group, file.mode) == ("root", group, mode)


def test_the_engine_runs_as_planned_and_not_as_root(host: Host, plan: dict[str, Any]) -> None:
    launcher = show(host, plan["unit"], "MainPID")
    engine = host.check_output(f"pgrep --parent {launcher} --oldest")
    argv = host.check_output(f"tr '\\0' '\\n' </proc/{engine}/cmdline").splitlines()
    assert argv[1:] == plan["argv"][1:]
    assert environment(host, engine)["SGLANG_METAL_FINGERPRINT"] == plan["fingerprint"]
    assert {host.process.get(pid=int(pid)).user for pid in (launcher, engine)} == {"sglang"}


def test_values_arrive_as_they_were_written(host: Host) -> None:
    pid = show(host, "sglang-second.service", "MainPID")
    assert environment(host, pid)["SOME_TEXT"] == 'a "quoted" $value with 100 %'


def test_the_journal_of_this_invocation_tells_the_start(host: Host, plan: dict[str, Any]) -> None:
    invocation = show(host, plan["unit"], "InvocationID")
    lines = journal(host, f"_SYSTEMD_INVOCATION_ID={invocation}", "--all")
    assert lines.count("The server is fired up and ready to roll!") == 1
    assert f"Uvicorn running on http://127.0.0.1:{plan['port']}" in lines


def test_a_dry_run_after_a_deploy_reports_nothing(host: Host) -> None:
    outcome = deploy(host, "--check", "--diff")
    assert outcome.returncode == 0, outcome.stdout
    assert "changed=0" in outcome.stdout


def test_stop_is_clean_and_start_returns_when_it_serves(host: Host) -> None:
    host.check_output("systemctl stop sglang-first")
    assert show(host, "sglang-first", "ActiveState") == "inactive"
    assert show(host, "sglang-first", "Result") == "success"
    assert host.run("pgrep --full /etc/sglang/first.plan.json").stdout == ""
    host.check_output("systemctl start sglang-first")
    assert show(host, "sglang-first", "StatusText") == "ready"


def test_faults_are_reported_together_and_change_nothing(host: Host) -> None:
    state = "systemctl show 'sglang-*' --property Id,MainPID,InvocationID; sha256sum /etc/sglang/*"
    before = host.check_output(state)
    port = plan_of(host, "first")["port"]
    definitions = [
        {"name": "a/b", "model": "/srv/models/tiny-gpt2", "port": port},
        {"name": "web", "model": "/srv/models/tiny-gpt2", "port": "thirty"},
        {"name": "two", "model": "/srv/models/tiny-gpt2", "port": port, "kontext": 3},
    ]
    outcome = deploy(host, "--extra-vars", json.dumps({"sglang_service_instances": definitions}))
    assert outcome.returncode != 0
    for fault in (
        "a/b: name: 'a/b' cannot name a systemd unit",
        "web: port: 'thirty' is not a whole number from 1024 to 65535",
        "two: kontext: is not a known key",
        f"two: port: {port} is also port of a/b",
    ):
        assert fault in outcome.stdout
    assert host.check_output(state) == before


def test_an_old_failure_is_not_reported_for_a_new_start(host: Host) -> None:
    drop_in = "/run/systemd/system/sglang-first.service.d/fail.conf"
    host.check_output(f"mkdir -p {Path(drop_in).parent}")
    host.check_output(
        f"printf '[Service]\\nEnvironment=SGLANG_REPLAY_DIE_AT=Load\\\\x20weight\\n' >{drop_in}"
    )
    host.check_output("systemctl daemon-reload && systemctl stop sglang-first")
    failed = host.run("systemctl start sglang-first")
    assert failed.rc != 0
    assert "the engine ended by SIGKILL" in journal(host, "--unit sglang-first --lines 20")
    host.check_output(f"rm -r {Path(drop_in).parent} && systemctl daemon-reload")
    host.check_output("systemctl stop sglang-first")

    outcome = deploy(host)

    assert outcome.returncode == 0, outcome.stdout
    assert "SIGKILL" not in outcome.stdout
    assert show(host, "sglang-first", "StatusText") == "ready"
