"""Show what a build does: a module cannot print while it runs, so it runs as a job that is looked at."""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

LIMIT_SECONDS = 6 * 3600
POLL_SECONDS = 2
JOB = ("ansible_job_id", "started", "finished", "results_file")
"""What a job adds to the module's result."""


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core ships no types
    """Runs the module; where it builds, each line of its progress is shown once."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module does."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        if self._task.check_mode or not self._task.args.get("lock_file"):
            return {**result, **self._execute_module(task_vars=variables)}
        self._task.async_val = LIMIT_SECONDS
        job = self._execute_module(task_vars=variables, wrap_async=True)
        self._task.async_val = 0
        if "ansible_job_id" not in job:
            return {**result, **job}
        directory = PurePosixPath(job["results_file"]).parent
        job_status: dict[str, Any] = {
            "module_name": "ansible.legacy.async_status",
            "module_args": {"jid": job["ansible_job_id"], "_async_dir": str(directory)},
            "task_vars": variables,
        }
        shown = ""
        while not (state := self._execute_module(**job_status)).get("finished"):
            look = {**self._task.args, "progress": True}
            line = self._execute_module(module_args=look, task_vars=variables).get("progress")
            if line and line != shown:
                display.display(f"{variables['inventory_hostname']} {line}")
                shown = line
            time.sleep(POLL_SECONDS)
        job_status["module_args"]["mode"] = "cleanup"
        self._execute_module(**job_status)
        return {**result, **{key: value for key, value in state.items() if key not in JOB}}
