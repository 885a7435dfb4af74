"""Why did it fail? The last start of an instance, or a log file, is read and explained.

``sglang-why NAME...`` on a host explains instances of that host, all of them without a name.
``python -m sglang_kit.why --log FILE [--plan FILE] [--json]``, from ``module_utils/``, explains a file, with
no host and no Ansible. It may hold what the engine printed, what ``journalctl`` printed of the unit, or
``journalctl -o json --all``. Where it holds several starts, the last one counts. It is read once, line by
line, whatever its size.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .config_reader import read_json
from .journal import ENGINE, SYSTEMD, Line, parse_record, parse_text, record_lines
from .problem import Problem, ProblemsError, no_instance
from .quantity import human
from .readiness import STAGE_NAMES, Expectation, Follower, Verdict
from .systemd import SystemdError
from .watch import look_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .journal import Record

_LAUNCH = re.compile(r"\S*launch_server\.py:\d+: UserWarning: 'python -m sglang\.launch_server'")
_ARGUMENTS = re.compile(r"(?:\[[^\]]*\] )?server_args=(?:ServerArgs\(|\{)")


def lines_of(raw: Iterable[bytes]) -> Iterator[tuple[Line, str]]:
    """Read a log's lines, each with the invocation it belongs to (empty where the log does not say)."""
    for number, content in enumerate(raw, start=1):
        record = parse_record(content) if content.startswith(b"{") else None
        if record:
            yield from ((line, record.invocation) for line in _record_lines(record, number))
        else:
            yield parse_text(number, content.decode(errors="backslashreplace").rstrip("\r\n")), ""


def _record_lines(record: Record, number: int) -> Iterator[Line]:
    """Give a record's lines the number of the line of the file that holds them."""
    return (replace(line, number=number) for line in record_lines([record]))


UNTIMED_LINES = 10_000
"""Lines at the head of a log that may wait for the first time in it."""


def timed(lines: Iterable[tuple[Line, str]]) -> Iterator[tuple[Line, str]]:
    """Give lines without a time that of the line before them; at the head of a log, of the first with one."""
    waiting: list[tuple[Line, str]] = []
    now: float | None = None
    for line, invocation in lines:
        if line.time is not None:
            now = line.time
            if not waiting:
                yield line, invocation
                continue
        waiting.append((line, invocation))
        if now is not None or len(waiting) >= UNTIMED_LINES:
            yield from ((replace(one, time=now or 0.0), mark) for one, mark in waiting)
            waiting.clear()
    yield from ((replace(one, time=0.0), mark) for one, mark in waiting)


class LastStart:
    """Follows a log of several starts and keeps the last one."""

    def __init__(self, expectation: Expectation) -> None:
        """Judge by what was planned, as far as that is known."""
        self._expectation = expectation
        self._begin("")
        self.starts = 1
        self._now = 0.0

    def _begin(self, invocation: str) -> None:
        self._follower = Follower(self._expectation)
        self._invocation = invocation
        self._launched = self._has_arguments = self._has_output = False

    def feed(self, line: Line, invocation: str) -> None:
        """Take the next line of the log."""
        if self._starts_anew(line, invocation):
            self._begin(invocation)
            self.starts += 1
        self._invocation = self._invocation or invocation
        if line.source == ENGINE:
            self._has_output = True
            self._launched = self._launched or bool(_LAUNCH.match(line.text))
            self._has_arguments = self._has_arguments or bool(_ARGUMENTS.match(line.text))
        self._now = line.time or 0.0
        self._follower.feed([line], self._now)

    def _starts_anew(self, line: Line, invocation: str) -> bool:
        if invocation and self._invocation:
            return invocation != self._invocation
        if line.source == SYSTEMD:
            return self._has_output and line.text.startswith("Starting ")
        if line.source != ENGINE:
            return False
        return bool(
            (self._launched and _LAUNCH.match(line.text))
            or (self._has_arguments and _ARGUMENTS.match(line.text))
        )

    def verdict(self) -> Verdict:
        """Judge the last start by all that the log says of it."""
        return self._follower.observe(self._now, ended=True)


def explain(raw: Iterable[bytes], expectation: Expectation) -> tuple[Verdict, int]:
    """Judge a log; return the verdict on its last start, and how many starts it holds."""
    last = LastStart(replace(expectation, log_only=True))
    for line, invocation in timed(lines_of(raw)):
        last.feed(line, invocation)
    return last.verdict(), last.starts


def as_json(verdict: Verdict, starts: int = 1) -> dict[str, Any]:
    """Return the answer as plain values; stages begin at seconds since the start."""
    first = verdict.stages[0].begin if verdict.stages else 0.0
    return {
        "state": verdict.state,
        "phase": verdict.phase or verdict.stage,
        "cause": verdict.cause or None,
        "sentence": verdict.sentence,
        "remedy": verdict.remedy,
        "reference": verdict.reference,
        "evidence": [{"number": line.number, "text": line.text} for line in verdict.evidence],
        "stages": [
            {"name": stage.name, "begin": stage.begin - first, "seconds": stage.seconds}
            for stage in verdict.stages
        ],
        "allocated": verdict.allocated.as_dict(),
        "notes": list(verdict.notes),
        "starts": starts,
    }


def as_text(verdict: Verdict, starts: int = 1, unit: str = "") -> str:
    """Render the answer for people; nothing is cut off. ``unit`` is what systemd says of it."""
    phase = verdict.phase or verdict.stage
    said = f"{verdict.cause}: {verdict.sentence}" if verdict.cause else verdict.sentence
    rows = [
        ("state", verdict.state),
        ("unit", unit),
        ("phase", STAGE_NAMES.get(phase, phase)),
        ("cause" if verdict.cause else "because", said),
        ("remedy", verdict.remedy),
        ("see", verdict.reference),
        ("starts", f"the log holds {starts}; this is the last one" if starts > 1 else ""),
        ("stages", ", ".join(_stage(stage.name, stage.seconds) for stage in verdict.stages)),
        ("allocated", ", ".join(_pool(*pool) for pool in verdict.allocated.as_dict().items())),
    ]
    text = [f"{name:<10} {value}" for name, value in rows if value]
    text += [f"note       {note}" for note in verdict.notes]
    text += [f"{line.number:>10} {line.text}" for line in verdict.evidence]
    return "\n".join(text)


def _stage(name: str, seconds: float | None) -> str:
    title = STAGE_NAMES.get(name, name)
    return title if seconds is None else f"{title} {seconds:.0f} s"


def _pool(name: str, value: int) -> str:
    stem, _, unit = name.rpartition("_")
    title = stem.replace("_", " ")
    return f"{title} {human(value)}" if unit == "bytes" else f"{title} {value} {unit}"


CONFIGURATION = Path("/etc/sglang")
"""Where the plans of a host's instances lie, each with this ending:"""
PLAN = ".plan.json"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0 whatever the log says."""
    parser = argparse.ArgumentParser(prog="sglang-why", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="instances of this host; all without one")
    parser.add_argument("--log", metavar="FILE", help="explain a log instead, - for standard input")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="with --log: the instance's plan, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    try:
        text = _of_log(options) if options.log else _of_instances(options)
    except (OSError, SystemdError, ProblemsError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{text}\n")
    return 0


def _of_log(options: argparse.Namespace) -> str:
    plan = {}
    if options.plan:
        plan = read_json(options.plan.read_bytes(), what=str(options.plan), remedy="give the instance's plan")
    with _open(options.log) as raw:
        verdict, starts = explain(raw, Expectation.from_plan(plan))
    return _json(as_json(verdict, starts)) if options.json else as_text(verdict, starts)


def _of_instances(options: argparse.Namespace) -> str:
    known = {place.name[: -len(PLAN)]: place for place in sorted(CONFIGURATION.glob(f"*{PLAN}"))}
    absent = [name for name in options.names if name not in known]
    if absent:
        raise no_instance(", ".join(absent), known)
    if not known:
        raise ProblemsError([Problem("", "", "no instance is installed here")])
    places = [known[name] for name in options.names or known]
    plans = [json.loads(place.read_text(encoding="utf-8")) for place in places]
    seen = {plan["name"]: look_back(plan) for plan in plans}
    if options.json:
        return _json({name: as_json(verdict) for name, (verdict, _) in seen.items()})
    return "\n\n".join(
        f"{name}\n{as_text(verdict, unit=state.described)}" for name, (verdict, state) in seen.items()
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _open(name: str) -> IO[bytes]:
    return sys.stdin.buffer if name == "-" else Path(name).open("rb")


if __name__ == "__main__":
    sys.exit(main())
