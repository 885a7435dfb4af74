"""Which releases of the engine stand on this host, and how is one built? The kit's only door to uv.

A release is a venv below ``releases/``, named by its SGLang version and its lock. It is built beside
that name, imported once, marked complete and only then renamed: what bears the name works.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import bundle, engine_probe
from .platform_facts import missing_libraries
from .problem import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MARKER = "sglang-release.json"
PROBE = "sglang-build.json"
"""What was found in a build of one's own (``engine_probe.py``)."""
PROGRESS = ".progress"
"""Below ``releases/``: one line that says what a build is doing, as long as one runs."""
SHOWN = 3
"""How many downloads are named at once."""
DRIVER = "libcuda.so.1"
IMPORTS = ("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler")
"""What a starting server imports; this also leaves their bytecode, which the unit may not write."""


@dataclass(frozen=True)
class Release:
    """What makes a release: ``lock`` is the SHA-256 of the lock, in hexadecimal digits."""

    version: str
    lock: str

    @property
    def name(self) -> str:
        """Name of its directory."""
        return f"{self.version}-{self.lock[:12]}"


@dataclass(frozen=True)
class Build:
    """How a release is built. Paths are absolute; ``uv`` is a requirement with its hash.

    ``unit`` is the environment that units get (PATH, CUDA_HOME, LD_LIBRARY_PATH). Downloads follow the
    environment of this process (proxies, certificates, indexes). ``packages`` is a directory of wheels, or
    ``bundle`` a file of them; ``index`` says whether an index is asked besides. ``probe`` asks for what is
    found in a build of one's own.
    """

    lock_file: str
    python: str
    uv: str
    uv_cache: str
    unit: Mapping[str, str]
    packages: str = ""
    bundle: str = ""
    index: bool = True
    probe: bool = False


@dataclass(frozen=True)
class State:
    """What stands on a host: the release that ``current`` names, and whether a wanted one is complete."""

    current: str
    complete: bool

    def text(self, release: Release) -> str:
        """Say it in lines, for people and for ``--diff``."""
        presence = "complete" if self.complete else "absent"
        return f"release {release.name}: {presence}\ncurrent: {self.current or 'not set'}\n"


class BuildError(ProblemsError):
    """A release that could not be built; what stood before still stands."""


def marker(release: Release, python: str) -> str:
    """Write the text whose presence says that a release is complete."""
    return json.dumps({**asdict(release), "python": python}, indent=2) + "\n"


def is_complete(root: str, release: Release) -> bool:
    """Whether this release stands below ``root``, whole and of this very lock."""
    try:
        found = json.loads(Path(path(root, release), MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {**found, **asdict(release)} == found


def found(root: str, release: Release) -> dict[str, Any]:
    """Read what was found in a build of one's own; nothing before it is installed."""
    try:
        content: dict[str, Any] = json.loads(Path(path(root, release), PROBE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content


def path(root: str, release: Release) -> str:
    """Directory of a release."""
    return f"{root}/releases/{release.name}"


def state(root: str, release: Release) -> State:
    """Look at what stands below ``root``."""
    try:
        current = Path(root, "current").readlink().name
    except OSError:
        current = ""
    return State(current, is_complete(root, release))


def progress(root: str) -> str:
    """Say what the build that runs on this host is doing; "" where none runs."""
    try:
        return Path(root, "releases", PROGRESS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def switch(root: str, release: Release) -> None:
    """Point ``current`` to a release, in one step."""
    link = Path(root, "current.new")
    link.unlink(missing_ok=True)
    link.symlink_to(Path("releases", release.name))
    link.replace(Path(root, "current"))


def build(*, root: str, release: Release, how: Build) -> None:
    """Build a release; another build on this host is waited for, and what it left half-done is removed.

    Raises ``ProblemsError``; what stood before still stands then.
    """
    place = Path(path(root, release))
    with (
        only_one(root),
        _telling(root) as tell,
        _scratch(place) as building,
        _packages(root, release, how) as packages,
    ):
        if is_complete(root, release):
            return
        tell("makes an empty environment")
        uv = _uv(root, how, packages)
        python = str(building / "bin/python")
        # Relocatable: the scripts in bin/ find their interpreter after the rename.
        _run(uv, "venv", "--quiet", "--relocatable", "--python", how.python, str(building))
        # Wheels only: building from source wants compilers that a GPU host does not have.
        tell("links the packages that the cache has, and fetches the others")
        sync = ("pip", "sync", "--require-hashes", "--no-build", "--cache-dir", how.uv_cache)
        _fetch(tell, uv, *sync, *_where(how, packages, "--offline"), "--python", python, how.lock_file)
        tell("imports the engine, and looks for the libraries of its kernels")
        problems = smoke_test(building, release.version, how.unit)
        if problems:
            raise BuildError(problems)
        if how.probe:
            (building / PROBE).write_text(_probe(python, how.unit), encoding="utf-8")
        (building / MARKER).write_text(marker(release, how.python), encoding="utf-8")
        os.sync()  # after a power cut the name must not stand for files that are empty
        shutil.rmtree(place, ignore_errors=True)
        building.replace(place)


@contextlib.contextmanager
def only_one(root: str) -> Iterator[None]:
    """Wait until nobody else builds or removes releases of this host, and keep others from it."""
    with Path(root, "releases", ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """Give a path beside ``place`` at which nothing stands, before and after.

    The account of the engines reads what is built there, also where the host's own umask is strict.
    """
    scratch = place.with_name(f".building-{place.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    before = os.umask(0o022)
    try:
        yield scratch
    finally:
        os.umask(before)
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _telling(root: str) -> Iterator[Callable[[str], object]]:
    """Give what writes the line for ``progress``; at the end there is none."""
    place = Path(root, "releases", PROGRESS)
    try:
        yield place.write_text
    finally:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def _packages(root: str, release: Release, how: Build) -> Iterator[str]:
    """Give the directory that holds wheels, "" for none."""
    if how.bundle:
        with _scratch(Path(root, "releases", "packages")) as place:
            yield str(bundle.unpack(Path(how.bundle), place, lock=release.lock))
    else:
        yield how.packages


def _where(how: Build, packages: str, *without_index: str) -> tuple[str, ...]:
    """Say to pip or uv where wheels are to be looked for."""
    links = ("--find-links", packages) if packages else ()
    return links if how.index else ("--no-index", *without_index, *links)


def _uv(root: str, how: Build, packages: str) -> str:
    """Path of uv; the wheel of the wanted hash is installed where it is not there yet."""
    place = Path(root, "uv", how.uv.partition("==")[2].split()[0])
    if not place.is_dir():
        with _scratch(place) as building:
            _run(sys.executable, "-I", "-m", "venv", str(building))
            requirement = building / "requirements.txt"
            requirement.write_text(how.uv, encoding="utf-8")
            pip = ("-I", "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:")
            where = _where(how, packages)
            _run(str(building / "bin/python"), *pip, *where, "--requirement", str(requirement))
            building.replace(place)
    return str(place / "bin/uv")


def _run(*argv: str) -> None:
    outcome = subprocess.run(
        argv,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    _judge(argv, outcome.returncode, outcome.stdout)


def _judge(argv: Sequence[str], status: int, output: str) -> None:
    if status:
        said = f"{' '.join(argv)} ended with {status}\n{output.rstrip()}"
        raise BuildError([Problem("", "", said)])


_DOWNLOAD = re.compile(r" ?(Downloading|Downloaded) (\S+)( \(.+\))?")
"""What uv says of large packages: ``Downloading torch (1.2GiB)`` and then `` Downloaded torch``."""


def _fetch(tell: Callable[[str], object], *argv: str) -> None:
    """Let uv install the packages, and tell what is under way."""
    under_way: dict[str, str] = {}
    fetched = 0
    output = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            found = _DOWNLOAD.match(line)
            if not found:
                output.append(line)
                continue
            begun, name, size = found.groups()
            if begun == "Downloading":
                under_way[name] = f"{name}{size or ''}"
            else:
                under_way.pop(name, None)
                fetched += 1
            tell(_downloads(fetched, list(under_way.values())))
    _judge(argv, process.returncode, "".join(output))


def _downloads(fetched: int, under_way: Sequence[str]) -> str:
    more = f" and {len(under_way) - SHOWN} more" if len(under_way) > SHOWN else ""
    return f"has fetched {fetched} large packages; under way: {', '.join(under_way[:SHOWN]) or 'none'}{more}"


def _probe(python: str, unit: Mapping[str, str]) -> str:
    """Ask a build of one's own what it takes."""
    with tempfile.TemporaryDirectory() as home:
        outcome = subprocess.run(
            [python, "-I", "-W", "ignore", "-c", inspect.getsource(engine_probe)],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            cwd=home,
            env={**unit, "HOME": home, "XDG_CACHE_HOME": home, "LC_ALL": "C.UTF-8"},
        )
    if outcome.returncode:
        said = f"its flags cannot be read: {first_error(outcome.stderr)}\n{outcome.stderr.rstrip()}"
        raise BuildError([Problem("", "", said)])
    return outcome.stdout


def smoke_test(venv: Path, version: str, unit: Mapping[str, str]) -> list[Problem]:
    """Import what a server imports, and look for shared libraries that the kernels miss.

    ``unit`` is the environment that units get (PATH, LD_LIBRARY_PATH, CUDA_HOME).
    """
    site = next(venv.glob("lib/python3.*/site-packages"))
    # The package's own version: builds of one's own may not keep sglang.__version__ in step with it.
    said = "from importlib.metadata import version; print(version('sglang'), flush=True)"
    statement = f"{said}; import {', '.join(IMPORTS)}"
    with tempfile.TemporaryDirectory() as home:
        imported = subprocess.run(
            [str(venv / "bin/python"), "-I", "-W", "ignore", "-c", statement],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            cwd=home,
            env={**unit, "HOME": home, "XDG_CACHE_HOME": home, "LC_ALL": "C.UTF-8"},
        )
    wheels = [site / "torch/lib", *site.glob("nvidia/*/lib")]
    listing = subprocess.run(
        ["ldd", *map(str, site.glob("sgl_kernel/**/common_ops.*so"))],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={
            **unit,
            "LC_ALL": "C",
            "LD_LIBRARY_PATH": ":".join([unit.get("LD_LIBRARY_PATH", ""), *map(str, wheels)]),
        },
    )
    return judge(
        version=version,
        printed=imported.stdout,
        error=imported.stderr if imported.returncode else "",
        missing=missing_libraries(listing.stdout),
    )


def judge(*, version: str, printed: str, error: str, missing: Sequence[str]) -> list[Problem]:
    """Judge the smoke test by what it printed, its traceback ("" for none) and the missing libraries.

    Without a driver libcuda.so.1 is missing, the kernels cannot be loaded, and before 0.5.15 neither
    can the server. A host without a GPU may be prepared all the same: that one library is forgiven.
    """
    where = f"SGLang {version}"
    problems = []
    found = printed.partition("\n")[0]
    if found and found != version:
        problems.append(Problem(where, "lock", f"installs SGLang {found}", f"give a lock of {version}"))
    absent = sorted(set(missing) - {DRIVER})
    if absent:
        problems.append(
            Problem(
                where,
                "libraries",
                f"its kernels need {', '.join(absent)}, which this host lacks",
                "add the package that has it to sglang_host_packages",
            )
        )
    forgiven = found and DRIVER in missing and f"{DRIVER}: cannot open shared object file" in error
    if error and not forgiven:
        problems.append(Problem(where, "import", f"{first_error(error)}\n{error.rstrip()}"))
    return problems


def first_error(traceback: str) -> str:
    """Find what a failed import is about.

    The kernels' loader tries three ways and lists their errors; the first is the cause, and the
    traceback ends in the last (``sgl_kernel/load_utils.py`` 0.4.2).
    """
    attempts = re.findall(r"^- (\w+: .+)$", traceback, re.MULTILINE)
    return str(attempts[0]) if attempts else traceback.rstrip().rpartition("\n")[2]
