"""Say who holds the lock of a host: this run of ansible-playbook, on this controller."""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase

# Ansible's importer does not look into module_utils for plugins.
_KIT = str(Path(__file__).resolve().parent.parent / "module_utils")
if _KIT not in sys.path:
    sys.path.insert(0, _KIT)

from sglang_kit.ancestry import stat  # noqa: E402 - after the path above
from sglang_kit.lock import PATH  # noqa: E402 - likewise

_MACHINE = Path("/etc/machine-id")
_PROCESSES = Path("/proc/self/ns/pid")
"""A namespace: of one machine, each container sees its own."""


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core ships no types
    """Runs the module; where a dead run of this controller holds the lock, once more over its body."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``by``, or fail saying who holds the lock and since when."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        me = holder()
        by = {**{key: me[key] for key in ("user", "controller")}, "commit": commit(variables["playbook_dir"])}
        arguments = {**self._task.args, "holder": me}
        answer = self._ask(arguments, variables)
        other = answer.get("other") or {}
        if other and dead(other, me):
            answer = self._ask({**arguments, "dead": other["token"]}, variables)
            other = answer.get("other") or {}
        result.update(answer, by=by)
        if other:
            result.update(
                failed=True,
                msg=(
                    f"Another run changes this host: {other['playbook']}, started by {other['user']} on"
                    f" {other['controller']} (pid {other['pid']}), holds it since {other['since']}. Wait for"
                    f" its end. A run that was killed frees the host when its connection ends; if it never"
                    f" does, remove {self._task.args.get('path', PATH)} on the host"
                ),
            )
        return result

    def _ask(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="sglang_lock", module_args=arguments, task_vars=variables
        )
        return answer


def holder() -> dict[str, Any]:
    """Describe this run; tasks are executed in children of its process."""
    pid, controller = os.getppid(), platform.node()
    begun = stat(pid).started
    return {
        "token": f"{controller}/{pid}/{begun}",
        "user": user(),
        "controller": controller,
        "machine": machine(),
        "pid": pid,
        "started": begun,
        "playbook": ", ".join(Path(name).name for name in context.CLIARGS.get("args", ())),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def user() -> str:
    """Name the account; in a container it may have a number alone."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # before and since Python 3.13
        return f"uid {os.getuid()}"


def dead(other: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether a holder was a process of this controller that does not run any more."""
    same = all(other.get(key) == me[key] for key in ("controller", "machine"))
    return same and stat(other["pid"]).started != other["started"]


def machine() -> str:
    """Tell this controller from others of its name, whose processes it does not see; "" if unknown."""
    try:
        return f"{_MACHINE.read_text(encoding='ascii').strip()} {_PROCESSES.readlink()}"
    except OSError:
        return ""


def commit(directory: str) -> str:
    """Name the commit that is checked out, and whether it was edited; "" outside of a repository."""
    command = ["git", "-C", directory, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""
