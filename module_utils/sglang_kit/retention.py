"""Which releases may go? Neither the newest ones nor any that an instance still needs.

Needed is what an installed unit or plan names, what a wanted or known-good state names (a rollback installs
nothing), and what a running process has open or was started from.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import processes, release

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from .state import Store

UNITS = Path("/etc/systemd/system")
PLANS = Path("/etc/sglang")
_REMOVING = ".removing-"
_HALF = (".building-", _REMOVING)


@dataclass(frozen=True)
class Found:
    """What stands below a root.

    Names of the complete releases, the newest first, and of those that are needed; paths of what
    interrupted runs have left.
    """

    releases: tuple[str, ...]
    needed: frozenset[str]
    leftovers: tuple[str, ...]


def look(root: str, states: Store) -> Found:
    """Look at the releases below ``root``, and at everything that may need one.

    Raises ``ProblemsError`` for states that cannot be read: what they need is not known then.
    """
    places = Path(root, "releases")
    markers = sorted(places.glob(f"[!.]*/{release.MARKER}"), key=lambda place: place.stat().st_mtime_ns)
    named = re.compile("|".join(rf"{re.escape(where)}/([^/\s\"':]+)/" for where in _names(places)))
    needed = {match.group(match.lastindex or 0) for text in _texts() for match in named.finditer(text)}
    needed |= {Path(path).name for path in states.releases()}
    with contextlib.suppress(OSError):
        needed.add(Path(root, "current").readlink().name)
    return Found(
        releases=tuple(place.parent.name for place in reversed(markers)),
        needed=frozenset(needed),
        leftovers=tuple(sorted(map(str, _leftovers(root)))),
    )


def _leftovers(root: str) -> list[Path]:
    """Find what interrupted runs have left: half a release, half a uv, and packages brought for a build."""
    hidden = [place for name in ("releases", "uv") for place in Path(root, name).glob(".*")]
    return [*(place for place in hidden if place.name.startswith(_HALF)), *Path(root, "packages").glob("*")]


def _names(place: Path) -> list[str]:
    """Give the paths by which a directory is known: processes show it without links."""
    return list(dict.fromkeys([str(place), os.path.realpath(place)]))


def _texts() -> Iterator[str]:
    """Read whatever names a release: units and their drop-ins, plans, and what runs."""
    for place in [*UNITS.rglob("*.service"), *UNITS.rglob("*.conf"), *PLANS.glob("*.plan.json")]:
        with contextlib.suppress(OSError):  # a link to a unit that is gone
            yield place.read_text(encoding="utf-8", errors="replace")
    for process in processes.running():
        yield " ".join(process.argv)
        with contextlib.suppress(OSError):  # it has just ended
            yield (processes.PROC / str(process.pid) / "maps").read_text(encoding="utf-8", errors="replace")


def removable(found: Found, keep: int) -> list[str]:
    """List the complete releases that may go: not among the newest ``keep``, and not needed."""
    return [name for name in found.releases[keep:] if name not in found.needed]


def remove(root: str, names: Sequence[str], cache: str) -> None:
    """Remove releases, their locks and packages that no other one uses, and what was left half-done.

    A release loses its name first: what bears one is whole, at every moment.
    """
    places = Path(root, "releases")
    with release.only_one(root):
        gone = {_identity(file) for name in names for file in _files(places / name)}
        for name in names:
            (places / name).rename(places / f"{_REMOVING}{name}")
            Path(root, "locks", f"{name}.txt").unlink(missing_ok=True)
        for place in _leftovers(root):
            shutil.rmtree(place)
        if names:
            _forget(Path(cache), gone)


def _forget(cache: Path, gone: Container[tuple[int, int]]) -> None:
    """Remove unpacked wheels of which only removed releases had files; uv takes them for not there.

    Nothing is removed while uv is at work in the cache, as another host may be that shares it.
    """
    archives = cache / "archive-v0"
    with (cache / ".lock").open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for archive in archives.glob("*"):
            files = list(_files(archive))
            if any(_identity(file) in gone for file in files) and all(file.st_nlink == 1 for file in files):
                shutil.rmtree(archive)


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def _files(place: Path) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(place):
        for name in names:
            yield os.lstat(os.path.join(folder, name))  # noqa: PTH118 - a hundred thousand times
