"""Which on-host command is this? ``python3 -I /opt/sglang/kit VERB ...``."""

from __future__ import annotations

import sys

from . import launch, preflight, why

VERBS = {"launch": launch.main, "preflight": preflight.main, "why": why.main}


def main() -> int:
    """Hand the words after the verb to its room."""
    verb, *words = sys.argv[1:] or [""]
    if verb not in VERBS:
        sys.stderr.write(f"usage: {sys.argv[0]} {'|'.join(VERBS)} ...\n")
        return 2
    return VERBS[verb](words)
