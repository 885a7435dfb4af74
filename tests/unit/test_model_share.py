"""A host that lends its models: the program, and the unit that it runs in."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sglang_kit import model_peer, model_share
from sglang_kit.model_peer import Peer
from sglang_kit.problem import ProblemsError

from tests.hub import COMMIT, REPOSITORY, TOKEN, publish

if TYPE_CHECKING:
    from tests.conftest import Tools


@pytest.fixture
def model(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / "a file").write_bytes(b"0123456789")
    publish(place)
    (place / "secret").write_bytes(b"not of the repository")
    return place


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir()
    request = {"place": str(model), "token": TOKEN, "idle_seconds": 0.5}
    (place / "request.json").write_text(json.dumps(request), encoding="utf-8")
    return place


def ask(port: int, path: str, token: str = TOKEN, **headers: str) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{port}/{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", **headers})
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - the URL above
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def test_it_serves_the_files_of_the_marker_to_who_has_the_token_until_nobody_asks(folder: Path) -> None:
    program = [sys.executable, str(model_share.__file__), str(folder)]
    with subprocess.Popen(program) as process:
        while not (folder / "port").exists():
            assert process.poll() is None
        port = int((folder / "port").read_text(encoding="utf-8"))
        file = f"{REPOSITORY}/resolve/{COMMIT}/a%20file"
        status, text = ask(port, f"api/models/{REPOSITORY}/revision/main?blobs=True")
        assert (status, json.loads(text)["sha"]) == (200, COMMIT)
        assert ask(port, file) == (200, b"0123456789")
        assert ask(port, file, Range="bytes=7-") == (206, b"789")
        assert ask(port, file, token="wrong")[0] == 401  # noqa: S106 - that is the point
        assert ask(port, f"{REPOSITORY}/resolve/{COMMIT}/secret")[0] == 404
        assert ask(port, f"{REPOSITORY}/resolve/{COMMIT}/../../etc/passwd")[0] == 404
        assert ask(port, "")[0] == 404
        assert process.wait() == 0


def test_the_program_ends_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["model_share.py", str(folder)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(model_share.__file__), run_name="__main__")
    assert ended.value.code == 0
    assert int((folder / "port").read_text(encoding="utf-8")) > 0


def test_it_ends_no_transfer(model: Path) -> None:
    with model_share.Share(model, TOKEN, ("127.0.0.1", 0)) as share:
        share.timeout = 0.01
        share.count(1)
        waiting = threading.Thread(target=share.serve_until_idle, args=(0,))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        share.count(-1)
        waiting.join()


@pytest.fixture
def peer(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(model_peer, "RUN", tmp_path / "units")
    return Peer(str(model), TOKEN)


START = """
for folder; do :; done
echo 4711 > "$folder/port"; touch {units}/active
"""


def systemd(tools: Tools, start: str, units: Path) -> None:
    tools.place("systemd-run", start.replace("{units}", str(units)))
    tools.place("systemctl", f'case "$1" in stop) rm {units}/active;; *) test -e {units}/active;; esac')


def test_the_unit_is_started_once_and_leaves_nothing(peer: Peer, tools: Tools) -> None:
    systemd(tools, START, model_peer.RUN)
    assert model_peer.start(peer, 60) == (True, 4711)
    folder = model_peer.RUN / peer.name
    assert json.loads((folder / "request.json").read_text(encoding="utf-8"))["place"] == peer.path
    compile((folder / "share.py").read_text(encoding="utf-8"), "share.py", "exec")
    assert TOKEN not in "".join(tools.calls("systemd-run"))
    assert model_peer.RUN.stat().st_mode & 0o777 == 0o700
    assert model_peer.start(peer, 60) == (False, 4711)
    assert len(tools.calls("systemd-run")) == 1
    assert model_peer.stop(peer)
    assert not folder.exists()
    assert not model_peer.stop(peer)


def test_each_borrower_has_a_unit_of_its_own(peer: Peer) -> None:
    assert peer.name != Peer(peer.path, "other").name


@pytest.mark.parametrize(
    ("start", "said"), [("echo no manager >&2; exit 1", "no manager"), ("touch {units}/active", "says why")]
)
def test_a_unit_that_does_not_start(
    peer: Peer, tools: Tools, monkeypatch: pytest.MonkeyPatch, start: str, said: str
) -> None:
    monkeypatch.setattr(model_peer, "WAIT_SECONDS", 0.1)
    systemd(tools, start, model_peer.RUN)
    with pytest.raises(ProblemsError, match=said):
        model_peer.start(peer, 60)


def test_a_model_of_somebody_else_is_not_lent(peer: Peer) -> None:
    Path(peer.path, model_share.MARKER).unlink()
    with pytest.raises(
        ProblemsError, match="was not downloaded on this host, so it cannot be copied from here"
    ):
        model_peer.start(peer, 60)
