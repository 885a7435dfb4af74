"""Is what runs what was asked for?

A fingerprint covers what makes a difference to the running engine: release, argv, environment, the unit's
account, limits, devices and template, the files of its models, and a slow hash of each secret. It does not
cover comments, file layout or the version of this kit. It stands in the unit's environment, so that the
running process itself says what it was started with: ``systemctl show`` would tell of the file on disk.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "SGLANG_METAL_FINGERPRINT"


def fingerprint(
    *,
    argv: Sequence[str],
    environment: Mapping[str, str],
    unit: Mapping[str, object],
    models: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> str:
    """16 hexadecimal digits; the order of flags counts (the engine lets the last one win).

    ``unit`` holds what the unit's text says besides the command, ``models`` a fingerprint of each model's
    files and ``secrets`` a mark of each: what is replaced restarts its instance.
    """
    content = {
        "argv": list(argv),
        "environment": {name: text for name, text in environment.items() if name != VARIABLE},
        "unit": dict(unit),
        **({"models": dict(models)} if models else {}),
        **({"secrets": dict(secrets)} if secrets else {}),
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Action:
    """What has to be done with one instance, and why (for people)."""

    name: str
    action: str
    """``none``, ``start``, ``restart``, ``prove`` (it starts already) or ``stop``."""
    reason: str


def actions(plans: Sequence[Mapping[str, Any]], observed: Mapping[str, Any]) -> list[dict[str, str]]:
    """Decide for every planned instance; ``observed`` is what ``sglang_service_info`` returned by name.

    Absent instances have no plan: their units are stopped and removed with their files.
    """
    decided = []
    for plan in plans:
        seen = observed.get(plan["name"], {})
        action = decide(
            name=plan["name"],
            wanted_state=plan["state"],
            wanted=plan["fingerprint"],
            running=seen.get("fingerprint"),
            active=seen.get("active", "inactive"),
            changed=seen.get("changed", ""),
            differs=seen.get("differs", ""),
        )
        decided.append(asdict(action))
    return decided


def decide(
    *,
    name: str,
    wanted_state: str,
    wanted: str,
    running: str | None,
    active: str,
    changed: str = "",
    differs: str = "",
) -> Action:
    """Compare the wanted state with the running process, not with files that just changed.

    ``running`` is the fingerprint in the environment of the unit's main process, ``None`` where no
    process runs; ``active`` is systemd's ActiveState; ``changed`` names what was changed by hand in what
    the process was started with, ``differs`` what another fingerprint comes from, where that is known.
    An interrupted run therefore heals on the next one: whatever still runs with another fingerprint is
    restarted then.
    """
    alive = active in {"active", "activating", "reloading"}
    if wanted_state != "started":
        stop = alive, "stop", f"wanted {wanted_state}"
        return _first(name, [stop], f"{wanted_state}, as wanted")
    starts = [
        (not alive, "start", f"is {active}"),
        (running is None, "restart", "has no main process with a fingerprint"),
        (running != wanted, "restart", differs or f"runs {running}, wanted is {wanted}"),
        (bool(changed), "restart", f"was started with {changed}"),
        (active == "activating", "prove", "is starting with what is wanted"),
    ]
    return _first(name, starts, "runs what is wanted")


def _first(name: str, cases: Sequence[tuple[bool, str, str]], otherwise: str) -> Action:
    """Take the first case that holds."""
    action, reason = next((case[1:] for case in cases if case[0]), ("none", otherwise))
    return Action(name, action, reason)
