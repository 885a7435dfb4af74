"""Deploy to a GPU host, look closely, break it in three ways, bring it back: one run from start to end.

    python3 tests/gpu/acceptance.py RESULTS

Needs ansible-core on this machine, and a GPU host in ``tests/gpu/inventory`` whose driver, release and model
are in place (docs/gpu.md). Writes to RESULTS one file a step, with what was run, what it said and how long it
took, and ``summary.json`` with what had to hold and whether it did. Goes on after a step that does not hold,
unless nothing serves; then ends non-zero.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
HOST, UNIT, PORT = "gpuhost1", "sglang-chat", 30001
SSH = (
    "/gpuhost/ssh -p 2222 -i /gpuhost/key -o StrictHostKeyChecking=accept-new"
    " -o UserKnownHostsFile=/gpuhost/known_hosts root@127.0.0.1"
)
HELD_GIB = 20
HOLD = f"""
import time, torch
held = torch.empty({HELD_GIB} << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(600)
"""
MOST_EXPOSED = 3.0  # of systemd-analyze security
COMPLETION = {"model": "qwen36-27b", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
UNNAMED = "GPU-00000000-0000-0000-0000-000000000000"
FREE = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"


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


def call(command: list[str], seconds: float = 400) -> Said:
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
    """Take out what belongs to this one machine: addresses, and UUIDs of GPUs."""
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


def orphan(run: Run) -> None:
    """Start while a foreign process holds memory of the GPU, and again when it is gone."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        said = call(on(f"systemctl start {UNIT}; journalctl -u {UNIT} -n 5 -o cat; nvidia-smi"), 60)
    finally:
        call(on(f"systemctl stop {UNIT}"))
        holder.kill()
        holder.wait()
    seen = bool(re.search(rf"(?m)^\|.* {holder.pid} .*MiB \|$", said.text))
    held = {
        "start is refused": "was not started in stage gate" in said.text,
        # In a container nvidia-smi names no process of the machine's; then the gate tells the amount.
        "its pid is named, if nvidia-smi does": seen == (f"by pid {holder.pid}" in said.text),
        "its memory is named": bool(re.search(r"GPU 0: 2[01]\d{3} MiB are held by", said.text)),
    }
    run.keep("orphan", f"the foreign process has pid {holder.pid}\n{said.text}", said.seconds, held)


def main() -> int:
    """Run all steps."""
    parser = argparse.ArgumentParser(description="Run the acceptance on a GPU host.")
    parser.add_argument("results", type=Path)
    results = parser.parse_args().results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    return accept(Run(results))


def accept(run: Run) -> int:
    """Take all steps."""
    run.step("host", on("cat /etc/os-release; uname -r; systemctl --version; nvidia-smi"))

    first_deploy = run.step("first-deploy", play("deploy.yml"), it_serves=r"failed=0")
    if first_deploy.status:
        run.step("why", on("sglang-why chat; journalctl -b -n 400 -o cat --all; systemctl --failed"))
        return run.summary()
    first = start_seconds()
    run.step("second-deploy", play("deploy.yml"), nothing_changes=r"changed=0 .*failed=0")
    run.step("status", play("playbooks/status.yml"), as_wanted=r"failed=0")
    complete(run, "completion")
    journal = (
        f"journalctl -u {UNIT} -o cat --all _SYSTEMD_INVOCATION_ID=$(systemctl show {UNIT} -P InvocationID)"
    )
    run.step(
        "journal",
        on(journal),
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
    complete(run, "completion-after-rollback")

    run.step(
        "stop",
        on(f"systemctl stop {UNIT}"),
        on(f"systemctl show {UNIT} -p ActiveState -p Result"),
        on(FREE),
        stopped=r"ActiveState=inactive",
        success=r"Result=success",
        memory_is_back=r"(?m)^\d{1,3}$",
    )
    orphan(run)
    run.step("start", on(f"systemctl start {UNIT}"), on(f"systemctl is-active {UNIT}"), works=r"(?m)^active$")
    second = start_seconds()
    complete(run, "completion-after-start")
    run.step(
        "history",
        play("playbooks/history.yml"),
        on(f"systemctl stop {UNIT}"),
        on(FREE),
        memory_is_back=r"(?m)^\d{1,3}$",
    )
    return run.summary(
        exposure=float(exposed[1]) if exposed else None,
        first_start_seconds=round(first, 1),
        second_start_seconds=round(second, 1),
        second_to_first=round(second / first, 2),
    )


if __name__ == "__main__":
    sys.exit(main())
