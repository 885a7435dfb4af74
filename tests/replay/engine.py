"""The replayed engine: prints a recorded run with its timing and answers HTTP as that run did.

It stands in for SGLang where a test needs many starts or a failure that no CPU provokes; nothing it says
is invented. Standard library only: it runs under a host's own Python.

Environment: ``SGLANG_REPLAY_RECORDING`` names the case (default ``ready-then-stopped``),
``SGLANG_REPLAY_SPEED`` divides the recorded times (default 10). Misbehaviour: ``SGLANG_REPLAY_DIE_AT`` and
``SGLANG_REPLAY_HANG_AT`` hold a text of a line, after which the process is killed or falls silent;
``SGLANG_REPLAY_UNHEALTHY_SECONDS`` makes ``/health`` answer 503 for so long after the engine is ready, and
``SGLANG_REPLAY_API_KEY`` is a key that it wants whatever its arguments say.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .recording import STAMP, Recording, find, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_CASE = "ready-then-stopped"
LISTENING = "Uvicorn running on"
READY = "The server is fired up and ready to roll!"
KILL_THEMSELVES = ("0.5.11", "0.5.12", "0.5.15", "0.5.18")
"""Versions that end a clean stop with SIGKILL to themselves; later ones exit with status 0."""
BIND_FAILED = 3
"""Exit status of an engine that could not bind its port."""


@dataclass(frozen=True)
class Behaviour:
    """How the recording is played."""

    speed: float = 10.0
    die_at: str = ""
    hang_at: str = ""
    unhealthy_seconds: float = 0.0


@dataclass
class Engine:
    """One replayed start. ``arguments`` are the engine's own, as its caller gave them."""

    recording: Recording
    arguments: Mapping[str, str] = field(default_factory=dict)
    behaviour: Behaviour = field(default_factory=Behaviour)
    ready_at: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    server: ThreadingHTTPServer | None = None

    def run(self) -> int:
        """Play to the end; a run that was recorded serving serves until SIGTERM."""
        self._ours = self._substitutions()
        before = 0.0
        for at, text in self.recording.lines:
            if self.stop.wait((at - before) / self.behaviour.speed):
                break
            before = at
            if LISTENING in text and not self._listen():
                return BIND_FAILED
            if READY in text:
                self.ready_at = time.monotonic()
            self._print(text)
            self._misbehave(text)
            if self.server and self.ready_at and self._serves_on():
                self.stop.wait()
                break
        if self.stop.is_set():
            return self._end_after_stop()
        if self.recording.returncode is None:
            self.stop.wait()
            return self._end_after_stop()
        time.sleep(max(0.0, self.recording.ended_at - before) / self.behaviour.speed)
        return self._end(self.recording.returncode)

    def _serves_on(self) -> bool:
        """Whether nothing but the recorder's own questions and its stop followed."""
        return self.recording.stopped_at is not None or self.recording.returncode is None

    def _listen(self) -> bool:
        """Open the listener at the moment at which the recorded engine did."""
        host = self.arguments.get("host", "127.0.0.1")
        port = int(self.arguments.get("port", "30000"))
        try:
            self.server = Server((host, port), self)
        except OSError as error:
            words = os.strerror(error.errno or 0).lower()
            self._print(
                f"[2000-01-01 00:00:00] ERROR:    [Errno {error.errno}] error while attempting to bind on"
                f" address ('{host}', {port}): {words}"
            )
            return False
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        signal.signal(signal.SIGTERM, lambda _number, _frame: self.stop.set())
        return True

    def _print(self, text: str) -> None:
        """Write one line with the present time and this run's names."""
        now = time.strftime("[%Y-%m-%d %H:%M:%S")
        for pattern, ours in self._ours:
            text = pattern.sub(ours.replace("\\", r"\\"), text)
        sys.stdout.write(STAMP.sub(now, text) + "\n")
        sys.stdout.flush()

    def _substitutions(self) -> list[tuple[re.Pattern[str], str]]:
        recorded = parse_arguments(self.recording.argv)
        return [
            (re.compile(rf"(?<![\w.-]){re.escape(theirs)}(?![\w-])"), self.arguments[name])
            for name in ("model_path", "port", "nccl_port")
            if (theirs := recorded.get(name)) and name in self.arguments
        ]

    def _misbehave(self, text: str) -> None:
        if self.behaviour.die_at and self.behaviour.die_at in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.behaviour.hang_at and self.behaviour.hang_at in text:
            self.stop.wait()

    def _end_after_stop(self) -> int:
        """Drain as the recorded engine did, or end as its version does where that was not recorded."""
        stopped_at, returncode = self.recording.stopped_at, self.recording.returncode
        if stopped_at is None or returncode is None:
            kills_itself = self.recording.version.startswith(KILL_THEMSELVES)
            return self._end(-signal.SIGKILL if kills_itself else 0)
        before = stopped_at
        for at, text in self.recording.lines:
            if at >= stopped_at:
                time.sleep((at - before) / self.behaviour.speed)
                before = at
                self._print(text)
        return self._end(returncode)

    def _end(self, returncode: int) -> int:
        if self.server:
            self.server.shutdown()
        if returncode < 0:
            if returncode != -signal.SIGKILL:
                signal.signal(-returncode, signal.SIG_DFL)
            os.kill(os.getpid(), -returncode)
        return returncode

    def answer(self, method: str, path: str, key: str) -> tuple[int, object]:
        """Give the recorded answer, with this run's names in it."""
        open_to_all = path in {"/health", "/health_generate", "/ready"}
        if not open_to_all and self.arguments.get("api_key", key) != key:
            return 401, {"error": "Unauthorized"}
        if open_to_all and (self.ready_at is None or self._unhealthy(self.ready_at)):
            return 503, ""
        recorded = self.recording.answers.get(f"{method} {path}")
        if recorded:
            return recorded["status"], self._renamed(path, recorded["body"])
        body = _GENERIC.get(f"{method} {path}")
        return (404, {"detail": "Not Found"}) if body is None else (200, self._renamed(path, body))

    def _unhealthy(self, ready_at: float) -> bool:
        return time.monotonic() - ready_at < self.behaviour.unhealthy_seconds

    def _renamed(self, path: str, body: object) -> object:
        if not isinstance(body, dict):
            return body
        name = self.arguments.get("served_model_name", self.arguments.get("model_path", ""))
        if path == "/v1/models":
            return {**body, "data": [{**model, "id": name} for model in body["data"]]}
        if path in {"/server_info", "/model_info"}:
            return self._effective(body)
        return body

    def _effective(self, body: dict[str, Any]) -> dict[str, Any]:
        """Report the caller's arguments as effective, typed as the recorded ones were."""
        changed = {name: _typed(text) for name, text in self.arguments.items() if name in body}
        if "launch_command" in body:
            changed["launch_command"] = " ".join(sys.argv[1:])
        requests = self.arguments.get("max_running_requests")
        states = body.get("internal_states", [])
        if requests:
            states = [{**state, "effective_max_running_requests_per_dp": int(requests)} for state in states]
        return {**body, **changed, **({"internal_states": states} if states else {})}


_GENERIC: dict[str, Any] = {
    "GET /health": "",
    "GET /v1/models": {"object": "list", "data": [{"object": "model"}]},
    "GET /model_info": {"model_path": "", "is_generation": True},
    "POST /v1/completions": {"choices": [{"index": 0, "text": "Yes", "finish_reason": "length"}]},
    "POST /v1/chat/completions": {
        "choices": [{"index": 0, "message": {"content": '{"ready": true}'}, "finish_reason": "stop"}]
    },
    "POST /generate": {"text": "Yes", "meta_info": {}},
}
"""Answers of a recording that was made without asking."""


def _typed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Server(ThreadingHTTPServer):
    """The listener; its requests are logged as uvicorn logs them."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], engine: Engine) -> None:
        """Bind."""
        self.engine = engine
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    """Answers from the recording."""

    server: Server

    def do_GET(self) -> None:
        """Answer."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Answer; the request's body does not matter."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer("POST")

    def _answer(self, method: str) -> None:
        path = self.path.partition("?")[0]
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        status, body = self.server.engine.answer(method, path, key)
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, _format: str, *values: object) -> None:
        """Write an access line."""
        line, status = values[0], values[1]
        host, port = self.client_address[:2]
        self.server.engine._print(  # noqa: SLF001 - one program
            f'[2000-01-01 00:00:00] INFO:     {host}:{port} - "{line}" {status}'
        )


def parse_arguments(words: Sequence[str]) -> dict[str, str]:
    """Read ``--name value`` and ``--name=value``; a bare flag is ``true``."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, text = word[2:].partition("=")
            name = flag.replace("-", "_")
            found[name] = text if equals else "true"
        elif name:
            found[name], name = word, ""
    return found


def behaviour_of(environment: Mapping[str, str]) -> Behaviour:
    """Read how to play from the environment."""
    return Behaviour(
        speed=float(environment.get("SGLANG_REPLAY_SPEED", "10")),
        die_at=environment.get("SGLANG_REPLAY_DIE_AT", ""),
        hang_at=environment.get("SGLANG_REPLAY_HANG_AT", ""),
        unhealthy_seconds=float(environment.get("SGLANG_REPLAY_UNHEALTHY_SECONDS", "0")),
    )


def launch(recordings: Path, words: Sequence[str]) -> int:
    """Stand in for ``python -m sglang.launch_server WORDS``."""
    case = os.environ.get("SGLANG_REPLAY_RECORDING", DEFAULT_CASE)
    recording = load(find(recordings, case))
    arguments = parse_arguments(words)
    if "SGLANG_REPLAY_API_KEY" in os.environ:
        arguments["api_key"] = os.environ["SGLANG_REPLAY_API_KEY"]
    return Engine(recording, arguments, behaviour_of(os.environ)).run()


def main() -> int:
    """Play one recording by hand: ``python3 -m tests.replay.engine RECORDING --port P -- ARGV``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--port", default="30000")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--die-at", default="", metavar="TEXT")
    parser.add_argument("--hang-at", default="", metavar="TEXT")
    parser.add_argument("--unhealthy-seconds", type=float, default=0.0)
    parser.add_argument("engine", nargs="*", help="the engine's own arguments, after --")
    given = parser.parse_args()
    arguments = {"port": given.port, **parse_arguments(given.engine)}
    behaviour = Behaviour(given.speed, given.die_at, given.hang_at, given.unhealthy_seconds)
    return Engine(load(given.recording), arguments, behaviour).run()


if __name__ == "__main__":
    sys.exit(main())
