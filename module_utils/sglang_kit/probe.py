"""What does the instance answer over HTTP? The kit's only door to the network."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from .credentials import Credentials
from .readiness import Answer, Answers, Expectation, questions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .readiness import Question

NO_CREDENTIALS = Credentials()
TIMEOUT_SECONDS = 30.0
"""Longer than the engine's own limit for ``/health`` (20 s): a busy server must not look dead."""

ANSWER_BYTES = 8 * 1024**2
"""As much of an answer as is read; the engine's longest, ``/server_info``, has some 20 KB."""

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, never bound


def ask(
    expectation: Expectation,
    host: str,
    names: Iterable[str],
    credentials: Credentials = NO_CREDENTIALS,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Answers:
    """Ask the questions of these names (fields of ``Answers``), one after the other.

    ``host`` is the address that the instance is bound to. A proxy is never used, and no answer holds a
    value of the ``credentials`` (``/server_info`` gives the engine's keys in clear).
    """
    known = questions(expectation)
    place = (_ANY_ADDRESS.get(host, host), expectation.port)
    answers = {}
    for name in names:
        connection = http.client.HTTPConnection(*place, timeout=timeout_seconds)
        answers[name] = _ask(connection, known[name], credentials)
    return Answers(**answers)


def _ask(connection: http.client.HTTPConnection, question: Question, credentials: Credentials) -> Answer:
    headers = credentials.headers
    body = None
    if question.body is not None:
        body = json.dumps(question.body).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request(question.method, question.path, body, headers)
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES).decode(errors="replace")
        return Answer(response.status, _decoded(credentials.masked(text)))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def _decoded(text: str) -> Any:  # noqa: ANN401 - whatever JSON the server sends
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # whoever listens there may send anything
        return text
