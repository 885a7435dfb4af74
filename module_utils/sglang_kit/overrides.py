"""What does the engine make of values that the user has set, and may it?

The engine changes many of its arguments by itself, mostly without a word. A change of something that
the user pinned is a fault, unless the instance accepts it by name; every other one is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from . import engine
from .command import OWNERS, field, remedy
from .problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .engine import EngineFacts
    from .instance import Instance


def pinned(instance: Instance, facts: EngineFacts) -> dict[str, str]:
    """Name what the user has set: the engine's field -> the key of the instance.

    ``prefix_cache`` always counts: its default is a promise, too.
    """
    fields = {
        field(facts, facts.flag(meaning)): key
        for meaning, key in OWNERS.items()
        if attrgetter(key)(instance) is not None
    }
    for flag in instance.args:
        # The table names a flag's newest field; an older version has one of the flag's own name.
        for name in (field(facts, f"--{flag}"), flag.replace("-", "_")):
            fields[name] = f"args.{flag}"
    return fields


@dataclass(frozen=True)
class Judgement:
    """What has to be done about the engine's answer for one instance."""

    refused: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def judge(plan: Mapping[str, Any], answer: Mapping[str, Any]) -> Judgement:
    """Judge the answer of ``engine_check``: what stops a deploy, and what people have to know."""
    name, keys = plan["name"], plan["pinned"]
    if answer["phase"] != "ok":
        problem = Problem(
            name,
            "argv",
            f"SGLang {plan['engine_version']} refuses it ({answer['phase']}): {answer['message']}",
            remedy(answer["message"], engine.facts(plan["engine_version"], allow_untested=True), keys),
        )
        return Judgement(refused=(problem,))
    refused = []
    notes = []
    for change in answer["overrides"]:
        changed = change["field"]
        what = f"{changed}: asked {change['asked']!r}, the engine makes it {change['effective']!r}"
        told = f"{what} ({change['by']})" if change["by"] else what
        if changed in keys and changed not in plan["accept_overrides"]:
            way = f"set {keys[changed]} to what the engine can do, or accept_overrides: [{changed}]"
            refused.append(Problem(name, keys[changed], told, way))
        else:
            notes.append(f"{name}: {told}")
    return Judgement(tuple(refused), tuple(notes))
