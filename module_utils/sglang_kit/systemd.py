"""What does systemd say, and how is it told? The kit's only door to systemctl and journalctl."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .fingerprint import VARIABLE
from .journal import RECORD_FIELDS, of_invocation, parse_record, record_lines
from .readiness import UNIT_PROPERTIES, UnitState, unit_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .journal import Line, Record

_UNIT = re.compile(r"/(?:sglang-[^/]+\.service|sglang\.target)$")


class SystemdError(RuntimeError):
    """A tool of systemd refused; the text is what it said."""


def unit_names(paths: Iterable[str]) -> list[str]:
    """Names of the units among file paths."""
    return [path.rsplit("/", 1)[1] for path in paths if _UNIT.search(path)]


def verify(files: Mapping[str, str]) -> list[str]:
    """Let systemd judge unit texts (path -> text) before they are installed; return its complaints.

    The units are judged in a directory of their own, together, so that they may name each other.
    """
    units = {path.rsplit("/", 1)[1]: text for path, text in files.items() if _UNIT.search(path)}
    if not units:
        return []
    with tempfile.TemporaryDirectory(prefix="sglang-verify-") as directory:
        places = []
        for name, text in units.items():
            place = Path(directory, name)
            place.write_text(text, encoding="utf-8")
            places.append(str(place))
        outcome = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *places],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    lines = [line.replace(f"{directory}/", "") for line in outcome.stdout.splitlines()]
    complaints = [line for line in lines if any(line.startswith(name) for name in units)]
    if outcome.returncode and not complaints:
        return lines or [f"systemd-analyze verify ended with status {outcome.returncode}"]
    return complaints


def reload() -> None:
    """Make systemd read the unit files again; what runs is not touched."""
    _systemctl("daemon-reload")


def enable(units: Sequence[str]) -> None:
    """Start these units at boot."""
    if units:
        _systemctl("enable", "--quiet", *units)


def disable(units: Sequence[str]) -> None:
    """Do not start these units at boot; what runs is not touched."""
    if units:
        _systemctl("disable", "--quiet", *units)


def stop(units: Sequence[str]) -> None:
    """Stop units, all at once, and wait for their drain."""
    if units:
        _systemctl("stop", *units)


def restart(units: Sequence[str]) -> None:
    """Ask for a restart, also of what does not run; whoever asks follows the start by other means."""
    if units:
        _systemctl("restart", "--no-block", *units)


def stop_and_disable(units: Sequence[str]) -> None:
    """Stop units (waiting for their drain) and forget them at boot; one that has failed is listed no more.

    One whose file was removed by hand may still run; systemctl does not disable it.
    """
    if units:
        known = show(units, ("LoadState", "ActiveState"))
        lost = [unit for unit in units if known[unit].get("LoadState") == "not-found"]
        stop([unit for unit in lost if known[unit]["ActiveState"] not in ("inactive", "failed")])
        whole = [unit for unit in units if unit not in lost]
        if whole:
            _systemctl("disable", "--now", "--quiet", *whole)
        failed = [unit for unit, seen in unit_states(units).items() if seen.active_state == "failed"]
        if failed:
            _systemctl("reset-failed", *failed)


def not_enabled(units: Sequence[str]) -> list[str]:
    """Find the units that do not start at boot yet; a unit without a file is one of them."""
    states = show(units, ("UnitFileState",))
    return [unit for unit in units if states[unit]["UnitFileState"] != "enabled"]


def enabled(units: Sequence[str]) -> list[str]:
    """Find the units that start at boot."""
    waiting = not_enabled(units)
    return [unit for unit in units if unit not in waiting]


def show(units: Sequence[str], properties: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read properties of several units in one call: unit -> property -> text; unknown units answer too."""
    if not units:
        return {}
    text = _systemctl("show", f"--property={','.join(properties)}", *units)
    blocks = text.rstrip("\n").split("\n\n")
    return {unit: _properties(block) for unit, block in zip(units, blocks)}


def _properties(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.split("\n") if "=" in line)


def unit_states(units: Sequence[str]) -> dict[str, UnitState]:
    """Read the state of several units in one call."""
    return {unit: unit_state(properties) for unit, properties in show(units, UNIT_PROPERTIES).items()}


class JournalReader:
    """Reads what is new in the journal of one invocation of a unit, and nothing older."""

    def __init__(self, unit: str, state: UnitState) -> None:
        """``state`` names the invocation and when its main process started."""
        self._unit = unit
        self._state = state
        self._boot = _boot_id()
        self._cursor = ""
        self._lines = 0

    def read(self) -> Iterator[Line]:
        """Yield the lines since the last call; long and binary ones whole (``--all``)."""
        for line in record_lines(self.records(), first=self._lines + 1):
            self._lines = line.number
            yield line

    def records(self) -> Iterator[Record]:
        """Yield the records since the last call.

        They are streamed: the first read of an old invocation may be of millions.
        A unit that never ran has none: the kernel's records of this boot are not its own.
        """
        invocation, boot = self._state.invocation, self._boot
        if not invocation:
            return
        command = [
            *("journalctl", "--output=json", "--all", "--no-pager", "--quiet"),
            f"--output-fields={','.join(RECORD_FIELDS)}",
            *([f"--after-cursor={self._cursor}"] if self._cursor else []),
            *(f"_SYSTEMD_INVOCATION_ID={invocation}", "+"),
            *("_PID=1", f"INVOCATION_ID={invocation}", "+"),
            *("_TRANSPORT=kernel", f"_BOOT_ID={boot}", "+"),
            *("_TRANSPORT=driver", f"_BOOT_ID={boot}"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as journalctl:
            records = self._records(journalctl.stdout or ())
            since = self._state.started
            yield from of_invocation(records, invocation=invocation, unit=self._unit, boot=boot, since=since)
        if journalctl.returncode:
            raise SystemdError(f"journalctl ended with status {journalctl.returncode}")

    def _records(self, stream: Iterable[bytes]) -> Iterator[Record]:
        for raw in stream:
            record = parse_record(raw)
            if record is not None:
                self._cursor = record.cursor
                yield record


def remembered(unit: str, state: UnitState) -> UnitState:
    """Complete the state of a unit that systemd has forgotten: one that ended well and nobody needs any more.

    The journal still knows its last invocation, ``started`` at its last line. One of an earlier boot has not
    been started since.
    """
    if state.invocation:
        return state
    record = parse_record(_run("journalctl", "--output=json", "--quiet", "--lines=1", f"--unit={unit}"))
    if record is None:
        return state
    started = record.time if record.boot == _boot_id() else 0.0
    return replace(state, invocation=record.invocation, started=started)


def describe(unit: str) -> str:
    """Return unit file and drop-ins as they lie there, and the unit's state."""
    state = show([unit], UNIT_PROPERTIES)[unit]
    rows = [f"# {name}={value}" for name, value in sorted(state.items())]
    return "\n".join([*rows, _systemctl("cat", unit)])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")


def running_fingerprint(pid: int) -> str | None:
    """Fingerprint in the environment of a running process; None without one."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    prefix = f"{VARIABLE}=".encode()
    marks = [entry[len(prefix) :] for entry in environment.split(b"\0") if entry.startswith(prefix)]
    return os.fsdecode(marks[0]) if marks else None


def _systemctl(*words: str) -> str:
    return _run("systemctl", *words)


def _run(*words: str) -> str:
    outcome = subprocess.run(words, check=False, capture_output=True, encoding="utf-8", errors="replace")
    if outcome.returncode:
        said = outcome.stderr.strip() or f"status {outcome.returncode}"
        raise SystemdError(f"{' '.join(words)}: {said}")
    return outcome.stdout
