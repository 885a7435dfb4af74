"""Follow starting instances live: a module cannot print while it runs, so it is run step by step."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core ships no types
    """Runs the module until every instance is decided; each step lasts until there is something to say."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``instances`` that are ready, and ``failures`` of the others with a line each in ``msg``."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = {**self._task.args, "stepwise": True}
        instances: dict[str, Any] = {}
        failures: dict[str, Any] = {}
        while True:
            step = self._execute_module(
                module_name="sglang_ready", module_args=arguments, task_vars=variables
            )
            if step.get("failed") or "bookmarks" not in step:
                return {**result, **step}
            for line in step["said"]:
                display.display(line)
            instances.update(step["instances"])
            failures.update(step["failures"])
            open_names = step["bookmarks"]
            if not open_names:
                break
            plans = [plan for plan in arguments["plans"] if plan["name"] in open_names]
            arguments = {**arguments, "plans": plans, "bookmarks": open_names}
        result.update(changed=False, instances=instances)
        return self._failed(result, failures, variables) if failures else result

    def _failed(
        self, result: dict[str, Any], failures: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        """Show each failure whole and once, as plain lines; the result holds what a rescue needs."""
        root = Path(variables["playbook_dir"], self._task.args.get("artifacts_dir", "../artifacts")).resolve()
        moment = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H-%M-%SZ")
        told, causes = {}, []
        for name, failure in failures.items():
            verdict = result["instances"].pop(name)
            place = root / "failures" / variables["inventory_hostname"] / name / moment
            texts = {
                **failure["files"],
                "why.txt": f"{failure['text']}\n",
                "verdict.json": json.dumps(verdict, indent=2),
            }
            saved = keep(place, texts)
            display.display(f"\n{name} on {variables['inventory_hostname']}\n{failure['text']}")
            display.display(f"{'saved':<10} {saved}\n")
            phase = verdict["phase"] or verdict["stage"]
            told[name] = {
                "state": verdict["state"],
                "phase": phase,
                "cause": verdict["cause"],
                "sentence": verdict["sentence"],
                "remedy": verdict["remedy"],
                "saved": saved,
            }
            causes.append(f"{name}: {verdict['state']} in stage {phase}: {verdict['sentence']} ({saved})")
        return {**result, "failed": True, "msg": "; ".join(causes), "failures": told}


def keep(directory: Path, texts: dict[str, str]) -> str:
    """Write the evidence of one failure, for its owner alone; say where it is, or why it is nowhere.

    A controller's disk that is full must not hide the cause, nor whose fault it was.
    """
    try:
        directory.mkdir(parents=True, mode=0o700)
        for name, text in texts.items():
            place = directory / Path(name).name
            place.write_text(text, encoding="utf-8")
            place.chmod(0o600)
    except OSError as wrong:
        return f"not on the controller: {wrong}"
    return str(directory)
