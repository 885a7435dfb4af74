"""Packages that name their algorithms as SGLang did in 0.5.11, and as it does since."""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any, Callable

import pytest
from sglang_kit import engine, engine_probe
from sglang_kit.engine_flags import known_flags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Probe = Callable[..., dict[str, Any]]

ARGUMENTS = """
def loads(text):
    return text

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        print("noise of the engine")
        parser.add_argument("--model-path", "--model")
        parser.add_argument("--page-size", type=int, choices=[1, 16])
        parser.add_argument("--overrides", type=loads)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--buckets", type=float, nargs=2)
        parser.add_argument("--speculative-algorithm", CHOICES)
"""
ENUM = """
import enum
class SpeculativeAlgorithm(enum.Enum):
    EAGLE = 1
    NONE = 2
"""
PLUGINS = """
def load_plugins():
    from sglang.srt.speculative import spec_registry
    spec_registry._REGISTRY["DDTREE"] = object()
"""
ROWS = {
    ("--buckets", "values", "float", "buckets", ""),
    ("--enable-metrics", "switch", "text", "enable_metrics", ""),
    ("--model", "value", "text", "model_path", ""),
    ("--model-path", "value", "text", "model_path", ""),
    ("--overrides", "value", "json", "overrides", ""),
    ("--page-size", "value", "int", "page_size", "1|16"),
}


@pytest.fixture
def probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Probe]:
    """Ask a package ``sglang`` of these modules, in this process."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]

    def probe(**modules: str) -> dict[str, Any]:
        folder = tmp_path / "sglang/srt/speculative"
        folder.mkdir(parents=True)
        for directory in (tmp_path / "sglang", tmp_path / "sglang/srt", folder):
            (directory / "__init__.py").touch()
        for name, text in modules.items():
            (tmp_path / "sglang/srt" / f"{name.replace('__', '/')}.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()
        standard_output = os.dup(1)
        try:
            with pytest.raises(SystemExit):
                runpy.run_path(str(engine_probe.__file__), run_name="__main__")
        finally:
            os.dup2(standard_output, 1)
            os.close(standard_output)
        answer: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
        return answer

    yield probe
    forget()


def test_a_parser_that_lists_its_algorithms(probed: Probe) -> None:
    found = probed(server_args=ARGUMENTS.replace("CHOICES", 'choices=["NGRAM", "DDTREE"]'))
    assert found["algorithms"] == ["DDTREE", "NGRAM"]
    rows = {tuple(row) for row in found["flags"]}
    assert rows == {
        *ROWS,
        ("--speculative-algorithm", "value", "text", "speculative_algorithm", "DDTREE|NGRAM"),
    }


def test_algorithms_that_are_registered(probed: Probe) -> None:
    found = probed(
        server_args=ARGUMENTS.replace("CHOICES", "type=str"),
        plugins=PLUGINS,
        speculative__spec_info=ENUM,
        speculative__spec_registry="_REGISTRY = {}",
    )
    assert found["algorithms"] == ["DDTREE", "EAGLE"]


def test_what_is_found_is_what_the_planner_reads(probed: Probe) -> None:
    found = probed(server_args=ARGUMENTS.replace("CHOICES", 'choices=["DDTREE"]'))
    facts = engine.facts("0.5.23", build=engine.read_build(found))
    assert facts.algorithm("ddtree") == "DDTREE"
    assert known_flags("0.5.23", facts.build)["--page-size"].choices == ("1", "16")
