from __future__ import annotations

import errno
import grp
import json
import os
import pwd
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import fileset, switch
from sglang_kit.fileset import File
from sglang_kit.problem import ProblemsError
from sglang_kit.state import FAILED, KNOWN_GOOD, READY, ROLLED_BACK, WANTED, Store

from tests import modules

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conftest import Tools

USER = pwd.getpwuid(os.geteuid()).pw_name
GROUP = grp.getgrgid(os.getegid()).gr_name
NOW = datetime(2026, 11, 29, 18, 0, tzinfo=timezone.utc)
GOOD = {"state": "ready", "cause": "", "sentence": "", "allocated": {"kv_tokens": 8192}, "stages": []}
BAD = {"state": "failed", "cause": "weights-damaged", "sentence": "it is cut off"}

SYSTEMCTL = """
case "$1 $2" in
"show --property=UnitFileState") shift 2; for unit; do grep -qx "$unit" {enabled} \\
      && echo UnitFileState=enabled || echo UnitFileState=; echo; done;;
show*) shift 2; for unit; do \\
      state=active; grep -qx "$unit" {asleep} && state=inactive; \\
      printf 'ActiveState=%s\\nInvocationID=of-%s\\n\\n' "$state" "$unit"; done;;
stop*|restart*) for file in {etc}/*.env; do test ! -e "$file" || cat "$file" >> {seen}; done;;
enable*) shift 2; for unit; do echo "$unit" >> {enabled}; done;;
esac
"""


class Host:
    """States and files below a temporary directory; systemd is a script that notes what it was told."""

    def __init__(self, directory: Path, tools: Tools) -> None:
        self.tools = tools
        self.directory = directory
        self.etc = directory / "etc"
        self.etc.mkdir()
        self.release = directory / "release"
        self.release.mkdir()
        self.store = Store(str(directory / "instances"), USER, GROUP)
        self.seen = directory / "seen"
        self.asleep = directory / "asleep"
        enabled = directory / "enabled"
        for lists in (self.asleep, enabled):
            lists.touch()
        script = SYSTEMCTL.format(enabled=enabled, asleep=self.asleep, etc=self.etc, seen=self.seen)
        tools.place("systemctl", script)
        tools.place("journalctl")
        tools.place("nvidia-smi")

    def stage(self, number: int, name: str = "chat", *, key: bool = False, **changes: object) -> str:
        """Record a state whose environment file holds its number."""
        plan = {
            "name": name,
            "unit": f"sglang-{name}.service",
            "fingerprint": f"{number:016x}",
            "release": str(self.release),
            "engine_version": "0.5.23",
            "host": "127.0.0.1",
            "port": 1,
            "secrets": {"api_key": str(self.etc / f"{name}.key")} if key else {},
            "unit_file": str(self.etc / f"sglang-{name}.service"),
            "plan_file": str(self.etc / f"{name}.plan.json"),
            "environment_file": str(self.etc / f"{name}.env"),
            **changes,
        }
        files = [File(path, f"{name} {number}\n", owner=USER, group=GROUP) for path in switch.paths(plan)]
        return self.store.stage(plan, files, {}, NOW + timedelta(minutes=number))

    def files(self) -> dict[str, str]:
        return {place.name: place.read_text(encoding="utf-8") for place in self.etc.iterdir()}

    def told(self) -> list[str]:
        return [call for call in self.tools.calls("systemctl") if not call.startswith(("show", "cat"))]

    def results(self, name: str, state: str) -> list[str]:
        return [one["result"] for one in self.store.read(name, state)["results"]]


@pytest.fixture
def host(tmp_path: Path, tools: Tools) -> Host:
    return Host(tmp_path, tools)


def step(name: str, action: str = "restart", *others: str) -> dict[str, Any]:
    return {"name": name, "action": action, "reason": "", "group": [name, *others]}


def test_the_wanted_state_is_put_in_place_and_started(host: Host) -> None:
    state = host.stage(1)
    switched = switch.forward(host.store, [step("chat", "start")])
    assert set(host.files().values()) == {"chat 1\n"}
    assert host.told() == [
        "daemon-reload",
        "enable --quiet sglang-chat.service",
        "restart --no-block sglang-chat.service",
    ]
    assert switched.states == {"chat": state}
    assert [plan["name"] for plan in switched.plans] == ["chat"]
    assert switched.previous == {"chat": "of-sglang-chat.service"}
    assert switched.as_dict()["stays"] == {}


def test_the_environment_file_with_the_fingerprint_comes_last(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.stage(1, key=True)
    written: list[list[str]] = []
    monkeypatch.setattr(
        fileset, "apply", lambda changes: written.append([Path(one.path).name for one in changes])
    )
    switch.forward(host.store, [step("chat")])
    assert written[-2:] == [["chat.key", "sglang-chat.service", "chat.plan.json"], ["chat.env"]]


def test_what_starts_already_is_not_started_again(host: Host) -> None:
    host.stage(1)
    switched = switch.forward(host.store, [step("chat", "prove")])
    assert host.told() == ["daemon-reload"]
    assert [plan["name"] for plan in switched.plans] == ["chat"]
    assert switched.previous == {}


def test_a_stop_comes_before_its_files_change_and_lasts(host: Host) -> None:
    host.stage(1)
    switch.forward(host.store, [step("chat", "start")])
    host.seen.unlink()
    host.stage(2)
    switched = switch.forward(host.store, [step("chat", "stop")])
    assert host.seen.read_text(encoding="utf-8") == "chat 1\n"
    assert host.told()[-3:] == [
        "stop sglang-chat.service",
        "daemon-reload",
        "disable --quiet sglang-chat.service",
    ]
    assert switched.plans == []


def test_a_circle_stops_as_a_whole_before_any_of_it_starts(host: Host) -> None:
    for name in ("a", "b"):
        host.stage(1, name)
    switch.forward(host.store, [step("a", "restart", "b"), step("b", "restart", "a")])
    assert host.told()[0] == "stop sglang-a.service sglang-b.service"
    assert host.told()[-1] == "restart --no-block sglang-a.service sglang-b.service"


def test_what_never_ran_is_not_stopped_with_its_group(host: Host) -> None:
    for name in ("a", "b"):
        host.stage(1, name)
    host.asleep.write_text("sglang-a.service\n", encoding="utf-8")
    switch.forward(host.store, [step("a", "start", "b"), step("b", "restart", "a")])
    assert host.told()[0] == "stop sglang-b.service"
    assert host.told()[-1] == "restart --no-block sglang-a.service sglang-b.service"


def test_a_file_that_the_new_state_does_not_have_goes(host: Host) -> None:
    host.stage(1, key=True)
    host.stage(1, "other", key=True)
    switch.forward(host.store, [step("chat"), step("other")])
    host.stage(2)
    switch.forward(host.store, [step("chat")])
    assert "chat.key" not in host.files()
    assert host.files()["other.key"] == "other 1\n"


def test_a_named_state_becomes_the_wanted_one(host: Host) -> None:
    first, _ = host.stage(1), host.stage(2)
    switch.forward(host.store, [step("chat")], first)
    assert host.store.pointed("chat", WANTED) == first
    assert set(host.files().values()) == {"chat 1\n"}


def test_nothing_to_go_to(host: Host) -> None:
    with pytest.raises(ProblemsError, match="chat: state: has no state 'known-good'"):
        switch.forward(host.store, [step("chat")], KNOWN_GOOD)


def change(host: Host, *names: str) -> dict[str, str]:
    """Prove a first state of each, and put a second one in place."""
    for name in names:
        host.store.record(name, host.stage(1, name), {"result": READY})
        host.stage(2, name)
    return switch.forward(host.store, [step(name) for name in names]).states


def test_what_failed_goes_back_and_what_is_ready_stays(host: Host) -> None:
    attempted = change(host, "chat", "coder")
    steps = [step("chat"), step("coder")]
    back = switch.back(host.store, steps, attempted, ready={"coder": GOOD}, failures={"chat": BAD})
    good = host.store.pointed("chat", KNOWN_GOOD)
    assert back.states == {"chat": good}
    assert host.files()["chat.env"] == "chat 1\n"
    assert host.files()["coder.env"] == "coder 2\n"
    assert host.told()[-1] == "restart --no-block sglang-chat.service"
    assert host.results("chat", attempted["chat"]) == [FAILED]
    assert host.store.pointed("coder", KNOWN_GOOD) == attempted["coder"]
    assert host.store.pointed("chat", WANTED) == attempted["chat"]


def test_a_full_disk_does_not_keep_it_from_going_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    attempted = change(host, "chat")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "record", refuse)
    back = switch.back(host.store, [step("chat")], attempted, ready={}, failures={"chat": BAD})
    assert back.unrecorded == "[Errno 28] No space left on device"
    assert host.files()["chat.env"] == "chat 1\n"
    assert host.told()[-1] == "restart --no-block sglang-chat.service"


def test_nothing_stops_for_a_state_that_cannot_be_put_in_place(host: Host) -> None:
    for name in ("a", "b"):
        host.stage(1, name)
    copy = next(host.directory.glob("instances/b/states/*/files")).joinpath(
        str(host.etc / "b.env").lstrip("/")
    )
    copy.unlink()
    with pytest.raises(ProblemsError, match="was changed"):
        switch.forward(host.store, [step("a", "restart", "b"), step("b", "restart", "a")])
    assert host.told() == []


def test_its_evidence_is_kept(host: Host) -> None:
    attempted = change(host, "chat")
    switch.back(host.store, [step("chat")], attempted, ready={}, failures={"chat": BAD})
    (place,) = (host.directory / "instances/chat/failures").iterdir()
    kept = json.loads((place / "plan.json").read_text(encoding="utf-8"))
    assert kept["fingerprint"] == f"{2:016x}"


def test_a_circle_goes_back_as_a_whole(host: Host) -> None:
    attempted = change(host, "a", "b")
    steps = [step("a", "restart", "b"), step("b", "restart", "a")]
    back = switch.back(host.store, steps, attempted, ready={"a": GOOD}, failures={"b": BAD})
    assert set(back.states) == {"a", "b"}
    assert host.results("a", attempted["a"]) == []


def sharers(host: Host) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, str]]:
    """Change the first of two sharers, which starts both again: steps, good states, and those tried."""
    good = {name: host.stage(1, name) for name in ("a", "b")}
    steps = [step("a", "restart", "b"), step("b", "restart", "a")]
    switch.record(host.store, switch.forward(host.store, steps).states, {"a": GOOD, "b": GOOD}, READY)
    host.stage(2, "a")
    return steps, good, switch.forward(host.store, steps).states


@pytest.mark.parametrize("failed", ["a", "b"])
def test_who_did_not_change_goes_back_with_its_group(host: Host, failed: str) -> None:
    steps, good, attempted = sharers(host)
    (ready,) = {"a", "b"} - {failed}
    back = switch.back(host.store, steps, attempted, ready={ready: GOOD}, failures={failed: BAD})
    assert (back.states, back.stays) == (good, {})


def test_a_group_of_which_nothing_can_change_stays(host: Host) -> None:
    steps, _, _ = sharers(host)
    host.stage(1, "a")
    attempted = switch.forward(host.store, steps).states
    switch.record(host.store, attempted, {"a": GOOD, "b": GOOD}, READY)
    calls = len(host.told())
    back = switch.back(host.store, steps, attempted, ready={"b": GOOD}, failures={"a": BAD})
    assert (back.states, list(back.stays)) == ({}, ["a"])
    assert host.told()[calls:] == []


def test_who_was_never_good_leaves_the_room_to_its_group(host: Host) -> None:
    good = host.stage(1, "b")
    switch.record(host.store, switch.forward(host.store, [step("b")]).states, {"b": GOOD}, READY)
    host.stage(1, "a")
    steps = [step("a", "start", "b"), step("b", "restart", "a")]
    attempted = switch.forward(host.store, steps).states
    calls = len(host.told())
    back = switch.back(host.store, steps, attempted, ready={}, failures={"a": BAD, "b": BAD})
    assert (back.states, list(back.stays)) == ({"b": good}, ["a"])
    assert host.told()[calls] == "disable --now --quiet sglang-a.service"
    assert host.told()[-1] == "restart --no-block sglang-b.service"


def test_starts_are_asked_for_in_their_order(host: Host) -> None:
    host.stage(1, "a", after=["sglang-b.service"])
    host.stage(1, "b", after=[])
    switch.forward(host.store, [step("a", "restart", "b"), step("b", "restart", "a")])
    assert host.told()[-1] == "restart --no-block sglang-b.service sglang-a.service"


def test_a_batch_that_failed_before_any_start_goes_back(host: Host) -> None:
    change(host, "chat")
    back = switch.back(host.store, [step("chat", "start")], {}, ready={}, failures={})
    assert set(back.states) == {"chat"}
    assert host.told()[-1] == "restart --no-block sglang-chat.service"


def test_where_there_is_no_way_back_the_reason_is_told(host: Host) -> None:
    attempted = {"new": host.stage(1, "new"), "same": host.stage(1, "same"), "gone": host.stage(2, "gone")}
    host.store.record("same", attempted["same"], {"result": READY})
    removed = host.directory / "removed"
    host.store.record("gone", host.stage(1, "gone", release=str(removed)), {"result": READY})
    steps = [step(name) for name in attempted]
    back = switch.back(host.store, steps, attempted, ready={}, failures=dict.fromkeys(attempted, BAD))
    assert back.states == {}
    good = host.store.pointed("gone", KNOWN_GOOD)
    assert back.stays == {
        "new": "no state of it was ever ready",
        "same": f"what failed is its last good state, {attempted['same']}",
        "gone": f"its last good state {good} cannot come back: its release {removed} is gone",
    }
    assert not any(call.startswith("restart") for call in host.told())


def test_a_last_good_state_that_hangs_is_started_once(host: Host) -> None:
    good = host.stage(1)
    host.store.record("chat", good, {"result": READY})
    found = switch.forward(host.store, [step("chat", "prove")]).states
    hangs = {**BAD, "cause": "no-progress"}
    back = switch.back(host.store, [step("chat", "prove")], found, ready={}, failures={"chat": hangs})
    assert (back.states, back.stays) == ({"chat": good}, {})
    assert back.previous == {"chat": "of-sglang-chat.service"}
    assert host.told()[-1] == "restart --no-block sglang-chat.service"
    assert host.results("chat", good) == [READY, FAILED]


def test_an_outcome_keeps_pools_and_times() -> None:
    verdict = {**GOOD, "stages": [{"name": "weights", "begin": 1.0, "seconds": 31.5}]}
    assert switch.outcome(READY, verdict, NOW) == {
        "time": "2026-11-29T18:00:00+00:00",
        "result": READY,
        "cause": "",
        "sentence": "",
        "allocated": {"kv_tokens": 8192},
        "stage_seconds": {"weights": 31.5},
    }


# --- the modules ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sglang_switch", "sglang_record"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return modules.load(request.param)


def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    assert modules.documented(module) == module.ARGUMENTS


def test_a_change_that_fails_and_its_way_back(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_me = {"group": GROUP}
    # The modules' store is root's; here it is whoever runs the test.
    kit = modules.load("sglang_switch").state
    monkeypatch.setattr(kit, "Store", partial(kit.Store, owner=USER))
    host.store.record("chat", host.stage(1), {"result": READY})
    host.stage(2)
    arguments = {"steps": [step("chat")], "states": host.store.root, **as_me}
    load = modules.load
    switched = modules.run(load("sglang_switch"), capsys, arguments)
    back = {"back": True, "attempted": switched["states"], "failures": {"chat": BAD}}
    restored = modules.run(load("sglang_switch"), capsys, {**arguments, **back})
    assert restored["changed"]
    proof = {"states": restored["states"], "verdicts": {"chat": GOOD}, "result": "rolled_back"}
    record = {**proof, "directory": host.store.root, **as_me}
    assert modules.run(load("sglang_record"), capsys, record, check=True)["changed"]
    assert host.results("chat", restored["states"]["chat"]) == [READY]
    assert modules.run(load("sglang_record"), capsys, record)["changed"]
    assert host.results("chat", restored["states"]["chat"]) == [READY, ROLLED_BACK]
    assert host.results("chat", switched["states"]["chat"]) == [FAILED]
