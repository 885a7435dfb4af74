"""Recordings of real engines: what ``scripts/record.py`` writes, read again."""

from __future__ import annotations

import json
import re
from calendar import timegm
from dataclasses import dataclass, field
from time import strptime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_ARGUMENTS = re.compile(r"(?<![a-z_])(model_path|port)'?(?:=|: )'?([^',]*)")
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Recording:
    """One run: lines and answers with the seconds at which they came, and how it ended.

    ``answers`` are by method and path. ``returncode`` is as ``subprocess`` gives it, None for a run that
    hung or went on. ``stopped_at`` is when the recorder asked the main process to stop.
    """

    version: str
    case: str
    lines: tuple[tuple[float, str], ...]
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    stopped_at: float | None = None
    ended_at: float = 0.0
    returncode: int | None = None


def load(path: Path) -> Recording:
    """Read a recording; a plain ``.log`` has the times of the engine's stamps, and no end."""
    return _load_log(path) if path.suffix == ".log" else _load_entries(path)


def find(directory: Path, case: str) -> Path:
    """Find a recording by its file's name, with or without its device and suffix."""
    names = (case, f"{case}.jsonl", f"{case}.log", f"cpu-{case}.jsonl", f"h200-{case}.log")
    for name in names:
        if (directory / name).is_file():
            return directory / name
    known = ", ".join(sorted(path.stem for path in directory.glob("*") if path.suffix != ".json"))
    raise SystemExit(f"no recording {case!r} in {directory}; there are {known}")


def _load_entries(path: Path) -> Recording:
    head, *entries = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    last = entries[-1]
    end = last["end"]
    stops = [entry["at"] for entry in entries if entry.get("did") == "SIGTERM to the main process"]
    answers = [entry["answer"] for entry in entries if "answer" in entry]
    return Recording(
        version=head["version"],
        case=head["case"],
        lines=tuple((entry["at"], entry["line"]) for entry in entries if "line" in entry),
        answers={f"{answer['method']} {answer['path']}": answer for answer in answers},
        argv=tuple(head["argv"]),
        stopped_at=stops[0] if stops else None,
        ended_at=last["at"],
        returncode=end.get("code", -end["signal"] if "signal" in end else None),
    )


def _load_log(path: Path) -> Recording:
    lines: list[tuple[float, str]] = []
    first = now = None
    for text in path.read_text(encoding="utf-8").split("\n"):
        stamp = STAMP.search(text)
        if stamp:
            now = timegm(strptime(stamp[1], "%Y-%m-%d %H:%M:%S"))
            first = now if first is None else first
        lines.append((0.0 if now is None or first is None else float(now - first), text))
    answers = {}
    info = next((one for one in path.parent.glob("*-server_info.json") if _same_run(path, one)), None)
    if info:
        body = json.loads(info.read_text(encoding="utf-8"))
        answers["GET /server_info"] = {"status": 200, "body": body}
    arguments = next((text for _, text in lines if "server_args=" in text), "")
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in _ARGUMENTS.findall(arguments)]
    return Recording(path.parent.name, path.stem, tuple(lines), answers, tuple(argv), ended_at=lines[-1][0])


def _same_run(log: Path, info: Path) -> bool:
    return log.name.startswith(info.name.replace("-server_info.json", "-"))
