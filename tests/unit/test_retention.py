"""Which releases may go, and that they go whole."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from sglang_kit import processes, release, retention
from sglang_kit.processes import Process
from sglang_kit.retention import Found

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("0.5.23-d", "0.5.20-c", "0.5.15-b", "0.5.11-a")


class States:
    """States of instances that need these releases."""

    def __init__(self, *releases: str) -> None:
        self._releases = set(releases)

    def releases(self) -> set[str]:
        return self._releases


class Host:
    """Releases below a root that is known by a link, the first one the newest; nothing needs one."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = path / "store"
        self.root = path / "sglang"
        self.root.symlink_to(self.place)
        for age, name in enumerate(NAMES):
            marker = self.place / "releases" / name / release.MARKER
            marker.parent.mkdir(parents=True)
            marker.touch()
            os.utime(marker, (1000 - age, 1000 - age))
        for name in ("locks", "uv", "cache/archive-v0"):
            (self.place / name).mkdir(parents=True)
        self.units = path / "units"
        self.plans = path / "plans"
        self.proc = path / "proc"
        for place in (self.units, self.plans, self.proc):
            place.mkdir()
        self.running: list[Process] = []
        monkeypatch.setattr(retention, "UNITS", self.units)
        monkeypatch.setattr(retention, "PLANS", self.plans)
        monkeypatch.setattr(processes, "PROC", self.proc)
        monkeypatch.setattr(processes, "running", lambda: self.running)

    def look(self, *states: str) -> Found:
        return retention.look(str(self.root), States(*states))  # type: ignore[arg-type]

    def remove(self, *names: str) -> None:
        retention.remove(str(self.root), names, str(self.place / "cache"))

    def run(self, pid: int, *argv: str, maps: str = "") -> None:
        self.running.append(Process(pid, 0, argv, ""))
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "maps").write_text(maps, encoding="utf-8")

    @property
    def there(self) -> set[str]:
        return {place.name for place in (self.place / "releases").iterdir()} - {".lock"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_the_newest_releases_stay(host: Host) -> None:
    found = host.look()
    assert found == Found(NAMES, frozenset(), ())
    assert retention.removable(found, 2) == ["0.5.15-b", "0.5.11-a"]
    assert retention.removable(found, 9) == []


def test_a_release_that_is_not_complete_is_none(host: Host) -> None:
    (host.place / "releases" / "0.5.11-a" / release.MARKER).unlink()
    assert host.look().releases == NAMES[:3]


def test_what_is_needed_stays_whatever_needs_it(host: Host) -> None:
    root = host.root
    (root / "current").symlink_to("releases/0.5.11-a")
    assert host.look().needed == {"0.5.11-a"}
    (host.plans / "chat.plan.json").write_text(
        f'{{"argv": ["{root}/releases/0.5.15-b/bin/python"]}}', encoding="utf-8"
    )
    assert host.look().needed == {"0.5.11-a", "0.5.15-b"}
    assert retention.removable(host.look(), 1) == ["0.5.20-c"]
    assert host.look(f"{root}/releases/0.5.20-c").needed == {"0.5.11-a", "0.5.15-b", "0.5.20-c"}
    assert retention.removable(host.look(f"{root}/releases/0.5.20-c"), 0) == ["0.5.23-d"]


@pytest.mark.parametrize("name", ["sglang-chat.service", "other.service", "sglang-chat.service.d/own.conf"])
def test_units_and_what_was_added_to_them_are_read(host: Host, name: str) -> None:
    place = host.units / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(f'Environment="PATH={host.root}/releases/0.5.20-c/bin:/usr/bin"\n', encoding="utf-8")
    (host.units / "gone.service").symlink_to("nowhere")
    assert host.look().needed == {"0.5.20-c"}


def test_a_running_process_keeps_what_it_was_started_from_and_what_it_has_open(host: Host) -> None:
    host.run(1, f"{host.root}/releases/0.5.11-a/bin/python", "-m", "sglang.launch_server")
    host.run(
        2, "sglang::scheduler", maps=f"7f00-7f01 r-xp 0 08:01 9 {host.place}/releases/0.5.15-b/lib/x.so\n"
    )
    host.running.append(Process(3, 0, ("ended",), ""))
    assert host.look().needed == {"0.5.11-a", "0.5.15-b"}


def test_a_removed_release_takes_its_lock_along_and_leftovers_go(host: Host) -> None:
    for name in NAMES:
        (host.place / "locks" / f"{name}.txt").touch()
    for left in ("packages/0.5.20-z", "releases/.building-x", "releases/.removing-y", "uv/.building-0.13"):
        (host.place / left / "half").mkdir(parents=True)
    (host.place / "releases" / "of somebody else").mkdir()
    found = host.look()
    assert [left.rpartition("/")[2] for left in found.leftovers] == [
        "0.5.20-z",
        ".building-x",
        ".removing-y",
        ".building-0.13",
    ]
    host.remove("0.5.11-a", "0.5.15-b")
    assert host.there == {"0.5.23-d", "0.5.20-c", "of somebody else"}
    assert {place.name for place in (host.place / "locks").iterdir()} == {"0.5.23-d.txt", "0.5.20-c.txt"}
    assert host.look().leftovers == ()


def archives(host: Host) -> set[str]:
    return {place.name for place in (host.place / "cache/archive-v0").iterdir()}


def fill(host: Host) -> None:
    """Unpack packages: one of an old release alone, one that it shares, and one that none has used yet."""
    for name in ("alone", "shared", "new"):
        folder = host.place / "cache/archive-v0" / name / "torch"
        folder.mkdir(parents=True)
        (folder / "RECORD").touch()
        (folder / "lib.so").touch()
    for link, name in (("0.5.11-a/a.so", "alone"), ("0.5.11-a/b.so", "shared"), ("0.5.23-d/b.so", "shared")):
        (host.place / "releases" / link).hardlink_to(host.place / f"cache/archive-v0/{name}/torch/lib.so")


def test_packages_that_only_a_removed_release_used_are_forgotten(host: Host) -> None:
    fill(host)
    host.remove()
    assert archives(host) == {"alone", "shared", "new"}, "nothing was removed"
    host.remove("0.5.11-a")
    assert archives(host) == {"shared", "new"}


def test_nothing_is_forgotten_while_uv_is_at_work(host: Host) -> None:
    fill(host)
    with (host.place / "cache/.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        host.remove("0.5.11-a")
    assert archives(host) == {"alone", "shared", "new"}
    assert "0.5.11-a" not in host.there
