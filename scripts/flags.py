#!/usr/bin/env python3
"""Write the flag table of ``sglang_kit/engine_flags.py`` from dumps of SGLang's own parser.

    python scripts/flags.py dump > tests/fixtures/flags/<version>.json   (with the release's python)
    python scripts/flags.py write                                        (after adding a version's dump)

A dump holds, per argparse action, its options, kind, type, number of values and choices.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit.engine import SUPPORTED  # noqa: E402 - after the path above
from sglang_kit.engine_probe import KINDS, TYPES  # noqa: E402 - likewise

DUMPS = ROOT / "tests" / "fixtures" / "flags"
TARGET = ROOT / "module_utils" / "sglang_kit" / "engine_flags.py"
BEGIN = '_TABLE = """\n'
END = '"""  # noqa: E501 - the generated rows end here\n'

# What took a removed flag's place where the parser's own deprecation does not say it.
_SUCCESSORS = {
    "--disable-piecewise-cuda-graph": "--disable-prefill-cuda-graph",
    "--enable-piecewise-cuda-graph": "--cuda-graph-backend-prefill",
    "--enforce-piecewise-cuda-graph": "--cuda-graph-backend-prefill",
    "--enable-breakable-cuda-graph": "--cuda-graph-backend-prefill",
    "--enable-gdn-replayssm-spec": "--enable-linear-replayssm-spec",
    "--keep-mm-feature-on-device": "--mm-feature-transport",
    "--enable-nsa-prefill-context-parallel": "--cp-strategy",
    "--enable-dsa-prefill-context-parallel": "--cp-strategy",
    "--enable-prefill-context-parallel": "--cp-strategy",
    "--nsa-prefill-cp-mode": "--cp-strategy",
    "--dsa-prefill-cp-mode": "--cp-strategy",
    "--prefill-cp-mode": "--cp-strategy",
}


def dump() -> dict[str, dict[str, Any]]:
    """Describe every action of the installed SGLang's parser; run with that release's Python."""
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return {
        f"{action.dest}|{','.join(action.option_strings)}": {
            "action": type(action).__name__,
            "choices": sorted(map(str, action.choices)) if action.choices else None,
            "const": str(action.const),
            "default": action.default,
            "dest": action.dest,
            "nargs": action.nargs,
            "opts": action.option_strings,
            "required": action.required,
            "type": getattr(action.type, "__name__", None),
        }
        for action in parser._actions  # noqa: SLF001 - argparse has no public walk
        if action.dest != "help"
    }


def table(dumps: dict[str, dict[str, dict[str, Any]]]) -> str:
    """One line a flag: name, first and last version, kind, type, field, successor, choices (``-``: none)."""
    lives: dict[str, dict[str, dict[str, Any]]] = {}
    for version, actions in dumps.items():
        for action in actions.values():
            for option in action["opts"]:
                lives.setdefault(option, {})[version] = action
    newest = next(reversed(dumps))
    return "".join(_line(option, life, lives, newest) + "\n" for option, life in sorted(lives.items()))


def _line(
    option: str,
    life: dict[str, dict[str, Any]],
    lives: dict[str, dict[str, dict[str, Any]]],
    newest: str,
) -> str:
    versions = list(life)
    last = life[versions[-1]]
    choices = {tuple(action["choices"] or ()) for action in life.values()}
    stable = "|".join(choices.pop()) if len(choices) == 1 else ""
    fields = [
        option,
        versions[0],
        versions[-1],
        KINDS[str(last["nargs"])],
        TYPES.get(last["type"], "text"),
        last["dest"],
        _successor(option, last, lives, newest) if versions[-1] != newest else "",
        stable,
    ]
    return " ".join(field or "-" for field in fields)


def _successor(
    option: str, action: dict[str, Any], lives: dict[str, dict[str, dict[str, Any]]], newest: str
) -> str:
    """Find the living flag which SGLang's own deprecated alias stores into, or the one named by hand."""
    canonical = "--" + action["dest"].replace("_", "-")
    alias = canonical if action["action"].startswith("DeprecatedAlias") and canonical in lives else ""
    successor = _SUCCESSORS.get(option, alias)
    return successor if newest in lives.get(successor, {}) else ""


def read_dumps() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the recorded dumps, oldest version first."""
    return {version: json.loads((DUMPS / f"{version}.json").read_text()) for version in SUPPORTED}


def render(source: str, rows: str) -> str:
    """Replace the table within the module's source."""
    head, _, rest = source.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + rows + END + tail


def main(arguments: list[str]) -> int:
    """Run ``dump`` or ``write``."""
    if arguments == ["dump"]:
        json.dump(dump(), sys.stdout, sort_keys=True, default=str)
        return 0
    if arguments == ["write"]:
        TARGET.write_text(render(TARGET.read_text(), table(read_dumps())))
        return 0
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
