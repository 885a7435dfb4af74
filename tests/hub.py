"""A hub of models on this machine, as ``model_share.py`` serves one, with the faults of real ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_kit import model_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REPOSITORY = "somebody/tiny"
COMMIT = "c" * 40
TOKEN = "a-token-that-nobody-may-see"  # noqa: S105 - of a hub that lives as long as a test


class Hub(model_share.Share):
    """Notes what it was asked for; hangs up ``cut`` bytes into any file; ``refusal`` answers everything."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, TOKEN, ("127.0.0.1", 0))
        self.RequestHandlerClass = Handler
        self.asked: list[tuple[str, str]] = []
        self.cut = 0
        self.refusal: HTTPStatus | None = None
        self.describe: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(model_share.Handler):
    server: Hub

    def _answer(self) -> None:
        self.server.asked.append((self.path.rpartition("/")[2], self.headers.get("Range", "")))
        if self.server.refusal:
            self.send_error(self.server.refusal)
        else:
            super()._answer()

    def _files(self) -> list[dict[str, Any]]:
        return self.server.describe(super()._files())

    def _send(self, file: Path) -> None:
        if not self.server.cut:
            super()._send(file)
            return
        content = file.read_bytes()
        first = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.send_response(HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK)
        self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first : self.server.cut])


def publish(place: Path, **changes: Any) -> None:  # noqa: ANN401 - as the marker's
    """Make a directory of files a repository."""
    files = {
        file.relative_to(place).as_posix(): [
            file.stat().st_size,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        ]
        for file in sorted(place.rglob("*"))
        if file.is_file() and file.name != model_share.MARKER
    }
    marker = {"repository": REPOSITORY, "revision": "main", "commit": COMMIT, "files": files, **changes}
    (place / model_share.MARKER).write_text(json.dumps(marker), encoding="utf-8")


@contextlib.contextmanager
def serving(place: Path) -> Iterator[Hub]:
    """Serve a repository."""
    with Hub(place) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
