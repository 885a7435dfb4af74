"""What is changed by hand is shown by status and diff, and the next deploy treats it as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import playbook, show, wait_until

if TYPE_CHECKING:
    import subprocess

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
UNIT = "/etc/systemd/system/sglang-chat.service"
DROP_IN = f"{UNIT}.d/override.conf"
ENVIRONMENT = "/etc/sglang/chat.env"
SECRET = "a-key-of-the-test"  # noqa: S105 - nobody's


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def ran(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    outcome = playbook(INVENTORY, name, "--limit=gpu_hosts", *options)
    assert SECRET not in outcome.stdout + outcome.stderr
    return outcome


def deploy(*options: str) -> str:
    outcome = ran("deploy.yml", *options)
    assert outcome.returncode == 0, outcome.stdout
    return outcome.stdout


def status(artifacts: Path) -> str:
    """Return what status shows of what was changed."""
    outcome = ran("playbooks/status.yml", f"--extra-vars=sglang_artifacts_dir={artifacts}")
    assert "Disk" in outcome.stdout, outcome.stdout
    return outcome.stdout.partition("Changed since the deploy")[2].partition("Disk")[0]


def difference(artifacts: Path, *options: str) -> dict[str, Any]:
    """Return what diff finds of the instance."""
    given = [f"--extra-vars={option}" for option in (f"sglang_artifacts_dir={artifacts}", *options)]
    outcome = ran("playbooks/diff.yml", "--extra-vars=instance=chat", *given)
    assert outcome.returncode == 0, outcome.stdout
    found: dict[str, Any] = json.loads(
        (artifacts / "diff/molecule-drift/chat.json").read_text(encoding="utf-8")
    )
    assert all(line.strip() in outcome.stdout for line in found["lines"])
    return found


def rows(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(one["kind"], one["name"], one["left"], one["right"]) for one in found["differences"]]


def test_nothing_differs_after_a_deploy(artifacts: Path) -> None:
    assert status(artifacts) == ""
    for words in ([], ["against=running"], ["against=inventory"], ["state=installed"]):
        found = difference(artifacts, *words)
        assert rows(found) == []
        assert "no difference" in found["lines"]
    assert found["right"]["title"] == "known-good"


def test_before_the_first_deploy_it_says_so(artifacts: Path) -> None:
    new = [{"name": "new", "model": "/var/models/tiny-gpt2", "port": 32590}]
    given = {"sglang_service_instances": new, "sglang_artifacts_dir": str(artifacts)}
    outcome = ran("playbooks/diff.yml", f"--extra-vars={json.dumps(given)}")
    assert outcome.returncode == 0, outcome.stdout
    assert "new on molecule-drift: has no known-good state" in outcome.stdout


def test_what_the_inventory_changes_stands_first(artifacts: Path) -> None:
    found = difference(artifacts, "chat_concurrency=2", "chat_key=another-key-of-it")
    assert rows(found) == [
        ("memory", "--max-running-requests", "2", "4"),
        ("secret", "api_key", "***", "*** (another one)"),
        ("planned", "concurrency", "2", "4"),
    ]


def test_another_instance_can_be_compared(artifacts: Path) -> None:
    found = difference(artifacts, "against=molecule-drift/other")
    names = [row[1] for row in rows(found)]
    assert names[0] == "--max-running-requests"
    assert {"GREETING", "api_key", "--port"} <= set(names)
    assert found["right"]["on"] == "molecule-drift"


def test_a_unit_edited_by_hand_is_put_back_with_a_diff(host: Host, artifacts: Path) -> None:
    kept = show(host, "sglang-chat", "MainPID")
    host.check_output(f"sed -i s/LimitNOFILE=1048576/LimitNOFILE=2048/ {UNIT} && systemctl daemon-reload")
    assert "chat: file [Service] LimitNOFILE: 2048, deployed 1048576" in status(artifacts)
    assert rows(difference(artifacts, "against=running")) == [
        ("file", "[Service] LimitNOFILE", "1048576", "2048")
    ]
    told = deploy("--diff")
    assert "-LimitNOFILE=2048" in told
    assert "+LimitNOFILE=1048576" in told
    assert status(artifacts) == ""
    assert show(host, "sglang-chat", "MainPID") == kept


def test_a_drop_in_is_shown_and_stays(host: Host, artifacts: Path) -> None:
    host.check_output(f"mkdir -p {Path(DROP_IN).parent} && printf '[Service]\\nNice=5\\n' >{DROP_IN}")
    try:
        host.check_output("systemctl daemon-reload")
        assert "chat: file drop-in override.conf: [Service] Nice: 5, deployed without it" in status(artifacts)
        assert rows(difference(artifacts, "against=running")) == [
            ("file", "drop-in override.conf: [Service] Nice", "", "5")
        ]
        deploy()
        assert host.file(DROP_IN).exists
    finally:
        host.check_output(f"rm -r {Path(DROP_IN).parent} && systemctl daemon-reload")
    assert status(artifacts) == ""


def test_a_variable_changed_in_the_file_and_in_the_process(host: Host, artifacts: Path) -> None:
    host.check_output(f'sed -i \'s/GREETING="hello"/GREETING="bye"/\' {ENVIRONMENT}')
    assert "chat: file environment file: GREETING: bye, deployed without it" in status(artifacts)
    host.check_output("systemctl restart sglang-chat")
    told = status(artifacts)
    assert "chat: variable GREETING: bye, deployed hello" in told
    assert ("environment", "GREETING", "hello", "bye") in rows(difference(artifacts, "against=running"))
    assert "restart chat: was started with another GREETING" in deploy()
    assert status(artifacts) == ""


def test_a_process_on_the_port_is_named_and_refused(host: Host, artifacts: Path) -> None:
    host.check_output("systemctl stop sglang-chat")
    host.check_output("systemd-run --unit=by-hand --service-type=exec python3 -m http.server 32500")
    try:
        wait_until(lambda: bool(host.socket("tcp://0.0.0.0:32500").is_listening), 20)
        assert "chat: port 32500: held by pid" in status(artifacts)
        outcome = ran("deploy.yml")
        assert outcome.returncode != 0
        assert "of by-hand.service" in outcome.stdout
        assert host.service("by-hand").is_running
    finally:
        host.check_output("systemctl stop by-hand")
    deploy()
    assert status(artifacts) == ""


def test_a_replaced_model_is_told_and_loaded(host: Host, artifacts: Path) -> None:
    kept = show(host, "sglang-chat", "MainPID")
    host.check_output("touch --date=2001-02-03 /var/models/tiny-gpt2/model.safetensors")
    assert "chat: model files: " in status(artifacts)
    ((kind, name, _, _),) = rows(difference(artifacts))
    assert (kind, name) == ("model", "files")
    deploy()
    assert show(host, "sglang-chat", "MainPID") != kept
    assert status(artifacts) == ""


def test_a_host_is_cleared_as_it_is_told(host: Host) -> None:
    host.check_output(f"mkdir {UNIT}.d && touch {DROP_IN}")
    wrong = ran("playbooks/remove.yml", "--extra-vars=" + json.dumps({"also": ["model"]}))
    assert wrong.returncode != 0
    assert "also: model: is none of releases, caches, states, models" in wrong.stdout
    dry = ran(
        "playbooks/remove.yml", "--check", "--extra-vars=" + json.dumps({"also": ["releases", "models"]})
    )
    assert dry.returncode == 0, dry.stdout
    assert f"drop-ins {UNIT}.d" in dry.stdout
    for path in (UNIT, "/opt/sglang/current", "/var/models/tiny-gpt2"):
        assert path in dry.stdout
        assert host.file(path).exists
    assert host.service("sglang-chat").is_running

    outcome = ran("playbooks/remove.yml", "--extra-vars=" + json.dumps({"also": ["models"]}))
    assert outcome.returncode == 0, outcome.stdout
    assert "Stopped: sglang-chat.service, sglang-other.service" in outcome.stdout
    assert f"drop-ins {UNIT}.d" in outcome.stdout.partition("Left:")[2]
    assert host.file(DROP_IN).exists
    assert not host.file(UNIT).exists
    assert not host.file("/var/models/tiny-gpt2").exists
    assert host.file("/srv/models/tiny-gpt2/config.json").exists
    assert host.file("/opt/sglang/current").exists
