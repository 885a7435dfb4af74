"""Deploy to a GPU host, look closely, break it in three ways, bring it back: one run from start to end.

    python3 tests/gpu/acceptance.py RESULTS [--two-gpus | --benchmark]

Two shorter ones: with ``--two-gpus`` one instance serves from two of them; with ``--benchmark`` a matrix is
measured on a host with a service of its own, beside whoever uses the second card.

Needs ansible-core on this machine, and a GPU host in ``tests/gpu/inventory`` whose driver, release and model
are in place (docs/gpu.md). Writes to RESULTS one file a step, with what was run, what it said and how long it
took, and ``summary.json`` with what had to hold and whether it did. Goes on after a step that does not hold,
unless nothing serves; then ends non-zero.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
HOST, UNIT, PORT = "gpuhost1", "sglang-chat", 30001
SSH = (
    "/gpuhost/ssh -p 2222 -i /gpuhost/key -o StrictHostKeyChecking=accept-new"
    " -o UserKnownHostsFile=/gpuhost/known_hosts root@127.0.0.1"
)
HELD_GIB = 20
HOLD = f"""
import os, time, torch
held = torch.empty({HELD_GIB} << 30, dtype=torch.uint8, device="cuda:0")
print(os.getpid(), flush=True)
time.sleep(600)
"""
PYTHON = "$(ls /opt/sglang/releases/*/bin/python | head -1)"
MOST_EXPOSED = 3.0  # of systemd-analyze security
COMPLETION = {"model": "qwen36-27b", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
JOURNAL = f"journalctl -u {UNIT} -o cat --all _SYSTEMD_INVOCATION_ID=$(systemctl show {UNIT} -P InvocationID)"
UNNAMED = "GPU-00000000-0000-0000-0000-000000000000"
USED = "nvidia-smi -i {} --query-gpu=memory.used --format=csv,noheader,nounits"
USED_0, USED_BOTH = USED.format("0"), USED.format("0,1")
NEXT_TO_NOTHING = r"(?m)^\d{1,3}$"  # MiB
PLANNED_CONTEXT = "grep -A1 context-length /etc/sglang/chat.plan.json"


@dataclass
class Said:
    """How a command ended, and what it said."""

    status: int
    text: str
    seconds: float


@dataclass
class Run:
    """One acceptance run: where its results go, and what was found so far."""

    results: Path
    steps: list[dict[str, Any]] = field(default_factory=list)

    def step(self, name: str, *commands: list[str], **must: str) -> Said:
        """Run commands; each of ``must`` (what has to hold) is a pattern that their output has to show."""
        texts, seconds, status = [], 0.0, 0
        for command in commands:
            said = call(command)
            seconds, status = seconds + said.seconds, said.status
            texts.append(f"$ {shlex.join(command)}\n{said.text}(status {status}, {said.seconds:.1f} s)\n")
        text = "\n".join(texts)
        self.keep(name, text, seconds, {what: bool(re.search(how, text)) for what, how in must.items()})
        return Said(status, text, seconds)

    def keep(self, name: str, text: str, seconds: float, held: dict[str, bool]) -> None:
        """Keep what a step showed."""
        number = len(self.steps) + 1
        (self.results / f"{number:02}-{name}.txt").write_text(anonymous(text), encoding="utf-8")
        step = {"step": name, "seconds": round(seconds, 1), "held": held}
        self.steps.append(step)
        sys.stdout.write(f"{json.dumps(step)}\n")
        sys.stdout.flush()

    def summary(self, **more: float | None) -> int:
        """Write the summary; 0 where everything held."""
        failed = [
            f"{step['step']}: {what}"
            for step in self.steps
            for what, holds in step["held"].items()
            if not holds
        ]
        found = {**more, "failed": failed, "steps": self.steps}
        (self.results / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write("\n".join(["does not hold:", *failed, ""] if failed else ["all of it holds", ""]))
        return int(bool(failed))


def call(command: list[str], seconds: float = 900) -> Said:
    """Run a command and wait for it."""
    begun = time.monotonic()
    try:
        ended = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            cwd=PROJECT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
        return Said(124, f"{said}\nnot ended in {seconds:.0f} s\n", time.monotonic() - begun)
    return Said(ended.returncode, ended.stdout, time.monotonic() - begun)


def anonymous(text: str) -> str:
    """Take out what belongs to this one machine: how it is reached, addresses, names, and UUIDs of GPUs."""
    text = text.replace(os.environ.get("ACCEPTANCE_SSH", SSH), f"ssh {HOST}")
    text = text.replace(f"@{platform.node()}", "@controller")
    text = re.sub(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", UNNAMED, text)
    text = text.replace(str(PROJECT), "/project")
    return re.sub(r"\b(?!127\.|0\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b(?!\.)", "192.0.2.1", text)


def play(playbook: str, *words: str) -> list[str]:
    """Say how a playbook is run."""
    ansible = shlex.split(os.environ.get("ANSIBLE_PLAYBOOK", "ansible-playbook"))
    return [*ansible, "-i", str(HERE / "inventory"), playbook, "-l", HOST, *words]


def on(command: str) -> list[str]:
    """Say how a command is run on the host."""
    return [*shlex.split(os.environ.get("ACCEPTANCE_SSH", SSH)), command]


def complete(run: Run, name: str) -> None:
    """Ask for a completion."""
    body = shlex.quote(json.dumps(COMPLETION))
    ask = f"curl -s --max-time 60 -H 'Content-Type: application/json' -d {body}"
    run.step(
        name,
        on(f"{ask} http://127.0.0.1:{PORT}/v1/completions"),
        answered=r'"finish_reason":\s?"(length|stop)"',
    )


def start_seconds() -> float:
    """Tell how long the unit's last start took until it was ready."""
    times = "-P InactiveExitTimestampMonotonic -P ActiveEnterTimestampMonotonic"
    begun, ready = (int(word) for word in call(on(f"systemctl show {UNIT} {times}")).text.split()[-2:])
    return (ready - begun) / 1e6


@contextlib.contextmanager
def stranger() -> Iterator[str]:
    """Hold memory of the first GPU with a process that is none of ours; yields its pid on the host."""
    command = on(f"exec {PYTHON} -c {shlex.quote(HOLD)}")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = holder.stdout.readline().strip()
        try:
            yield pid
        finally:
            call(on(f"kill -9 {pid}"))


def orphan(run: Run) -> None:
    """Start while a foreign process holds memory of the GPU."""
    with stranger() as pid:
        said = call(on(f"systemctl start {UNIT}; journalctl -u {UNIT} -n 5 -o cat; nvidia-smi"), 60)
        call(on(f"systemctl stop {UNIT}"))
    # What nvidia-smi names, the gate names; what it does not, as a process outside a container, is an amount.
    seen = re.search(rf"(?m)^\|.* {pid} .*MiB \|$", said.text)
    who = f"pid {pid} " if seen else "no process that nvidia-smi names"
    held = {
        "start is refused": "was not started in stage gate" in said.text,
        "who holds what is named": bool(re.search(rf"GPU 0: 2[01]\d{{3}} MiB are held by {who}", said.text)),
    }
    run.keep("orphan", f"the foreign process has pid {pid}\n{said.text}", said.seconds, held)


def main() -> int:
    """Run all steps."""
    parser = argparse.ArgumentParser(description="Run the acceptance on a GPU host.")
    parser.add_argument("results", type=Path)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--two-gpus", action="store_true", help="one instance on two GPUs instead")
    kinds.add_argument("--benchmark", action="store_true", help="a matrix of strategies instead")
    given = parser.parse_args()
    results = given.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    run = Run(results)
    run.step("host", on("cat /etc/os-release; uname -r; systemctl --version; nvidia-smi"))
    if given.benchmark:
        return accept_benchmark(run)
    return accept_two_gpus(run) if given.two_gpus else accept(run)


def deployed(run: Run, *words: str) -> bool:
    """Deploy; False where nothing serves then, with what the host knows about it."""
    if run.step("first-deploy", play("deploy.yml", *words), it_serves=r"failed=0").status:
        run.step("why", on("sglang-why chat; journalctl -b -n 400 -o cat --all; systemctl --failed"))
        return False
    return True


def accept_two_gpus(run: Run) -> int:
    """One instance over two GPUs: its ranks find each other under every line of the unit."""
    if not deployed(run, "-e", f"@{HERE}/variants/two_gpus.yml"):
        return run.summary()
    seconds = start_seconds()
    complete(run, "completion")
    run.step(
        "journal", on(JOURNAL), first=r"TP0\].*KV Cache is allocated", second=r"TP1\].*KV Cache is alloc"
    )
    shared_memory = f"nsenter -t $(systemctl show {UNIT} -P MainPID) -m ls -l /dev/shm"
    run.step(
        "unit",
        on(f"systemctl show {UNIT} -p DevicePolicy -p DeviceAllow -p TemporaryFileSystem -p PrivateTmp"),
        on(shared_memory),
        on(USED_BOTH),
        devices=r"(?m)^DevicePolicy=closed$",
        both_serve=r"(?m)^\d{5,6}\n\d{5,6}$",
    )
    run.step(
        "stop",
        on(f"systemctl stop {UNIT}"),
        on(f"systemctl show {UNIT} -p ActiveState -p Result"),
        on(USED_BOTH),
        success=r"Result=success",
        memory_is_back=r"(?m)^\d{1,3}\n\d{1,3}$",
    )
    return run.summary(first_start_seconds=round(seconds, 1))


def accept_benchmark(run: Run) -> int:
    """Measure a matrix on the GPU of the host's own service, which makes room for it and comes back."""
    if not deployed(run):
        return run.summary()
    complete(run, "completion")
    look = (
        on(f"systemctl show {UNIT} -p ActiveState -p StatusText -p MainPID"),
        on(USED_0),
        on("nvidia-smi"),
    )
    serves = {"serves": r"(?m)^StatusText=ready$", "holds_its_card": r"(?m)^\d{5,6}$"}
    run.step("before", *look, **serves)
    matrix = play(
        "playbooks/benchmark.yml", "-e", "matrix=strategies", "-e", f"sglang_artifacts_dir={run.results}"
    )
    run.step(
        "benchmark",
        matrix,
        ends_well=r"failed=0",
        ddtree_is_refused=r"tp1, ddtree, 1, 8 clients: refused",
        **{
            f"{variant}_{clients}_is_measured": rf"(?m)^ +tp1 +{variant} +{clients} .* measured$"
            for variant in ("autoregressive", "mtp")
            for clients in (1, 8)
        },
    )
    run.step("after", *look, **serves)
    complete(run, "completion-after")
    run.step("again", matrix, *look, nothing_is_left=r"(?m)^ +tp1 +mtp .* has results$", **serves)
    for path in run.results.glob("benchmark/strategies/*"):
        path.write_text(anonymous(path.read_text(encoding="utf-8")), encoding="utf-8")
    return run.summary()


def accept(run: Run) -> int:
    """Take all steps on one GPU."""
    if not deployed(run):
        return run.summary()
    first = start_seconds()
    run.step("second-deploy", play("deploy.yml"), nothing_changes=r"changed=0 .*failed=0")
    run.step("status", play("playbooks/status.yml"), as_wanted=r"failed=0")
    complete(run, "completion")
    run.step(
        "journal",
        on(JOURNAL),
        state_cache=r"Mamba Cache is allocated",
        kv_cache=r"KV Cache is allocated",
        graphs=r"Capture .*cuda graph end",
    )
    run.step(
        "unit",
        on(f"systemctl cat {UNIT}; systemctl show {UNIT} | sort; systemctl status {UNIT} --no-pager"),
        user=r"(?m)^User=sglang$",
        active=r"(?m)^ActiveState=active$",
    )
    security = run.step("security", on(f"systemd-analyze security --no-pager {UNIT}"))
    exposed = re.search(r"Overall exposure level for \S+: ([\d.]+)", security.text)
    run.steps[-1]["held"] = {"3.0 or lower": exposed is not None and float(exposed[1]) <= MOST_EXPOSED}

    variants = HERE / "variants"
    run.step(
        "change",
        play("deploy.yml", "-e", f"@{variants}/changed.yml"),
        on(PLANNED_CONTEXT),
        on(f"systemctl is-active {UNIT}"),
        it_serves=r"failed=0",
        changed=r'"4096"',
        active=r"(?m)^active$",
    )
    run.step(
        "rollback",
        play("playbooks/rollback.yml", "-e", "instance=chat"),
        on(PLANNED_CONTEXT),
        on(f"systemctl is-active {UNIT}"),
        serves_the_state_before=r"chat serves state \S+",
        as_before=r'"8192"',
        active=r"(?m)^active$",
    )
    complete(run, "completion-after-rollback")

    pid = on(f"systemctl show {UNIT} -P MainPID")
    before = call(pid).text
    run.step(
        "refused-plan",
        play("deploy.yml", "-e", f"@{variants}/refused.yml"),
        pid,
        refused=r"failed=1",
        untouched=rf"(?m)^{before.strip()}$",
    )
    run.step(
        "failing-start",
        play("deploy.yml", "-e", f"@{variants}/failing.yml"),
        on("sglang-why chat"),
        on(f"systemctl is-active {UNIT}"),
        fails=r"failed=1",
        names_the_cause=r"(?i)weights",
        serves_again=r"(?m)^active$",
    )
    complete(run, "completion-after-failing-start")

    run.step(
        "stop",
        on(f"systemctl stop {UNIT}"),
        on(f"systemctl show {UNIT} -p ActiveState -p Result"),
        on(USED_0),
        stopped=r"ActiveState=inactive",
        success=r"Result=success",
        memory_is_back=NEXT_TO_NOTHING,
    )
    orphan(run)
    run.step("start", on(f"systemctl start {UNIT}"), on(f"systemctl is-active {UNIT}"), works=r"(?m)^active$")
    second = start_seconds()
    complete(run, "completion-after-start")
    run.step(
        "history",
        play("playbooks/history.yml"),
        on(f"systemctl stop {UNIT}"),
        on(USED_0),
        memory_is_back=NEXT_TO_NOTHING,
    )
    return run.summary(
        exposure=float(exposed[1]) if exposed else None,
        first_start_seconds=round(first, 1),
        second_start_seconds=round(second, 1),
        second_to_first=round(second / first, 2),
    )


if __name__ == "__main__":
    sys.exit(main())
