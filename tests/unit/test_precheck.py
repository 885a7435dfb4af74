"""With releases that hold the replayed engine."""

from __future__ import annotations

import getpass
import json
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import precheck

from tests.replay.build import build

if TYPE_CHECKING:
    from tests.conftest import Tools

VERSION = "0.5.23"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("releases") / VERSION
    build(place, VERSION)
    return place


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = pwd.getpwnam

    def at_home(name: str) -> pwd.struct_passwd:
        account = lookup(name)
        return pwd.struct_passwd((*account[:5], str(tmp_path), *account[6:]))

    monkeypatch.setattr(pwd, "getpwnam", at_home)


def plan(python: Path, name: str = "chat", *words: str, **environment: str) -> dict[str, Any]:
    return {
        "name": name,
        "argv": [str(python), "-m", "sglang.launch_server", "--model-path", "/m", *words],
        "environment": {"HOME": "/", **environment},
        "secrets": {},
        "pinned": {},
        "accept_overrides": [],
        "model": "/",
        "draft_model": None,
        "plan_file": "/nonexistent/chat.plan.json",
    }


def ask(*plans: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return precheck.ask(plans, getpass.getuser())


def test_one_process_answers_for_all_that_share_a_release(release: Path, tools: Tools) -> None:
    tools.place("python", f'exec {release}/bin/python "$@"')
    python = Path(os.environ["PATH"].split(os.pathsep)[0], "python")
    answers = ask(
        plan(python, "good", "--page-size", "1", CUDA_VISIBLE_DEVICES="0", SGLANG_METAL_FINGERPRINT="1"),
        plan(python, "typing-error", "--prt", "1", CUDA_VISIBLE_DEVICES="1", SGLANG_METAL_FINGERPRINT="2"),
    )
    assert {name: answer["phase"] for name, answer in answers.items()} == {
        "good": "ok",
        "typing-error": "parse",
    }
    assert answers["typing-error"]["message"].endswith("unrecognized arguments: --prt 1")
    assert len([call for call in tools.calls("python") if call.startswith("-c")]) == 1


def test_each_engine_sees_its_own_environment(release: Path) -> None:
    overridden = plan(release / "bin/python", "b", SGLANG_REPLAY_OVERRIDES='{"page_size": 64}')
    answers = ask(plan(release / "bin/python", "a", "--page-size", "1"), overridden)
    assert [answers[name]["resolved"]["page_size"] for name in ("a", "b")] == [1, 64]


def test_keys_are_checked_without_their_values(release: Path) -> None:
    with_key = plan(release / "bin/python")
    with_key["secrets"] = {"api_key": "/etc/a", "hf_token": "/etc/b"}
    assert ask(with_key)["chat"]["resolved"]["api_key"] == "***"


def test_words_that_look_like_secrets_are_masked(release: Path) -> None:
    answer = ask(plan(release / "bin/python", "chat", "--typo", "--api-key=abcdefgh"))["chat"]
    assert answer["message"] == "sglang serve: error: unrecognized arguments: --typo"
    answer = ask(plan(release / "bin/python", "chat", "Bearer abcdefgh"))["chat"]
    assert answer["message"] == "sglang serve: error: unrecognized arguments: Bearer ***"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'Fatal: no such thing' >&2; exit 7", "its check ended with status 7: Fatal: no such thing"),
        ("kill -9 $$", "its check ended with status -9: "),
    ],
)
def test_an_engine_that_falls_over_is_told_for_each_instance(tools: Tools, script: str, message: str) -> None:
    tools.place("python", script)
    python = Path(os.environ["PATH"].split(os.pathsep)[0], "python")
    answers = ask(plan(python, "a", PATH="/bin:/usr/bin"), plan(python, "b", PATH="/bin:/usr/bin"))
    assert {(one["phase"], one["message"]) for one in answers.values()} == {("import", message)}


def test_nothing_is_asked_for_no_plan() -> None:
    assert ask() == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"state": "stopped"}, []),
        ({"argv": ["/other/python"]}, ["chat"]),
        ({"environment": {}}, ["chat"]),
        ({"accept_overrides": ["page_size"]}, ["chat"]),
    ],
)
def test_only_what_changed_since_it_was_installed_is_due(
    tmp_path: Path, change: dict[str, Any], expected: list[str]
) -> None:
    place = tmp_path / "chat.plan.json"
    installed = {**plan(Path("/python")), "plan_file": str(place)}
    place.write_text(json.dumps(installed), encoding="utf-8")
    assert [one["name"] for one in precheck.due([{**installed, **change}])] == expected


def test_a_first_plan_is_due() -> None:
    assert len(precheck.due([plan(Path("/python"))])) == 1


def test_a_release_a_model_or_the_user_may_be_missing(release: Path) -> None:
    me = getpass.getuser()
    here = plan(release / "bin/python")
    assert precheck.possible(here, me)
    assert precheck.possible({**here, "draft_model": "/"}, me)
    assert not precheck.possible({**here, "model": "/nonexistent"}, me)
    assert not precheck.possible({**here, "draft_model": "/nonexistent"}, me)
    assert not precheck.possible(plan(Path("/nonexistent/python")), me)
    assert not precheck.possible(plan(release / "bin/python"), "no-such-user-yet")


def test_a_user_of_a_directory_service_that_lists_nobody_is_there(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwall", list)
    assert precheck.possible(plan(release / "bin/python"), getpass.getuser())


def test_root_becomes_the_user_of_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    account = pwd.struct_passwd(("sglang", "x", 901, 902, "", "/var/lib/sglang", "/bin/false"))
    monkeypatch.setattr(os, "getgrouplist", lambda _name, group: [group, 44])
    become = precheck._as(account)  # noqa: SLF001 - only root may do it
    assert become == {"user": 901, "group": 902, "extra_groups": [902, 44]}
