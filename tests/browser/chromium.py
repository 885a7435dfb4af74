"""A headless Chromium, driven over its debugging pipe with nothing but the standard library.

Messages are JSON, each ended by a NUL (``--remote-debugging-pipe``): commands on descriptor 3, answers and
events on descriptor 4.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)
COMPLAINTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
"""Events of which a page that works makes none: refused styles, failed loads, errors."""


class Chromium:
    """One browser with one tab: the addresses that it asked for, and what its console complained of."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        words = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", *words],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._session = ""
        self._unread = b""
        self._loaded = False
        self._width = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")
        self._call("Network.enable")
        self._call("Log.enable")
        self._call("Runtime.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)  # the browser ends with its pipe
        self._process.wait(timeout=60)
        os.close(self._from)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            got = os.read(self._from, 1 << 16)
            if not got:
                raise EOFError(f"the browser has ended with {self._process.wait(timeout=60)}")
            self._unread += got
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") in COMPLAINTS:
            self.complaints.append(json.dumps(message["params"]))
        self._loaded = self._loaded or message.get("method") == "Page.loadEventFired"
        return message

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def show(self, address: str, *, width: int, scheme: str) -> None:
        """Load an address in a window of this width, in a ``light`` or ``dark`` scheme."""
        self.requests.clear()
        self.complaints.clear()
        self._width = width
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self._call("Page.navigate", url=address)
        while not self._loaded:
            self._read()

    def ask(self, expression: str) -> Any:  # noqa: ANN401 - any JSON
        """Evaluate JavaScript in the page; None where it has no value."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def over_the_edge(self) -> list[str]:
        """Name the elements that reach over the right edge of the window and are not cut off or scrolled."""
        found: list[str] = self.ask(
            "[...document.querySelectorAll('body, body *')].filter(one => {"
            f" const over = one.getBoundingClientRect().right > {self._width}"
            f" || (one instanceof HTMLElement && one.scrollWidth > {self._width});"
            " const kept = up => up && (getComputedStyle(up).overflowX !== 'visible'"
            " || kept(up.parentElement));"
            " return over && !kept(one); }).map(one => one.tagName + ' ' + one.className)"
        )
        return found

    def names(self, role: str) -> list[str]:
        """Tell what a screen reader calls everything of a role."""
        self._call("Accessibility.enable")
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == role]

    def screenshot(self) -> bytes:
        """Take a picture (PNG) of the whole page."""
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
