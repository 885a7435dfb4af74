from __future__ import annotations

import grp
import os
import pwd
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from sglang_kit.fileset import Change, File, apply, compare, manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = pwd.getpwuid(os.geteuid()).pw_name
GROUP = grp.getgrgid(os.getegid()).gr_name


def file(path: Path, content: str = "text\n", *, mode: int = 0o640, group: str = GROUP) -> File:
    return File(str(path), content, mode, owner=USER, group=group)


def link(path: Path, target: str) -> File:
    return File(str(path), target=target)


def install(*wanted: File, installed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Make it so, and tell which paths were touched."""
    changes = compare(wanted, installed)
    apply(changes)
    return tuple(change.path for change in changes)


def everything_below(directory: Path) -> dict[str, str]:
    """Files and links by name; staged leftovers would be among them."""
    return {
        str(place.relative_to(directory)): str(place.readlink()) if place.is_symlink() else place.read_text()
        for place in directory.rglob("*")
        if place.is_symlink() or place.is_file()
    }


@contextmanager
def small_disk() -> Iterator[None]:
    """No file can grow beyond 4 KiB, as on a full disk; the test run's own log neither, so only inside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_new_set_is_written_whole(tmp_path: Path) -> None:
    wanted = (
        file(tmp_path / "etc" / "chat.env", 'A="größe"\n'),
        file(tmp_path / "units" / "chat.service", "[Unit]\n", mode=0o644),
        link(tmp_path / "kit", "kits/0123"),
    )
    assert compare(wanted, ()) == tuple(
        Change(one.path, None, after, one)
        for one, after in zip(wanted, ('A="größe"\n', "[Unit]\n", "-> kits/0123\n"))
    )
    install(*wanted)
    assert everything_below(tmp_path) == {
        "etc/chat.env": 'A="größe"\n',
        "units/chat.service": "[Unit]\n",
        "kit": "kits/0123",
    }
    assert (tmp_path / "etc" / "chat.env").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "units" / "chat.service").stat().st_mode & 0o7777 == 0o644


def test_comparing_writes_nothing(tmp_path: Path) -> None:
    compare([file(tmp_path / "new" / "chat.env")], [str(tmp_path / "old")])
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    wanted = file(tmp_path / "a"), file(tmp_path / "empty", ""), link(tmp_path / "b", "a")
    assert len(install(*wanted)) == 3
    before = {place: place.lstat() for place in tmp_path.iterdir()}
    assert install(*wanted) == ()
    assert {place: place.lstat() for place in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", ["a\r\nb\r", "\r", "a\x0b\x0c\x1c\u0085\u2028b", "\ufeffa", "\udcff\n"])
def test_a_second_run_changes_nothing_whatever_the_line_ends(tmp_path: Path, content: str) -> None:
    wanted = file(tmp_path / "chat.env", content)
    install(wanted)
    assert (tmp_path / "chat.env").read_bytes() == content.encode("utf-8", "surrogateescape")
    assert compare([wanted], ()) == ()


def test_foreign_line_ends_are_a_difference(tmp_path: Path) -> None:
    wanted = file(tmp_path / "chat.env", "a\nb\n")
    install(wanted)
    (tmp_path / "chat.env").write_bytes(b"a\r\nb\r\n")
    assert [change.before for change in compare([wanted], ())] == ["a\r\nb\r\n"]


def test_only_what_differs_is_touched(tmp_path: Path) -> None:
    install(file(tmp_path / "a"), file(tmp_path / "b"))
    untouched = (tmp_path / "a").stat()
    assert install(file(tmp_path / "a"), file(tmp_path / "b", "new\n")) == (str(tmp_path / "b"),)
    assert (tmp_path / "a").stat() == untouched
    assert (tmp_path / "b").read_text() == "new\n"


def test_a_wrong_mode_is_put_right(tmp_path: Path) -> None:
    wanted = file(tmp_path / "a", mode=0o640)
    install(wanted)
    (tmp_path / "a").chmod(0o666)
    (change,) = compare([wanted], ())
    assert change.before == change.after
    apply([change])
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_wrong_owner_is_put_right(tmp_path: Path) -> None:
    wanted = file(tmp_path / "a")
    install(wanted)
    os.chown(tmp_path / "a", 12345, 12345)
    install(wanted)
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_content_that_is_no_text_is_shown_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\xfe\0binary")
    (change,) = compare([file(tmp_path / "a")], ())
    assert change.before == "\udcff\udcfe\0binary"
    apply([change])
    assert (tmp_path / "a").read_text() == "text\n"


def test_a_link_follows_its_target(tmp_path: Path) -> None:
    install(link(tmp_path / "kit", "kits/old"))
    (change,) = compare([link(tmp_path / "kit", "kits/new")], ())
    assert (change.before, change.after) == ("-> kits/old\n", "-> kits/new\n")
    apply([change])
    assert str((tmp_path / "kit").readlink()) == "kits/new"


def test_a_link_where_a_file_is_wanted_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("text\n")
    (tmp_path / "a").symlink_to(precious)
    install(file(tmp_path / "a", "new\n"))
    assert everything_below(tmp_path) == {"a": "new\n", "precious": "text\n"}
    assert not (tmp_path / "a").is_symlink()


def test_a_file_where_a_link_is_wanted_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kit").write_text("-> kits/0123\n")
    install(link(tmp_path / "kit", "kits/0123"))
    assert (tmp_path / "kit").is_symlink()


def test_a_dangling_link_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    install(file(tmp_path / "a"))
    assert everything_below(tmp_path) == {"a": "text\n"}


def test_what_is_wanted_no_more_is_removed(tmp_path: Path) -> None:
    old = install(file(tmp_path / "a"), file(tmp_path / "b"), link(tmp_path / "c", "a"))
    changes = compare([file(tmp_path / "a")], old)
    assert [(change.path, change.after, change.wanted) for change in changes] == [
        (str(tmp_path / "b"), None, None),
        (str(tmp_path / "c"), None, None),
    ]
    apply(changes)
    assert everything_below(tmp_path) == {"a": "text\n"}


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("x")
    old = install(file(tmp_path / "a"))
    install(installed=old)
    assert everything_below(tmp_path) == {"foreign": "x"}


def test_what_somebody_removed_already_is_no_change(tmp_path: Path) -> None:
    assert compare([], [str(tmp_path / "gone")]) == ()


def test_leftovers_of_an_interrupted_run_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".a.staged").write_text("half")
    (tmp_path / ".b.staged").symlink_to("nowhere")
    install(file(tmp_path / "a"), link(tmp_path / "b", "a"))
    assert everything_below(tmp_path) == {"a": "text\n", "b": "a"}


def test_a_missing_group_replaces_nothing(tmp_path: Path) -> None:
    install(file(tmp_path / "a", "old\n"))
    changes = compare([file(tmp_path / "a", "new\n"), file(tmp_path / "b", group="no-such-group")], ())
    with pytest.raises(KeyError, match="no-such-group"):
        apply(changes)
    assert everything_below(tmp_path) == {"a": "old\n"}


def test_a_missing_group_is_a_difference_so_that_check_mode_can_predict_it(tmp_path: Path) -> None:
    install(file(tmp_path / "a"))
    assert len(compare([file(tmp_path / "a", group="no-such-group")], ())) == 1


def test_a_full_disk_replaces_nothing(tmp_path: Path) -> None:
    old = install(file(tmp_path / "a", "old\n"), file(tmp_path / "gone", "old\n"))
    changes = compare([file(tmp_path / "a", "new\n"), file(tmp_path / "big", "x" * 10_000)], old)
    with pytest.raises(OSError, match="File too large"), small_disk():
        apply(changes)
    assert everything_below(tmp_path) == {"a": "old\n", "gone": "old\n"}


def test_text_that_cannot_be_written_replaces_nothing(tmp_path: Path) -> None:
    install(file(tmp_path / "a", "old\n"))
    changes = compare([file(tmp_path / "a", "new\n"), file(tmp_path / "b", "\ud800")], ())
    with pytest.raises(UnicodeEncodeError):
        apply(changes)
    assert everything_below(tmp_path) == {"a": "old\n"}


def test_directories_can_be_entered_on_a_hardened_host(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install(file(tmp_path / "kits" / "0123" / "launch.py"))
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("kits", "kits/0123")] == [0o755, 0o755]


def test_a_file_in_the_way_of_a_directory_replaces_nothing(tmp_path: Path) -> None:
    install(file(tmp_path / "a", "old\n"))
    changes = [Change(str(tmp_path / "a"), "old\n", "new\n", file(tmp_path / "a", "new\n"))]
    changes.append(Change(str(tmp_path / "a" / "b"), None, "text\n", file(tmp_path / "a" / "b")))
    with pytest.raises(FileExistsError):
        apply(changes)
    assert everything_below(tmp_path) == {"a": "old\n"}


def test_a_rename_that_fails_leaves_nothing_staged(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "foreign").write_text("x")
    wanted = file(tmp_path / "b")
    with pytest.raises(OSError, match="directory"):
        apply([Change(wanted.path, None, wanted.content, wanted)])
    assert everything_below(tmp_path) == {"b/foreign": "x"}


def test_the_manifest_names_the_whole_set_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "var" / "files.json"
    assert read_manifest(str(path)) == ()
    wanted = [file(tmp_path / "b"), link(tmp_path / "ä", "b")]
    listed = manifest(str(path), wanted)
    path.parent.mkdir()
    path.write_text(listed.content)
    assert (listed.path, listed.mode) == (str(path), 0o644)
    assert read_manifest(str(path)) == (str(tmp_path / "b"), str(tmp_path / "ä"))


def test_the_manifest_says_the_same_in_any_order() -> None:
    one, other = File("/a"), File("/b")
    assert manifest("/m", [one, other]) == manifest("/m", [other, one])
