"""Is a busy server left alone, and what does asking it cost? Long prompts without end, and readiness checks.

``python3 benchmarks/load.py --host HOST --instance NAME [--minutes 10]`` on a sandbox host whose instance
runs a real engine. Clients send prompts that nearly fill the context; every ``--every`` seconds the instance
is proven anew, as a deploy that changes nothing does. Printed are the verdicts, how long each check took, and
the checks' share of the tokens that the server has computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = 4
ANSWER_TOKENS = 64
CHECK_TOKENS = 16
"""Most that one check computes: ``/health`` one token, the completion a prompt of six and eight more."""
LONGEST_ANSWER_SECONDS = 600
CHECK = """
import json, sys, time
sys.path.insert(0, "/opt/sglang/kit")
from sglang_kit import watch
plan = json.load(open("/etc/sglang/{name}.plan.json"))
begin = time.monotonic()
seen = watch.follow([plan], {{}})
verdict = seen.instances[plan["name"]]
print(json.dumps([verdict["state"], verdict["sentence"], time.monotonic() - begin]))
"""


@dataclass
class Load:
    """Clients that ask without a pause."""

    url: str
    model: str
    context: int
    stopped: threading.Event = field(default_factory=threading.Event)
    tokens: int = 0
    errors: int = 0

    def run(self) -> None:
        """Send one long prompt after the other."""
        prompt = "Hello " * (self.context // 8)
        while not self.stopped.is_set():
            body = {"model": self.model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
            request = urllib.request.Request(  # noqa: S310 - a loopback address
                f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=LONGEST_ANSWER_SECONDS) as answer:  # noqa: S310
                    usage = json.load(answer)["usage"]
            except OSError:
                self.errors += 1
                continue
            self.tokens += usage["prompt_tokens"] + usage["completion_tokens"]


def on_host(host: str, program: str) -> str:
    """Run a Python program on the host, as root."""
    ssh = ["ssh", "-F", str(ROOT / ".sandbox" / "ssh" / "config"), host, "python3", "-I", "-"]
    return subprocess.run(ssh, input=program, check=True, capture_output=True, encoding="utf-8").stdout


def main() -> int:
    """Load, check, and fail where a check has not found the server ready."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=10, help="seconds between two checks")
    options = parser.parse_args()
    read = f'print(open("/etc/sglang/{options.instance}.plan.json").read())'
    plan: dict[str, Any] = json.loads(on_host(options.host, read))
    load = Load(f"http://127.0.0.1:{plan['port']}", plan["served_model_name"], plan["context_length"] or 1024)
    clients = [threading.Thread(target=load.run) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    end = time.monotonic() + options.minutes * 60
    checks = []
    while time.monotonic() < end:
        checks.append(json.loads(on_host(options.host, CHECK.format(name=options.instance))))
        time.sleep(options.every)
    load.stopped.set()
    for client in clients:
        client.join()
    took = [seconds for _, _, seconds in checks]
    share = CHECK_TOKENS * len(checks) / max(1, load.tokens)
    bad = [(state, sentence) for state, sentence, _ in checks if state != "ready"]
    print(f"checks          {len(checks)}, not ready: {len(bad)} {bad[:3] or ''}")
    print(f"seconds a check median {statistics.median(took):.2f}, most {max(took):.2f}")
    print(f"tokens          {load.tokens} for the clients ({load.errors} errors), {share:.2%} for the checks")
    return 1 if bad or load.errors else 0


if __name__ == "__main__":
    sys.exit(main())
