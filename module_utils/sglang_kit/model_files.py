"""Are the files of this model whole, and can an instance read them? The kit's only door to model directories.

``look`` reads names, sizes and headers, never the weights; ``judge`` finds every fault in what it saw.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config_reader import read_json
from .problem import Collector, Problem, ProblemsError
from .shapes import header_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "*.tiktoken")
"""Files of which a model has at least one."""
OTHER_WEIGHTS = (".bin", ".pt", ".gguf")
"""Formats that are looked for by name alone."""
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - names of places, not used
"""What the units do not see (``ProtectHome=``, ``PrivateTmp=``)."""

NO_PART = (".md", ".lock", ".incomplete")
"""Endings of files that no engine reads."""

_LENGTH_BYTES = 8
_HEADER_LIMIT = 100_000_000
"""safetensors' own limit of a header."""
_POINTER = b"version "
"""First bytes of a Git LFS pointer, which stands where a file was not fetched."""


@dataclass(frozen=True)
class Wanted:
    """A model directory, the instances that serve from it, and whether it must bring a tokenizer."""

    path: str
    instances: tuple[str, ...]
    tokenizer: bool


@dataclass(frozen=True)
class Shard:
    """A safetensors file: its size, and its header as text, or why there is none."""

    size: int
    header: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Listing:
    """What a model directory holds.

    ``place`` is its resolved path, ``sizes`` maps file names to bytes, ``closed`` is the first path
    that the account may not read or enter ("" for none). ``config`` and ``index`` are texts, None
    where there is no such file.
    """

    place: str
    sizes: Mapping[str, int]
    closed: str
    config: str | None
    index: str | None
    shards: Mapping[str, Shard]


@dataclass(frozen=True)
class Files:
    """What a model is: its parsed ``config.json``, and the bytes of its tensors (0: not safetensors)."""

    config: Mapping[str, Any]
    weight_bytes: int


def wanted(plans: Iterable[Mapping[str, Any]]) -> list[Wanted]:
    """Gather the models of the planned instances, each directory once."""
    targets: dict[str, list[str]] = {}
    drafts: dict[str, list[str]] = {}
    for plan in plans:
        targets.setdefault(plan["model"], []).append(plan["name"])
        if plan.get("draft_model"):
            drafts.setdefault(plan["draft_model"], []).append(plan["name"])
    return [
        Wanted(path, tuple(dict.fromkeys([*targets.get(path, []), *drafts.get(path, [])])), path in targets)
        for path in {**targets, **drafts}
    ]


def look(path: str, *, uid: int, gids: Sequence[int]) -> Listing | None:
    """Read a model directory for an account; None where there is no such directory."""
    place = Path(os.path.realpath(path))
    if not place.is_dir():
        return None
    files = sorted(entry for entry in place.iterdir() if entry.is_file())
    needs = {**dict.fromkeys(reversed(place.parents), 0o1), place: 0o5, **dict.fromkeys(files, 0o4)}
    closed = (str(item) for item, bits in needs.items() if not _allows(item.stat(), bits, uid, gids))
    return Listing(
        place=str(place),
        sizes={file.name: file.stat().st_size for file in files},
        closed=next(closed, ""),
        config=_text(place / CONFIG),
        index=_text(place / INDEX),
        shards={file.name: _shard(file) for file in files if file.suffix == ".safetensors"},
    )


def fingerprint(path: str) -> str:
    """Tell whether the files of a model were replaced, without reading its weights; "" where there is none.

    Two halves of 16 hexadecimal digits, joined by a dot: what the files are (names, sizes, the texts of
    ``config.json`` and of the index), and when they were written. A copy agrees in the first half alone.
    """
    place = Path(os.path.realpath(path))
    if not place.is_dir():
        return ""
    what, when = hashlib.sha256(), hashlib.sha256()
    for file in sorted(place.iterdir()):
        if not file.is_file() or file.name.startswith(".") or file.name.endswith(NO_PART):
            continue
        status = file.stat()
        text = _text(file) if file.name in (CONFIG, INDEX) else ""
        what.update(f"{file.name}\0{status.st_size}\0{text}\0".encode("utf-8", "surrogateescape"))
        when.update(f"{status.st_mtime_ns}\0".encode())
    return f"{what.hexdigest()[:16]}.{when.hexdigest()[:16]}"


def _allows(status: os.stat_result, bits: int, uid: int, gids: Sequence[int]) -> bool:
    """Whether an account has these permission bits (4 read, 1 enter) on a file or directory."""
    shift = 6 if status.st_uid == uid else 3 if status.st_gid in gids else 0
    return status.st_mode >> shift & bits == bits


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _shard(path: Path) -> Shard:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH_BYTES)
        if head == _POINTER:
            return Shard(size, fault="is a Git LFS pointer, not the file itself")
        length = int.from_bytes(head, "little")
        if len(head) < _LENGTH_BYTES or not 0 < length <= _HEADER_LIMIT:
            return Shard(size, fault="is no safetensors file")
        header = file.read(length)
    if len(header) < length:
        return Shard(size, fault=f"is cut off in its header, at {size} bytes")
    return Shard(size, header.decode(errors="replace"))


def judge(want: Wanted, found: Listing | None) -> tuple[Files, list[Problem]]:
    """Find every fault of a model directory."""
    problems = Collector()
    where = ", ".join(want.instances)
    if found is None:
        problems.add(where, want.path, "is not a directory on this host", "copy the model there")
        return Files({}, 0), problems.problems
    for hidden in HIDDEN:
        if found.place.startswith(f"{hidden}/"):
            problems.add(where, want.path, f"lies below {hidden}, which units do not see", "move the model")
    if found.closed:
        problems.add(
            where,
            want.path,
            f"the account of the instances may not read {found.closed}",
            f"chmod -R a+rX {want.path}"
            if found.closed.startswith(found.place)
            else f"chmod a+x {found.closed}",
        )
    config = _read(where, want.path, CONFIG, found.config, problems)
    weight_bytes = _weights(where, want.path, found, problems)
    if want.tokenizer and not any(Path(name).match(p) for name in found.sizes for p in TOKENIZERS):
        problems.add(where, want.path, "has no tokenizer", f"copy {TOKENIZERS[0]} beside {CONFIG}")
    return Files(config or {}, weight_bytes), problems.problems


def _read(where: str, path: str, name: str, text: str | None, problems: Collector) -> dict[str, Any] | None:
    if text is None:
        problems.add(where, path, f"has no {name}", "copy the model again")
        return None
    try:
        return read_json(text)
    except ProblemsError as error:
        said = "; ".join(problem.message for problem in error.problems)
        problems.add(where, f"{path}/{name}", said, "copy it again")
        return None


def _weights(where: str, path: str, found: Listing, problems: Collector) -> int:
    """Check the files that the index names, or else all; returns the bytes of their tensors."""
    names = {name: set[str]() for name in found.shards}
    if found.index is not None:
        index = _read(where, path, INDEX, found.index, problems)
        if index is None:
            return 0
        tensors = index.get("weight_map")
        if not isinstance(tensors, dict):
            problems.add(where, f"{path}/{INDEX}", "has no weight_map", "copy it again")
            return 0
        names = {}
        for tensor, file in tensors.items():
            names.setdefault(str(file), set()).add(tensor)
    if not names and not any(name.endswith(OTHER_WEIGHTS) for name in found.sizes):
        problems.add(where, path, "has no weights", "copy its .safetensors files")
    missing = sorted(set(names) - set(found.shards))
    if missing:
        problems.add(where, path, f"misses {', '.join(missing)}, which {INDEX} names", "copy them")
    total = 0
    for file in sorted(set(names) & set(found.shards)):
        size, fault = _tensors(found.shards[file], names[file])
        total += size
        if fault:
            problems.add(where, f"{path}/{file}", fault, "copy it again")
    return total


def _tensors(shard: Shard, wanted_tensors: set[str]) -> tuple[int, str]:
    """Bytes of a file's tensors, and what is wrong with it ("" for nothing)."""
    if shard.fault:
        return 0, shard.fault
    try:
        header = json.loads(shard.header)
        size = header_bytes([header])
    except (ValueError, RecursionError, AttributeError):
        return 0, "has no readable header"
    absent = sorted(wanted_tensors - set(header))
    if absent:
        return size, f"lacks {len(absent)} tensors that {INDEX} puts there, as {absent[0]}"
    whole = _LENGTH_BYTES + len(shard.header.encode()) + size
    if shard.size != whole:
        return size, f"has {shard.size} of {whole} bytes"
    return size, ""
