"""What does each GPU of this host have, and is it still there?

Plans are made from what the inventory declares, or else from the cards' totals, never from what happens
to be free at the moment: otherwise every deploy would size the pools a little differently and restart
what runs. What is free is measured, too, and compared (``surprises``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .quantity import GIB, from_gib, from_mib, human
from .resolution import Card

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .instance import Instance
    from .problem import Collector

DRIVER_BYTES = int(1.5 * GIB)
"""What the driver and the engine's CUDA context take of an idle card before its weights load: 1.27 GiB of
an H200, 1.35 GiB of an RTX PRO 6000."""
TOLERANCE_BYTES = GIB // 2
"""Less than this missing is no surprise: displays, monitoring agents."""

_LIMITS: dict[str, tuple[type, float, float]] = {
    "count": (int, 1, 64),
    "memory_mib": (int, 1, 100_000_000),
    "free_gib": (float, 0.001, 100_000),
}
"""Numbers of an entry of ``sglang_host_gpus``: kind, least and most."""
_CAPABILITY = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_EXAMPLE = "write it as in {count: 8, memory_mib: 97887}"


def read(raw: object, found: Collector) -> tuple[dict[str, Any], ...]:
    """Read ``sglang_host_gpus``; return the sound entries, and note every fault of the others."""
    if not isinstance(raw, (list, tuple)):
        found.add("host", "sglang_host_gpus", f"{raw!r} is not a list", _EXAMPLE)
        return ()
    entries = [entry(item, "host", f"sglang_host_gpus[{at}]", found) for at, item in enumerate(raw)]
    return tuple(one for one in entries if one)


def entry(raw: object, where: str, key: str, found: Collector) -> dict[str, Any]:
    """Read one entry, ``key`` of ``where``; return nothing of one that is not sound."""
    before = len(found.problems)
    if not isinstance(raw, dict):
        found.add(where, key, f"{raw!r} is not a mapping", _EXAMPLE)
        return {}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in _LIMITS:
            values[name] = _number(value, name, where, f"{key}.{name}", found)
        elif name in ("name", "compute_capability"):
            values[name] = str(value or "")
        else:
            known = ", ".join((*_LIMITS, "name", "compute_capability"))
            found.add(where, f"{key}.{name}", "is not a known key", f"known are {known}")
    capability = values.get("compute_capability")
    if capability and not _CAPABILITY.fullmatch(capability):
        found.add(where, f"{key}.compute_capability", f"{capability!r} is not as in '9.0'")
    if raw.get("memory_mib") is None:
        found.add(where, f"{key}.memory_mib", "is missing", "write what nvidia-smi says, in MiB")
    elif values["memory_mib"] and from_gib(values.get("free_gib") or 0) > from_mib(values["memory_mib"]):
        message = f"{values['free_gib']:g} is more than memory_mib {values['memory_mib']} holds"
        found.add(where, f"{key}.free_gib", message, f"use at most {values['memory_mib'] / 1024:.2f}")
    return values if len(found.problems) == before else {}


def _number(value: object, name: str, where: str, key: str, found: Collector) -> Any:  # noqa: ANN401 - by its kind
    kind, least, most = _LIMITS[name]
    text = str(value)[:40]
    try:
        number = None if value is None else kind(text)
        sound = number is None or least <= number <= most
    except ValueError:
        sound = False
    if not sound:
        found.add(where, key, f"{text!r} is not a number from {least:g} to {most:g}")
        return None
    return number


def declared(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Card]:
    """Make a card by index of what ``read`` returned, each entry standing for ``count`` of them."""
    total = min((from_mib(entry["memory_mib"]) for entry in gpus), default=0)
    entries = [entry for entry in gpus for _ in range(entry.get("count") or 1)]
    return {
        str(index): Card(
            total=total,
            free=from_gib(entry["free_gib"])
            if entry.get("free_gib")
            else from_mib(entry["memory_mib"]) - DRIVER_BYTES,
            capability=_capability(entry.get("compute_capability")),
            name=entry.get("name") or "",
            size=from_mib(entry["memory_mib"]),
        )
        for index, entry in enumerate(entries)
    }


def measured(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Card]:
    """Read what ``sglang_host_info`` saw: a card by index and by UUID."""
    total = min((gpu["memory_total_bytes"] for gpu in gpus), default=0)
    cards = {}
    for gpu in gpus:
        card = Card(
            total=total,
            free=gpu["memory_total_bytes"] - DRIVER_BYTES,
            capability=_capability(gpu["compute_capability"]),
            name=gpu["name"],
            size=gpu["memory_total_bytes"],
        )
        cards[str(gpu["index"])] = cards[gpu["uuid"]] = card
    return cards


def _capability(text: object) -> tuple[int, int] | None:
    major, dot, minor = str(text or "").partition(".")
    return (int(major), int(minor)) if dot else None


def surprises(
    instances: Sequence[Instance],
    cards: Mapping[str, Card],
    *,
    gpus: Sequence[Mapping[str, Any]],
    processes: Sequence[Mapping[str, Any]],
    adopted: Collection[str],
    found: Collector,
) -> None:
    """Note every GPU that has less free memory than the plan counts on, and who holds it.

    ``gpus`` and ``processes`` are what ``sglang_host_info`` saw. What instances hold counts as free: those of
    this plan stop before they start again, and others, which have left the inventory, before that. So does
    what is taken over (``adopted``: units and pids).
    """
    given = {*adopted, *(f"{one}.service" for one in adopted)}
    for instance in instances:
        for gpu in gpus:
            name = next((name for name in (str(gpu["index"]), gpu["uuid"]) if name in instance.gpus), None)
            if name is None or name not in cards:
                continue
            here = [process for process in processes if process["gpu"] == gpu["index"]]
            holders = [one for one in here if not (_is_instance(one) or _names(one) & given)]
            free = gpu["memory_free_bytes"] + sum(one["memory_bytes"] for one in here if one not in holders)
            planned = cards[name].free or 0
            if free < planned - TOLERANCE_BYTES:
                found.add(
                    instance.name,
                    "gpus",
                    f"GPU {name} has {human(free)} free, the plan counts on {human(planned)}"
                    f" ({'; '.join(map(_holder, holders)) or 'no process that can be seen holds the rest'})",
                    "end the process, let a deploy take it over (sglang_service_adopt), or declare what is"
                    " free in `sglang_host_gpus` (free_gib)",
                )


def _is_instance(process: Mapping[str, Any]) -> bool:
    return str(process["unit"]).startswith("sglang-")


def _names(process: Mapping[str, Any]) -> set[str]:
    """List how a process may be named: its unit, its pid, and those of the processes that it belongs to."""
    return {process["unit"], str(process["pid"]), *map(str, process["ancestors"])}


def _holder(process: Mapping[str, Any]) -> str:
    who = process["unit"] or process["command"] or "outside this container"
    return f"pid {process['pid']} ({who}) holds {human(process['memory_bytes'])}"
