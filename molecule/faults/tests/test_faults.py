"""Every fault gets its cause, from a real unit of a real systemd, and never somebody else's.

What the engine says is recorded. Real are units, launcher, journal, signals, ports and HTTP. One thing is
not what it would be on a GPU host: memory limits are not enforced in a container and no kernel line can be
written from one, so the OOM killer's work is done by a signal that is sent.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import on_host
from tests.on_host import plan_of, playbook, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testinfra.host import Host

SCENARIO = Path(__file__).parents[1]

MATRIX = {
    # instance: cause, phase
    "argument": ("argument-unknown", "arguments"),
    "flag-removed": ("argument-ambiguous", "arguments"),
    "algorithm": ("speculative-algorithm-unknown", "arguments"),
    "context": ("context-too-long", "arguments"),
    "architecture": ("architecture-unknown", "arguments"),
    "import": ("import-failed", "import"),
    "library": ("library-missing", "import"),
    "model": ("model-missing", "arguments"),
    "config": ("model-file-missing", "arguments"),
    "tokenizer": ("model-file-missing", "import"),
    "weights": ("weights-missing", "weights"),
    "truncated": ("weights-damaged", "weights"),
    "no-kv": ("no-memory-for-kv-cache", "kv_cache"),
    "kv-small": ("kv-cache-below-context", "kv_cache"),
    "nccl-port": ("nccl-port-in-use", "distributed"),
    "http-port": ("port-held", "gate"),
    "scheduler": ("scheduler-killed", "distributed"),
    "proxy": ("loopback-through-proxy", "warm_up"),
    "disk": ("disk-full", "distributed"),
    "shared-memory": ("shared-memory-full", "distributed"),
    "key": ("api-key-refused", "serving"),
    "too-big": ("weights-out-of-memory", "weights"),
    "state-cache": ("state-cache-too-small", "state_cache"),
    "graphs": ("graph-capture-out-of-memory", "graphs"),
    "cache": ("permission-denied", "weights"),
}


@dataclass
class Outcome:
    """What a watch came to: its output, and the evidence of each failure."""

    returncode: int
    output: str
    places: dict[str, Path] = field(default_factory=dict)

    def verdict(self, name: str) -> dict[str, Any]:
        verdict: dict[str, Any] = json.loads((self.places[name] / "verdict.json").read_text(encoding="utf-8"))
        return verdict

    def cause(self, name: str) -> tuple[str, str]:
        verdict = self.verdict(name)
        return verdict["cause"], verdict["phase"]


@pytest.fixture
def watch(host: Host, tmp_path: Path) -> Callable[..., Outcome]:
    """Follow instances to their end as a deploy does; ``stage_seconds`` and the like change the plans."""

    def follow(*names: str, previous: dict[str, str] | None = None, **changes: object) -> Outcome:
        plans = [{**plan_of(host, name), **changes} for name in names]
        asked = {"plans": plans, "previous": previous or {}, "artifacts": str(tmp_path)}
        request = tmp_path / "request.json"
        request.write_text(json.dumps(asked), encoding="utf-8")
        done = playbook(SCENARIO / "inventory", str(SCENARIO / "watch.yml"), f"--extra-vars=@{request}")
        places = {place.parent.name: place for place in tmp_path.glob(f"failures/{host.backend.host}/*/*")}
        return Outcome(done.returncode, done.stdout, places)

    return follow


def unit(name: str) -> str:
    return f"sglang-{name}.service"


def show(host: Host, name: str, wanted: str) -> str:
    return on_host.show(host, unit(name), wanted)


def start(host: Host, *names: str) -> None:
    units = " ".join(unit(name) for name in names)
    host.run(f"systemctl reset-failed {units}")
    host.check_output(f"systemctl start --no-block {units}")


def stop(host: Host, *names: str) -> None:
    host.check_output(f"systemctl stop {' '.join(unit(name) for name in names)}")


def journal(host: Host, name: str) -> str:
    return on_host.journal(host, f"_SYSTEMD_INVOCATION_ID={show(host, name, 'InvocationID')}", "--all")


@pytest.fixture
def environment(host: Host) -> Iterator[Callable[..., None]]:
    """Change lines of an instance's unit, and how its engine plays, until the end of the test."""
    changed = []

    def change(name: str, *lines: str, **variables: str) -> None:
        folder = f"/run/systemd/system/{unit(name)}.d"
        # Read after the unit's own EnvironmentFile=, so it wins.
        played = "".join(f"SGLANG_REPLAY_{key.upper()}='{text}'\\n" for key, text in variables.items())
        host.check_output(f'mkdir -p {folder} && printf "{played}" >{folder}/environment')
        unit_lines = "\\n".join(("[Service]", f"EnvironmentFile={folder}/environment", *lines))
        host.check_output(f"printf '{unit_lines}\\n' >{folder}/replay.conf")
        host.check_output("systemctl daemon-reload")
        changed.append(folder)

    yield change
    for folder in changed:
        host.check_output(f"rm -rf {folder}")
    host.check_output("systemctl daemon-reload")


# Where neither a CPU nor a recording has the fault: a recorded start up to a line, and the exception as the
# engine raises it (reports #165, #38846, #4489 and #472 of sgl-project/sglang).
CONSTRUCTED = {
    # instance: (last line, exception)
    "too-big": (
        "Load weight begin",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 170.00 MiB. GPU 0 has 94 GiB.",
    ),
    "state-cache": (
        "Load weight end",
        "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests.",
    ),
    "graphs": (
        "KV Cache is allocated",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    "cache": (
        "Load weight begin",
        "PermissionError: [Errno 13] Permission denied: '/var/cache/sglang/triton/tmp.pid_7'",
    ),
}
CONSTRUCT = f"""
import glob, json, pathlib
folder = pathlib.Path(glob.glob("/opt/sglang/releases/*/lib/packages/sglang/recordings/0.5.23")[0])
text = (folder / "cpu-unknown-flag.jsonl").read_text()
longer = text.replace("--no-such-flag", "--no-such-" + "x" * 70_000 + "-end")
(folder / "constructed-long.jsonl").write_text(longer)
lines = (folder / "cpu-ready-then-stopped.jsonl").read_text().splitlines(True)
for name, (after, error) in {CONSTRUCTED!r}.items():
    last = next(number for number, line in enumerate(lines) if after in line)
    at = json.loads(lines[last])["at"]
    crash = [
        "[2026-11-29 16:00:00] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/sglang/releases/0.5.23/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py",'
        " line 4711, in run_scheduler_process",
        "    scheduler = Scheduler(",
        error,
        "",
        "[2026-11-29 16:00:00] Received sigquit from a child process. It usually means the child failed.",
    ]
    entries = [{{"at": at, "line": line}} for line in crash] + [{{"at": at, "end": {{"signal": 9}}}}]
    tail = "".join(json.dumps(entry) + "\\n" for entry in entries)
    (folder / f"constructed-{{name}}.jsonl").write_text("".join(lines[: last + 1]) + tail)
"""


# --- the matrix: all at once, as a deploy of many instances would find them ----------------------


@pytest.fixture(scope="module")
def matrix(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    port = plan_of(host, "http-port")["port"]
    holder = f"python3 -m http.server --bind 127.0.0.1 {port}"
    host.check_output(f"systemd-run --unit=fault-port-holder {holder}")
    host.check_output("python3 -c %s", CONSTRUCT)
    start(host, *MATRIX)
    outcome = watch.__wrapped__(host, tmp_path_factory.mktemp("matrix"))(*MATRIX)  # type: ignore[attr-defined]
    yield outcome
    stop(host, *MATRIX)
    host.check_output("systemctl stop fault-port-holder")


@pytest.mark.parametrize("name", MATRIX)
def test_a_fault_gets_its_cause(matrix: Outcome, name: str) -> None:
    assert matrix.cause(name) == MATRIX[name]
    assert matrix.verdict(name)["state"] in {"failed", "restarting"}


@pytest.mark.parametrize("name", MATRIX)
def test_its_evidence_is_told_whole_and_kept(matrix: Outcome, name: str) -> None:
    verdict, place = matrix.verdict(name), matrix.places[name]
    evidence = [line for part in verdict["evidence"] for line in part["text"].splitlines()]
    assert evidence
    assert all(line in matrix.output for line in evidence)
    kept = {one.name for one in place.iterdir()}
    assert {"journal.log", "plan.json", "unit.txt", "environment.env", "why.txt"} <= kept
    log = (place / "journal.log").read_text(encoding="utf-8")
    assert all(line in log for line in evidence)


def test_the_last_failure_is_explained_on_the_host_in_the_same_words(host: Host, matrix: Outcome) -> None:
    wait_until(lambda: show(host, "truncated", "ActiveState") == "failed")  # until then it starts again
    told = host.check_output("sglang-why truncated")
    assert "cause      weights-damaged: " in told
    assert "SafetensorError" in told
    assert "SafetensorError" in (matrix.places["truncated"] / "why.txt").read_text(encoding="utf-8")


def test_progress_is_plain_text_one_line_a_stage(matrix: Outcome) -> None:
    assert "\x1b" not in matrix.output
    assert re.search(r"^[\w-]+: 0:00 arguments$", matrix.output, re.MULTILINE)


# --- traps ---------------------------------------------------------------------------------------


def test_stale_log_trap_an_old_failure_in_the_journal_is_not_the_present_one(
    host: Host, watch: Callable[..., Outcome], environment: Callable[..., None]
) -> None:
    environment("stale", recording="weights-truncated")
    start(host, "stale")
    assert watch("stale").cause("stale")[0] == "weights-damaged"
    stop(host, "stale")
    failed = show(host, "stale", "InvocationID")
    environment("stale", recording="ready-then-stopped")
    start(host, "stale")
    outcome = watch("stale", previous={"stale": failed})
    assert outcome.returncode == 0, outcome.output
    assert "Safetensor" not in outcome.output
    assert "state      ready" in host.check_output("sglang-why stale")
    stop(host, "stale")


def test_inactive_trap_a_stop_is_no_crash(host: Host, watch: Callable[..., Outcome]) -> None:
    start(host, "stopped")
    wait_until(lambda: "server_args=" in journal(host, "stopped"))
    stopper = threading.Timer(6.0, lambda: host.run(f"systemctl stop {unit('stopped')}"))
    stopper.start()
    outcome = watch("stopped")
    stopper.join()
    assert outcome.verdict("stopped")["state"] == "stopped"
    assert outcome.cause("stopped")[0] == "stopped-by-request"
    assert "stopped by request" in host.check_output("sglang-why stopped")
    assert (show(host, "stopped", "ActiveState"), show(host, "stopped", "Result")) == ("inactive", "success")


def test_truncated_message_trap_a_long_message_is_told_whole(
    host: Host, watch: Callable[..., Outcome], environment: Callable[..., None]
) -> None:
    """The journal gives null for a line over 4 KB unless asked for all, and breaks one over 48 KB."""
    host.check_output("python3 -c %s", CONSTRUCT)
    environment("long", recording="constructed-long")
    start(host, "long")
    outcome = watch("long")
    assert outcome.cause("long") == ("argument-unknown", "arguments")
    whole = "--no-such-" + "x" * 70_000 + "-end"
    assert whole in outcome.verdict("long")["sentence"]
    assert whole in outcome.output
    assert whole in (outcome.places["long"] / "journal.log").read_text(encoding="utf-8")


# --- what happens while it is watched ------------------------------------------------------------


def test_a_stage_without_progress_is_stalled(host: Host, watch: Callable[..., Outcome]) -> None:
    start(host, "hang")
    outcome = watch("hang", stage_seconds={"distributed": 4})
    assert outcome.verdict("hang")["state"] == "stalled"
    assert outcome.cause("hang") == ("no-progress", "distributed")
    stop(host, "hang")


def test_a_long_silence_is_broken(host: Host, watch: Callable[..., Outcome]) -> None:
    start(host, "hang")
    outcome = watch("hang", stage_seconds={"distributed": 45})
    assert len(re.findall(r"^hang: \d:\d\d distributed", outcome.output, re.MULTILINE)) >= 2
    assert outcome.cause("hang") == ("no-progress", "distributed")
    stop(host, "hang")


def test_a_busy_server_is_no_failure(host: Host, watch: Callable[..., Outcome]) -> None:
    """/health answers 503 for 30 s, as it does while a long prompt is computed, and then 200."""
    start(host, "busy")
    outcome = watch("busy")
    assert outcome.returncode == 0, outcome.output
    assert outcome.places == {}
    assert journal(host, "busy").count('"GET /health HTTP/1.1" 503') > 3
    stop(host, "busy")


def test_a_killed_engine_is_told_from_one_that_failed(
    host: Host, watch: Callable[..., Outcome], environment: Callable[..., None]
) -> None:
    """What the OOM killer does; without its line in the kernel's log nobody can say that it was it."""
    environment("killed", "Restart=no")
    start(host, "killed")
    wait_until(lambda: "Load weight begin" in journal(host, "killed"))
    launcher = show(host, "killed", "MainPID")
    host.check_output(f"pkill --signal KILL --parent {launcher}")
    outcome = watch("killed")
    assert outcome.cause("killed")[0] == "main-process-killed"
    assert "OOM killer" in outcome.verdict("killed")["remedy"]
    stop(host, "killed")


def test_a_restart_loop_is_told_by_its_cause(
    host: Host, watch: Callable[..., Outcome], environment: Callable[..., None]
) -> None:
    """Not by its consequence: that the launcher has given up."""
    environment("loop", "RestartSec=100ms")
    start(host, "loop")
    wait_until(lambda: show(host, "loop", "ActiveState") == "failed")
    assert show(host, "loop", "NRestarts") == "2"
    assert watch("loop").cause("loop") == ("scheduler-killed", "distributed")
    assert "cause      scheduler-killed" in host.check_output("sglang-why loop")
    stop(host, "loop")


def test_a_journal_that_is_rotated_on_the_way_is_read_on(
    host: Host, watch: Callable[..., Outcome], environment: Callable[..., None]
) -> None:
    environment("rotated", recording="weights-truncated", speed="3")
    start(host, "rotated")
    wait_until(lambda: "server_args=" in journal(host, "rotated"))
    rotate = threading.Timer(3.0, lambda: host.run("journalctl --rotate"))
    rotate.start()
    outcome = watch("rotated")
    rotate.join()
    assert outcome.cause("rotated") == ("weights-damaged", "weights")
    assert "server_args=" in (outcome.places["rotated"] / "journal.log").read_text(encoding="utf-8")
    stop(host, "rotated")


UNITS = "/run/systemd/system"
RENAME = f"""
import pathlib
for old, new in (
    ("/etc/systemd/system/sglang-before.service", "{UNITS}/sglang-after.service"),
    ("/etc/sglang/before.env", "/etc/sglang/after.env"),
    ("/etc/sglang/before.plan.json", "/etc/sglang/after.plan.json"),
):
    text = pathlib.Path(old).read_text().replace("before", "after")
    pathlib.Path(new).write_text(text.replace("unknown-flag", "ready-then-stopped"))
"""


def test_a_renamed_unit_does_not_inherit_a_failure(host: Host, watch: Callable[..., Outcome]) -> None:
    """The old name's journal is another unit's."""
    start(host, "before")
    assert watch("before").cause("before")[0] == "argument-unknown"
    stop(host, "before")
    host.check_output("python3 -c %s", RENAME)
    host.check_output("chgrp sglang /etc/sglang/after.* && systemctl daemon-reload")
    try:
        start(host, "after")
        outcome = watch("after")
        assert outcome.returncode == 0, outcome.output
        assert "unrecognized" not in host.check_output("sglang-why after")
    finally:
        host.check_output(
            f"systemctl stop {unit('after')} && rm {UNITS}/{unit('after')} /etc/sglang/after.*"
            " && systemctl daemon-reload"
        )
