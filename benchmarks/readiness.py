"""How long from the engine's line to the task's result? Fatal line to failed task, "fired up" to ready task.

``python3 benchmarks/readiness.py [--rounds N]`` on the host of the molecule scenario ``faults``
(``molecule converge -s faults`` makes it), over real ssh. The engine is the recorded one: it answers at
once, so what is left of "fired up" to ready is our own. Its lines have the journal's time, the task's
result has the time at which Ansible prints it; host and controller share a clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "molecule-faults"
SSH = ["ssh", "-F", str(ROOT / ".sandbox" / "ssh" / "config"), HOST]
CASES = (
    # what is measured, instance, the engine's line, the task's line, the most that is promised in seconds
    ("fatal line to failed task", "truncated", "SafetensorError", "fatal:", 2.0),
    ("fired up to ready task", "stale", "The server is fired up", "ok:", 1.5),
)


def on_host(*words: str) -> str:
    """Run a command on the host."""
    return subprocess.run([*SSH, *words], check=True, capture_output=True, encoding="utf-8").stdout


def results(plan: dict[str, object], mark: str, rounds: int) -> list[float]:
    """Follow starts; return when each task's result was printed, in seconds since 1970."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder, "request.json")
        asked = {"rounds": rounds, "plan": plan, "artifacts": folder}
        request.write_text(json.dumps(asked), encoding="utf-8")
        command = [
            *("ansible-playbook", f"--inventory={ROOT / 'molecule/faults/inventory'}"),
            *(str(ROOT / "benchmarks/readiness.yml"), f"--extra-vars=@{request}"),
        ]
        environment = {**os.environ, "ANSIBLE_SSH_COMMON_ARGS": f"-F {ROOT / '.sandbox/ssh/config'}"}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
        ) as playbook:
            times, is_ours = [], False
            for line in playbook.stdout or ():
                if line.startswith("TASK "):
                    is_ours = "[Follow]" in line
                elif is_ours and line.startswith(mark):
                    times.append(time.time())
                    is_ours = False
    return times


def said(unit: str, text: str, since: float) -> list[float]:
    """Find when the engine first said this in each of its invocations."""
    first: dict[str, float] = {}
    output = on_host("journalctl", f"--unit={unit}", f"--since=@{since:.0f}", "--output=json", "--all")
    for line in output.splitlines():
        record = json.loads(line)
        if isinstance(record["MESSAGE"], str) and text in record["MESSAGE"]:
            at = int(record["__REALTIME_TIMESTAMP"]) / 1e6
            first.setdefault(record["_SYSTEMD_INVOCATION_ID"], at)
    return sorted(first.values())


def main() -> int:
    """Measure both ways and print their distribution; fail where the median is above what is promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print("what                         rounds    min  median    p90    max  (seconds)")
    late = False
    for what, name, text, mark, most in CASES:
        plan = json.loads(on_host("cat", f"/etc/sglang/{name}.plan.json"))
        begin = time.time()
        printed = results(plan, mark, rounds)
        lines = said(plan["unit"], text, begin)
        # A failed unit may have been started again before it was stopped: those lines have no result.
        delays = sorted(at - max(line for line in lines if line < at) for at in printed)
        median = statistics.median(delays)
        p90 = delays[int(0.9 * (len(delays) - 1))]
        print(f"{what:<28} {len(delays):>6} {delays[0]:>6.2f} {median:>7.2f} {p90:>6.2f} {delays[-1]:>6.2f}")
        late = late or median > most
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
