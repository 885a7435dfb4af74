"""Models from a hub on this machine. The library is a few lines here; the real one: ``tests/integration``."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import runpy
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import model_download, model_share, model_store
from sglang_kit.model_store import Download, DownloadError
from sglang_kit.model_store import Hub as Source

from tests.hub import COMMIT, REPOSITORY, TOKEN, Hub, publish, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = {
    "__init__": """
import json, types, urllib.error, urllib.request

class HfApi:
    def __init__(self, endpoint, token):
        self.endpoint, self.headers = endpoint, {"Authorization": f"Bearer {token}"}

    def model_info(self, repository, revision, files_metadata):
        from huggingface_hub.file_download import ask
        url = f"{self.endpoint}/api/models/{repository}/revision/{revision}?blobs={files_metadata}"
        with ask(url, self.headers) as answer:
            found = json.load(answer)
        files = [
            types.SimpleNamespace(
                rfilename=file["rfilename"],
                size=file["size"],
                lfs=types.SimpleNamespace(**file["lfs"]) if "lfs" in file else None,
                blob_id=file.get("blobId"),
            )
            for file in found["siblings"]
        ]
        return types.SimpleNamespace(sha=found["sha"], siblings=files)

def hf_hub_url(repository, name, revision, endpoint):
    return f"{endpoint}/{repository}/resolve/{revision}/{name}"
""",
    "utils": """
def build_hf_headers(token):
    print("noise")
    return {"Authorization": f"Bearer {token}"}
""",
    "file_download": """
import shutil, types, urllib.error, urllib.request

class HubError(OSError):
    pass

def ask(url, headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers))
    except urllib.error.HTTPError as error:
        error.close()
        refused = HubError(f"{error.code} for {url} with {headers}")
        refused.response = types.SimpleNamespace(status_code=error.code)
        raise refused from None
    except urllib.error.URLError as error:
        raise ConnectionError(str(error)) from None

def http_get(url, file, resume_size, headers):
    with ask(url, {**headers, **({"Range": f"bytes={resume_size}-"} if resume_size else {})}) as answer:
        shutil.copyfileobj(answer, file)
        if answer.length:
            raise OSError(f"{answer.length} bytes are missing")
""",
}
INTERPRETER = """\
#!/bin/sh
echo "$@" > {folder}/arguments
exec {python} -W ignore -c 'import sys; sys.path.insert(0, "{folder}"); exec(sys.argv[1])' "$5"
"""


def safetensors(size: int) -> bytes:
    text = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Write an interpreter that has a huggingface_hub."""
    package = tmp_path / "library/huggingface_hub"
    package.mkdir(parents=True)
    for name, text in LIBRARY.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    path = tmp_path / "python"
    path.write_text(INTERPRETER.format(folder=package.parent, python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    place = tmp_path / "repository"
    (place / "original").mkdir(parents=True)
    files = {
        "config.json": b"{}",
        "empty": b"",
        "model.safetensors": safetensors(100_000),
        "original/x.pth": b"x",
    }
    for name, content in files.items():
        (place / name).write_bytes(content)
    publish(place)
    with serving(place) as hub:
        yield hub


@pytest.fixture
def wanted(tmp_path: Path) -> Download:
    return Download(str(tmp_path / "models/tiny"), REPOSITORY)


@pytest.fixture
def source(python: str, hub: Hub) -> Source:
    return Source(python, hub.url, TOKEN)


def there(wanted: Download) -> set[str]:
    place = Path(wanted.path)
    return {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()}


def beside(wanted: Download) -> set[str]:
    return {place.name for place in Path(wanted.path).parent.iterdir()} - {".lock-tiny"}


def refused(wanted: Download, source: Source) -> str:
    with pytest.raises(DownloadError) as caught:
        model_store.fetch(wanted, source)
    return str(caught.value)


def test_a_model_is_brought_whole_and_for_reading_only(wanted: Download, source: Source) -> None:
    assert (model_store.is_complete(wanted), model_store.described(wanted)) == (False, "absent")
    model_store.fetch(wanted, source)
    assert there(wanted) == {
        "config.json",
        "empty",
        "model.safetensors",
        "original/x.pth",
        model_store.MARKER,
    }
    assert beside(wanted) == {"tiny"}
    assert model_store.is_complete(wanted)
    assert model_store.described(wanted) == f"{REPOSITORY} at main"
    assert {oct(path.stat().st_mode & 0o777) for path in Path(wanted.path).rglob("*")} == {"0o644", "0o755"}
    marker = json.loads(Path(wanted.path, model_store.MARKER).read_text(encoding="utf-8"))
    assert marker["commit"] == COMMIT
    assert marker["files"]["empty"] == [0, hashlib.sha256().hexdigest()]


def test_a_model_that_is_there_is_not_asked_for_again(wanted: Download, source: Source, hub: Hub) -> None:
    model_store.fetch(wanted, source)
    asked = len(hub.asked)
    model_store.fetch(wanted, source)
    assert len(hub.asked) == asked


def test_only_the_files_that_are_wanted(wanted: Download, source: Source) -> None:
    (few,) = model_store.downloads(
        [
            {
                "path": wanted.path,
                "repository": REPOSITORY,
                "revision": "main",
                "include": ["*.json", "*.safetensors", "original/*"],
                "exclude": ["original/*"],
            }
        ]
    )
    model_store.fetch(few, source)
    assert there(few) == {"config.json", "model.safetensors", model_store.MARKER}
    assert not model_store.is_complete(wanted), "it is another download"
    none = Download(wanted.path, REPOSITORY, include=("*.gguf",))
    assert "has no file that is wanted; look at include and exclude" in refused(none, source)
    assert model_store.is_complete(few), "what stood there still stands"


def test_a_download_that_was_cut_off_goes_on_where_it_ended(
    wanted: Download, source: Source, hub: Hub
) -> None:
    hub.cut = 60_000
    assert "bytes are missing" in refused(wanted, source)
    assert not Path(wanted.path).exists()
    assert beside(wanted) == {".incoming-tiny"}
    hub.cut = 0
    hub.asked.clear()
    model_store.fetch(wanted, source)
    assert ("model.safetensors", "bytes=60000-") in hub.asked
    assert "config.json" not in dict(hub.asked), "it was whole already"
    assert model_store.is_complete(wanted)
    assert beside(wanted) == {"tiny"}


def test_a_file_that_only_lacked_its_name_is_not_asked_for(
    wanted: Download, source: Source, hub: Hub
) -> None:
    hub.cut = 60_000
    refused(wanted, source)
    hub.cut = 0
    partial = Path(wanted.path).with_name(".incoming-tiny") / f"model.safetensors{model_download.PARTIAL}"
    partial.write_bytes(safetensors(100_000))
    hub.asked.clear()
    model_store.fetch(wanted, source)
    assert "model.safetensors" not in dict(hub.asked)


def test_what_is_longer_than_the_file_is_fetched_again(wanted: Download, source: Source, hub: Hub) -> None:
    hub.cut = 60_000
    refused(wanted, source)
    partial = Path(wanted.path).with_name(".incoming-tiny") / f"model.safetensors{model_download.PARTIAL}"
    partial.write_bytes(bytes(200_000))
    hub.cut = 0
    assert "has 200000 of 100078 bytes; it is fetched again by the next run" in refused(wanted, source)
    model_store.fetch(wanted, source)
    assert model_store.is_complete(wanted)


def test_the_rest_of_a_download_of_another_commit_is_not_used(
    wanted: Download, source: Source, hub: Hub
) -> None:
    hub.cut = 60_000
    refused(wanted, source)
    hub.cut = 0
    hub.marker["commit"] = "d" * 40
    hub.asked.clear()
    model_store.fetch(wanted, source)
    assert ("model.safetensors", "") in hub.asked


def test_a_model_that_only_lacked_its_name_gets_it(wanted: Download, source: Source, hub: Hub) -> None:
    model_store.fetch(wanted, source)
    place = Path(wanted.path)
    place.rename(place.with_name(".incoming-tiny"))
    place.with_name(".outgoing-tiny").mkdir()
    hub.asked.clear()
    model_store.fetch(wanted, source)
    assert hub.asked == []
    assert beside(wanted) == {"tiny"}


def test_a_file_that_is_not_the_hubs_is_fetched_again(wanted: Download, source: Source, hub: Hub) -> None:
    good = (hub.place / "config.json").read_bytes()
    (hub.place / "config.json").write_bytes(b"[]")
    (hub.place / "model.safetensors").write_bytes(safetensors(90_000))
    told = refused(wanted, source)
    assert (
        "tiny/config.json: is not the file that the hub describes; it is fetched again by the next run"
        in told
    )
    assert "tiny/model.safetensors: has 90076 of 100078 bytes" in told
    assert not Path(wanted.path).exists()
    (hub.place / "config.json").write_bytes(good)
    (hub.place / "model.safetensors").write_bytes(safetensors(100_000))
    model_store.fetch(wanted, source)
    assert model_store.is_complete(wanted)


def test_files_that_git_itself_keeps_are_checked_by_its_hash(
    wanted: Download, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha1(b"blob 2\0{}", usedforsecurity=False).hexdigest()
    part = {"name": "config.json", "size": 2, "sha256": None, "blob": digest}
    asked = model_store._ask  # noqa: SLF001 - what the hub answers

    def answer(*given: Any, files: Any = None, **named: Any) -> dict[str, Any]:  # noqa: ANN401 - passed on
        found = asked(*given, files=files, **named)
        return found if files else {**found, "files": [part, *found["files"][1:]]}

    monkeypatch.setattr(model_store, "_ask", answer)
    model_store.fetch(wanted, source)
    assert model_store.is_complete(wanted)
    part["blob"] = "0" * 40
    assert "config.json: is not the file" in refused(Download(f"{wanted.path}2", REPOSITORY), source)


def test_a_repository_whose_shard_is_cut_off_is_no_model(wanted: Download, source: Source, hub: Hub) -> None:
    (hub.place / "model.safetensors").write_bytes(safetensors(100_000)[:-10])
    publish(hub.place)
    hub.marker.update(json.loads((hub.place / model_share.MARKER).read_text(encoding="utf-8")))
    told = refused(wanted, source)
    assert "model.safetensors: has 100068 of 100078 bytes" in told
    assert f"{REPOSITORY} at main itself is so; choose another revision" in told
    assert not Path(wanted.path).exists()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (HTTPStatus.FORBIDDEN, "accept the licence with the account of sglang_model_token"),
        (HTTPStatus.NOT_FOUND, "look at repository and revision"),
        (HTTPStatus.BAD_GATEWAY, ""),
    ],
)
def test_what_the_hub_refuses_is_said_with_what_to_do(
    wanted: Download, source: Source, hub: Hub, status: HTTPStatus, remedy: str
) -> None:
    hub.refusal = status
    told = refused(wanted, source)
    assert str(status.value) in told
    assert remedy in told
    assert beside(wanted) == set()


def test_a_hub_that_cannot_be_reached(wanted: Download, source: Source) -> None:
    told = refused(wanted, dataclasses.replace(source, endpoint="http://127.0.0.1:9"))
    assert "Connection refused" in told
    assert "give the host a way to it (sglang_host_proxy_env, sglang_model_endpoint)" in told


def test_a_revision_that_is_not_there(wanted: Download, source: Source) -> None:
    assert "404" in refused(Download(wanted.path, REPOSITORY, "v9"), source)


def test_a_wrong_token_is_never_shown(wanted: Download, python: str, hub: Hub, tmp_path: Path) -> None:
    told = refused(wanted, Source(python, hub.url, "wrong-secret"))
    assert "HubError: 401 for" in told
    assert "Bearer ***" in told
    assert "give the token of an account that may read it in sglang_model_token" in told
    assert "wrong-secret" not in told
    assert "wrong-secret" not in (tmp_path / "library/arguments").read_text(encoding="utf-8")


def test_a_python_without_the_library(wanted: Download, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho trouble >&2\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    assert f"{broken} ended with 3: trouble" in refused(wanted, Source(str(broken)))


def test_room_is_looked_for_before_anything_is_fetched(
    wanted: Download, source: Source, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_store, "SPARE_BYTES", 1 << 60)
    assert f"are free there, and {REPOSITORY} at main needs 0 MiB more and 1073741824.00 GiB" in refused(
        wanted, source
    )
    assert [name for name, _ in hub.asked] == ["main?blobs=True"]


def test_what_somebody_else_put_there_is_not_touched(wanted: Download, source: Source) -> None:
    place = Path(wanted.path)
    place.mkdir(parents=True)
    model_store.fetch(wanted, source)
    (place / model_store.MARKER).unlink()
    assert model_store.described(wanted) == "not downloaded here"
    assert "is there, and was not downloaded here; move it away" in refused(wanted, source)
    assert (place / "config.json").exists()


def test_another_revision_takes_the_place_of_the_one_before(
    wanted: Download, source: Source, hub: Hub
) -> None:
    model_store.fetch(wanted, source)
    hub.marker["revision"] = "v2"
    newer = Download(wanted.path, REPOSITORY, "v2")
    assert not model_store.is_complete(newer)
    model_store.fetch(newer, source)
    assert model_store.is_complete(newer)
    assert beside(wanted) == {"tiny"}


def test_a_model_that_lost_a_file_is_no_longer_complete(wanted: Download, source: Source) -> None:
    model_store.fetch(wanted, source)
    Path(wanted.path, "config.json").unlink()
    assert model_store.described(wanted) == f"{REPOSITORY} at main, changed"
    model_store.fetch(wanted, source)
    assert model_store.is_complete(wanted)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd"])
def test_a_repository_cannot_write_elsewhere(wanted: Download, source: Source, hub: Hub, name: str) -> None:
    hub.marker["files"][name] = [1, "0" * 64]
    assert "has a file outside of itself" in refused(wanted, source)


# --- the program that runs in the release, in this process ----------------------------------------------


@pytest.fixture
def request_(
    tmp_path: Path, python: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    del python
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    place = tmp_path / "place"
    place.mkdir()
    yield {
        "endpoint": hub.url,
        "token": TOKEN,
        "repository": REPOSITORY,
        "revision": "main",
        "place": str(place),
        "files": {},
    }
    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        del sys.modules[name]


def test_the_program_lists_and_fetches(request_: dict[str, Any], hub: Hub) -> None:
    found = model_download.respond(request_)
    assert found["commit"] == COMMIT
    sizes = {file["name"]: file["size"] for file in found["files"]}
    place = Path(request_["place"])
    (place / "config.json").write_bytes(b"mine")
    (place / f"model.safetensors{model_download.PARTIAL}").write_bytes(safetensors(100_000))
    model_download.respond({**request_, "revision": COMMIT, "files": sizes})
    assert {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()} == set(sizes)
    assert (place / "config.json").read_bytes() == b"mine"
    assert "model.safetensors" not in dict(hub.asked)


def test_the_program_tells_files_of_git_from_those_in_lfs(request_: dict[str, Any], hub: Hub) -> None:
    hub.describe = lambda files: [{"rfilename": "config.json", "size": 2, "blobId": "ab"}, *files[1:]]
    first, second, *_ = model_download.respond(request_)["files"]
    assert first == {"name": "config.json", "size": 2, "sha256": None, "blob": "ab"}
    assert second["blob"] is None


def test_the_program_answers_with_what_went_wrong(request_: dict[str, Any]) -> None:
    answer = model_download.respond({**request_, "token": "wrong"})
    assert answer["status"] == HTTPStatus.UNAUTHORIZED
    assert answer["error"].startswith("HubError: 401")
    answer = model_download.respond({**request_, "endpoint": "http://127.0.0.1:9"})
    assert answer["status"] == model_download.UNREACHABLE


def test_the_program_as_it_runs(
    request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request_)))
    standard_output = os.dup(1)
    try:
        with pytest.raises(SystemExit):
            runpy.run_path(str(model_download.__file__), run_name="__main__")
    finally:
        os.dup2(standard_output, 1)
        os.close(standard_output)
    assert json.loads(capfd.readouterr().out)["commit"] == COMMIT
