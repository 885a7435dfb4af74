"""Against packages that behave as SGLang does up to 0.5.18 and since 0.5.20; real ones: ``tests/engine``."""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any, Callable

import pytest
from sglang_kit import engine_check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Engine = Callable[..., None]

COMMON = """
import argparse, os, sys

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path")
        parser.add_argument("--page-size", type=int)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1, dest="tp_size")
        parser.add_argument("--api-key")
        parser.add_argument("--disable-overlap-schedule", action="store_true")
        parser.add_argument("--strategy", default="auto")
        parser.add_argument("--loads", nargs="*", default=[])

    def check_server_args(self):
        if os.environ.get("REFUSE"):
            raise ValueError("tp_size must be divisible\\nby number of nodes")

def parsed(argv):
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    print("noise of the engine")
    return vars(parser.parse_args(argv))
"""
OLD = """
def prepare_server_args(argv):
    arguments = ServerArgs()
    vars(arguments).update(parsed(argv), _private=object())
    assert arguments.page_size != 48
    arguments.page_size = 64
    arguments.strategy = "extra_buffer"
    arguments.disable_overlap_schedule = True
    return arguments
"""
NEW = """
class Record(ServerArgs):
    def __init__(self, values):
        self.values = values

    def resolve_once(self):
        if self.values["model_path"] == "/missing":
            sys.exit(4)
        self._resolved_overrides = [("first", {"page_size": 32}), ("_page_size_default", {"page_size": 64})]

    def resolved_dict(self):
        return {**self.values, "page_size": 64, "derived": {1, 2} if self.values["loads"] else None}

def prepare_server_args(argv):
    return Record(parsed(argv))
"""
PLUGINS = """
import os

def load_plugins():
    os.environ["PLUGINS"] = "loaded"
"""
MODEL = ("--model-path", "/srv/models/tiny")


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Install a package ``sglang`` for this process."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]

    def install(text: str, **others: str) -> None:
        package = tmp_path / "sglang" / "srt"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        for name, content in {"server_args": text, **others}.items():
            (package / f"{name}.py").write_text(content, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()

    yield install
    forget()


def test_an_old_engine_tells_what_it_changed_and_not_why(engine: Engine) -> None:
    engine(COMMON + OLD)
    answer = engine_check.check([*MODEL, "--page-size", "16", "--strategy", "no_buffer", "--api-key=abc"])
    assert (answer["phase"], answer["message"]) == ("ok", "")
    assert answer["overrides"] == [
        {"field": "page_size", "asked": 16, "effective": 64, "given": True, "by": ""},
        {
            "field": "disable_overlap_schedule",
            "asked": False,
            "effective": True,
            "given": False,
            "by": "",
        },
        {"field": "strategy", "asked": "no_buffer", "effective": "extra_buffer", "given": True, "by": ""},
    ]
    assert answer["resolved"]["api_key"] == "***"
    assert answer["resolved"]["model_path"] == "/srv/models/tiny"
    assert "_private" not in answer["resolved"]


def test_a_new_engine_tells_which_rule_had_the_last_word(engine: Engine) -> None:
    engine(COMMON + NEW, plugins=PLUGINS)
    answer = engine_check.check([*MODEL, "--page-size=16", "--loads", "a", "b"])
    assert answer["overrides"] == [
        {"field": "page_size", "asked": 16, "effective": 64, "given": True, "by": "_page_size_default"}
    ]
    assert answer["resolved"]["derived"] == "{1, 2}"
    assert os.environ["PLUGINS"] == "loaded"


def test_what_was_left_to_the_engine_is_no_override(engine: Engine) -> None:
    engine(COMMON + NEW)
    assert engine_check.check(MODEL)["overrides"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pagesize", "1"], "sglang serve: error: unrecognized arguments: --pagesize 1"),
        (["--page-size", "x"], "sglang serve: error: argument --page-size: invalid int value: 'x'"),
        (["--tp", "2"], "sglang serve: error: unrecognized arguments: --tp 2"),
    ],
)
def test_a_fault_of_the_command_line_is_told_in_the_parsers_last_words(
    engine: Engine, words: list[str], message: str
) -> None:
    engine(COMMON + OLD)
    answer = engine_check.check([*MODEL, *words])
    assert answer == {"phase": "parse", "message": message, "overrides": (), "resolved": {}}


def test_a_refusal_is_told_whole(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(COMMON + OLD)
    monkeypatch.setenv("REFUSE", "1")
    answer = engine_check.check(MODEL)
    assert answer["phase"] == "resolve"
    assert answer["message"] == "ValueError: tp_size must be divisible\nby number of nodes"


def test_an_assertion_without_words_is_told_by_its_line(engine: Engine, tmp_path: Path) -> None:
    engine(COMMON + OLD)
    answer = engine_check.check([*MODEL, "--page-size", "48"])
    assert answer["message"].startswith(f"AssertionError at {tmp_path}/sglang/srt/server_args.py:")
    assert answer["message"].endswith(": assert arguments.page_size != 48")


def test_an_engine_that_exits_without_words(engine: Engine) -> None:
    engine(COMMON + NEW)
    answer = engine_check.check(["--model-path", "/missing"])
    assert (answer["phase"], answer["message"]) == ("resolve", "ended with status 4")


def test_an_engine_that_cannot_be_imported(engine: Engine) -> None:
    engine("import a_module_that_is_not_there\n")
    answer = engine_check.check(MODEL)
    assert answer["phase"] == "import"
    assert answer["message"] == "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"


def test_the_program_answers_line_by_line_in_each_instances_environment(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    engine(COMMON + NEW)
    request: dict[str, Any] = {
        "good": {"argv": list(MODEL), "environment": {"HOME": "/"}},
        "bad": {"argv": list(MODEL), "environment": {"HOME": "/", "REFUSE": "1"}},
        "last": {"argv": list(MODEL), "environment": {}},
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    standard_output = os.dup(1)
    try:
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(engine_check.__file__), run_name="__main__")
    finally:
        os.dup2(standard_output, 1)
        os.close(standard_output)
    answers = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert end.value.code == 0
    assert [(one["name"], one["phase"]) for one in answers] == [
        ("good", "ok"),
        ("bad", "resolve"),
        ("last", "ok"),
    ]
