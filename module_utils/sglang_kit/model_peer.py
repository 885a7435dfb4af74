"""How does this host let another one have a model? Runs the program ``model_share.py`` as a unit."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import model_share
from .problem import Problem, ProblemsError

RUN = Path("/run/sglang-model-share")
WAIT_SECONDS = 30.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Peer:
    """A model that is lent to whoever has the token."""

    path: str
    token: str

    @property
    def name(self) -> str:
        """Name of the unit; each borrower has one of its own."""
        return f"sglang-model-share-{hashlib.sha256(f'{self.path} {self.token}'.encode()).hexdigest()[:12]}"


def start(peer: Peer, idle_seconds: int) -> tuple[bool, int]:
    """Serve, and return whether that is new, and the port.

    Raises ``ProblemsError`` for a model that was not downloaded here, and where the unit does not start.
    """
    folder = RUN / peer.name
    port = folder / "port"
    if not Path(peer.path, model_share.MARKER).is_file():
        raise _error(peer, "was not downloaded on this host, so it cannot be copied from here")
    if _active(peer):
        return False, int(port.read_text(encoding="utf-8"))
    RUN.mkdir(mode=0o700, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "share.py").write_text(inspect.getsource(model_share), encoding="utf-8")
    request = {"place": peer.path, "token": peer.token, "idle_seconds": idle_seconds}
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    done = subprocess.run(
        [
            *(
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={peer.name}",
                "--property=ProtectSystem=strict",
            ),
            *(f"--property=ReadWritePaths={folder}", "--property=NoNewPrivileges=yes"),
            *("/usr/bin/python3", "-I", str(folder / "share.py"), str(folder)),
        ],
        check=False,
        capture_output=True,
        encoding="utf-8",
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while not port.exists():
        if done.returncode or not _active(peer) or time.monotonic() > deadline:
            raise _error(
                peer, f"cannot be served: {done.stderr.strip() or f'journalctl -u {peer.name} says why'}"
            )
        time.sleep(POLL_SECONDS)
    return True, int(port.read_text(encoding="utf-8"))


def stop(peer: Peer) -> bool:
    """Serve no more; returns whether it was served."""
    active = _active(peer)
    if active:
        subprocess.run(["systemctl", "stop", peer.name], check=True)
    shutil.rmtree(RUN / peer.name, ignore_errors=True)
    return active


def _active(peer: Peer) -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", peer.name], check=False).returncode == 0


def _error(peer: Peer, message: str) -> ProblemsError:
    return ProblemsError([Problem("", peer.path, message)])
