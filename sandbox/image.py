"""Root file systems: one for each Debian suite, built once by mmdebstrap, shared by all hosts."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sandbox import machine
from sandbox.cell import Cell, run
from sandbox.console import SandboxError, say
from sandbox.state import State, remove_tree

if TYPE_CHECKING:
    from pathlib import Path

SUITES = ("bookworm", "trixie")
# What a minimal server of a hoster has: systemd as PID 1, sshd, Python and apt for Ansible.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "systemd",
    "systemd-sysv",
)
# They would take apt's lock at a random moment.
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer")
LOG_LINES = 20
OWN_CERTIFICATES = "usr/local/share/ca-certificates"


@dataclass(frozen=True)
class Recipe:
    """Everything that an image depends on but the packages' versions."""

    suite: str
    sources: tuple[str, ...]
    apt_settings: tuple[str, ...]
    certificates: tuple[str, ...]
    packages: tuple[str, ...] = PACKAGES
    masked: tuple[str, ...] = MASKED

    @classmethod
    def of_machine(cls, suite: str) -> Recipe:
        """Return the recipe that fits the machine's own mirrors and certificates."""
        return cls(
            suite,
            tuple(machine.machine_sources(suite)),
            tuple(machine.machine_apt_settings()),
            tuple(machine.certificates(machine.machine_bundle())),
        )

    @property
    def name(self) -> str:
        """Return the image's directory: another recipe is another image."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return f"{self.suite}-{digest[:8]}"

    def command(self, target: Path) -> list[str]:
        """Return the argv of mmdebstrap."""
        return [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            "--format=directory",
            f"--include={','.join(self.packages)}",
            # A lost sandbox is made again; syncing each file costs more than it is worth.
            "--dpkgopt=force-unsafe-io",
            *(f"--aptopt={setting}" for setting in self.apt_settings),
            self.suite,
            str(target),
            *self.sources,
        ]


def tail(log: Path) -> str:
    """Return the last lines of a log, indented."""
    return "".join(f"  {line}\n" for line in log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def ensure(state: State, suite: str) -> str:
    """Build the image of a suite unless it is there; return its name."""
    recipe = Recipe.of_machine(suite)
    image = state.images / recipe.name
    with state.lock(f"image-{suite}", wait=True):
        if image.is_dir():
            return recipe.name
        say(f"{suite}: building the image from {recipe.sources[0].split()[1]}")
        started = time.monotonic()
        partial = state.images / f".{recipe.name}.partial"
        scratch = state.images / f".{recipe.name}.tmp"
        cell = Cell.named(f"{state.prefix}-image-{suite}")
        try:
            build(recipe, cell, partial, scratch)
            partial.rename(image)
        finally:
            cell.kill()
            remove_tree(partial)
            remove_tree(scratch)
        say(f"{suite}: built in {time.monotonic() - started:.0f} s")
    return recipe.name


def build(recipe: Recipe, cell: Cell, target: Path, scratch: Path) -> None:
    """Run mmdebstrap in its cell, then make the tree a template that hosts are made from."""
    cell.kill()  # of a build that was interrupted
    for directory in (target, scratch):
        remove_tree(directory)
        directory.mkdir()
    log = target.with_name(f"{recipe.suite}.log")
    script = f"exec {shlex.join(recipe.command(target))}"
    if cell.start(script, directory=scratch, log=log, environment={"TMPDIR": str(scratch)}).wait():
        raise SandboxError(f"building the {recipe.suite} image failed ({log}):\n{tail(log)}")

    for path in (target / "etc/hostname", target / "etc/resolv.conf", *target.glob("etc/ssh/ssh_host_*")):
        path.unlink(missing_ok=True)
    for unit in recipe.masked:
        (target / "etc/systemd/system" / unit).symlink_to("/dev/null")
    (target / "etc/default/locale").write_text("LANG=C.UTF-8\n")
    (target / "var/log/journal").mkdir(exist_ok=True)  # the journal survives a reboot
    trust(target, recipe.certificates)


def trust(target: Path, certificates: tuple[str, ...]) -> None:
    """Add the certificates that the machine trusts and Debian does not: a company's own."""
    known = set(machine.certificates((target / str(machine.BUNDLE)[1:]).read_text()))
    own = [certificate for certificate in certificates if certificate not in known]
    for number, certificate in enumerate(own):
        (target / OWN_CERTIFICATES / f"machine-{number}.crt").write_text(certificate)
    if own:
        run(["chroot", target, "update-ca-certificates"])
