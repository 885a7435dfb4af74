"""Which states has an instance had on this host, which one is wanted, and which was the last one proven?

A state is everything that makes an instance: its plan, its files exactly as they stand when installed, where
they came from, and what became of each start. Each lies in a directory of its own that is complete from the
moment at which it has its name. Two links point into them: ``wanted``, what the last deploy or rollback asked
for, and ``known-good``, the last one that was proven ready.

The parent directory belongs to the account of the engines, which run models' code; root installs what lies
here. So a directory or file that is not root's alone to write is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import fileset
from .problem import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT = 1
"""Raised when an older kit would misread a state; keys that are only added do not raise it."""
ROOT = "/var/lib/sglang/instances"
KEEP = 10
"""States kept of an instance besides ``wanted`` and ``known-good``, the newest ones."""
KEEP_FAILURES = 5
KEEP_RESULTS = 20

WANTED = "wanted"
KNOWN_GOOD = "known-good"
READY = "ready"
FAILED = "failed"
ROLLED_BACK = "rolled_back"
RESULTS = {READY: "ready", FAILED: "failed", ROLLED_BACK: "ready again"}
"""What became of a start, for people: a state is ready again when its instance was set back to it."""

_STATE = "state.json"
_FILES = "files"
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
_NEW, _OLD = ".new", ".old"
"""A state on its way in or out; an interrupted run may leave either."""


def identifier(moment: datetime, fingerprint: str) -> str:
    """Name a state: when it was made, and the beginning of its fingerprint."""
    return f"{moment.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}-{fingerprint[:8]}"


def described(files: Iterable[fileset.File]) -> list[dict[str, str]]:
    """Describe files as a state does; what they hold lies beside it."""
    return [
        {
            "path": file.path,
            "mode": f"{file.mode:04o}",
            "owner": file.owner,
            "group": file.group,
            "sha256": _digest(_encoded(file.content)),
        }
        for file in files
    ]


def succeeded(state: Mapping[str, Any]) -> bool:
    """Whether a start of this state was ever proven ready."""
    return any(one["result"] in (READY, ROLLED_BACK) for one in state["results"])


def target(
    states: Sequence[Mapping[str, Any]], *, wanted: str | None, known_good: str | None, running: str | None
) -> str | None:
    """Choose what a rollback without a named state goes back to; ``states`` are the newest first.

    That is known-good where something else is wanted or runs (``running`` is a fingerprint), and otherwise
    the last state before it that was ready with another process. None where there is neither.
    """
    prints = {state["id"]: state["fingerprint"] for state in states}
    if known_good is not None and (wanted != known_good or running != prints[known_good]):
        return known_good
    older = [
        state["id"]
        for state in states
        if known_good is not None
        and state["id"] < known_good
        and state["fingerprint"] != prints[known_good]
        and succeeded(state)
    ]
    return older[0] if older else None


@dataclass(frozen=True)
class Store:
    """The states of all instances of a host; ``group`` may read them, and not what they hold of secrets."""

    root: str = ROOT
    owner: str = "root"
    group: str = "sglang"

    # --- reading ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """List the instances that have or had a state here."""
        return sorted(one.name for one in self._listed(Path(self.root)) if (one / "states").is_dir())

    def ids(self, name: str) -> list[str]:
        """List the states of an instance, the newest first; whatever else lies beside them is none."""
        found = [place for place in self._listed(self._states(name)) if _NAME.fullmatch(place.name)]
        return sorted((place.name for place in found if (place / _STATE).is_file()), reverse=True)

    def read(self, name: str, state: str) -> dict[str, Any]:
        """Read one state.

        Raises ``ProblemsError`` where there is none, where it is damaged, or where a later version of this
        kit has written it.
        """
        place = self._states(name) / state / _STATE
        try:
            self._trust(place.parent)
            content: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = ", ".join(self.ids(name)[:3]) or "none"
            raise _problem(name, f"has no state {state!r}", f"the newest are {known}") from None
        except ValueError as wrong:
            raise _problem(name, f"{place} is damaged: {wrong}", f"remove {place.parent}") from None
        if content["format"] > FORMAT:
            raise _problem(
                name,
                f"{place} has format {content['format']}, this version reads up to {FORMAT}",
                "use the version of sglang-metal that deployed last, or a later one",
            )
        return content

    def history(self, name: str) -> list[dict[str, Any]]:
        """Read all states of an instance, the newest first."""
        return [self.read(name, state) for state in self.ids(name)]

    def pointed(self, name: str, link: str) -> str | None:
        """Tell where ``wanted`` or ``known-good`` points to; None where it points nowhere."""
        place = Path(self.root, name, link)
        with suppress(FileNotFoundError):
            self._trust(place.parent)
            state = place.readlink().name
            return state if state in self.ids(name) else None
        return None

    def at(self, name: str, link: str) -> dict[str, Any] | None:
        """Read the state to which ``wanted`` or ``known-good`` points."""
        state = self.pointed(name, link)
        return None if state is None else self.read(name, state)

    def running(self, name: str, fingerprint: str | None) -> dict[str, Any] | None:
        """Find the state of the process that runs: the wanted one, or the newest, with its fingerprint."""
        if fingerprint is None:
            return None
        wanted = self.pointed(name, WANTED)
        known = [*([wanted] if wanted else []), *self.ids(name)]
        likely = (self.read(name, state) for state in known if state.endswith(f"-{fingerprint[:8]}"))
        return next((state for state in likely if state["fingerprint"] == fingerprint), None)

    def files(self, state: Mapping[str, Any]) -> tuple[fileset.File, ...]:
        """Bring the files of a state, ready to be compared with the host.

        Raises ``ProblemsError`` where one is not what the state says.
        """
        changed = self.changed(state)
        if changed:
            raise _problem(state["instance"], f"the copy of {changed[0]} in state {state['id']} was changed")
        return tuple(
            fileset.File(
                one["path"],
                self._copy(state, one["path"]).decode("utf-8", "surrogateescape"),
                int(one["mode"], 8),
                one["owner"],
                one["group"],
            )
            for one in state["files"]
        )

    def changed(self, state: Mapping[str, Any]) -> list[str]:
        """Name the files of which the state's copy is not what it was."""
        return [
            one["path"] for one in state["files"] if _digest(self._copy(state, one["path"])) != one["sha256"]
        ]

    def obstacle(self, state: Mapping[str, Any]) -> str:
        """Say why a state cannot come back; "" where it can."""
        needed = {"release": state["release"], "model": state["plan"].get("model")}
        gone = [
            f"its {what} {path} is gone" for what, path in needed.items() if path and not Path(path).exists()
        ]
        return "; ".join([*gone, *(f"its copy of {path} was changed" for path in self.changed(state))])

    def _copy(self, state: Mapping[str, Any], path: str) -> bytes:
        place = self._states(state["instance"]) / state["id"] / _FILES / path.lstrip("/")
        return place.read_bytes() if place.is_file() else b""

    def releases(self) -> set[str]:
        """Name the releases that a wanted or known-good state needs, whatever the inventory says."""
        links = [(name, link) for name in self.names() for link in (WANTED, KNOWN_GOOD)]
        return {state["release"] for name, link in links if (state := self.at(name, link))}

    # --- writing ---------------------------------------------------------------------------------

    def stage(
        self, plan: Mapping[str, Any], files: Sequence[fileset.File], origin: Mapping[str, Any], now: datetime
    ) -> str:
        """Record what is wanted of an instance, and return the state's name; an equal one is not made twice.

        ``origin`` holds what the host adds: ``by``, ``model`` and ``host``.
        """
        name = plan["name"]
        if self.staged(plan, files):
            return str(self.pointed(name, WANTED))
        made = max([now, *(_moment(state) + timedelta(seconds=1) for state in self.ids(name)[:1])])
        state = {
            "format": FORMAT,
            "id": identifier(made, plan["fingerprint"]),
            "instance": name,
            "made": made.isoformat(timespec="seconds"),
            "fingerprint": plan["fingerprint"],
            "release": plan["release"],
            "engine_version": plan["engine_version"],
            **origin,
            "plan": dict(plan),
            "files": described(files),
            "results": [],
        }
        self._add(state, files)
        self.point(name, WANTED, str(state["id"]))
        return str(state["id"])

    def staged(self, plan: Mapping[str, Any], files: Sequence[fileset.File]) -> bool:
        """Whether ``stage`` would make nothing new; a state whose copies were changed is made anew."""
        current = self.at(plan["name"], WANTED)
        return current is not None and current["files"] == described(files) and not self.changed(current)

    def point(self, name: str, link: str, state: str) -> None:
        """Let ``wanted`` or ``known-good`` point to a state; states that are too old go."""
        place = str(Path(self.root, name, link))
        self._put(fileset.File(place, target=f"states/{state}"))
        known = self.ids(name)
        kept = {*known[:KEEP], self.pointed(name, WANTED), self.pointed(name, KNOWN_GOOD)}
        for old in set(known) - kept:
            self._clear(name, _OLD)
            (self._states(name) / old).rename(self._states(name) / _OLD)
        self._clear(name, _OLD)

    def record(self, name: str, state: str, result: Mapping[str, Any]) -> None:
        """Note what became of a start; one that was ready makes the state known-good."""
        content = self.read(name, state)
        content["results"] = [*content["results"], dict(result)][-KEEP_RESULTS:]
        self._put(self._description(content, self._states(name) / state))
        if result["result"] in (READY, ROLLED_BACK):
            self.point(name, KNOWN_GOOD, state)

    def keep_failure(self, name: str, texts: Mapping[str, str], now: datetime) -> None:
        """Keep what explains a failed start, whatever the clock says; the oldest others go."""
        folder = Path(self.root, name, "failures")
        self._directory(folder)
        place = folder / f"{now.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"
        self._directory(place)
        self._put(*(self._file(place / Path(file).name, text) for file, text in texts.items()))
        others = sorted(one for one in self._listed(folder) if one != place)
        for old in others[: 1 - KEEP_FAILURES]:
            shutil.rmtree(old)

    def _add(self, state: Mapping[str, Any], files: Sequence[fileset.File]) -> None:
        """Build a state aside, and give it its name when all of it is on the disk."""
        states = self._states(state["instance"])
        for folder in (states.parents[1], states.parent, states):
            self._directory(folder)
        self._clear(state["instance"], _NEW)
        new = states / _NEW
        self._directory(new)
        folder = new / _FILES
        folder.mkdir(mode=0o700)
        copies = [
            fileset.File(str(folder / file.path.lstrip("/")), file.content, file.mode, file.owner, file.group)
            for file in files
        ]
        self._put(*copies, self._description(state, new))
        new.rename(states / state["id"])
        fileset.sync(states)

    def _description(self, state: Mapping[str, Any], folder: Path) -> fileset.File:
        return self._file(folder / _STATE, json.dumps(state, indent=1, ensure_ascii=False) + "\n")

    def _file(self, place: Path, text: str) -> fileset.File:
        return fileset.File(str(place), text, 0o640, self.owner, self.group)

    def _put(self, *files: fileset.File) -> None:
        fileset.apply([fileset.Change(file.path, None, None, file) for file in files])

    def _directory(self, place: Path) -> None:
        try:
            place.mkdir(mode=0o700)
            place.chmod(0o750)
        except FileExistsError:
            self._trust(place)
        shutil.chown(place, self.owner, self.group)

    def _clear(self, name: str, half: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._states(name) / half)

    # --- trust -----------------------------------------------------------------------------------

    def _states(self, name: str) -> Path:
        return Path(self.root, name, "states")

    def _listed(self, place: Path) -> list[Path]:
        return [one for one in place.iterdir() if one.is_dir()] if place.is_dir() else []

    def _trust(self, place: Path) -> None:
        """Refuse a directory that another account than the owner could have made; it is below the root."""
        owner = pwd.getpwnam(self.owner).pw_uid
        chain = [place, *place.parents]
        for one in chain[: chain.index(Path(self.root)) + 1]:
            status = os.lstat(one)
            others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if status.st_uid != owner or others or not stat.S_ISDIR(status.st_mode):
                raise _problem(
                    "host", f"{one} is not a directory of {self.owner} alone", f"remove {self.root}"
                )


def _moment(state: str) -> datetime:
    return datetime.strptime(state.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _problem(name: str, message: str, remedy: str = "") -> ProblemsError:
    return ProblemsError([Problem(name, "state", message, remedy)])
