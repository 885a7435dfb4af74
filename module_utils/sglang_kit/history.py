"""Which states has an instance had, and what became of them, as people look at it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import present, roll, state
from .report import WIDTH, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .state import Store

_HEADINGS = ("state", "by", "commit", "engine", "last result", "now")
_SUMMARY = ("id", "made", "by", "fingerprint", "engine_version", "release", "model", "host", "results")


def of_instance(store: Store, name: str, running: str | None, main_pid: int = 0) -> dict[str, Any]:
    """Tell the history of one instance; ``running`` is the fingerprint of its process ``main_pid``.

    ``states`` are the newest first, each with what keeps it from coming back; ``target`` is where a rollback
    would go, ``running`` the state that the process was started with, ``altered`` what was changed by hand
    before that start, and ``runs`` what it holds.
    """
    states = store.history(name)
    links = {"wanted": store.pointed(name, state.WANTED), "known_good": store.pointed(name, state.KNOWN_GOOD)}
    process = store.running(name, running)
    return {
        **links,
        "running": process["id"] if process else None,
        "altered": present.changed(process["plan"], main_pid) if process else "",
        "runs": roll.place(process["plan"]) if process else {},
        "target": state.target(states, **links, running=running),
        "states": [
            {**{key: one.get(key) for key in _SUMMARY}, "obstacle": store.obstacle(one)} for one in states
        ],
    }


def lines(name: str, history: Mapping[str, Any]) -> list[str]:
    """Lay the states of one instance out, the newest first, with the causes of those that failed."""
    rows = [_row(one, history) for one in history["states"]]
    found = [name, *(f"  {line}" for line in table(_HEADINGS, rows))]
    for one in history["states"]:
        for result in one["results"][-1:]:
            if result["result"] == state.FAILED:
                found += [f"  {one['id']}: {result['cause']}: {result['sentence']}"]
    return found


def _row(one: Mapping[str, Any], history: Mapping[str, Any]) -> list[str]:
    by = one["by"] or {}
    last = one["results"][-1] if one["results"] else None
    marks = [word for word in ("running", "known_good", "wanted") if history[word] == one["id"]]
    return [
        one["id"],
        f"{by.get('user', '')}@{by['controller']}"[: WIDTH // 4] if by.get("controller") else "",
        by.get("commit", ""),
        one["engine_version"],
        "never started" if last is None else f"{state.RESULTS[last['result']]} {last['time'][:16]}",
        ", ".join(marks).replace("_", "-"),
    ]
