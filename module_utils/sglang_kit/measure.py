"""How fast does a running instance serve? The kit's only door to the engine's own benchmark client."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import benchmark, credentials, present, status, systemd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .benchmark import Load

SAID_CHARACTERS = 2000
"""What is kept of the words of a client that failed: their end."""


def level(
    plan: Mapping[str, Any], load: Load, *, concurrency: int, user: str, timeout_seconds: int
) -> dict[str, Any]:
    """Measure one level of concurrency; the result says ``measured``, ``skipped`` or ``failed``, and why."""
    unit = systemd.unit_states([plan["unit"]])[plan["unit"]]
    proof = present.proof(plan["name"], unit.invocation)
    served = status.served(status.ask(plan), proof)
    told = {"effective": served, "allocated": proof.get("allocated", {})}
    if served is not None and concurrency > served:
        reason = f"the engine serves {served} requests at once, {concurrency} were asked for"
        return {**told, "result": benchmark.SKIPPED, "reason": reason}
    try:
        raw = _run(plan, load, concurrency, user, timeout_seconds)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return {**told, "result": benchmark.FAILED, **_why(plan, error)}
    return {**told, "result": benchmark.MEASURED, "measured": benchmark.measured(raw)}


def _run(
    plan: Mapping[str, Any], load: Load, concurrency: int, user: str, timeout_seconds: int
) -> dict[str, Any]:
    """Run the client as the account, in a directory of its own, and read its result."""
    account = pwd.getpwnam(user)
    with tempfile.TemporaryDirectory(prefix="sglang-benchmark-") as directory:
        shutil.chown(directory, account.pw_uid, account.pw_gid)
        output = Path(directory, "result.jsonl")
        key = credentials.of_plan(plan).values.get("api_key")
        subprocess.run(
            benchmark.command(plan, load=load, concurrency=concurrency, output=str(output)),
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_seconds,
            cwd=directory,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            env={
                "PATH": os.environ.get("PATH", ""),
                "HOME": directory,
                "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1",
                **({"OPENAI_API_KEY": key} if key else {}),
            },
        )
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8").splitlines()[-1])
    if result.get("completed") != load.requests_per_client * concurrency:
        raise ValueError(f"only {result.get('completed')} of its requests were served")
    return result


def _why(plan: Mapping[str, Any], error: Exception) -> dict[str, str]:
    """Say why a level failed: by the engine's own end, or else by the client's last words."""
    unit = systemd.unit_states([plan["unit"]])[plan["unit"]]
    if unit.lifecycle != "alive":
        verdict = status.judge(plan, unit)
        return {"cause": verdict.cause, "reason": verdict.sentence}
    said = getattr(error, "stdout", None) or ""
    text = said if isinstance(said, str) else said.decode(errors="replace")
    words = credentials.of_plan(plan).masked(text)[-SAID_CHARACTERS:].strip()
    return {"cause": "", "reason": f"the client failed: {words.splitlines()[-1] if words else error}"}
