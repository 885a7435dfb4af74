"""Would this release's own parser and resolver take these command lines, and what would they change?

A program of its own, for the Python of a release: it imports nothing of this package, and SGLang only
when it runs. On its standard input it reads ``{name: {"argv": [...], "environment": {...}}}``, flags
without interpreter and module; for each instance it writes one line of JSON, as soon as it is known:

* ``phase``: how far the engine came (``import``, ``parse``, ``resolve``, or ``ok``);
* ``message``: the engine's own words where it refused;
* ``overrides``: every value that the engine made another one than it was asked for;
* ``resolved``: all arguments as the engine would use them, without keys and passwords.

Nothing is loaded and no server is started. ``prepare_server_args`` resolves by itself up to 0.5.18
(``ServerArgs.__post_init__``), and only parses since 0.5.20 (``ServerArgs.resolve_once``).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import traceback
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMPORT, PARSE, RESOLVE, OK = "import", "parse", "resolve", "ok"
HIDDEN = "***"
LEFT_TO_THE_ENGINE = (None, "auto")
_SECRET_FIELD = re.compile(r"(?:key|password|token)$")


def main() -> int:
    """Answer for every instance of the request."""
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever the engine prints is no answer
        for name, instance in request.items():
            os.environ.clear()  # the engine leaves variables behind
            os.environ.update(instance["environment"])
            answers.write(json.dumps({"name": name, **check(instance["argv"])}) + "\n")
            answers.flush()
    return 0


def check(words: Sequence[str]) -> dict[str, Any]:
    """Ask the engine of this Python about one command line."""
    said = io.StringIO()
    phase = IMPORT
    try:
        with redirect_stderr(said):
            engine = importlib.import_module("sglang.srt.server_args")
            if importlib.util.find_spec("sglang.srt.plugins"):
                importlib.import_module("sglang.srt.plugins").load_plugins()
            phase = PARSE
            asked = _parse(engine.ServerArgs, words)
            phase = RESOLVE
            arguments = engine.prepare_server_args(list(words))
            if hasattr(arguments, "resolve_once"):
                arguments.resolve_once()
            arguments.check_server_args()
    except SystemExit as end:
        lines = said.getvalue().strip().splitlines() or [f"ended with status {end.code}"]
        return _answer(phase, lines[-1])
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is its answer
        return _answer(phase, _words(error))
    resolved = _resolved(arguments)
    return _answer(OK, overrides=_overrides(asked, resolved, _writers(arguments)), resolved=_public(resolved))


def _answer(
    phase: str,
    message: str = "",
    overrides: Sequence[Mapping[str, Any]] = (),
    resolved: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {"phase": phase, "message": message, "overrides": overrides, "resolved": resolved or {}}


def _parse(server_args: Any, words: Sequence[str]) -> dict[str, tuple[Any, bool]]:  # noqa: ANN401 - the engine's
    """Parse with exact names only; field -> value asked for, and whether the command line says it."""
    parser = argparse.ArgumentParser(prog="sglang serve", allow_abbrev=False)
    server_args.add_cli_args(parser)
    values = vars(parser.parse_args(list(words)))
    flags = {word.partition("=")[0] for word in words}
    given = {
        action.dest
        for action in parser._actions  # noqa: SLF001 - argparse has no other way to name its flags
        if not flags.isdisjoint(action.option_strings)
    }
    return {field: (_plain(value), field in given) for field, value in values.items()}


def _resolved(arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - the engine's
    """Read all effective arguments (0.5.20 and later keep the decisions beside the record)."""
    values = arguments.resolved_dict() if hasattr(arguments, "resolved_dict") else vars(arguments)
    return {field: _plain(value) for field, value in values.items() if not field.startswith("_")}


def _writers(arguments: Any) -> dict[str, str]:  # noqa: ANN401 - the engine's
    """Say which rule of the engine decided a field; empty where the version does not tell (0.5.11)."""
    decisions = getattr(arguments, "_resolved_overrides", ())
    return {field: str(source) for source, fields in decisions for field in fields}


def _overrides(
    asked: Mapping[str, tuple[Any, bool]], resolved: Mapping[str, Any], writers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Compare; a value that was left to the engine is none that it changed."""
    return [
        {
            "field": field,
            "asked": _shown(field, value),
            "effective": _shown(field, resolved[field]),
            "given": given,
            "by": writers.get(field, ""),
        }
        for field, (value, given) in asked.items()
        if field in resolved and value not in LEFT_TO_THE_ENGINE and value != resolved[field]
    ]


def _public(resolved: Mapping[str, Any]) -> dict[str, Any]:
    return {field: _shown(field, value) for field, value in resolved.items()}


def _shown(field: str, value: object) -> object:
    return HIDDEN if value and _SECRET_FIELD.search(field) else value


def _plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON makes of it
    return json.loads(json.dumps(value, default=str))


def _words(error: Exception) -> str:
    """Give the exception's text; an assertion without one is told by its line."""
    kind = type(error).__name__
    text = str(error)
    if text:
        return f"{kind}: {text}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{kind} at {place.filename}:{place.lineno}: {place.line}"


if __name__ == "__main__":
    sys.exit(main())
