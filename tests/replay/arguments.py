"""What the replayed engine says of a command line before it starts: ``sglang.srt.server_args`` of a release.

The parser is the recorded one of the version (``tests/fixtures/flags``). What a command line leaves to the
engine resolves to what it was in the recorded run; ``SGLANG_REPLAY_OVERRIDES`` holds JSON of values that are
changed whatever was asked. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

from .recording import find, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TYPES: dict[str | None, Callable[[str], Any]] = {"int": int, "float": float}
LEFT_OPEN = (None, "auto")


class ServerArgs(SimpleNamespace):
    """The arguments as the engine would use them."""

    recordings = Path()
    flags = Path()
    """Set by the release that this is part of."""

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the flags as they were recorded."""
        flags = json.loads(cls.flags.read_text(encoding="utf-8"))
        for flag in flags.values():
            if flag["opts"] != ["-h", "--help"]:
                common = {name: flag[name] for name in ("dest", "default", "required")}
                parser.add_argument(*flag["opts"], **common, **_kind(flag))

    def check_server_args(self) -> None:
        """Nothing was recorded of it."""


def _kind(flag: Mapping[str, Any]) -> dict[str, Any]:
    if flag["nargs"] == 0:
        return {"action": "store_true"}
    return {"nargs": flag["nargs"], "type": TYPES.get(flag["type"], str), "choices": flag["choices"]}


def prepare_server_args(words: Sequence[str]) -> ServerArgs:
    """Parse and resolve."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    values = vars(parser.parse_args(list(words)))
    recording = load(find(ServerArgs.recordings, "ready-then-stopped"))
    recorded = recording.answers["GET /server_info"]["body"]
    resolved = {name: recorded.get(name, value) for name, value in values.items() if value in LEFT_OPEN}
    changed = json.loads(os.environ.get("SGLANG_REPLAY_OVERRIDES", "{}"))
    return ServerArgs(**{**values, **resolved, **changed})
