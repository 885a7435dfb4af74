"""Bundles, written and unpacked; and what is wrong with those that are not whole."""

from __future__ import annotations

import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest
from sglang_kit import bundle
from sglang_kit.bundle import BundleError, Manifest

if TYPE_CHECKING:
    from pathlib import Path

LOCK = "52d6472cc10699365e4e9630b9b7f219b9c89a7b15d2d135879a1c6e7ca44055"


def sources(folder: Path) -> dict[str, Path]:
    folder.mkdir()
    texts = {
        "wheels/b-1-py3-none-any.whl": "b" * 3_000_000,
        "wheels/a-1-py3-none-any.whl": "a",
        "lock.txt": "l",
    }
    found = {}
    for name, text in texts.items():
        found[name] = folder / name.replace("/", "-")
        found[name].write_text(text, encoding="utf-8")
    return found


def write(folder: Path, target: Path, **changes: str) -> Path:
    files = sources(folder)
    checksums = {name: bundle.digest(path) for name, path in files.items()}
    bundle.write(target, Manifest("0.5.23", LOCK, ("3.11",), {**checksums, **changes}), files)
    return target


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    first = write(tmp_path / "one", tmp_path / "one.tar")
    os.utime(first, (1, 1))
    second = write(tmp_path / "two", tmp_path / "two.tar")
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        members = tar.getmembers()
    assert [member.name for member in members][:2] == ["manifest.json", "lock.txt"]
    assert {(member.uid, member.gid, member.mtime, member.mode) for member in members} == {(0, 0, 0, 0o644)}


def test_its_wheels_are_unpacked_and_nothing_else(tmp_path: Path) -> None:
    place = bundle.unpack(write(tmp_path / "one", tmp_path / "one.tar"), tmp_path / "wheels", lock=LOCK)
    assert {path.name for path in place.iterdir()} == {"a-1-py3-none-any.whl", "b-1-py3-none-any.whl"}
    assert (place / "b-1-py3-none-any.whl").stat().st_size == 3_000_000


def refused(path: Path, place: Path) -> str:
    with pytest.raises(BundleError) as caught:
        bundle.unpack(path, place, lock=LOCK)
    return str(caught.value)


def test_a_file_that_is_not_the_one_of_the_manifest(tmp_path: Path) -> None:
    path = write(tmp_path / "one", tmp_path / "one.tar", **{"wheels/a-1-py3-none-any.whl": "0" * 64})
    assert "a-1-py3-none-any.whl is not the file of its manifest; copy it again" in refused(
        path, tmp_path / "w"
    )


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "one", tmp_path / "one.tar", **{"wheels/c-1-py3-none-any.whl": "0" * 64})
    assert "lacks c-1-py3-none-any.whl" in refused(path, tmp_path / "w")


def test_a_bundle_of_another_lock(tmp_path: Path) -> None:
    path = write(tmp_path / "one", tmp_path / "one.tar")
    with pytest.raises(BundleError, match=r"is of SGLang 0\.5\.23 with another lock; make it again"):
        bundle.unpack(path, tmp_path / "w", lock="0" * 64)


def test_a_bundle_that_was_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "one", tmp_path / "one.tar")
    path.write_bytes(path.read_bytes()[:-2_000_000])
    assert "is cut off or no bundle" in refused(path, tmp_path / "w")


@pytest.mark.parametrize("first", ["other.json", None])
def test_a_tar_that_is_no_bundle(tmp_path: Path, first: str | None) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        if first:
            tar.addfile(tarfile.TarInfo(first), io.BytesIO())
    assert "does not begin with manifest.json" in refused(path, tmp_path / "w")


def test_a_bundle_of_a_later_version(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    text = json.dumps({"format": 2}).encode()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    assert "has format 2, and 1 is the newest known here" in refused(path, tmp_path / "w")


def test_a_bundle_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be unpacked: [Errno 2]" in refused(tmp_path / "none.tar", tmp_path / "w")
