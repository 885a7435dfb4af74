from __future__ import annotations

import grp
import json
import os
import pwd
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import state as room
from sglang_kit.fileset import File
from sglang_kit.problem import ProblemsError
from sglang_kit.state import FAILED, KNOWN_GOOD, READY, ROLLED_BACK, WANTED, Store, target

if TYPE_CHECKING:
    from pathlib import Path

USER = pwd.getpwuid(os.geteuid()).pw_name
GROUP = grp.getgrgid(os.getegid()).gr_name
NOW = datetime(2026, 11, 29, 18, 0, tzinfo=timezone.utc)
ORIGIN = {"by": {"user": "ann", "controller": "desk", "commit": "0123abc"}, "model": {}, "host": {}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "instances"), USER, GROUP)


def plan(fingerprint: str = "0123456789abcdef", name: str = "chat") -> dict[str, Any]:
    release = f"/opt/sglang/releases/{fingerprint[:4]}"
    return {"name": name, "fingerprint": fingerprint, "release": release, "engine_version": "0.5.23"}


def files(content: str = "A=1\n") -> tuple[File, ...]:
    return (
        File("/etc/systemd/system/sglang-chat.service", "[Unit]\n", owner=USER, group=GROUP),
        File("/etc/sglang/chat.env", content, 0o640, USER, GROUP),
        File("/etc/sglang/credentials/chat.api_key", "k\udcff", 0o600, USER, GROUP),
    )


def stage(store: Store, number: int = 0, *, name: str = "chat") -> str:
    """Stage one of several different states."""
    moment = NOW + timedelta(minutes=number)
    return store.stage(plan(f"{number:016x}", name), files(f"A={number}\n"), ORIGIN, moment)


def result(kind: str = READY, **more: object) -> dict[str, Any]:
    return {"time": NOW.isoformat(), "result": kind, **more}


def test_a_state_keeps_everything_of_an_instance(store: Store) -> None:
    made = store.stage(plan(), files(), ORIGIN, NOW)
    assert made == "20261129T180000Z-01234567"
    kept = store.at("chat", WANTED)
    assert kept is not None
    assert kept["format"] == 1
    assert (kept["instance"], kept["made"]) == ("chat", "2026-11-29T18:00:00+00:00")
    assert kept["by"] == ORIGIN["by"]
    assert kept["plan"] == plan()
    assert kept["results"] == []
    assert store.files(kept) == files()
    assert store.at("chat", KNOWN_GOOD) is None


def test_who_may_read_it(store: Store, tmp_path: Path) -> None:
    made = stage(store)
    folder = tmp_path / "instances/chat/states" / made
    assert (folder / "state.json").stat().st_mode & 0o7777 == 0o640
    assert folder.stat().st_mode & 0o7777 == 0o750
    assert (folder / "files").stat().st_mode & 0o7777 == 0o700
    secret = folder / "files/etc/sglang/credentials/chat.api_key"
    assert secret.stat().st_mode & 0o7777 == 0o600


def test_an_equal_state_is_not_made_twice(store: Store) -> None:
    assert not store.staged(plan(), files())
    first = store.stage(plan(), files(), ORIGIN, NOW)
    assert store.staged(plan(), files())
    assert store.stage(plan(), files(), ORIGIN, NOW + timedelta(hours=1)) == first
    assert not store.staged(plan(), files("A=2\n"))
    assert store.ids("chat") == [first]


def test_a_state_is_always_newer_than_the_last_one(store: Store) -> None:
    """Two in one second, or a clock that was set back."""
    first = store.stage(plan("a" * 16), files("A=1\n"), ORIGIN, NOW)
    second = store.stage(plan("b" * 16), files("A=2\n"), ORIGIN, NOW - timedelta(hours=1))
    assert second == "20261129T180001Z-bbbbbbbb"
    assert store.ids("chat") == [second, first]


def test_ready_makes_it_known_good_and_nothing_else_does(store: Store) -> None:
    first, second = stage(store, 1), stage(store, 2)
    store.record("chat", second, result(FAILED, cause="weights-damaged"))
    assert store.pointed("chat", KNOWN_GOOD) is None
    store.record("chat", first, result(READY, allocated={"kv_tokens": 8192}))
    assert store.pointed("chat", KNOWN_GOOD) == first
    store.record("chat", first, result(ROLLED_BACK))
    good = store.at("chat", KNOWN_GOOD)
    assert good is not None
    assert [one["result"] for one in good["results"]] == [READY, ROLLED_BACK]
    assert store.pointed("chat", WANTED) == second


def test_history_is_bounded_but_what_is_needed_stays(store: Store) -> None:
    good = stage(store, 0)
    store.record("chat", good, result())
    made = [stage(store, number) for number in range(1, 15)]
    assert store.ids("chat") == [*reversed(made[-room.KEEP :]), good]
    assert [state["id"] for state in store.history("chat")] == store.ids("chat")


def test_results_are_bounded(store: Store) -> None:
    made = stage(store)
    for number in range(room.KEEP_RESULTS + 5):
        store.record("chat", made, result(cause=str(number)))
    kept = [one["cause"] for one in store.read("chat", made)["results"]]
    assert kept == [str(number) for number in range(5, room.KEEP_RESULTS + 5)]


def test_what_an_interrupted_run_left_is_no_state(store: Store, tmp_path: Path) -> None:
    first = stage(store, 1)
    states = tmp_path / "instances/chat/states"
    for half in (".new", ".old"):
        (states / half / "files").mkdir(parents=True)
    assert store.ids("chat") == [first]
    second = stage(store, 2)
    assert {place.name for place in states.iterdir()} == {first, second}


def test_nothing_is_known_of_a_new_host(store: Store) -> None:
    assert store.names() == []
    assert store.ids("chat") == []
    assert store.history("chat") == []
    assert store.at("chat", WANTED) is None
    assert store.releases() == set()


def test_a_state_that_is_not_there_is_named_with_those_that_are(store: Store) -> None:
    made = stage(store)
    with pytest.raises(ProblemsError, match=f"chat: state: has no state 'x'; the newest are {made}"):
        store.read("chat", "x")
    with pytest.raises(ProblemsError, match="the newest are none"):
        store.read("coder", "x")


def test_a_later_format_is_refused_and_unknown_keys_are_kept(store: Store, tmp_path: Path) -> None:
    made = stage(store)
    place = tmp_path / "instances/chat/states" / made / "state.json"
    content = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps({**content, "later": [1]}), encoding="utf-8")
    store.record("chat", made, result())
    assert store.read("chat", made)["later"] == [1]
    place.write_text(json.dumps({**content, "format": 2}), encoding="utf-8")
    with pytest.raises(ProblemsError, match="has format 2, this version reads up to 1"):
        store.read("chat", made)


@pytest.mark.parametrize("change", ["other", None])
def test_files_that_were_changed_are_not_installed(store: Store, tmp_path: Path, change: str | None) -> None:
    made = stage(store)
    copy = tmp_path / "instances/chat/states" / made / "files/etc/sglang/chat.env"
    copy.write_text(change, encoding="utf-8") if change else copy.unlink()
    with pytest.raises(ProblemsError, match=r"the copy of /etc/sglang/chat\.env in state .* was changed"):
        store.files(store.read("chat", made))


def test_a_state_whose_copies_were_changed_is_made_anew(store: Store, tmp_path: Path) -> None:
    """Otherwise no deploy could put it in place again."""
    first = store.stage(plan(), files(), ORIGIN, NOW)
    (tmp_path / "instances/chat/states" / first / "files/etc/sglang/chat.env").write_text("A=9\n")
    assert not store.staged(plan(), files())
    second = store.stage(plan(), files(), ORIGIN, NOW)
    assert second != first
    assert store.files(store.read("chat", second)) == files()


def test_a_damaged_state_is_named(store: Store, tmp_path: Path) -> None:
    made = stage(store)
    place = tmp_path / "instances/chat/states" / made / "state.json"
    place.write_text('{"format": 1,', encoding="utf-8")
    with pytest.raises(ProblemsError, match=rf"{made}/state\.json is damaged: .*; remove \S+/{made}$"):
        store.read("chat", made)


def test_what_else_lies_beside_the_states_is_none(store: Store, tmp_path: Path) -> None:
    made = stage(store)
    states = tmp_path / "instances/chat/states"
    (states / "lost+found").mkdir()
    (states / "20261129T190000Z-deadbeef").mkdir()
    (states / f"{made}.bak").mkdir()
    (states / "notes.txt").touch()
    (tmp_path / "instances/README").touch()
    (tmp_path / "instances/backup").mkdir()
    assert store.ids("chat") == [made]
    assert store.names() == ["chat"]
    assert stage(store, 1) in store.ids("chat")


def test_a_link_to_a_state_that_is_gone_points_nowhere(store: Store, tmp_path: Path) -> None:
    made = stage(store)
    store.record("chat", made, result())
    (tmp_path / "instances/chat/states" / made).rename(tmp_path / "elsewhere")
    assert store.pointed("chat", WANTED) is None
    assert store.at("chat", KNOWN_GOOD) is None
    assert stage(store, 1) == store.pointed("chat", WANTED)


def test_what_keeps_a_state_from_coming_back(store: Store, tmp_path: Path) -> None:
    release, model = tmp_path / "release", tmp_path / "model"
    release.mkdir()
    model.mkdir()
    made = store.stage({**plan(), "release": str(release), "model": str(model)}, files(), ORIGIN, NOW)
    assert store.obstacle(store.read("chat", made)) == ""
    release.rmdir()
    model.rmdir()
    (tmp_path / "instances/chat/states" / made / "files/etc/sglang/chat.env").unlink()
    assert store.obstacle(store.read("chat", made)).split("; ") == [
        f"its release {release} is gone",
        f"its model {model} is gone",
        "its copy of /etc/sglang/chat.env was changed",
    ]


@pytest.mark.parametrize("folder", ["", "chat", "chat/states"])
def test_what_another_account_can_write_is_refused(store: Store, tmp_path: Path, folder: str) -> None:
    made = stage(store)
    (tmp_path / "instances" / folder).chmod(0o770)
    for ask in (lambda: store.read("chat", made), lambda: stage(store, 1)):
        with pytest.raises(ProblemsError, match="is not a directory of"):
            ask()


def test_a_link_in_place_of_the_directory_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "instances").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProblemsError, match="is not a directory of"):
        stage(store)


def test_releases_that_are_needed(store: Store) -> None:
    first = store.stage(plan("1" * 16), files("A=1\n"), ORIGIN, NOW)
    store.record("chat", first, result())
    store.stage(plan("2" * 16), files("A=2\n"), ORIGIN, NOW)
    store.stage(plan("3" * 16, "coder"), files(), ORIGIN, NOW)
    assert store.releases() == {f"/opt/sglang/releases/{one}" for one in ("1111", "2222", "3333")}
    assert store.names() == ["chat", "coder"]


def test_the_state_of_a_process_is_found_by_its_fingerprint(store: Store) -> None:
    first, _ = stage(store, 1), stage(store, 2)
    found = store.running("chat", f"{1:016x}")
    assert found is not None
    assert found["id"] == first
    assert store.running("chat", "somebody's") is None
    assert store.running("chat", None) is None


def test_of_equal_processes_the_wanted_state_runs(store: Store) -> None:
    """A change that needs no restart makes a new state of the same process."""
    first = store.stage(plan(), files("A=1\n"), ORIGIN, NOW)
    second = store.stage(plan(), files("A=2\n"), ORIGIN, NOW)
    for wanted in (first, second):
        store.point("chat", WANTED, wanted)
        found = store.running("chat", plan()["fingerprint"])
        assert found is not None
        assert found["id"] == wanted


def test_failures_are_kept_and_bounded(store: Store, tmp_path: Path) -> None:
    stage(store)
    for number in range(8):
        moment = NOW + timedelta(minutes=number)
        store.keep_failure("chat", {"../journal.log": "Traceback\n"}, moment)
    (tmp_path / "instances/chat/failures/notes.txt").touch()
    store.keep_failure("chat", {"journal.log": "Traceback\n"}, NOW + timedelta(minutes=8))
    kept = sorted(place for place in (tmp_path / "instances/chat/failures").iterdir() if place.is_dir())
    assert [place.name for place in kept] == [f"20261129T180{number}00Z" for number in range(4, 9)]
    assert (kept[0] / "journal.log").read_text(encoding="utf-8") == "Traceback\n"
    store.keep_failure("chat", {"journal.log": "by a clock that was set back\n"}, NOW - timedelta(days=1))
    assert (tmp_path / "instances/chat/failures/20261128T180000Z").is_dir()


def described(number: int, *results: str) -> dict[str, Any]:
    return {"id": str(number), "fingerprint": f"f{number}", "results": [result(one) for one in results]}


HISTORY = [described(4, FAILED), described(3, READY), described(2, FAILED), described(1, READY, ROLLED_BACK)]


@pytest.mark.parametrize(
    ("wanted", "known_good", "running", "chosen"),
    [
        ("4", "3", "f4", "3"),
        ("3", "3", "f4", "3"),
        ("4", "3", "f3", "3"),
        ("3", "3", "f3", "1"),
        ("3", "3", None, "3"),
        ("1", "1", "f1", None),
        ("4", None, "f4", None),
    ],
)
def test_where_a_rollback_goes(
    wanted: str, known_good: str | None, running: str | None, chosen: str | None
) -> None:
    assert target(HISTORY, wanted=wanted, known_good=known_good, running=running) == chosen


def test_a_rollback_does_not_go_to_the_same_process_again() -> None:
    same = {**described(2, READY), "fingerprint": "f3"}
    states = [described(3, READY), same, described(1, READY)]
    assert target(states, wanted="3", known_good="3", running="f3") == "1"
