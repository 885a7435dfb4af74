"""What does the instance answer over HTTP? The kit's only door to the network."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from .readiness import Answer, Answers, Expectation, questions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .readiness import Question

TIMEOUT_SECONDS = 30.0
"""Longer than the engine's own limit for ``/health`` (20 s): a busy server must not look dead."""

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, never bound


def ask(
    expectation: Expectation, host: str, names: Iterable[str], headers: Mapping[str, str] | None = None
) -> Answers:
    """Ask the questions of these names (fields of ``Answers``), one after the other.

    ``host`` is the address that the instance is bound to. A proxy is never used.
    """
    known = questions(expectation)
    return Answers(**{name: _ask(host, expectation.port, known[name], dict(headers or {})) for name in names})


def _ask(host: str, port: int, question: Question, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection(_ANY_ADDRESS.get(host, host), port, timeout=TIMEOUT_SECONDS)
    body = None
    if question.body is not None:
        body = json.dumps(question.body).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request(question.method, question.path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, _decoded(response.read()))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def _decoded(content: bytes) -> Any:  # noqa: ANN401 - whatever JSON the server sends
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
