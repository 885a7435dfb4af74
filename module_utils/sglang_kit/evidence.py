"""What is kept of a failure? Texts that explain it later, bounded, without secrets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import deque
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from . import credentials, probe
from .journal import ENGINE, JOURNALD, KERNEL, SYSTEMD, joined, redact
from .readiness import Expectation
from .systemd import SystemdError, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .journal import Record

HEAD_BYTES = 2 << 20
TAIL_BYTES = 6 << 20
"""What is kept of a journal: its beginning, where the first error is, and its end."""
LONGEST_ANSWER_SECONDS = 2.0
"""For the server and for nvidia-smi: a failure is told at once."""

_SECRET = re.compile(r"(?:key|token|secret|password|credentials?)$", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"^(?P<head>(?:Environment=)?\"?\w*(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)=).+", re.MULTILINE
)
_WRITERS = {SYSTEMD: "systemd", KERNEL: "kernel", JOURNALD: "systemd-journald"}


def collect(plan: Mapping[str, Any], records: Iterable[Record], *, alive: bool) -> dict[str, str]:
    """Collect texts by file name: journal, plan, unit, environment, GPUs, and the server's own report.

    ``records`` are those of the failed invocation. The server is asked only where it is still ``alive``.
    """
    sources: dict[str, Callable[[], str]] = {
        "journal.log": lambda: "".join(bounded(journal_lines(records, plan["unit"]))),
        "plan.json": lambda: json.dumps(without_secrets(plan), indent=2),
        "unit.txt": lambda: redact(_masked(describe(plan["unit"]))),
        "environment.env": lambda: _masked(_content(plan.get("environment_file", ""))),
        "nvidia-smi.txt": _nvidia_smi,
        "server_info.json": lambda: _server_info(plan) if alive else "",
    }
    texts = {name: _collected(source) for name, source in sources.items()}
    return {name: text for name, text in texts.items() if text}


def _collected(source: Callable[[], str]) -> str:
    """Get one text; what cannot be had keeps neither the others nor the way back from anything."""
    try:
        return source()
    except (OSError, SystemdError) as wrong:
        return f"not collected: {wrong}\n"


def journal_lines(records: Iterable[Record], unit: str) -> Iterator[str]:
    """Write records as ``journalctl --output=short-iso`` does, so that ``why --log`` reads them again."""
    own = unit.rpartition(".")[0]
    for record in joined(records):
        when = datetime.fromtimestamp(record.wall, timezone.utc).isoformat(timespec="microseconds")
        writer = own if record.source == ENGINE else _WRITERS[record.source]
        process = "" if record.pid is None else f"[{record.pid}]"
        for text in record.text.split("\n"):
            yield f"{when} localhost {writer}{process}: {redact(text)}\n"


def bounded(
    lines: Iterable[str], *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES
) -> Iterator[str]:
    """Let the first and the last lines through, and say how many were left out between them."""
    tail: deque[str] = deque()
    head = size = left_out = 0
    for line in lines:
        length = len(line.encode())
        if head + length <= head_bytes and not (tail or left_out):
            head += length
            yield line
            continue
        tail.append(line)
        size += length
        while size > tail_bytes:
            size -= len(tail.popleft().encode())
            left_out += 1
    if left_out:
        yield f"... {left_out} lines are left out here ...\n"
    yield from tail


def without_secrets(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Mask texts whose key sounds like a secret, at any depth."""
    if isinstance(value, dict):
        return {
            key: "***" if isinstance(item, str) and item and _SECRET.search(key) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return redact(_masked(value)) if isinstance(value, str) else value


def _masked(text: str) -> str:
    return _ASSIGNMENT.sub(r"\g<head>***", text)


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    except FileNotFoundError:
        return ""


def _nvidia_smi() -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    try:
        outcome = subprocess.run(
            ["nvidia-smi"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=LONGEST_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {LONGEST_ANSWER_SECONDS:.0f} s\n"
    return outcome.stdout


def _server_info(plan: Mapping[str, Any]) -> str:
    expectation = Expectation.from_plan(plan)
    secrets, limit = credentials.of_plan(plan), LONGEST_ANSWER_SECONDS
    asked = probe.ask(expectation, plan["host"], ["server_info"], secrets, timeout_seconds=limit).server_info
    if asked is None or not isinstance(asked.body, dict):
        return ""
    return json.dumps(without_secrets(asked.body), indent=2)
