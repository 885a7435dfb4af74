"""Model directories, whole and broken, written as safetensors writes them."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import model_files
from sglang_kit.model_files import Listing, Wanted

if TYPE_CHECKING:
    from pathlib import Path

WANT = Wanted("/srv/models/m", ("chat", "long"), tokenizer=True)
ME = os.geteuid()


def safetensors(**sizes: int) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(end)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a whole model of two shards, readable for everybody."""
    place = tmp_path / "m"
    place.mkdir()
    tmp_path.chmod(0o755)
    (place / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}', encoding="utf-8")
    (place / "tokenizer.json").write_text("{}", encoding="utf-8")
    (place / "a.safetensors").write_bytes(safetensors(x=100, y=28))
    (place / "b.safetensors").write_bytes(safetensors(z=64))
    (place / "old.safetensors").write_bytes(b"not named by the index")
    index = {"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return place


def seen(model: Path) -> Listing:
    """Look at a model as if it lay where models lie and not below /tmp."""
    listing = model_files.look(str(model), uid=ME, gids=[os.getegid()])
    assert listing is not None
    return replace(listing, place=WANT.path, closed="")


def faults(model: Path, want: Wanted = WANT) -> list[str]:
    return [str(problem) for problem in model_files.judge(want, seen(model))[1]]


def test_a_whole_model(model: Path) -> None:
    files, problems = model_files.judge(WANT, seen(model))
    assert problems == []
    assert files.config == {"architectures": ["Qwen3ForCausalLM"]}
    assert files.weight_bytes == 192


def test_without_an_index_every_file_counts(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    assert faults(model) == [
        "chat, long: /srv/models/m/old.safetensors: is no safetensors file; copy it again"
    ]
    (model / "old.safetensors").unlink()
    assert faults(model) == []


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert model_files.look(str(tmp_path / "absent"), uid=ME, gids=[]) is None
    files, problems = model_files.judge(WANT, None)
    assert files == model_files.Files({}, 0)
    assert [str(problem) for problem in problems] == [
        "chat, long: /srv/models/m: is not a directory on this host; copy the model there"
    ]


def test_a_file_that_was_cut_off(model: Path) -> None:
    whole = (model / "a.safetensors").read_bytes()
    (model / "a.safetensors").write_bytes(whole[:-10])
    assert faults(model) == [
        f"chat, long: /srv/models/m/a.safetensors: has {len(whole) - 10} of {len(whole)} bytes; copy it again"
    ]
    (model / "a.safetensors").write_bytes(whole[:40])
    assert faults(model) == [
        "chat, long: /srv/models/m/a.safetensors: is cut off in its header, at 40 bytes; copy it again"
    ]
    (model / "a.safetensors").write_bytes(b"")
    assert faults(model) == ["chat, long: /srv/models/m/a.safetensors: is no safetensors file; copy it again"]


def test_a_file_that_git_lfs_did_not_fetch(model: Path) -> None:
    (model / "b.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    assert faults(model) == [
        "chat, long: /srv/models/m/b.safetensors: is a Git LFS pointer, not the file itself; copy it again"
    ]


@pytest.mark.parametrize("header", ["{", "[1]", '{"x": {"data_offsets": [5, 1]}}', "[" * 100_000])
def test_a_header_that_says_nothing(model: Path, header: str) -> None:
    text = header.encode()
    (model / "b.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert faults(model) == ["chat, long: /srv/models/m/b.safetensors: has no readable header; copy it again"]


def test_files_and_tensors_that_the_index_promises(model: Path) -> None:
    (model / "a.safetensors").unlink()
    (model / "b.safetensors").write_bytes(safetensors(other=64))
    assert faults(model) == [
        (
            "chat, long: /srv/models/m: misses a.safetensors, which model.safetensors.index.json names;"
            " copy them"
        ),
        (
            "chat, long: /srv/models/m/b.safetensors: lacks 1 tensors that"
            " model.safetensors.index.json puts there,"
            " as z; copy it again"
        ),
    ]


@pytest.mark.parametrize(
    ("index", "fault"),
    [("{", "is no JSON"), ("{}", "has no weight_map"), ('{"weight_map": []}', "has no weight_map")],
)
def test_an_index_that_is_none(model: Path, index: str, fault: str) -> None:
    (model / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    (found,) = faults(model)
    assert found.startswith(f"chat, long: /srv/models/m/model.safetensors.index.json: {fault}")


def test_an_empty_directory_lacks_everything_at_once(tmp_path: Path) -> None:
    assert faults(tmp_path) == [
        "chat, long: /srv/models/m: has no config.json; copy the model again",
        "chat, long: /srv/models/m: has no weights; copy its .safetensors files",
        "chat, long: /srv/models/m: has no tokenizer; copy tokenizer.json beside config.json",
    ]


def test_a_config_that_does_not_parse(model: Path) -> None:
    (model / "config.json").write_text("[]", encoding="utf-8")
    (found,) = faults(model)
    assert found.startswith("chat, long: /srv/models/m/config.json: holds a list")


def test_a_draft_needs_no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert faults(model, replace(WANT, tokenizer=False)) == []
    (model / "qwen.tiktoken").touch()
    assert faults(model) == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-Q4_K_M.gguf"])
def test_other_formats_are_taken_by_name(tmp_path: Path, name: str) -> None:
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text("{}", encoding="utf-8")
    (tmp_path / name).touch()
    assert faults(tmp_path) == []
    assert model_files.judge(WANT, seen(tmp_path))[0].weight_bytes == 0


@pytest.mark.parametrize(("place", "hidden"), [("/home/me/m", "/home"), ("/root/m", "/root")])
def test_places_that_units_do_not_see(model: Path, place: str, hidden: str) -> None:
    (problem,) = model_files.judge(WANT, replace(seen(model), place=place))[1]
    assert problem.message == f"lies below {hidden}, which units do not see"


def test_a_name_that_only_begins_like_a_hidden_place(model: Path) -> None:
    assert model_files.judge(WANT, replace(seen(model), place="/homes/m"))[1] == []


@pytest.mark.parametrize(
    ("closed", "remedy"),
    [
        ("/srv/models/m/config.json", "chmod -R a+rX /srv/models/m"),
        ("/srv/models", "chmod a+x /srv/models"),
    ],
)
def test_what_the_account_may_not_read(model: Path, closed: str, remedy: str) -> None:
    (problem,) = model_files.judge(WANT, replace(seen(model), closed=closed))[1]
    assert problem.message == f"the account of the instances may not read {closed}"
    assert problem.remedy == remedy


def test_permissions_are_those_of_the_account(model: Path) -> None:
    def closed(uid: int, *gids: int) -> str:
        listing = model_files.look(str(model), uid=uid, gids=gids)
        assert listing is not None
        return listing.closed.removeprefix(f"{model.parent}/")

    group = model.stat().st_gid
    opened = model.parent.parent
    while not opened.stat().st_mode & 1:  # pytest's own directories are private
        opened.chmod(0o711)
        opened = opened.parent
    (model / "a.safetensors").chmod(0o640)
    (model / "b.safetensors").chmod(0o400)
    assert closed(ME) == ""
    assert closed(ME + 1) == "m/a.safetensors"
    assert closed(ME + 1, group) == "m/b.safetensors"
    model.chmod(0o711)
    assert closed(ME + 1) == "m"
    model.parent.chmod(0o700)
    assert closed(ME + 1) == str(model.parent)


def test_a_link_is_followed(model: Path) -> None:
    link = model.parent / "link"
    link.symlink_to(model)
    listing = model_files.look(str(link), uid=ME, gids=[])
    assert listing is not None
    assert listing.place == str(model)


def test_each_directory_is_looked_at_once() -> None:
    plans: list[dict[str, Any]] = [
        {"name": "a", "model": "/m/target", "draft_model": "/m/draft"},
        {"name": "b", "model": "/m/target"},
        {"name": "c", "model": "/m/draft", "draft_model": None},
    ]
    assert model_files.wanted(plans) == [
        Wanted("/m/target", ("a", "b"), tokenizer=True),
        Wanted("/m/draft", ("c", "a"), tokenizer=True),
    ]
    assert model_files.wanted(plans[:1])[1] == Wanted("/m/draft", ("a",), tokenizer=False)


# --- fingerprints --------------------------------------------------------------------------------


def test_a_fingerprint_holds_until_a_file_is_replaced(model: Path) -> None:
    before = model_files.fingerprint(str(model))
    assert model_files.fingerprint(f"{model}/") == before
    replaced = model / "a.safetensors"
    replaced.write_bytes(replaced.read_bytes()[:-1] + b"\1")
    os.utime(replaced, ns=(1, 1))
    what, when = model_files.fingerprint(str(model)).split(".")
    assert what == before.split(".")[0]
    assert when != before.split(".")[1]


def test_a_copy_is_the_same_model(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    for file in copy.iterdir():
        os.utime(file, ns=(1, 1))
    assert (
        model_files.fingerprint(str(copy)).split(".")[0] == model_files.fingerprint(str(model)).split(".")[0]
    )
    (copy / "config.json").write_text('{"architectures": ["Qwen3ForCausalL2"]}', encoding="utf-8")
    assert (
        model_files.fingerprint(str(copy)).split(".")[0] != model_files.fingerprint(str(model)).split(".")[0]
    )


def test_what_no_engine_reads_makes_no_difference(model: Path, tmp_path: Path) -> None:
    before = model_files.fingerprint(str(model))
    (model / "README.md").write_text("new", encoding="utf-8")
    (model / ".gitattributes").write_text("new", encoding="utf-8")
    (model / "figures").mkdir()
    assert model_files.fingerprint(str(model)) == before
    assert model_files.fingerprint(str(tmp_path / "absent")) == ""
