"""Do the files on this host match the plan, and how do they change as one set?

A set is compared first (nothing is written), then staged beside the targets, and only when every
file is staged are they renamed into place: no reader ever sees half a file, and a set that cannot
be written (disk full, missing group) leaves the old one as it was. A manifest remembers what was
installed, so that only our own files are ever removed.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class File:
    """A wanted file, or a symbolic link where ``target`` is set (then content and mode are unused)."""

    path: str
    content: str = ""
    mode: int = 0o644
    owner: str = "root"
    group: str = "root"
    target: str | None = None


@dataclass(frozen=True)
class Change:
    """One path that differs: its text before and after (``None``: absent) and what people read."""

    path: str
    before: str | None
    after: str | None
    wanted: File | None


def compare(wanted: Sequence[File], installed: Iterable[str]) -> tuple[Change, ...]:
    """Find what turns the host into ``wanted``; ``installed`` are the paths of the last manifest."""
    changes = [
        Change(file.path, before, _wanted_text(file), file)
        for file in wanted
        if (before := _text_on_host(file.path)) != _wanted_text(file) or not _attributes_match(file)
    ]
    kept = {file.path for file in wanted}
    changes += [
        Change(path, before, None, None)
        for path in sorted(set(installed) - kept)
        if (before := _text_on_host(path)) is not None
    ]
    return tuple(changes)


def apply(changes: Sequence[Change]) -> None:
    """Stage everything, then rename; raise ``OSError`` or ``KeyError`` with nothing replaced."""
    with ExitStack() as leftovers:
        staged = [
            (_stage(change.wanted, leftovers), Path(change.path))
            for change in changes
            if change.wanted is not None
        ]
        for temporary, path in staged:
            temporary.replace(path)
    for change in changes:
        if change.wanted is None:
            Path(change.path).unlink()
    for directory in {Path(change.path).parent for change in changes}:
        sync(directory)


def sync(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(path: str) -> tuple[str, ...]:
    """Paths installed by the last run; empty before the first one."""
    try:
        return tuple(json.loads(Path(path).read_text(encoding="utf-8"))["files"])
    except FileNotFoundError:
        return ()


def manifest(path: str, wanted: Iterable[File]) -> File:
    """Name every file of the set, so that the next run knows what is ours."""
    content = json.dumps({"version": 1, "files": sorted(file.path for file in wanted)}, indent=1)
    return File(path, content + "\n")


def _text_on_host(path: str) -> str | None:
    place = Path(path)
    if place.is_symlink():
        return f"-> {place.readlink()}\n"
    try:
        return place.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def _wanted_text(file: File) -> str:
    return file.content if file.target is None else f"-> {file.target}\n"


def _attributes_match(file: File) -> bool:
    if file.target is not None:
        return Path(file.path).is_symlink()
    try:
        status = os.lstat(file.path)
        ids = pwd.getpwnam(file.owner).pw_uid, grp.getgrnam(file.group).gr_gid
    except (FileNotFoundError, KeyError):
        return False
    return (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (*ids, file.mode)


def _make(directory: Path) -> None:
    """Make a directory that all may enter, whatever the umask of a hardened host says."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir()
        directory.chmod(0o755)


def _stage(file: File, leftovers: ExitStack) -> Path:
    """Write the file beside its place; ``leftovers`` removes it unless it was renamed."""
    path = Path(file.path)
    _make(path.parent)
    temporary = path.with_name(f".{path.name}.staged")
    temporary.unlink(missing_ok=True)
    leftovers.callback(temporary.unlink, missing_ok=True)
    if file.target is not None:
        temporary.symlink_to(file.target)
        return temporary
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(file.content.encode("utf-8", "surrogateescape"))
        stream.flush()
        os.fchown(stream.fileno(), pwd.getpwnam(file.owner).pw_uid, grp.getgrnam(file.group).gr_gid)
        os.fchmod(stream.fileno(), file.mode)
        os.fsync(stream.fileno())
    return temporary
