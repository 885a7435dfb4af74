"""The host itself: a booted systemd, reached by real ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testinfra.host import Host


def test_systemd_has_booted(host: Host) -> None:
    assert host.check_output("systemctl is-system-running") == "running"


def test_ssh_listens_on_loopback_only(host: Host) -> None:
    port = host.ansible.get_variables()["ansible_port"]
    assert host.socket(f"tcp://127.0.0.1:{port}").is_listening
    assert not host.socket(f"tcp://0.0.0.0:{port}").is_listening


def test_python_is_the_suites(host: Host) -> None:
    expected = {"bookworm": "3.11", "trixie": "3.13"}[host.ansible.get_variables()["sandbox_suite"]]
    assert host.check_output("python3 --version").startswith(f"Python {expected}.")
