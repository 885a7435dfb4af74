"""A key opens the instance and is nowhere but in files that only root and the unit's user read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.on_host import playbook, show

if TYPE_CHECKING:
    import subprocess

    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
UNIT = "sglang-locked.service"
NAMES = ("api_key", "admin_api_key", "hf_token")
MARK = "Sesame"
PATTERN = "'Ses[a]me'"
"""Finds the mark, and not the command line that looks for it."""


def deploy(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    return playbook(INVENTORY, "deploy.yml", f"--limit={host.backend.host}", *options)


ASK = """
import sys, urllib.error, urllib.request
headers = dict(header.split(": ") for header in sys.argv[1:])
request = urllib.request.Request("http://127.0.0.1:31090/v1/models", headers=headers)
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def status(host: Host, *headers: str) -> str:
    """Ask the instance."""
    words = " ".join(f"'{header}'" for header in headers)
    return str(host.check_output(f"python3 - {words} <<'EOF'{ASK}EOF"))


def test_the_key_opens_the_instance_and_nothing_else_does(host: Host) -> None:
    key = host.ansible.get_variables()["api_key"]
    assert status(host) == "401"
    assert status(host, "Authorization: Bearer something-else") == "401"
    assert status(host, f"Authorization: Bearer {key}") == "200"


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_a_file_for_root_alone(host: Host, name: str) -> None:
    place = host.file(f"/etc/sglang/credentials/locked.{name}")
    assert (place.user, place.group, place.mode) == ("root", "root", 0o600)
    handed = host.file(f"/run/credentials/{UNIT}/{name}")
    assert (handed.user, handed.mode) == ("sglang", 0o400)


def test_no_other_file_holds_one(host: Host) -> None:
    found = host.run(
        f"grep -rla {PATTERN} /etc /opt/sglang/kits /root /run /tmp /usr/local /var /dev/shm"
    ).stdout.split()
    expected = [
        *(f"/etc/sglang/credentials/locked.{name}" for name in NAMES),
        *(f"/run/credentials/{UNIT}/{name}" for name in NAMES),
    ]
    # What a rollback puts back holds them too, for root alone.
    recorded = [path for path in found if path.startswith("/var/lib/sglang/instances/locked/states/")]
    assert {path.rpartition("/")[2] for path in recorded} == {f"locked.{name}" for name in NAMES}
    assert {(host.file(path).user, host.file(path).mode) for path in recorded} == {("root", 0o600)}
    assert sorted(set(found) - set(recorded)) == sorted(expected)


@pytest.mark.parametrize(
    "command",
    [
        "journalctl --no-pager --output=export",
        "ps auxeww",
        "systemctl show '*'",
        f"systemctl cat {UNIT}",
        "cat /etc/sglang/locked.plan.json /etc/sglang/locked.env",
        "sed -s p /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null",
    ],
)
def test_nothing_that_can_be_read_shows_one(host: Host, command: str) -> None:
    assert host.run(f"{command} | grep -c -a {PATTERN}").stdout.strip() == "0"
    assert int(host.check_output(f"{command} | wc -c")) > 0


def shown_by(host: Host, *options: str) -> str:
    """Deploy, and give all that was shown."""
    done = deploy(host, "-vvv", "--diff", *options)
    assert done.returncode == 0, done.stdout
    return done.stdout + done.stderr


def main_pid(host: Host) -> str:
    return show(host, UNIT, "MainPID")


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_no_output_of_a_deploy_shows_one(host: Host, options: tuple[str, ...]) -> None:
    before = main_pid(host)
    assert MARK not in shown_by(host, *options)
    assert main_pid(host) == before


def test_a_changed_key_restarts_the_instance_and_is_not_shown(host: Host) -> None:
    before = main_pid(host)
    shown = shown_by(host, "--extra-vars={api_key: Sesame-9876543210}")
    assert MARK not in shown
    assert "the new secret" in shown
    assert main_pid(host) != before
    assert status(host, "Authorization: Bearer Sesame-9876543210") == "200"
    assert MARK not in shown_by(host)  # back to the inventory's
