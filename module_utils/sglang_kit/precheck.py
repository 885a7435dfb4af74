"""What do the engines of this host say to the plans, before anything is installed?

One process for all instances that share a release and an environment: importing SGLang is what takes
the time (10 to 25 s).
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command import VISIBLE_GPUS
from .engine_check import HIDDEN, IMPORT
from .engine_start import FLAGS
from .fingerprint import VARIABLE
from .journal import redact
from .kit import sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TIMEOUT_SECONDS = 900
"""A first import from a network file system takes minutes."""
JUDGED = ("argv", "environment", "secrets", "pinned", "accept_overrides")
"""Entries of a plan that an engine's answer, or what is made of it, depends on."""
OWN_VARIABLES = (VARIABLE, VISIBLE_GPUS)
"""Variables that differ between instances and that no import depends on."""


def due(plans: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Find the plans of which the host has no equal one installed, which an engine has then accepted."""
    return [plan for plan in plans if _judged(plan) != _installed(plan["plan_file"])]


def _judged(plan: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as JSON would give it back
    return json.loads(json.dumps([plan.get(key) for key in JUDGED]))


def _installed(path: str) -> Any:  # noqa: ANN401 - the same
    try:
        return _judged(json.loads(Path(path).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def possible(plan: Mapping[str, Any], user: str) -> bool:
    """Whether release, models and user are there; what a deploy brings first may still be missing."""
    needed = [plan["argv"][0], *filter(None, (plan["model"], plan["draft_model"]))]
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return all(Path(place).exists() for place in needed)


def ask(plans: Sequence[Mapping[str, Any]], user: str) -> dict[str, dict[str, Any]]:
    """Let the engine of each plan judge it, as the user of the units; answers of ``engine_check`` by name."""
    answers: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for plan in plans:
        shared = {name: text for name, text in plan["environment"].items() if name not in OWN_VARIABLES}
        groups.setdefault(json.dumps([plan["argv"][0], shared], sort_keys=True), []).append(plan)
    for group in groups.values():
        answers.update(_ask(group, user))
    return answers


def _ask(plans: Sequence[Mapping[str, Any]], user: str) -> dict[str, dict[str, Any]]:
    request = {plan["name"]: {"argv": _flags(plan), "environment": plan["environment"]} for plan in plans}
    account = pwd.getpwnam(user)
    first = plans[0]
    done = subprocess.run(
        [first["argv"][0], "-c", sources()["engine_check.py"]],
        check=False,
        input=json.dumps(request),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=first["environment"],
        cwd=account.pw_dir,
        timeout=TIMEOUT_SECONDS,
        **_as(account),
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    answers = {answer.pop("name"): answer for answer in said}
    last = (done.stderr.strip().splitlines() or [""])[-1]
    ended = {
        "phase": IMPORT,
        "message": f"its check ended with status {done.returncode}: {last}",
        "overrides": [],
        "resolved": {},
    }
    return {
        name: {**answer, "message": redact(answer["message"])}
        for name in request
        for answer in [answers.get(name, ended)]
    }


def _as(account: pwd.struct_passwd) -> dict[str, Any]:
    """Say how a process becomes the one of this user; whoever is it already needs no right to."""
    if account.pw_uid == os.geteuid():
        return {}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}


def _flags(plan: Mapping[str, Any]) -> list[str]:
    """Give the words after interpreter and module, with something in place of each key."""
    keys = [f"{FLAGS[name]}={HIDDEN}" for name in plan["secrets"] if name in FLAGS]
    return [*plan["argv"][3:], *keys]
