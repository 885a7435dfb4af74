"""What does a long log cost? Reading a million lines, and one poll after them.

``python3 benchmarks/why.py [--lines N] [--host NAME [--journal-gib N]]``: the explanation of a log streams
through a pipe (nothing is stored); with ``--host``, a sandbox host, a unit writes as many lines to the real
journal, among others' lines that fill it to the size given; it is then read from its beginning and once more
from the cursor.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TEXT = "[2026-11-29 13:28:16 TP0] Decode batch, #running-req: 8, #token: 4096, token usage: 0.50, x: {}"
PADDING = "y" * 900
UNIT = "sglang-long-log.service"

WRITE = """
import sys
for number in range({lines}):
    sys.stdout.write({text!r}.format(number) + "\\n")
sys.stdout.write("a last line\\n")
"""
FILL = """
import base64, os, sys
for _ in range({lines}):
    sys.stdout.write(base64.b64encode(os.urandom(30_000)).decode() + "\\n")
"""
FILL_BYTES = 31_000
"""What one of its lines takes in the journal, which compresses it."""
READ = """
import json, resource, sys, time
sys.path.insert(0, "/opt/sglang/kit")
from sglang_kit.readiness import Expectation, Follower
from sglang_kit.systemd import JournalReader, unit_states
unit = {unit!r}
state = unit_states([unit])[unit]
reader, follower = JournalReader(unit, state), Follower(Expectation())
reader._cursor = {cursor!r}
begin, count = time.monotonic(), 0
for line in reader.read():
    follower.feed([line], begin)
    count += 1
follower.observe(time.monotonic(), unit=state)
seconds = time.monotonic() - begin
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([reader._cursor, count, seconds, peak // 1024]))
"""


def show(what: str, lines: int, seconds: float, peak_mib: float) -> None:
    """Print one row."""
    print(f"{what:<34} {lines:>9} {seconds:>9.2f} {peak_mib:>10.0f}")


def streamed(lines: int) -> None:
    """Explain a log that comes through a pipe, as ``journalctl -o json`` writes it."""
    command = [sys.executable, "-m", "sglang_kit.why", "--log", "-", "--json"]
    begin = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT / "module_utils", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as why:
        assert why.stdin is not None  # noqa: S101 - it was asked for
        for number in range(lines):
            record = {
                "__CURSOR": PADDING,
                "__MONOTONIC_TIMESTAMP": str(number),
                "__REALTIME_TIMESTAMP": str(number),
                "_BOOT_ID": "b",
                "_PID": "77",
                "_SYSTEMD_INVOCATION_ID": "i",
                "_TRANSPORT": "stdout",
                "MESSAGE": TEXT.format(number),
            }
            why.stdin.write(json.dumps(record).encode() + b"\n")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    show("explain a log, streamed", lines, time.monotonic() - begin, peak)


def journalled(host: str, lines: int, journal_gib: float) -> None:
    """Let a unit of a sandbox host write the lines, and read them as the readiness check does."""
    ssh = ["ssh", "-F", str(ROOT / ".sandbox" / "ssh" / "config"), host]
    others = int(journal_gib * 2**30 / FILL_BYTES)
    _write(ssh, "fill", FILL.format(lines=others // 2), others)
    _write(ssh, UNIT, WRITE.format(lines=lines, text=TEXT), lines)
    _write(ssh, "fill", FILL.format(lines=others - others // 2), others)
    subprocess.run([*ssh, "journalctl", "--disk-usage"], check=True)
    try:
        cursor, *first = _read([*ssh, "python3", "-I", "-"], "")
        _, *poll = _read([*ssh, "python3", "-I", "-"], cursor)
    finally:
        subprocess.run([*ssh, "systemctl", "stop", UNIT], check=True)
    show("read a journal from its beginning", *first)
    show("poll it from the cursor", *poll)


def _write(ssh: list[str], unit: str, program: str, lines: int) -> None:
    """Run a program as a unit, to its end; none of its lines is dropped."""
    options = (
        f"--unit={unit} --property=Type=oneshot --property=RemainAfterExit={'yes' if unit == UNIT else 'no'}"
        f" --property=LogRateLimitIntervalSec=1s --property=LogRateLimitBurst={10 * lines + 1}"
    )
    subprocess.run(
        [*ssh, f"systemd-run --quiet {options} /usr/bin/python3 -c {shlex.quote(program)}"], check=True
    )


def _read(command: list[str], cursor: str) -> list[Any]:
    """Read in a process of its own, so that its memory is its own."""
    program = READ.format(unit=UNIT, cursor=cursor)
    done = subprocess.run(command, input=program, check=True, capture_output=True, encoding="utf-8")
    answer: list[Any] = json.loads(done.stdout)
    return answer


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--host", help="a sandbox host with an installed kit")
    parser.add_argument("--journal-gib", type=float, default=2.0, help="its size with the lines of others")
    options = parser.parse_args()
    print(f"{'what':<34} {'lines':>9} {'seconds':>9} {'peak (MiB)':>10}")
    streamed(options.lines)
    if options.host:
        journalled(options.host, options.lines, options.journal_gib)
    return 0


if __name__ == "__main__":
    sys.exit(main())
