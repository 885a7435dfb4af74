"""Typed, defensive access to a ``config.json``: every fault is collected, nothing is a traceback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .problem import Collector, Problem, ProblemsError
from .quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_JSON_BYTES = 4 * MIB
"""A public config.json has some KiB, a quantised one with a long skip list some 100."""
MAX_WIDTH = 1 << 24
MAX_LIST = 100_000


def read_json(
    text: str | bytes,
    *,
    where: str = "",
    what: str = "config.json",
    remedy: str = "copy the model's config.json again",
) -> dict[str, Any]:
    """Parse a JSON object, a ``config.json`` unless ``what`` names another; ``remedy`` helps if it is none.

    Raises ``ProblemsError`` for text that is too large, no JSON, nested too deep, or no object.
    """
    problem: str
    if len(text) > MAX_JSON_BYTES:
        problem = f"has {len(text)} bytes, at most {MAX_JSON_BYTES} are read"
    else:
        try:
            found = json.loads(text)
        except RecursionError:
            problem = "is nested too deep"
        except ValueError as error:
            problem = f"is no JSON: {error}"
        else:
            if isinstance(found, dict):
                return found
            problem = f"holds a {type(found).__name__} where an object belongs"
    raise ProblemsError([Problem(where, what, problem, remedy)])


class Reader:
    """Typed access to one object of the configuration; faults are collected and reading goes on."""

    def __init__(self, values: Mapping[str, Any], problems: Collector, where: str, path: str = "") -> None:
        """Read ``values``; faults are noted for ``where`` with ``path`` before the key."""
        if not isinstance(values, dict):
            problems.add(where, "config.json", f"holds {shown(values)} where an object belongs")
        self._values = values if isinstance(values, dict) else {}
        self._problems = problems
        self._where = where
        self._path = path

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the first of ``names`` that has a value, with it."""
        return next(
            ((name, self._values[name]) for name in names if self._values.get(name) is not None),
            (names[0], None),
        )

    def fault(self, name: str, message: str) -> None:
        """Note a fault of one key."""
        self._problems.add(self._where, self._path + name, message)

    def has(self, *names: str) -> bool:
        """Whether one of the keys has a value."""
        return self._find(names)[1] is not None

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = MAX_WIDTH) -> int:
        """Read a whole number in ``[least, most]``; required unless there is a default."""
        name, value = self._find(names)
        if value is None:
            if default is None:
                self.fault(name, "is missing")
            return least if default is None else default
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(name, f"{shown(value)} is no whole number")
        elif not least <= value <= most:
            self.fault(name, f"{shown(value)} is not between {least} and {most}")
        else:
            return value
        return least

    def number(self, name: str, *, default: float, least: float, most: float) -> float:
        """Read a number in ``[least, most]``."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fault(name, f"{shown(value)} is no number")
        elif not least <= value <= most:
            self.fault(name, f"{shown(value)} is not between {least:g} and {most:g}")
        else:
            return float(value)
        return default

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Read true or false."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(name, f"{shown(value)} is neither true nor false")
            return default
        return value

    def text(self, name: str, *, default: str = "") -> str:
        """Read a text."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(name, f"{shown(value)} is no text")
            return default
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Read a list of texts, empty where absent."""
        return self._list(name, str, "a list of texts")

    def integers(self, name: str) -> tuple[int, ...]:
        """Read a list of whole numbers, empty where absent."""
        return self._list(name, int, "a list of whole numbers")

    def _list(self, name: str, kind: type, what: str) -> tuple[Any, ...]:
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            self.fault(name, f"{shown(value)} is not {what}")
            return ()
        if len(value) > MAX_LIST:
            self.fault(name, f"has {len(value)} items, at most {MAX_LIST} are read")
            return ()
        return tuple(value)

    def section(self, *names: str) -> Reader:
        """Open a nested object; an absent one reads as empty."""
        name, value = self._find(names)
        if value is not None and not isinstance(value, dict):
            self.fault(name, f"{shown(value)} is no object")
            value = None
        return Reader(value or {}, self._problems, self._where, f"{self._path}{name}.")

    def sections(self, name: str) -> tuple[Reader, ...]:
        """Open the objects among a nested object's values."""
        value = self._values.get(name)
        items = value.items() if isinstance(value, dict) else ()
        return tuple(
            Reader(item, self._problems, self._where, f"{self._path}{name}.{key}.")
            for key, item in items
            if isinstance(item, dict)
        )


def shown(value: object) -> str:
    """Show a faulty value in a message, cut to a length that a terminal bears."""
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line's share
