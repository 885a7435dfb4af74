"""What is wrong, for whom, and what would work: the one error family of the kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Problem:
    """One fault of a definition or a plan.

    ``where`` names the instance (or ``"host"``), ``key`` the dotted key as the user wrote it,
    ``message`` says what is wrong with the value and the limit in one sentence, ``remedy`` is the
    nearest value or change that works (empty where none exists).
    """

    where: str
    key: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        """Render as one line: ``where: key: message; remedy``."""
        head = ": ".join(part for part in (self.where, self.key) if part)
        text = f"{head}: {self.message}" if head else self.message
        return f"{text}; {self.remedy}" if self.remedy else text


class ProblemsError(ValueError):
    """Every problem of one input at once, so that one run shows all of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Keep the problems in the order in which they were found."""
        self.problems = tuple(problems)
        super().__init__(str(self))

    def __str__(self) -> str:
        """One line a problem, numbered where there are several."""
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = [f"{len(self.problems)} problems:"]
        lines += [f"  {number}. {problem}" for number, problem in enumerate(self.problems, start=1)]
        return "\n".join(lines)


def no_instance(name: str, known: Iterable[str]) -> ProblemsError:
    """Say that a host has no instance of this name, and which ones it has."""
    there = ", ".join(sorted(known))
    return ProblemsError(
        [Problem(name, "", "is no instance of this host", f"known are {there}" if there else "it has none")]
    )


class Collector:
    """Gathers problems while a definition is read; ``check`` raises them all."""

    def __init__(self) -> None:
        """Start empty."""
        self.problems: list[Problem] = []

    def add(self, where: str, key: str, message: str, remedy: str = "") -> None:
        """Note one problem and go on reading."""
        self.problems.append(Problem(where, key, message, remedy))

    def check(self) -> None:
        """Raise ``ProblemsError`` when anything was noted."""
        if self.problems:
            raise ProblemsError(self.problems)
