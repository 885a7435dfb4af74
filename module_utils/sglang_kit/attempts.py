"""How often has this instance been started without becoming ready?

systemd's own start limit counts every start, also those of deploys and of people, and then refuses the
next one. Here only starts in a row count, and they never refuse one: when the last of them has failed,
the unit stays failed instead of loading the same model over and over.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LIMIT = 3
"""Starts in a row, the first one included, that may fail before the unit stays failed."""
EXIT_GAVE_UP = 69
"""EX_UNAVAILABLE of sysexits.h: in the unit's ``RestartPreventExitStatus=``."""
SENTENCE = f"It was start {LIMIT} in a row that did not become ready: systemd makes no further one"


class Attempts:
    """The count of one instance: a file in the unit's ``StateDirectory=`` with one byte a start."""

    def __init__(self, name: str) -> None:
        """``name`` is the instance's; outside of a unit nothing is counted."""
        directory = os.environ.get("STATE_DIRECTORY", "")
        self._file = Path(directory, f"{name}.starts") if directory else None

    def begin(self) -> None:
        """Count a start; a disk that is full or read-only must not prevent one."""
        if self._file:
            with suppress(OSError), self._file.open("ab") as stream:
                stream.write(b".")

    def forget(self) -> None:
        """Begin to count anew: the instance is ready, or was asked to stop."""
        if self._file:
            with suppress(OSError):
                self._file.unlink()

    def exhausted(self) -> bool:
        """Whether this start was the last in a row; the next one is a first one then."""
        if self._file is None or not self._file.exists() or self._file.stat().st_size < LIMIT:
            return False
        self.forget()
        return True
