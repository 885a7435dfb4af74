"""What does a lock pin, and which lock do wheels of one's own make of it?

A lock is what ``uv pip compile --generate-hashes`` writes: ``name==version``, an optional marker, and the
hashes of its files, on lines that a backslash continues.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .problem import Collector

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINE = "sglang"
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)\n?", re.MULTILINE)
_MARKER = re.compile(r"^ *; *([^\\\n]*?) *(?:\\\n|--hash|$)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")
_WHEEL = re.compile(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")


@dataclass(frozen=True)
class Pin:
    """One package: normalised name, version, marker ("" for always), SHA-256 of each file it may be."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pins(text: str) -> list[Pin]:
    """Read a lock."""
    return [
        Pin(
            name=normal(match[1]),
            version=match[2],
            marker=marker[1] if (marker := _MARKER.match(match[3])) else "",
            hashes=tuple(_HASH.findall(match[3])),
        )
        for match in _PIN.finditer(text)
    ]


def normal(name: str) -> str:
    """Write a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def effective(text: str, *, version: str, wheels: Mapping[str, str]) -> str:
    """Return the lock that installs ``version``, with wheels of one's own in place of what it pins.

    ``wheels`` maps file names to their SHA-256 in hexadecimal digits. Without any, the text stays as it is.
    Raises ``ProblemsError`` for a name that is no wheel's, for two versions of a package, for a pin without a
    hash, and where the outcome installs another version.
    """
    found = Collector()
    own: dict[str, list[str]] = {}
    for file, digest in sorted(wheels.items()):
        match = _WHEEL.fullmatch(file)
        if match is None:
            found.add("", "sglang_engine_wheels", f"{file} is not named as wheels are")
            continue
        name = normal(match[1])
        pin = own.setdefault(name, [f"{name}=={match[2]}"])
        if pin[0] != f"{name}=={match[2]}":
            found.add("", "sglang_engine_wheels", f"has {pin[0]} and {match[2]}", "leave one of them out")
        pin.append(f"--hash=sha256:{digest}")
    kept = _PIN.sub(lambda match: "" if normal(match[1]) in own else match[0], text)
    added = [f"{' '.join(pin)}\n" for pin in own.values()]
    whole = "".join([kept, "\n" if own and not kept.endswith("\n") else "", *added])
    pinned = pins(whole)
    loose = sorted({pin.name for pin in pinned if not pin.hashes})
    if loose:
        found.add(
            "", "sglang_engine_lock", f"has no hash of {', '.join(loose)}", "uv pip compile --generate-hashes"
        )
    engines = sorted({pin.version for pin in pinned if pin.name == ENGINE})
    if engines != [version]:
        found.add(
            "",
            "sglang_engine_lock",
            f"pins {' and '.join(f'{ENGINE}=={engine}' for engine in engines) or f'no {ENGINE}'}",
            f"set sglang_engine_version to it, or give a lock of {ENGINE}=={version}",
        )
    found.check()
    return whole
