"""What can this build of SGLang do? Its flags and speculative algorithms, from the package itself.

A program of its own, for the Python of a release: it imports nothing of this package, and SGLang only when
it runs. It writes one line of JSON: ``flags``, rows of name, kind, type, field and choices (joined by
``|``), and ``algorithms``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from typing import Any

KINDS = {"0": "switch", "None": "value", "?": "optional", "+": "values", "*": "any"}
"""Number of values as argparse has it -> kind of the flag."""
TYPES = {
    "int": "int",
    "float": "float",
    "human_readable_int": "size",
    "loads": "json",
    "json_list_type": "json",
}
"""Function that reads a value -> type of the flag; "text" for others."""
_PACKAGE = "sglang.srt"


def main() -> int:
    """Answer, on what was standard output: the engine's imports may print."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        answer.write(json.dumps(probe()) + "\n")
    return 0


def probe() -> dict[str, Any]:
    """Ask the installed package, its plugins included."""
    if importlib.util.find_spec(f"{_PACKAGE}.plugins"):
        importlib.import_module(f"{_PACKAGE}.plugins").load_plugins()
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"{_PACKAGE}.server_args").ServerArgs.add_cli_args(parser)
    actions = parser._actions  # noqa: SLF001 - argparse has no public walk
    flags = [[option, *_row(action)] for action in actions for option in action.option_strings]
    algorithms = next(action.choices for action in actions if action.dest == "speculative_algorithm")
    return {"flags": sorted(flags), "algorithms": sorted(algorithms or _registered())}


def _row(action: argparse.Action) -> list[str]:
    kind = getattr(action.type, "__name__", "")
    return [
        KINDS.get(str(action.nargs), "values"),
        TYPES.get(kind, "text"),
        action.dest,
        "|".join(sorted(map(str, action.choices or ()))),
    ]


def _registered() -> set[str]:
    """Names that SGLang takes since 0.5.12 (``speculative/spec_info.py``), those of plugins included."""
    built_in = importlib.import_module(f"{_PACKAGE}.speculative.spec_info").SpeculativeAlgorithm
    registry = importlib.import_module(f"{_PACKAGE}.speculative.spec_registry")
    return {*built_in.__members__, *registry._REGISTRY} - {"NONE"}  # noqa: SLF001 - it has no public list


if __name__ == "__main__":
    sys.exit(main())
