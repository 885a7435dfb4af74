from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest
from sglang_kit import probe
from sglang_kit.credentials import Credentials
from sglang_kit.readiness import Answer, Answers, Expectation

from tests.serving import NAME, Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRETS = Credentials({"api_key": "key-0123456789", "admin_api_key": "admin-0123456789"})
EVERYTHING = ("health", "server_info", "models", "completion", "schema")


def expectation(port: int) -> Expectation:
    return Expectation(port=port, served_model_name=NAME)


@pytest.fixture
def serving() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


def test_each_question_is_put_once_in_the_order_given(serving: Serving) -> None:
    answers = probe.ask(expectation(serving.port), "127.0.0.1", EVERYTHING)
    assert serving.questions == [
        *("GET /health", "GET /server_info", "GET /v1/models"),
        *("POST /v1/completions", "POST /v1/chat/completions"),
    ]
    assert answers.models == Answer(200, {"data": [{"id": NAME}]})
    assert answers.ready is None


def test_nothing_is_asked_without_a_name(serving: Serving) -> None:
    assert probe.ask(expectation(serving.port), "127.0.0.1", ()) == Answers()
    assert serving.questions == []


def test_a_question_with_a_body_is_json_and_one_without_has_none(serving: Serving) -> None:
    probe.ask(expectation(serving.port), "127.0.0.1", ("completion", "health"))
    completion, health = serving.asked
    assert completion.body["model"] == NAME
    assert completion.headers["Content-Type"] == "application/json"
    assert health.body is None
    assert "Content-Type" not in health.headers


def test_the_key_goes_with_every_question(serving: Serving) -> None:
    probe.ask(expectation(serving.port), "127.0.0.1", ("completion", "health"), SECRETS)
    assert [asked.headers["Authorization"] for asked in serving.asked] == ["Bearer key-0123456789"] * 2


def test_no_answer_holds_a_secret(serving: Serving) -> None:
    body = {
        "api_key": "key-0123456789",
        "launch_command": "--api-key=key-0123456789 --admin-api-key=admin-0123456789",
    }
    serving.answers["GET /server_info"] = (200, body)
    answer = probe.ask(expectation(serving.port), "127.0.0.1", ("server_info",), SECRETS).server_info
    assert answer == Answer(200, {"api_key": "***", "launch_command": "--api-key=*** --admin-api-key=***"})


@pytest.mark.parametrize(
    ("status", "content", "body"),
    [
        (200, '{"a": [1, null]}', {"a": [1, None]}),
        (200, "", ""),
        (503, "Service Unavailable", "Service Unavailable"),
        (401, '{"error": "Unauthorized"}', {"error": "Unauthorized"}),
        (500, "Internal Server Error", "Internal Server Error"),
        (200, "[" * 100_000, "[" * 100_000),
        (200, "x" * 9 * 1024**2, "x" * probe.ANSWER_BYTES),
    ],
    ids=("json", "empty", "text", "json-error", "text-error", "nested-without-end", "without-end"),
)
def test_a_body_is_json_where_it_can_be_and_text_otherwise(
    serving: Serving, status: int, content: str, body: object
) -> None:
    serving.answers["GET /health"] = (status, content)
    assert probe.ask(expectation(serving.port), "127.0.0.1", ["health"]) == Answers(
        health=Answer(status, body)
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "", "127.0.0.1", "localhost"])  # noqa: S104 - asked, not bound
def test_a_wildcard_address_is_asked_on_the_loopback(serving: Serving, host: str) -> None:
    answers = probe.ask(expectation(serving.port), host, ["health"])
    assert answers.health == Answer(200, "")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize("host", ["::", "::1"])
def test_an_ipv6_address_is_asked(host: str) -> None:
    with Serving(address="::1") as serving:
        answers = probe.ask(expectation(serving.port), host, ["health"])
    assert answers.health == Answer(200, "")
    assert serving.asked[0].headers["Host"] == f"[::1]:{serving.port}"


def test_no_proxy_is_used(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        answers = probe.ask(expectation(serving.port), "127.0.0.1", ["health"])
    assert answers.health == Answer(200, "")
    assert proxy.questions == []


def test_a_refused_connection_is_an_answer_without_a_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    answer = probe.ask(expectation(port), "127.0.0.1", ["health"]).health
    assert answer is not None
    assert answer.status == 0
    assert answer.error.startswith("ConnectionRefusedError: ")


def test_a_server_that_hangs_is_left_in_time(serving: Serving) -> None:
    serving.may_answer.clear()
    asked = probe.ask(expectation(serving.port), "127.0.0.1", ["health"], timeout_seconds=0.05)
    assert asked.health == Answer(0, error="TimeoutError: timed out")


def test_an_engine_of_another_protocol_is_an_answer_without_a_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        answers = probe.ask(expectation(server.getsockname()[1]), "127.0.0.1", ["health"])
        thread.join()
    assert answers.health is not None
    assert (answers.health.status, answers.health.error[:14]) == (0, "BadStatusLine:")


def test_a_busy_server_has_more_time_than_its_own_health_check() -> None:
    assert probe.TIMEOUT_SECONDS > 20
