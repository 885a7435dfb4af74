from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sglang_kit
from sglang_kit import kit

if TYPE_CHECKING:
    from sglang_kit.fileset import File

ROOM = Path(sglang_kit.__path__[0])
ROOMS = {place.name for place in ROOM.glob("*.py")}


def placed(root: Path) -> dict[str, File]:
    return {file.path.removeprefix(f"{root}/"): file for file in kit.files(str(root))}


def test_the_kit_is_every_room_and_nothing_else() -> None:
    texts = kit.sources()
    assert set(texts) == ROOMS
    assert {name: (ROOM / name).read_text(encoding="utf-8") for name in ROOMS} == texts


def test_the_kit_lies_below_a_directory_named_by_its_content() -> None:
    files = placed(Path("/opt/sglang"))
    directory = files["kit"].target
    assert directory is not None
    assert directory.startswith("kits/")
    assert {name for name in files if name not in {"kit", "/usr/local/bin/sglang-why"}} == {
        f"{directory}/__main__.py",
        *(f"{directory}/sglang_kit/{name}" for name in ROOMS),
    }


def test_people_have_a_command_that_outlives_the_kit() -> None:
    command = placed(Path("/opt/sglang"))["/usr/local/bin/sglang-why"]
    assert command.mode == 0o755
    assert command.content == '#!/bin/sh\nexec /usr/bin/python3 -IB /opt/sglang/kit why "$@"\n'
    (quoted,) = [file for file in kit.files("/opt/my engines") if file.path.endswith("/sglang-why")]
    assert " '/opt/my engines/kit' why " in quoted.content


def test_another_content_gets_another_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    before = placed(Path("/opt/sglang"))["kit"].target
    assert placed(Path("/opt/sglang"))["kit"].target == before
    changed = {**kit.sources(), "quantity.py": "GIB = 1\n"}
    monkeypatch.setattr(kit, "sources", lambda: changed)
    assert placed(Path("/opt/sglang"))["kit"].target != before


def test_the_link_is_placed_last(tmp_path: Path) -> None:
    *files, link = kit.files(str(tmp_path))
    assert link.target is not None
    assert all(file.target is None for file in files)


@pytest.mark.parametrize("package", ["sglang_kit", "ansible.module_utils.sglang_kit"])
def test_the_kit_reads_itself_from_a_zip_as_ansible_ships_it(tmp_path: Path, package: str) -> None:
    archive = tmp_path / "payload.zip"
    parents = package.split(".")
    with zipfile.ZipFile(archive, "w") as payload:
        for depth in range(1, len(parents)):
            payload.writestr("/".join([*parents[:depth], "__init__.py"]), "")
        for name in ROOMS:
            payload.write(ROOM / name, "/".join([*parents, name]))
    program = f"import sys, json; sys.path.insert(0, {str(archive)!r}); from {package} import kit"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", f"{program}; print(json.dumps([kit.__file__, kit.sources()]))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    origin, sources = json.loads(shown)
    assert origin.startswith(str(archive))
    assert sources == kit.sources()


def test_a_placed_kit_runs_by_itself(tmp_path: Path) -> None:
    for file in kit.files(str(tmp_path), str(tmp_path / "bin")):
        place = Path(file.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.target is None:
            place.write_text(file.content, encoding="utf-8")
        else:
            place.symlink_to(file.target)
    outcome = subprocess.run(
        [sys.executable, "-IB", str(tmp_path / "kit")], check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("usage: ")
    assert "launch" in outcome.stderr
