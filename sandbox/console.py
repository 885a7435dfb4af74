"""What the person at the keyboard reads."""

from __future__ import annotations

import sys


class SandboxError(Exception):
    """It cannot be done; the message says why and what would help."""


def say(message: str) -> None:
    """Write one line of progress."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
