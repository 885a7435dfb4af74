"""A web proxy, as companies have one: the only way out for a host that has no route."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_SECONDS = 60


class _Handler(BaseHTTPRequestHandler):
    """Passes bytes on; knows nothing of what they are."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self._pass(self.path.rpartition(":")[0], int(self.path.rpartition(":")[2]))

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        path = urllib.parse.urlunsplit(("", "", url.path, url.query, ""))
        request = f"GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        self._pass(url.hostname or "", url.port or 80, request.encode())

    do_HEAD = do_GET  # noqa: N815 - likewise

    def _pass(self, host: str, port: int, request: bytes = b"") -> None:
        self.asked.append(host)
        with socket.create_connection((host, port), TIMEOUT_SECONDS) as other:
            if request:
                other.sendall(request)
            else:
                self.connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                ways = {self.connection: other, other: self.connection}
                while ready := select.select(list(ways), (), (), TIMEOUT_SECONDS)[0]:
                    for end in ready:
                        data = end.recv(1 << 16)
                        if not data:
                            return
                        ways[end].sendall(data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@contextlib.contextmanager
def proxy(address: str) -> Iterator[tuple[str, list[str]]]:
    """Run one on this address; gives its URL and the hosts that were asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"asked": asked})
    with ThreadingHTTPServer((address, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{address}:{server.server_port}", asked
        server.shutdown()
