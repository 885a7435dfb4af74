"""What is in the one file that carries an engine to hosts without a network?

A tar with its ``manifest.json`` first: the SHA-256 of every other member, the lock that the wheels are of,
and the Pythons that they serve. The same members make the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .problem import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
MANIFEST = "manifest.json"
WHEELS = "wheels"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """``lock`` is the SHA-256 of the lock; ``files`` maps every other member to its own."""

    engine_version: str
    lock: str
    pythons: tuple[str, ...]
    files: Mapping[str, str]

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"


class BundleError(ProblemsError):
    """A file that is no bundle, or is not whole."""


def digest(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return _copy(file, None)


def write(target: Path, manifest: Manifest, sources: Mapping[str, Path]) -> None:
    """Write a bundle of these files, by member's name; the bytes depend on nothing else.

    A file of that name is replaced once the new one is whole.
    """
    part = target.with_name(f"{target.name}.part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        text = manifest.text().encode()
        tar.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
        for name in sorted(sources):
            with sources[name].open("rb") as file:
                tar.addfile(_member(name, sources[name].stat().st_size), file)
    part.replace(target)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member  # root's, 0644, of 1970: nothing of the machine that wrote it


def unpack(bundle: Path, place: Path, *, lock: str) -> Path:
    """Unpack the wheels of a bundle below ``place``, which must not exist, and return their directory.

    ``lock`` is the SHA-256 of the lock that they are wanted for. Raises ``BundleError`` for a bundle of
    another lock, for one that was cut off or is not there, for a member that is not what the manifest says,
    and where there is no room.
    """
    try:
        place.mkdir()
        with tarfile.open(bundle) as tar:
            manifest = _manifest(bundle, tar)
            if manifest["lock"] != lock:
                raise _error(
                    bundle, f"is of SGLang {manifest['engine_version']} with another lock", "make it again"
                )
            wanted = {name: file for name, file in manifest["files"].items() if name.startswith(f"{WHEELS}/")}
            found = {member.name: member for member in tar if member.name in wanted}
            for name, checksum in sorted(wanted.items()):
                _unpack(bundle, tar, found.get(name), place / Path(name).name, checksum)
    except tarfile.TarError as error:
        raise _error(bundle, f"is cut off or no bundle ({error})", "copy it again") from error
    except OSError as error:
        raise _error(bundle, f"cannot be unpacked: {error}") from error
    return place


def _unpack(
    bundle: Path, tar: tarfile.TarFile, member: tarfile.TarInfo | None, target: Path, checksum: str
) -> None:
    stream = tar.extractfile(member) if member else None
    if stream is None:
        raise _error(bundle, f"lacks {target.name}", "copy it again")
    with closing(stream), target.open("wb") as file:
        if _copy(stream, file) != checksum:
            raise _error(bundle, f"{target.name} is not the file of its manifest", "copy it again")


def _manifest(bundle: Path, tar: tarfile.TarFile) -> dict[str, Any]:
    first = tar.next()
    stream = tar.extractfile(first) if first and first.name == MANIFEST else None
    if stream is None:
        raise _error(bundle, f"does not begin with {MANIFEST}", "make it with `make bundle`")
    manifest: dict[str, Any] = json.load(stream)
    if manifest["format"] > FORMAT:
        raise _error(bundle, f"has format {manifest['format']}, and {FORMAT} is the newest known here")
    return manifest


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copy a stream, or only read it; returns the SHA-256 of what passed."""
    passed = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        passed.update(chunk)
        if target is not None:
            target.write(chunk)
    return passed.hexdigest()


def _error(bundle: Path, message: str, remedy: str = "") -> BundleError:
    return BundleError([Problem("", str(bundle), message, remedy)])
