from __future__ import annotations

import pytest
from sglang_kit.problem import Collector, Problem, ProblemsError, no_instance

PORT = Problem("chat", "port", "70000 is not from 1024 to 65535", "use 65535")
MODEL = Problem("coder", "model", "is missing")


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (PORT, "chat: port: 70000 is not from 1024 to 65535; use 65535"),
        (MODEL, "coder: model: is missing"),
        (Problem("", "engine_version", "is unknown"), "engine_version: is unknown"),
        (Problem("host", "", "is full"), "host: is full"),
        (Problem("", "", "is full", "delete something"), "is full; delete something"),
    ],
)
def test_a_problem_is_one_line_of_the_parts_it_has(problem: Problem, line: str) -> None:
    assert str(problem) == line


def test_one_problem_is_shown_bare() -> None:
    assert str(ProblemsError([PORT])) == str(PORT)


def test_several_problems_are_numbered_in_the_order_found() -> None:
    error = ProblemsError(iter([PORT, MODEL]))
    assert error.problems == (PORT, MODEL)
    assert str(error).splitlines() == ["2 problems:", f"  1. {PORT}", f"  2. {MODEL}"]


@pytest.mark.parametrize(
    ("known", "told"), [(["coder", "chat"], "known are chat, coder"), ([], "it has none")]
)
def test_an_instance_that_there_is_not_is_told_with_those_that_there_are(known: list[str], told: str) -> None:
    assert str(no_instance("chatt", known)) == f"chatt: is no instance of this host; {told}"


def test_problems_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="70000 is not from 1024 to 65535"):
        raise ProblemsError([PORT])


def test_a_collector_that_found_nothing_lets_pass() -> None:
    found = Collector()
    found.check()
    assert found.problems == []


def test_a_collector_raises_everything_it_found_at_once() -> None:
    found = Collector()
    found.add(PORT.where, PORT.key, PORT.message, PORT.remedy)
    found.add(MODEL.where, MODEL.key, MODEL.message)
    with pytest.raises(ProblemsError) as raised:
        found.check()
    assert raised.value.problems == (PORT, MODEL)
