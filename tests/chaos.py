"""Kill a deploy at random points, run it once more, and compare with a deploy that nobody killed.

``python -m tests.chaos --inventory DIR --host NAME [--points 50] [--seed N]``, with a sandbox host that has
been deployed to. The change flips one flag of all instances, there and back. It is ended by SIGKILL of
ansible, by SIGKILL of the host's sshd, or by a power cut of the host. At once after it, every known-good
state and every file must be whole; after one more run, the host must be as after an uninterrupted one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.on_host import ROOT, wait_until

KINDS = ("ansible", "sshd", "power")
FLAGS = (8192, 4096)

LOOK = """
import hashlib, json, pathlib, subprocess, sys
sys.path.insert(0, "/opt/sglang/kit")
from sglang_kit import state, systemd
store = state.Store()
found = {"files": {}, "instances": {}}
for pattern in ("etc/systemd/system/sglang*", "etc/sglang/*"):
    for place in pathlib.Path("/").glob(pattern):
        if place.is_file():
            found["files"][str(place)] = hashlib.sha256(place.read_bytes()).hexdigest()
found["staged"] = [str(place) for place in pathlib.Path("/etc").glob("s*/**/.*.staged")]
for name in store.names():
    links = {link: store.at(name, link) for link in (state.WANTED, state.KNOWN_GOOD)}
    for one in store.history(name):
        store.files(one)  # raises where a copy is not what it was
    unit = f"sglang-{name}.service"
    seen = systemd.unit_states([unit])[unit]
    found["instances"][name] = {
        "status": seen.status_text,
        "enabled": systemd.enabled([unit]),
        "running": systemd.running_fingerprint(seen.main_pid),
        **{link: one and one["fingerprint"] for link, one in links.items()},
    }
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Chaos:
    """A host, and the change that is killed."""

    inventory: Path
    host: str

    def command(self, flag: int) -> list[str]:
        """Deploy this value of the flag."""
        options = [f"--inventory={self.inventory}", f"--limit={self.host}", f"--extra-vars=flag={flag}"]
        return ["ansible-playbook", "deploy.yml", *options]

    def deploy(self, flag: int) -> None:
        """Deploy to the end."""
        done = subprocess.run(
            self.command(flag), cwd=ROOT, check=False, capture_output=True, encoding="utf-8"
        )
        assert done.returncode == 0, done.stdout

    def sandbox(self, *words: str, given: str | None = None) -> str:
        """Let the sandbox do something, without ssh."""
        command = [sys.executable, "-m", "sandbox", *words]
        return subprocess.run(
            command, cwd=ROOT, check=True, input=given, stdout=subprocess.PIPE, encoding="utf-8"
        ).stdout

    def look(self) -> dict[str, Any]:
        """Read everything that counts; fails where a state cannot be read or a copy is not whole."""
        found: dict[str, Any] = json.loads(self.sandbox("exec", self.host, "--", "python3", "-", given=LOOK))
        return found

    def kill(self, kind: str, deploy: subprocess.Popen[bytes]) -> None:
        """End a deploy; what of it is left on this side goes, too."""
        if kind == "sshd":
            self.sandbox("exec", self.host, "--", "systemctl", "kill", "--signal=KILL", "ssh.service")
        if kind == "power":
            self.sandbox("power-off", self.host)
        with suppress(ProcessLookupError):
            os.killpg(deploy.pid, signal.SIGKILL)
        deploy.wait()
        if kind == "power":
            self.sandbox("up", self.host)
        if kind == "sshd":
            self.sandbox("exec", self.host, "--", "systemctl", "restart", "ssh.service")
        answers = ["ansible", self.host, f"--inventory={self.inventory}", "--module-name=ping"]
        wait_until(
            lambda: subprocess.run(answers, cwd=ROOT, check=False, capture_output=True).returncode == 0
        )


def whole(now: dict[str, Any], ends: list[dict[str, Any]]) -> None:
    """Check what must hold at any moment: nothing is half written, nothing good is lost."""
    for path, digest in now["files"].items():
        assert digest in {end["files"][path] for end in ends}, f"{path} is of neither state"
    assert set(now["files"]) == set(ends[0]["files"])
    for name, one in now["instances"].items():
        good = {end["instances"][name]["known-good"] for end in ends}
        assert one["known-good"] in good, f"{name} has lost its known-good state"


def run(chaos: Chaos, points: int, seed: int) -> None:
    """Kill at so many points; every kind has its turn."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    ends, seconds = {}, 0.0
    for flag in (*FLAGS[1:], FLAGS[0]):
        began = time.monotonic()
        chaos.deploy(flag)
        seconds = time.monotonic() - began
        ends[flag] = chaos.look()
    for point in range(points):
        kind, flag = KINDS[point % len(KINDS)], FLAGS[(point + 1) % len(FLAGS)]
        moment = chance.uniform(0, seconds)
        with subprocess.Popen(
            chaos.command(flag), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
        ) as deploy:
            with suppress(subprocess.TimeoutExpired):
                deploy.wait(moment)
            chaos.kill(kind, deploy)
        whole(chaos.look(), list(ends.values()))
        chaos.deploy(flag)
        assert chaos.look() == ends[flag]
        sys.stdout.write(f"{point + 1} of {points}: {kind} after {moment:.1f} of {seconds:.1f} s: healed\n")
        sys.stdout.flush()


def main() -> None:
    """Read the command line, and kill."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inventory", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))  # noqa: S311 - no secret
    given = parser.parse_args()
    os.environ.setdefault("ANSIBLE_SSH_COMMON_ARGS", f'-F "{ROOT}/.sandbox/ssh/config"')
    sys.stdout.write(f"seed {given.seed}\n")
    run(Chaos(given.inventory, given.host), given.points, given.seed)


if __name__ == "__main__":
    main()
