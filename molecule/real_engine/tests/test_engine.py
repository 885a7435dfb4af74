"""The real SGLang behind the unit: serves, stops cleanly, and a start that dies is reported at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import on_host
from tests.on_host import ROOT, journal, playbook

if TYPE_CHECKING:
    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
URL = "http://127.0.0.1:31030"
DEPLOY = ["ansible-playbook", f"--inventory={INVENTORY}", "deploy.yml", "--limit=gpu_hosts"]


def show(host: Host, name: str) -> str:
    return on_host.show(host, "sglang-tiny", name)


def ask(host: Host, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    script = (
        "import sys, urllib.request as r; body = sys.argv[2].encode() or None;"
        "request = r.Request(sys.argv[1], body, {'Content-Type': 'application/json'});"
        "print(r.urlopen(request, timeout=60).read().decode())"
    )
    text = host.check_output("python3 -c %s %s %s", script, URL + path, json.dumps(body) if body else "")
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_the_real_package_serves_a_completion(host: Host) -> None:
    assert ask(host, "/server_info")["version"] == "0.5.23"
    answer = ask(host, "/v1/completions", {"model": "tiny-gpt2", "prompt": "Hello", "max_tokens": 4})
    assert answer["usage"]["completion_tokens"] == 4


def test_a_deploy_that_changes_nothing_does_not_restart_it(host: Host) -> None:
    before = show(host, "MainPID")
    outcome = playbook(INVENTORY, "deploy.yml", "--limit=gpu_hosts")
    assert outcome.returncode == 0, outcome.stdout
    assert "changed=0" in outcome.stdout
    assert show(host, "MainPID") == before


def test_a_killed_scheduler_ends_the_deploy_with_phase_and_full_message(host: Host) -> None:
    host.check_output("systemctl stop sglang-tiny")
    with subprocess.Popen(DEPLOY, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8") as deploy:
        # On the host itself: a question per ssh could come after the scheduler's initialisation.
        kill = "until pkill --signal KILL --full ^sglang::scheduler; do sleep 0.1; done"
        host.check_output("timeout 300 sh -c %s", kill)
        output = deploy.communicate()[0]
    assert deploy.returncode != 0
    assert "tiny: failed in stage" in output
    assert "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9)" in output
    assert "The roll-out ends here." in output


def test_start_returns_when_it_serves_and_stop_is_clean(host: Host) -> None:
    # The deploy told of the crash at the fatal line; the unit may still be dying, and a start would join it.
    host.check_output("systemctl stop sglang-tiny")
    host.check_output("systemctl start sglang-tiny")
    assert show(host, "StatusText") == "ready"
    host.check_output("systemctl stop sglang-tiny")
    assert (show(host, "ActiveState"), show(host, "Result")) == ("inactive", "success")
    # What systemd says of the unit: lines of the engine itself may be written after it.
    assert "Deactivated successfully" in journal(host, "--lines 5 UNIT=sglang-tiny.service")
    assert host.run("pgrep --uid sglang").stdout == ""
    assert host.run("systemctl is-failed sglang-tiny").stdout.strip() == "inactive"
