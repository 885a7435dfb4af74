"""What tests of molecule ask a host, and how they deploy to it again."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[1]


def show(host: Host, unit: str, name: str) -> str:
    """Read one property of a unit."""
    return str(host.check_output(f"systemctl show {unit} --property {name} --value"))


def main_pids(host: Host, units: list[str]) -> dict[str, str]:
    """Read the main processes by unit, in one call."""
    texts = host.check_output(f"systemctl show {' '.join(units)} --property MainPID --value").split()
    return dict(zip(units, texts, strict=True))


def plan_of(host: Host, name: str) -> dict[str, Any]:
    """Read the installed plan of an instance."""
    loaded: dict[str, Any] = json.loads(host.file(f"/etc/sglang/{name}.plan.json").content_string)
    return loaded


def journal(host: Host, *options: str) -> str:
    """Read lines of the journal, also those that were written a moment ago."""
    return str(host.check_output(f"journalctl --sync && journalctl --output cat {' '.join(options)}"))


def processes_of(host: Host, unit: str) -> list[str]:
    """List all processes of a unit; none where its control group is gone."""
    group = show(host, unit, "ControlGroup")
    return host.run(f"cat /sys/fs/cgroup{group}/cgroup.procs").stdout.split() if group else []


def playbook(inventory: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook of the project."""
    return subprocess.run(
        ["ansible-playbook", f"--inventory={inventory}", name, *options],
        cwd=ROOT,
        check=False,
        capture_output=True,
        encoding="utf-8",
        # molecule forces colours upon what it runs.
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml", "ANSIBLE_FORCE_COLOR": "0"},
    )


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for what must come; the limit only ends a test that fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)
