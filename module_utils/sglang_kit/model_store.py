"""Which models were downloaded to this host, and how does one get here whole?

A model is fetched beside its place, checked against what the hub says of every file and against its own
headers, and only then renamed: a directory that bears the name is complete. A marker in it tells where it
came from. An interrupted download goes on where it ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import bundle, model_download, model_files
from .problem import Collector, Problem, ProblemsError
from .quantity import GIB, human

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MARKER = ".sglang-model.json"
FORMAT = 1
SPARE_BYTES = GIB
"""Room that a download leaves: logs and compiled kernels often lie on the same disk."""
_REQUEST = ".sglang-download.json"
"""What a download that is under way is of."""


@dataclass(frozen=True)
class Download:
    """A model that is wanted at ``path``; ``include`` and ``exclude`` are patterns of file names."""

    path: str
    repository: str
    revision: str = "main"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Whether a file of the repository is wanted."""
        wanted = not self.include or any(fnmatch(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatch(name, pattern) for pattern in self.exclude)

    def __str__(self) -> str:
        """Render for people."""
        return f"{self.repository} at {self.revision}"


@dataclass(frozen=True)
class Part:
    """A file as the hub describes it: bytes, and its SHA-256 or git's blob hash."""

    name: str
    size: int
    sha256: str | None
    blob: str | None


@dataclass(frozen=True)
class Hub:
    """Where models come from. ``python`` has huggingface_hub; the token is never shown.

    Downloads follow the environment of this process (proxies, certificates).
    """

    python: str
    endpoint: str = ""
    token: str = ""


class DownloadError(ProblemsError):
    """A model that did not get here; what had stood in its place still stands."""


def downloads(raw: Iterable[Mapping[str, Any]]) -> list[Download]:
    """Read a role's list."""
    return [
        Download(
            path=item["path"],
            repository=item["repository"],
            revision=item["revision"],
            include=tuple(item["include"] or ()),
            exclude=tuple(item["exclude"] or ()),
        )
        for item in raw
    ]


def is_complete(wanted: Download) -> bool:
    """Whether this model stands in its place: this revision, and every file of its size."""
    marker = _marker(Path(wanted.path))
    if marker is None or {**marker, **_identity(wanted)} != marker:
        return False
    places = {Path(wanted.path, name): size for name, (size, _) in marker["files"].items()}
    return all(place.is_file() and place.stat().st_size == size for place, size in places.items())


def described(wanted: Download) -> str:
    """Say what stands in a model's place."""
    marker = _marker(Path(wanted.path))
    if marker is not None:
        return f"{marker['repository']} at {marker['revision']}{'' if is_complete(wanted) else ', changed'}"
    return "not downloaded here" if _occupied(Path(wanted.path)) else "absent"


def _marker(place: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((place / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _identity(wanted: Download) -> dict[str, Any]:
    """Tell what makes a download another one, as JSON gives it back."""
    values = {key: value for key, value in asdict(wanted).items() if key != "path"}
    identity: dict[str, Any] = json.loads(json.dumps(values))
    return identity


def _occupied(place: Path) -> bool:
    return place.exists() and not (place.is_dir() and not any(place.iterdir()))


def fetch(wanted: Download, hub: Hub) -> None:
    """Bring a model into its place; another run that does is waited for.

    Raises ``DownloadError``; what was fetched until then is kept for the next run.
    """
    place = Path(wanted.path)
    staging = place.with_name(f".incoming-{place.name}")
    if _occupied(place) and _marker(place) is None:
        raise _error(
            wanted.path,
            "is there, and was not downloaded here",
            "move it away, or leave it out of sglang_model_downloads",
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(place):
        if is_complete(wanted):
            return
        if is_complete(replace(wanted, path=str(staging))):  # only its name was missing
            _swap(staging, place)
            return
        commit, parts = _listing(wanted, hub)
        _open(staging, {**_identity(wanted), "commit": commit}, parts)
        _check_room(wanted, staging, parts)
        sizes = {part.name: part.size for part in parts}
        _ask(wanted, hub, revision=commit, place=str(staging), files=sizes)
        checksums = _check(wanted, staging, parts)
        _complete(wanted, staging, commit, checksums)
        _swap(staging, place)


@contextlib.contextmanager
def _only_one(place: Path) -> Iterator[None]:
    with place.with_name(f".lock-{place.name}").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _listing(wanted: Download, hub: Hub) -> tuple[str, list[Part]]:
    answer = _ask(wanted, hub, revision=wanted.revision)
    parts = [Part(**part) for part in answer["files"] if wanted.takes(part["name"])]
    for part in parts:
        if part.name.startswith("/") or ".." in Path(part.name).parts:
            raise _error(wanted.path, f"{wanted.repository} has a file outside of itself: {part.name}")
    if not parts:
        raise _error(wanted.path, f"{wanted} has no file that is wanted", "look at include and exclude")
    return str(answer["commit"]), parts


def _ask(
    wanted: Download, hub: Hub, *, revision: str, place: str = "", files: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Let huggingface_hub answer; the token goes where nobody sees it."""
    request = {
        "endpoint": hub.endpoint,
        "token": hub.token,
        "repository": wanted.repository,
        "revision": revision,
        "place": place,
        "files": files or {},
    }
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    done = subprocess.run(
        [hub.python, "-IB", "-W", "ignore", "-c", inspect.getsource(model_download)],
        check=False,
        input=json.dumps(request),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**kept, **quiet, "HF_HOME": "/nonexistent"},
    )
    if done.returncode:
        said = done.stderr.rstrip().rpartition("\n")[2]
        raise _error(wanted.path, _masked(f"{hub.python} ended with {done.returncode}: {said}", hub))
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise _error(
            wanted.path, _masked(f"{wanted}: {answer['error']}", hub), _REMEDIES.get(answer["status"], "")
        )
    return answer


_REMEDIES = {
    401: "give the token of an account that may read it in sglang_model_token",
    403: "accept the licence with the account of sglang_model_token, or give another one",
    404: "look at repository and revision; a private one is not found without its token",
    model_download.UNREACHABLE: "give the host a way to it (sglang_host_proxy_env, sglang_model_endpoint), "
    "or copy the model to its path and take it out of sglang_model_downloads",
}
"""Status of HTTP, or that there was none -> what to do."""


def _masked(text: str, hub: Hub) -> str:
    return text.replace(hub.token, "***") if hub.token else text


def _open(staging: Path, request: Mapping[str, Any], parts: Sequence[Part]) -> None:
    """Make the directory of a download, or take up the one of an interrupted run for the same files."""
    note = staging / _REQUEST
    text = json.dumps({**request, "files": [asdict(part) for part in parts]})
    if not note.is_file() or note.read_text(encoding="utf-8") != text:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        note.write_text(text, encoding="utf-8")


def _partial(place: Path) -> Path:
    return place.with_name(place.name + model_download.PARTIAL)


def _check_room(wanted: Download, staging: Path, parts: Sequence[Part]) -> None:
    have = sum(
        place.stat().st_size
        for part in parts
        for place in (staging / part.name, _partial(staging / part.name))
        if place.is_file()
    )
    needed = sum(part.size for part in parts) - have
    space = os.statvfs(staging)
    free = space.f_bavail * space.f_frsize
    if free < needed + SPARE_BYTES:
        raise _error(
            wanted.path,
            f"{human(free)} are free there, and {wanted} needs {human(needed)} more"
            f" and {human(SPARE_BYTES)} to spare",
        )


def _check(wanted: Download, staging: Path, parts: Sequence[Part]) -> dict[str, tuple[int, str]]:
    """Compare every file with what the hub says of it, and the model with its own index and headers.

    Files that are not what they should be go, so that the next run fetches them. Returns size and SHA-256.
    """
    found = Collector()
    checksums = {}
    for part in parts:
        place = staging / part.name
        checksums[part.name] = (place.stat().st_size, bundle.digest(place))
        fault = _fault(place, part, *checksums[part.name])
        if fault:
            found.add("", f"{wanted.path}/{part.name}", fault, "it is fetched again by the next run")
            place.unlink()
    if found.problems:
        raise DownloadError(found.problems)
    _judge(wanted, staging)
    return checksums


def _judge(wanted: Download, staging: Path) -> None:
    """Look for what is wrong with the repository itself; where a model lies is judged for each instance."""
    listing = model_files.look(str(staging), uid=os.geteuid(), gids=[])
    seen = None if listing is None else replace(listing, place="", closed="")
    _, problems = model_files.judge(model_files.Wanted(wanted.path, (), tokenizer=False), seen)
    if problems:
        raise DownloadError([*problems, Problem("", "", f"{wanted} itself is so", "choose another revision")])


def _fault(place: Path, part: Part, size: int, sha256: str) -> str:
    if size != part.size:
        return f"has {size} of {part.size} bytes"
    if part.sha256 and part.sha256 != sha256:
        return "is not the file that the hub describes"
    if part.blob and part.blob != _blob(place):
        return "is not the file that the hub describes"
    return ""


def _blob(place: Path) -> str:
    """Compute git's hash of a file (small ones: large ones are in LFS)."""
    content = place.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _complete(wanted: Download, staging: Path, commit: str, checksums: Mapping[str, tuple[int, str]]) -> None:
    """Mark a whole model; everybody may read it, and nobody but root may write."""
    (staging / _REQUEST).unlink()
    marker = {"format": FORMAT, **_identity(wanted), "commit": commit, "files": checksums}
    (staging / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    for folder, _, names in os.walk(staging):
        Path(folder).chmod(0o755)
        for name in names:
            Path(folder, name).chmod(0o644)
    os.sync()


def _swap(staging: Path, place: Path) -> None:
    """Give a model its name, in place of what bore it."""
    old = place.with_name(f".outgoing-{place.name}")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    staging.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _error(path: str, message: str, remedy: str = "") -> DownloadError:
    return DownloadError([Problem("", path, message, remedy)])
