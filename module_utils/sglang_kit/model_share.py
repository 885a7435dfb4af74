"""May another host have this model? Serves one as a hub would, to whoever has the token, until nobody asks.

A program of its own (``python3 -I model_share.py FOLDER``): it imports nothing of this package. ``FOLDER``
holds ``request.json`` with ``place`` (a model with its marker), ``token`` and ``idle_seconds``; the port goes
to ``FOLDER/port``. It answers to what ``model_download.py`` asks, ranges included:
``/api/models/REPOSITORY/revision/REVISION`` and ``/REPOSITORY/resolve/COMMIT/FILE``.
"""

from __future__ import annotations

import hmac
import json
import re
import sys
import threading
import time
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MARKER = ".sglang-model.json"
POLL_SECONDS = 1.0
_RANGE = re.compile(r"bytes=(\d+)-")


class Share(ThreadingHTTPServer):
    """Serves one model on every address; knows when it was last asked for anything."""

    daemon_threads = True

    def __init__(self, place: Path, token: str, address: tuple[str, int] = ("", 0)) -> None:
        """Bind; ``place`` holds the model."""
        super().__init__(address, Handler)
        self.timeout = POLL_SECONDS
        self.place = place
        self.token = token
        self.marker: dict[str, Any] = json.loads((place / MARKER).read_text(encoding="utf-8"))
        self.lock = threading.Lock()
        self.busy = 0
        self.last = time.monotonic()

    def count(self, change: int) -> None:
        """Note the begin or the end of a request."""
        with self.lock:
            self.busy += change
            self.last = time.monotonic()

    def serve_until_idle(self, seconds: float) -> None:
        """Serve; return when nobody has asked for so long."""
        while self.busy or time.monotonic() - self.last < seconds:
            self.handle_request()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Share

    def do_GET(self) -> None:
        """Describe the model, or send one of its files."""
        self.server.count(1)
        try:
            self._answer()
        finally:
            self.server.count(-1)

    def _answer(self) -> None:
        marker = self.server.marker
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        wanted = f"Bearer {self.server.token}".encode()
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), wanted):
            self.send_error(HTTPStatus.UNAUTHORIZED)
        elif path == f"/api/models/{marker['repository']}/revision/{marker['revision']}":
            self._describe()
        else:
            head = f"/{marker['repository']}/resolve/{marker['commit']}/"
            name = path[len(head) :]
            if path.startswith(head) and name in marker["files"]:
                self._send(self.server.place / name)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

    def _files(self) -> list[dict[str, Any]]:
        return [
            {"rfilename": name, "size": size, "lfs": {"sha256": digest, "size": size, "pointerSize": 0}}
            for name, (size, digest) in self.server.marker["files"].items()
        ]

    def _describe(self) -> None:
        marker = self.server.marker
        answer = {"id": marker["repository"], "sha": marker["commit"], "siblings": self._files()}
        text = json.dumps(answer).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _send(self, file: Path) -> None:
        size = file.stat().st_size
        asked = _RANGE.match(self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - first))
        self.end_headers()
        with file.open("rb") as content:
            self.wfile.flush()
            self.connection.sendfile(content, first)

    def log_message(self, *_: object) -> None:
        """Say nothing: the journal is for what matters."""


def main(words: list[str]) -> int:
    """Serve what a folder asks for."""
    folder = Path(words[0])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    with Share(Path(request["place"]), request["token"]) as share:
        new = folder / "port.new"
        new.write_text(str(share.server_port), encoding="utf-8")
        new.replace(folder / "port")
        share.serve_until_idle(request["idle_seconds"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
