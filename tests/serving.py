"""An HTTP server with fixed answers: what an instance says, as the readiness check asks it."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

MODEL = "/srv/models/tiny"
NAME = "tiny"


def ready_answers(port: int) -> dict[str, tuple[int, object]]:
    """Answer as a sound instance of ``MODEL`` does."""
    return {
        "GET /health": (200, ""),
        "GET /server_info": (200, {"model_path": MODEL, "port": port, "max_total_num_tokens": 8192}),
        "GET /v1/models": (200, {"data": [{"id": NAME}]}),
        "POST /v1/completions": (200, {"choices": [{"text": "Yes, I am.", "finish_reason": "length"}]}),
        "POST /v1/chat/completions": (
            200,
            {"choices": [{"message": {"content": '{"ready": true}'}, "finish_reason": "stop"}]},
        ),
    }


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    question: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Serving:
    """Listens on a port of its own inside ``with``, and answers as a sound instance until told otherwise."""

    address: str = "127.0.0.1"
    answers: dict[str, tuple[int, object]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)
    """Set by the first request."""
    may_answer: threading.Event = field(default_factory=threading.Event)
    """Cleared by a test that wants no answer yet."""

    def __enter__(self) -> Self:
        self.may_answer.set()
        self._server = _Server((self.address, 0), self)
        self.port: int = self._server.server_address[1]
        self.answers.update(ready_answers(self.port))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def questions(self) -> list[str]:
        """Methods and paths, in the order in which they came."""
        return [one.question for one in self.asked]


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # none may outlive its test

    def __init__(self, address: tuple[str, int], serving: Serving) -> None:
        self.serving = serving
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer."""
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: object) -> None:
        serving, question = self.server.serving, f"{self.command} {self.path}"
        serving.asked.append(Asked(question, dict(self.headers), body))
        serving.came.set()
        serving.may_answer.wait()
        status, answer = serving.answers[question]
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        """Say nothing: the test's output is the launcher's."""
