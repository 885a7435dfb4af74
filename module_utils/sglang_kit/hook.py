"""How is an instance taken out of a load balancer before it stops, and put back when it serves?

A hook is the user's: a command that runs on the host (a list of words), or a URL to which the host sends a
POST. ``{name}``, ``{host}`` and ``{port}`` in either stand for the instance's own; a command finds them in
its environment, too, and whoever answers the URL in a JSON body. An engine that drains still accepts
requests: the hook comes first, and the stop after it.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Hook = Union["tuple[str, ...]", str, None]

DRAIN, UNDRAIN = "drain", "undrain"
TIMEOUT_SECONDS = 600.0
"""A hook may wait until the running requests are done."""
_PLACES = ("name", "host", "port")


def read(value: object) -> Hook:
    """Read a hook as the user wrote it; raise ``ValueError`` where it is neither command nor URL."""
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return value
    words = tuple(str(word) for word in value) if isinstance(value, (list, tuple)) else None
    if words is None:
        raise ValueError(f"{value!r:.80} is neither a list of words nor a URL with http:// or https://")
    if words and not words[0].startswith("/"):
        raise ValueError(f"{words[0]!r:.80} is not the absolute path of a program")
    return words or None


def run(plans: Sequence[Mapping[str, Any]], when: str) -> str:
    """Call the hooks of these instances; return what went wrong, "" where nothing did.

    Where one cannot be drained, those that were drained before it are put back: nothing has changed then.
    One that cannot be put back keeps none of the others from it.
    """
    done: list[Mapping[str, Any]] = []
    wrong: list[str] = []
    for plan in plans:
        said = _call(plan.get(when), plan)
        if said:
            wrong.append(f"{plan['name']}: {when}: {said}")
            if when == DRAIN:
                wrong.append(run(done, UNDRAIN))
                break
        done.append(plan)
    return "; ".join(filter(None, wrong))


def _call(hook: Hook, plan: Mapping[str, Any]) -> str:
    if not hook:
        return ""
    return _post(hook, plan) if isinstance(hook, str) else _execute(hook, plan)


def _filled(text: str, plan: Mapping[str, Any]) -> str:
    for place in _PLACES:
        text = text.replace(f"{{{place}}}", str(plan[place]))
    return text


def _execute(words: Sequence[str], plan: Mapping[str, Any]) -> str:
    command = [_filled(word, plan) for word in words]
    told = {f"SGLANG_{place.upper()}": str(plan[place]) for place in _PLACES}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **told},
            timeout=TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return ""
    said = (done.stderr.strip() or done.stdout.strip())[-500:]
    return f"{command[0]} ended with status {done.returncode}: {said}"


def _post(hook: str, plan: Mapping[str, Any]) -> str:
    url = _filled(hook, plan)
    body = json.dumps({place: plan[place] for place in _PLACES}).encode()
    request = urllib.request.Request(  # noqa: S310 - read() admits http and https alone
        url, body, {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):  # noqa: S310 - likewise
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"{url} answers {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:  # the latter for what is no HTTP
        return f"{url}: {error}"
