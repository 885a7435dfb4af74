from __future__ import annotations

import pytest
from sglang_kit import cli


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Put a verb in the place of the real ones, and keep what it is called with."""
    calls: list[list[str]] = []

    def room(words: list[str]) -> int:
        calls.append(words)
        return 7

    monkeypatch.setattr(cli, "VERBS", {"launch": room, "why": cli.VERBS["why"]})
    return calls


def test_a_verb_gets_the_words_after_it_and_gives_the_exit_status(
    called: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/sglang/kit", "launch", "plan.json", "--", "cat"])
    assert cli.main() == 7
    assert called == [["plan.json", "--", "cat"]]


@pytest.mark.parametrize("words", [[], [""], ["lunch", "plan.json"], ["--help"]])
def test_anything_else_says_which_verbs_there_are(
    called: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/sglang/kit", *words])
    assert cli.main() == 2
    assert capsys.readouterr().err == "usage: /opt/sglang/kit launch|why ...\n"
    assert called == []


def test_the_verbs_are_those_of_units_and_people() -> None:
    assert {verb: room.__module__ for verb, room in cli.VERBS.items()} == {
        "launch": "sglang_kit.launch",
        "preflight": "sglang_kit.preflight",
        "why": "sglang_kit.why",
    }
