"""The thin modules of the host, the engine and the models: what they take, do and answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import modules

if TYPE_CHECKING:
    from types import ModuleType

LOCK = "52d6472cc10699365e4e9630b9b7f219b9c89a7b15d2d135879a1c6e7ca44055"
NAME = "0.5.23-52d6472cc106"
NAMES = (
    *("sglang_host_info", "sglang_model", "sglang_model_info", "sglang_model_share"),
    *("sglang_prune", "sglang_release"),
)


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return modules.load(request.param)


def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    taken = {
        name: {key: value for key, value in option.items() if key != "no_log"}
        for name, option in module.ARGUMENTS.items()
    }
    assert modules.documented(module) == taken


def host_arguments(root: Path, **changes: object) -> dict[str, Any]:
    directories = [root / "releases", root / "uv-cache", root / "kernels"]
    return {
        "root": str(root),
        "uv_cache": str(root / "uv-cache"),
        "kernel_cache": str(root / "kernels"),
        "directories": [{"path": str(place)} for place in directories],
        "user": "root",
        "group": "nonesuch",
        **changes,
    }


@pytest.fixture
def host_info() -> ModuleType:
    return modules.load("sglang_host_info")


def test_a_look_at_this_host(
    host_info: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = modules.run(host_info, capsys, host_arguments(tmp_path), check=True)
    assert answer["changed"] is False
    assert answer["host"]["glibc"][0] == 2
    assert [directory["exists"] for directory in answer["host"]["directories"]] == [False] * 3
    assert (answer["missing"]["user"], answer["missing"]["group"]) == (False, True)
    assert len(answer["missing"]["directories"]) == 3
    assert set(answer["paths"]) == {"cuda_home", "path", "library_path"}


def test_an_unknown_version_is_said_with_the_rest(
    host_info: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = host_arguments(
        tmp_path, engine_version="0.5.9999", packages=["nonesuch"], manage_packages=False
    )
    problems = "\n".join(modules.run(host_info, capsys, arguments)["problems"])
    assert "0.5.9999" in problems
    assert "nonesuch" in problems


@pytest.mark.parametrize(("version", "wanted"), [("0.5.23", "3.11 to 3.12"), ("0.5.11", "3.10 to 3.12")])
def test_the_python_is_the_one_of_the_version(
    host_info: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, wanted: str
) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho python3.9\n", encoding="utf-8")
    old.chmod(0o755)
    arguments = host_arguments(tmp_path, engine_version=version, python=str(old))
    problems = modules.run(host_info, capsys, arguments)["problems"]
    assert f"host: sglang_engine_python: {old} is 3.9, and SGLang {version} needs {wanted}" in problems


def test_a_release_that_is_there_needs_no_python(
    host_info: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(tmp_path)
    arguments = host_arguments(tmp_path, engine_version="0.5.23", lock_sha256=LOCK, python="/nonesuch")
    assert "sglang_engine_python" not in "".join(modules.run(host_info, capsys, arguments)["problems"])


def test_a_cache_on_another_mount_is_a_warning(
    host_info: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = host_arguments(tmp_path, uv_cache="/proc")
    arguments["directories"].append({"path": "/proc"})
    warned: list[str] = []
    monkeypatch.setattr(host_info.AnsibleModule, "warn", lambda _module, text: warned.append(text))
    modules.run(host_info, capsys, arguments)
    assert "not on one mount" in "".join(warned)


def complete(root: Path) -> None:
    place = root / "releases" / NAME
    place.mkdir(parents=True)
    marker = {"version": "0.5.23", "lock": LOCK, "python": "/usr/bin/python3.11"}
    (place / "sglang-release.json").write_text(json.dumps(marker), encoding="utf-8")


@pytest.fixture
def release(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Release:
    return Release(tmp_path, capsys, monkeypatch)


class Release:
    """The module sglang_release over a root whose builds are noted and succeed."""

    def __init__(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.root = root
        self.module = modules.load("sglang_release")
        self.capsys = capsys
        self.builds: list[Any] = []
        self.error: str | None = None
        monkeypatch.setattr(self.module.release, "build", self.build)

    def build(self, *, root: str, release: object, how: object) -> None:
        del release
        self.builds.append(how)
        if self.error:
            raise self.module.release.BuildError([self.module.release.Problem("", "", self.error)])
        complete(Path(root))

    def run(self, *, lock: bool, check: bool = False, progress: bool = False) -> dict[str, Any]:
        arguments: dict[str, Any] = {"version": "0.5.23", "lock_sha256": LOCK, "root": str(self.root)}
        arguments["progress"] = progress
        if lock:
            arguments |= {"lock_file": "/locks/lock.txt", "uv": "uv==0.13.9 --hash=sha256:00"}
        return modules.run(self.module, self.capsys, arguments, check=check)

    @property
    def current(self) -> str:
        link = self.root / "current"
        return link.readlink().name if link.is_symlink() else ""


def test_without_a_lock_the_module_only_says_what_is_due(release: Release) -> None:
    answer = release.run(lock=False)
    assert (answer["changed"], answer["complete"]) == (False, False)
    assert answer["path"] == f"{release.root}/releases/{NAME}"
    assert release.builds == []
    assert release.current == ""


def test_a_release_is_built_and_switched_to(release: Release) -> None:
    answer = release.run(lock=True)
    assert (answer["changed"], answer["complete"]) == (True, True)
    assert answer["diff"] == {
        "before": f"release {NAME}: absent\ncurrent: not set\n",
        "after": f"release {NAME}: complete\ncurrent: {NAME}\n",
    }
    assert [how.lock_file for how in release.builds] == ["/locks/lock.txt"]
    assert release.current == NAME


def test_a_dry_run_predicts_it(release: Release) -> None:
    predicted = release.run(lock=True, check=True)
    assert (release.builds, release.current) == ([], "")
    assert release.run(lock=True)["diff"] == predicted["diff"]


def test_a_second_run_changes_nothing(release: Release) -> None:
    release.run(lock=True)
    assert release.run(lock=False)["changed"] is False
    assert release.run(lock=True)["changed"] is False
    assert len(release.builds) == 1


def test_it_says_what_a_build_does(release: Release) -> None:
    (release.root / "releases").mkdir()
    (release.root / "releases" / release.module.release.PROGRESS).write_text("fetches", encoding="utf-8")
    answer = release.run(lock=True, progress=True)
    assert (answer["changed"], answer["progress"]) == (False, "fetches")
    assert release.builds == []


def test_a_complete_release_is_switched_to_without_a_lock(release: Release) -> None:
    complete(release.root)
    (release.root / "current").symlink_to("releases/0.5.20-000000000000")
    assert release.run(lock=False, check=True)["changed"] is True
    assert release.current == "0.5.20-000000000000"
    assert release.run(lock=False)["changed"] is True
    assert release.current == NAME


def test_a_build_that_fails_leaves_current_alone(release: Release) -> None:
    (release.root / "current").symlink_to("releases/0.5.20-000000000000")
    release.error = "import: ValueError"
    answer = release.run(lock=True)
    assert answer["failed"]
    assert answer["msg"] == ("import: ValueError\nNothing was switched: current is 0.5.20-000000000000.")
    assert release.current == "0.5.20-000000000000"


def test_what_was_found_in_a_build_of_ones_own_is_returned(release: Release) -> None:
    complete(release.root)
    found = {"flags": [["--page-size", "value", "int", "page_size", ""]], "algorithms": ["DDTREE"]}
    (release.root / "releases" / NAME / "sglang-build.json").write_text(json.dumps(found), encoding="utf-8")
    arguments = {"version": "0.5.23", "lock_sha256": LOCK, "root": str(release.root)}
    answers = [
        modules.run(release.module, release.capsys, {**arguments, "probe": probe}) for probe in (True, False)
    ]
    assert [answer["build"] for answer in answers] == [found, {}]


def test_old_releases_are_removed_and_the_dry_run_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = modules.load("sglang_prune")
    monkeypatch.setattr(
        module.retention, "look", lambda *_: module.retention.Found(("b", "a"), frozenset(), ("/.x",))
    )
    removed: list[Any] = []
    monkeypatch.setattr(module.retention, "remove", lambda *given: removed.append(given))
    arguments = {"keep": 1, "root": str(tmp_path), "uv_cache": "/cache"}
    answers = [modules.run(module, capsys, arguments, check=check) for check in (True, False)]
    assert answers[0] == answers[1]
    assert (answers[0]["changed"], answers[0]["removed"], answers[0]["kept"]) == (True, ["a"], ["b"])
    assert answers[0]["diff"] == {"before": "b\na\n/.x\n", "after": "b\n"}
    assert removed == [(str(tmp_path), ["a"], "/cache")]


def test_nothing_is_removed_while_it_is_not_known_what_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = modules.load("sglang_prune")

    def refuse(*_: object) -> None:
        raise module.ProblemsError([])

    monkeypatch.setattr(module.retention, "look", refuse)
    answer = modules.run(module, capsys, {"root": str(tmp_path)})
    assert answer["failed"]
    assert answer["msg"].startswith("No release was removed: ")


def test_a_lock_needs_a_uv(release: Release) -> None:
    arguments = {"version": "0.5.23", "lock_sha256": LOCK, "lock_file": "/l", "root": str(release.root)}
    assert "uv" in modules.run(release.module, release.capsys, arguments)["msg"]


def test_models_are_judged_for_their_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}', encoding="utf-8")
    plans = [{"name": "chat", "model": str(tmp_path), "argv": ["x"]}, {"name": "lost", "model": "/nonesuch"}]
    for user in ("root", "nonesuch"):
        answer = modules.run(modules.load("sglang_model_info"), capsys, {"plans": plans, "user": user})
        problems = "\n".join(answer["problems"])
        assert "lost: /nonesuch: is not a directory on this host" in problems
        assert f"chat: {tmp_path}: has no weights" in problems
        assert answer["configs"] == {
            str(tmp_path): {"architectures": ["GPT2LMHeadModel"]},
            "/nonesuch": {},
        }
        assert answer["weight_bytes"] == {str(tmp_path): 0, "/nonesuch": 0}
        assert set(answer["fingerprints"]) == {str(tmp_path), "/nonesuch"}
        assert answer["fingerprints"]["/nonesuch"] == ""


DOWNLOAD = {"path": "/nonexistent/tiny", "repository": "somebody/tiny"}


def test_models_are_fetched_and_the_dry_run_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = modules.load("sglang_model")
    fetched: list[Any] = []
    monkeypatch.setattr(module.model_store, "fetch", lambda *given: fetched.append(given))
    look = {"downloads": [DOWNLOAD]}
    arguments = {**look, "python": "/release/bin/python", "token": "hidden-token", "endpoint": "http://hub"}
    seen = modules.run(module, capsys, look)
    assert (seen["changed"], seen["due"], fetched) == (False, ["/nonexistent/tiny"], [])
    answers = [modules.run(module, capsys, arguments, check=check) for check in (True, False)]
    assert answers[0] == answers[1]
    assert (answers[0]["changed"], answers[0]["due"]) == (True, ["/nonexistent/tiny"])
    assert answers[0]["diff"] == {
        "before": "/nonexistent/tiny: absent\n",
        "after": "/nonexistent/tiny: somebody/tiny at main\n",
    }
    ((wanted, hub),) = fetched
    assert (wanted.repository, wanted.revision) == ("somebody/tiny", "main")
    assert hub == module.model_store.Hub("/release/bin/python", "http://hub", "hidden-token")
    assert "hidden-token" not in json.dumps(answers)


def test_a_model_that_cannot_be_fetched_fails_the_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = modules.load("sglang_model")

    def refuse(*_: object) -> None:
        raise module.model_store.DownloadError([])

    monkeypatch.setattr(module.model_store, "fetch", refuse)
    assert modules.run(module, capsys, {"downloads": [DOWNLOAD], "python": "/python"})["failed"]


def test_a_model_is_lent_and_no_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = modules.load("sglang_model_share")
    arguments = {"path": str(tmp_path), "token": "hidden-token"}
    assert "was not downloaded on this host" in modules.run(module, capsys, arguments)["msg"]
    monkeypatch.setattr(module.model_peer, "start", lambda *_: (True, 4711))
    monkeypatch.setattr(module.model_peer, "stop", lambda *_: True)
    started = modules.run(module, capsys, arguments)
    stopped = modules.run(module, capsys, {**arguments, "state": "stopped"})
    assert [(answer["changed"], answer["port"]) for answer in (started, stopped)] == [(True, 4711), (True, 0)]
