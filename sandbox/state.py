"""Where a sandbox lies, who may change it, and what is recorded about its hosts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.console import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The signature makes backup tools skip the directory (https://bford.info/cachedir/).
MARKER = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Made by `python3 -m sandbox`; `python3 -m sandbox clean` removes it.\n"
)
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Host:
    """What is recorded about a host; whether it runs is asked of the kernel, never of a file."""

    name: str
    image: str
    """Directory below ``images/``, for example ``bookworm-1f2e3d4c``."""
    overlay: bool
    """The root is an overlay over the image; else a copy of it."""
    address: str
    ssh_port: int
    host_key: str
    """The public half, ``ssh-ed25519 AAAA...``."""
    network: int | None = None
    """N of its own network 10.213.N.0/30; None where it shares the machine's."""

    @property
    def suite(self) -> str:
        """Return the Debian release, for example ``bookworm``."""
        return self.image.rpartition("-")[0]


@dataclass(frozen=True)
class State:
    """The directory that holds everything; nothing is written elsewhere."""

    root: Path

    @classmethod
    def default(cls) -> State:
        """Return ``$SANDBOX_DIR``, or ``.sandbox/`` of this checkout."""
        configured = os.environ.get("SANDBOX_DIR")
        root = Path(configured) if configured else Path(__file__).parents[1] / ".sandbox"
        return cls(root.expanduser().resolve())

    @property
    def marker(self) -> Path:
        """Return the file that tells a sandbox from any other directory."""
        return self.root / "CACHEDIR.TAG"

    @property
    def images(self) -> Path:
        """Return where root file systems lie, one for each recipe."""
        return self.root / "images"

    @property
    def hosts(self) -> Path:
        """Return where each host keeps its record, its changes and its console."""
        return self.root / "hosts"

    @property
    def ssh(self) -> Path:
        """Return where the key, ``config`` and ``known_hosts`` lie."""
        return self.root / "ssh"

    @property
    def store(self) -> Path:
        """Return the one mount that holds uv's cache and every host's ``/opt/sglang``."""
        return self.root / "store"

    @property
    def models(self) -> Path:
        """Return what hosts see, read-only, as ``/srv/models``."""
        return self.root / "models"

    @property
    def locks(self) -> Path:
        """Return where the lock files lie."""
        return self.root / "locks"

    @property
    def parts(self) -> tuple[Path, ...]:
        """Return every directory that the sandbox makes in ``root``."""
        return (self.images, self.hosts, self.ssh, self.store, self.models, self.locks)

    @property
    def digest(self) -> str:
        """Return eight characters that tell this sandbox from any other on the machine."""
        return hashlib.sha256(bytes(self.root)).hexdigest()[:8]

    @property
    def prefix(self) -> str:
        """Return what the names of this sandbox's cells, and of no other, begin with."""
        return f"sglang-sandbox-{self.digest}"

    def cell_name(self, host: str) -> str:
        """Return the name of a host's cell."""
        return f"{self.prefix}-host-{host}"

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Make the directory a sandbox and keep it from being cleaned meanwhile.

        A directory that holds somebody else's files is refused: `clean` would delete them.
        """
        if set(":,\\\"'") & set(str(self.root)):
            raise SandboxError(f"{self.root}: no : , \\ or quotes may be in the path; set SANDBOX_DIR")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.marker.exists():
            if any(self.root.iterdir()):
                raise SandboxError(f"{self.root} is not empty and not a sandbox; set SANDBOX_DIR")
            write_atomically(self.marker, MARKER)
        with held(self.marker, fcntl.LOCK_SH | fcntl.LOCK_NB, busy=f"{self.root} is being cleaned"):
            for part in self.parts:
                part.mkdir(exist_ok=True)
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep every other command away; a directory that is no sandbox needs no lock."""
        if not self.exists():
            yield
            return
        busy = f"another command uses {self.root}"
        with held(self.marker, fcntl.LOCK_EX | fcntl.LOCK_NB, busy=busy):
            yield

    @contextmanager
    def lock(self, name: str, *, wait: bool = False) -> Iterator[None]:
        """Hold the lock ``name``; when it is taken, wait or raise ``SandboxError``."""
        path = self.locks / name
        path.touch(mode=0o600)
        mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        with held(path, mode, busy=f"{name} is being changed by another command"):
            yield

    def exists(self) -> bool:
        """Tell whether the directory is a sandbox."""
        return self.marker.is_file()

    def delete(self) -> None:
        """Delete what the sandbox made, and the directory when nothing else is in it."""
        for part in self.parts:
            remove_tree(part)
        self.marker.unlink()
        with suppress(OSError):  # not empty: somebody keeps a file here
            self.root.rmdir()

    def directory(self, name: str) -> Path:
        """Return the host's directory; a bad name raises ``SandboxError``."""
        if not NAME.fullmatch(name):
            raise SandboxError(f"{name!r}: a name is a-z, 0-9 and -, begins with a letter, at most 31 long")
        return self.hosts / name

    def record(self, host: Host, directory: Path) -> None:
        """Write ``host.json`` into the host's directory."""
        write_atomically(directory / "host.json", json.dumps(asdict(host), indent=2) + "\n")

    def find(self, name: str) -> Host | None:
        """Return the record of a host, None where there is none."""
        try:
            return Host(**json.loads((self.directory(name) / "host.json").read_text()))
        except FileNotFoundError:
            return None

    def get(self, name: str) -> Host:
        """Return the record of a host that must exist."""
        host = self.find(name)
        if host is None:
            known = ", ".join(other.name for other in self.recorded()) or "none"
            raise SandboxError(f"no host {name!r} in {self.root} (known: {known})")
        return host

    def recorded(self) -> list[Host]:
        """Return all hosts by name."""
        names = sorted(path.parent.name for path in self.hosts.glob("[a-z]*/host.json"))
        return [host for name in names if (host := self.find(name))]


@contextmanager
def held(path: Path, mode: int, *, busy: str) -> Iterator[None]:
    """Hold a lock on a file; the kernel lets go of it with the process, however that ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            raise SandboxError(busy) from None
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise SandboxError(busy)  # `clean` removed the file after we had opened it
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def remove_tree(path: Path) -> None:
    """Remove a directory that may not be there. No mount can lie below it: those are in cells."""
    if path.exists():
        shutil.rmtree(path)
