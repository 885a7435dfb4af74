"""How much longer does a deploy that changes nothing take for eight instances than for one?

``python benchmarks/no_change_deploy.py [--runs N]``, while the hosts of the scenario ``eight_gpus`` stand
(``molecule converge -s eight_gpus``). The two hosts take turns, so that a busy machine slows down both; the
fastest run of each counts. Ends with status 1 above the ratio that is promised.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INVENTORY = ROOT / "molecule" / "eight_gpus" / "inventory"
HOSTS = {"eight": "molecule-eight", "one": "molecule-one"}
PROMISED = 1.5


def seconds_of(host: str) -> float:
    """Deploy once; a run that fails or changes something is no measurement."""
    command = ["ansible-playbook", f"--inventory={INVENTORY}", "deploy.yml", f"--limit={host}"]
    environment = {**os.environ, "ANSIBLE_SSH_COMMON_ARGS": f'-F "{ROOT / ".sandbox" / "ssh" / "config"}"'}
    begin = time.perf_counter()
    outcome = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, encoding="utf-8", env=environment
    )
    seconds = time.perf_counter() - begin
    if outcome.returncode or "changed=0" not in outcome.stdout:
        sys.exit(f"{host}: not a deploy that changes nothing\n{outcome.stdout[-4000:]}")
    return seconds


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=3, help="runs a host (default 3)")
    runs = parser.parse_args().runs
    taken: dict[str, list[float]] = {name: [] for name in HOSTS}
    for number in range(1, runs + 1):
        for name, host in HOSTS.items():
            taken[name].append(seconds_of(host))
            print(f"run {number}, {name}: {taken[name][-1]:.1f} s", flush=True)
    best = {name: min(values) for name, values in taken.items()}
    ratio = best["eight"] / best["one"]
    print(f"eight {best['eight']:.1f} s, one {best['one']:.1f} s: ratio {ratio:.2f}, promised {PROMISED}")
    return 0 if ratio <= PROMISED else 1


if __name__ == "__main__":
    sys.exit(main())
