"""Run here and as a program of its own, in place of ``python -m``."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_kit import engine_start

MODULE = """
import json, multiprocessing, os, sys

def child(queue):
    queue.put([__name__, sys.argv[1:]])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    spawned = queue.get()
    process.join()
    command = open("/proc/self/cmdline").read()
    found = {"argv": sys.argv[1:], "spawned": spawned, "command": command, "path": sys.path[0],
             "token": os.environ.get("HF_TOKEN_PATH"), "name": sys.argv[0]}
    json.dump(found, open("found.json", "w"))
"""
PROGRAM = str(engine_start.__file__)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a working directory that holds the engine's package, and credentials."""
    package = tmp_path / "fakeengine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "credentials").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(place: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((place / "found.json").read_text(encoding="utf-8"))
    return content


def test_keys_reach_the_engine_and_what_it_spawns_but_no_command_line(place: Path) -> None:
    for name in ("api_key", "admin_api_key", "hf_token"):
        (place / "credentials" / name).write_text(f"secret-{name}", encoding="utf-8")
    subprocess.run([sys.executable, PROGRAM, "fakeengine.launch_server", "--port", "1"], check=True)
    seen = found(place)
    words = ["--port", "1", "--api-key=secret-api_key", "--admin-api-key=secret-admin_api_key"]
    assert seen["argv"] == words
    assert seen["spawned"] == ["__mp_main__", words]
    assert "secret" not in str(seen["command"])
    assert seen["token"] == str(place / "credentials" / "hf_token")
    assert seen["path"] == str(place)
    assert str(seen["name"]).endswith("fakeengine/launch_server.py")


def test_only_the_keys_that_there_are_become_flags(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "fakeengine" / "launch_server.py").write_text(
        "import json, pathlib, sys\npathlib.Path('found.json').write_text(json.dumps(sys.argv[1:]))\n",
        encoding="utf-8",
    )
    (place / "credentials" / "api_key").write_text("secret-1234", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [PROGRAM, "fakeengine.launch_server", "--port", "1"])
    monkeypatch.setattr(sys, "path", [str(Path(PROGRAM).parent), *sys.path])
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    runpy.run_path(PROGRAM, run_name="__main__")
    assert json.loads(Path("found.json").read_text(encoding="utf-8")) == [
        "--port",
        "1",
        "--api-key=secret-1234",
    ]
    assert "HF_TOKEN_PATH" not in os.environ
    (place / "credentials" / "hf_token").write_text("hf_1234", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [PROGRAM, "fakeengine.launch_server"])
    monkeypatch.setenv("HF_TOKEN_PATH", "")
    engine_start.main()
    assert os.environ["HF_TOKEN_PATH"] == str(place / "credentials" / "hf_token")
