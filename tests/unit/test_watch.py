"""The watch looks through doors: systemd, the journal, HTTP and the clock. A test stands behind each."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import watch
from sglang_kit.journal import Allocated, Line, Record
from sglang_kit.launch import PROOF
from sglang_kit.readiness import Answer, Answers, Expectation, Stage, UnitState, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sglang_kit.credentials import Credentials

OLD, NEW = "0" * 32, "1" * 32
BEGIN = 1000.0
RECORD = Record(text="a record", time=BEGIN, wall=0.0, boot="", invocation=NEW, source="engine")
LONGEST_SECONDS = 10_000
STARTING = UnitState(
    active_state="activating", sub_state="start", main_pid=77, invocation=NEW, started=BEGIN - 1
)
ACTIVE = replace(STARTING, active_state="active", sub_state="running")
SERVING = replace(ACTIVE, status_text="ready")
FAILED = replace(
    STARTING,
    active_state="failed",
    sub_state="failed",
    result="exit-code",
    main_pid=0,
    end="exited",
    end_status=1,
)
INACTIVE = UnitState(active_state="inactive", sub_state="dead")
OLD_SERVING = replace(SERVING, invocation=OLD, main_pid=66, started=10.0)
OLD_STOPPING = replace(
    OLD_SERVING, active_state="deactivating", sub_state="stop-sigterm", status_text="stopping"
)

LOADED = [
    "server_args={'model_path': '/srv/models/tiny'}",
    "Load weight begin. avail mem=20.80 GB",
    "KV Cache is allocated. dtype: torch.float16, #tokens: 8192, K size: 0.00 GB, V size: 0.00 GB",
    "INFO:     Uvicorn running on http://127.0.0.1:31000 (Press CTRL+C to quit)",
    "The server is fired up and ready to roll!",
]
READY: dict[str, Answer] = {
    "health": Answer(200, ""),
    "server_info": Answer(200, {"model_path": "/srv/models/tiny", "max_total_num_tokens": 8192}),
    "models": Answer(200, {"data": [{"id": "tiny"}]}),
    "completion": Answer(200, {"choices": [{"text": "Yes", "finish_reason": "length"}]}),
    "schema": Answer(
        200, {"choices": [{"message": {"content": '{"ready": true}'}, "finish_reason": "stop"}]}
    ),
}


def plan(name: str = "chat", **changes: object) -> dict[str, Any]:
    common = {"model": "/srv/models/tiny", "served_model_name": "tiny", "host": "::", "port": 0, "argv": []}
    unit = {"unit": f"sglang-{name}.service", "after": [], "stop_seconds": 180}
    return {"name": name, **unit, **common, **changes}


class Host:
    """States and journals by instance name, one item a look; the last one stays."""

    def __init__(self) -> None:
        self.states: dict[str, list[UnitState]] = {}
        self.journals: dict[str, list[list[str]]] = defaultdict(list)
        self.answers = dict(READY)
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        """The look, counted from 1, and the questions."""
        self.hosts: set[str] = set()
        self.looked_at: list[list[str]] = []
        self.readers: list[tuple[str, UnitState]] = []
        self.now = BEGIN
        self.past: dict[str, Any] = {}
        """What the journal knows of a unit that systemd has forgotten."""
        self.patch: Callable[[str, object], None]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < BEGIN + LONGEST_SECONDS

    def unit_states(self, units: Sequence[str]) -> dict[str, UnitState]:
        names = [unit[len("sglang-") : -len(".service")] for unit in units]
        self.looked_at.append(names)
        return {unit: self._next(self.states[name]) for unit, name in zip(units, names, strict=True)}

    @staticmethod
    def _next(states: list[UnitState]) -> UnitState:
        return states.pop(0) if len(states) > 1 else states[0]

    def journal_reader(self, unit: str, state: UnitState) -> SimpleNamespace:
        self.readers.append((unit, state))
        parts = self.journals[unit[len("sglang-") : -len(".service")]]
        number = 0

        def read() -> Iterator[Line]:
            nonlocal number
            for text in parts.pop(0) if parts else []:
                number += 1
                yield Line(number, text, self.now, 77)

        return SimpleNamespace(read=read, records=lambda: iter([RECORD]))

    def remembered(self, _unit: str, state: UnitState) -> UnitState:
        return state if state.invocation else replace(state, **self.past)

    def collect(self, plan: dict[str, Any], records: Iterator[Record], *, alive: bool) -> dict[str, str]:
        return {"journal.log": f"{plan['name']} {[record.text for record in records]} {alive}"}

    def ask(self, _expectation: Expectation, host: str, names: Sequence[str], _: Credentials) -> Answers:
        self.asked.append((len(self.looked_at), tuple(names)))
        self.hosts.add(host)
        return Answers(**{name: self.answers[name] for name in names})


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    host = Host()
    host.patch = partial(monkeypatch.setattr, watch)
    monkeypatch.setattr(watch, "unit_states", host.unit_states)
    monkeypatch.setattr(watch, "JournalReader", host.journal_reader)
    monkeypatch.setattr(watch, "probe", SimpleNamespace(ask=host.ask))
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=host.monotonic, sleep=host.sleep))
    monkeypatch.setattr(watch, "evidence", SimpleNamespace(collect=host.collect))
    monkeypatch.setattr(watch, "remembered", host.remembered)
    monkeypatch.setattr(watch, "RUNTIME", tmp_path)
    monkeypatch.setattr(watch, "STATE", tmp_path / "state")
    return host


def follow(plans: Sequence[dict[str, Any]], previous: dict[str, str]) -> dict[str, dict[str, Any]]:
    return watch.follow(plans, previous).instances


def keep_proof(directory: Path, name: str, invocation: str) -> dict[str, Any]:
    known: dict[str, Any] = {
        "allocated": Allocated(kv_tokens=9),
        "stages": (Stage("weights", BEGIN, 30.0), Stage("serving", BEGIN + 30)),
        "notes": ("a note",),
    }
    (directory / name).mkdir()
    verdict = Verdict(state="ready", stage="serving", since=BEGIN + 40, sentence="", **known)
    proof = {"invocation": invocation, **verdict.as_dict()}
    (directory / name / PROOF).write_text(json.dumps(proof), encoding="utf-8")
    return {key: verdict.as_dict()[key] for key in known}


# --- one instance --------------------------------------------------------------------------------


def test_a_start_is_followed_in_the_journal_until_the_launcher_has_proven_it(
    host: Host, tmp_path: Path
) -> None:
    host.states["chat"] = [STARTING, STARTING, STARTING, SERVING]
    host.journals["chat"] = [LOADED[:1], [], LOADED[1:]]
    keep_proof(tmp_path, "chat", NEW)
    verdict = follow([plan()], {})["chat"]
    assert (verdict["state"], verdict["main_pid"]) == ("ready", 77)
    assert verdict["allocated"] == {"kv_tokens": 9}
    assert host.asked == []


def test_what_serves_without_a_proof_is_asked_all_in_one_look(host: Host) -> None:
    host.states["chat"] = [STARTING, STARTING, ACTIVE]
    host.journals["chat"] = [LOADED[:1], [], LOADED[1:]]
    verdict = follow([plan()], {})["chat"]
    assert (verdict["state"], verdict["main_pid"]) == ("ready", 77)
    assert verdict["allocated"]["kv_tokens"] == 8192
    assert verdict["stages"][0]["begin"] == STARTING.started
    assert host.readers == [("sglang-chat.service", STARTING)]
    assert host.asked == [
        (3, (name,)) for name in ("health", "server_info", "models", "completion", "schema")
    ]
    assert host.hosts == {"::"}


def test_a_question_is_not_repeated_within_a_look(host: Host) -> None:
    host.states["chat"] = [ACTIVE, ACTIVE, FAILED]
    host.journals["chat"] = [LOADED]
    host.answers["health"] = Answer(503, "")
    assert follow([plan()], {})["chat"]["state"] == "failed"
    assert host.asked == [(1, ("health",)), (2, ("health",))]


def test_a_proven_instance_is_asked_and_its_journal_left_alone(host: Host) -> None:
    host.states["chat"] = [SERVING]
    verdict = follow([plan()], {})["chat"]
    assert verdict["state"] == "ready"
    assert [names for _, names in host.asked] == [(name,) for name in READY if name != "schema"]
    assert host.readers == []


@pytest.mark.parametrize("status", ["stopping: draining requests", "loading: weights", ""])
def test_only_the_word_of_the_launcher_spares_the_journal(host: Host, status: str) -> None:
    host.states["chat"] = [replace(SERVING, status_text=status)]
    host.journals["chat"] = [LOADED]
    assert follow([plan()], {})["chat"]["state"] == "ready"
    assert len(host.readers) == 1


def test_what_has_served_and_died_is_explained_by_its_journal(host: Host) -> None:
    host.states["chat"] = [replace(FAILED, status_text="ready")]
    host.journals["chat"] = [["Traceback (most recent call last):", "  File", "RuntimeError: the last words"]]
    verdict = follow([plan()], {})["chat"]
    assert verdict["state"] == "failed"
    assert "RuntimeError: the last words" in verdict["sentence"]


def test_the_last_lines_of_what_has_ended_may_come_late(host: Host) -> None:
    host.states["chat"] = [STARTING, FAILED]
    host.journals["chat"] = [LOADED[:1], [], ["launch_server.py: error: unrecognized arguments: --x"]]
    verdict = follow([plan()], {})["chat"]
    assert "--x" in verdict["sentence"]
    assert len(host.looked_at) == 3


def test_an_end_between_two_looks_is_not_taken_for_the_start_after_it(host: Host) -> None:
    host.states["chat"] = [FAILED, replace(STARTING, invocation="2" * 32)]
    host.journals["chat"] = [[], LOADED]
    assert follow([plan()], {})["chat"]["state"] == "restarting"


def test_what_never_started_is_final(host: Host) -> None:
    host.states["chat"] = [INACTIVE]
    assert follow([plan()], {})["chat"]["state"] == "never_started"


def test_a_start_without_a_main_process_yet_is_as_old_as_the_first_look(host: Host) -> None:
    """Or the kernel's lines since boot would count as its own."""
    early = replace(STARTING, sub_state="start-pre", main_pid=0, started=0.0)
    host.states["chat"] = [early, ACTIVE]
    host.journals["chat"] = [[], LOADED]
    assert follow([plan()], {})["chat"]["state"] == "ready"
    assert host.readers == [("sglang-chat.service", replace(early, started=BEGIN))]


def test_a_silent_stage_ends_the_watch(host: Host) -> None:
    host.states["chat"] = [STARTING]
    verdict = follow([plan(stage_seconds={"arguments": 20})], {})["chat"]
    assert verdict["state"] == "stalled"
    assert 20 <= host.now - BEGIN < 21


def test_a_restart_while_it_is_watched_is_a_failure(host: Host) -> None:
    host.states["chat"] = [STARTING, replace(STARTING, invocation="2" * 32, main_pid=78)]
    assert follow([plan()], {})["chat"]["state"] == "restarting"


# --- after a start that was just asked for -------------------------------------------------------


def test_nothing_of_the_previous_invocation_counts(host: Host) -> None:
    host.states["chat"] = [OLD_SERVING, OLD_SERVING, OLD_STOPPING, ACTIVE]
    host.journals["chat"] = [LOADED]
    verdict = follow([plan()], {"chat": OLD})["chat"]
    assert (verdict["state"], verdict["main_pid"]) == ("ready", 77)
    assert host.readers == [("sglang-chat.service", ACTIVE)]
    assert {look for look, _ in host.asked} == {4}


def test_a_unit_that_never_ran_may_take_its_time_to_begin(host: Host) -> None:
    host.states["chat"] = [INACTIVE, INACTIVE, ACTIVE]
    host.journals["chat"] = [LOADED]
    assert follow([plan()], {"chat": ""})["chat"]["state"] == "ready"


@pytest.mark.parametrize("state", [OLD_SERVING, OLD_STOPPING])
def test_a_start_that_does_not_begin_fails_when_the_stop_before_it_must_be_over(
    host: Host, state: UnitState
) -> None:
    host.states["chat"] = [state]
    verdict = follow([plan(stop_seconds=60)], {"chat": OLD})["chat"]
    assert verdict["state"] == "failed"
    assert verdict["sentence"] == (
        f"90 s after it was asked for, the start has not begun: the unit is {state.active_state}, as before"
    )
    assert host.now - BEGIN == pytest.approx(60 + watch.STOP_MARGIN_SECONDS, abs=watch.POLL_SECONDS)
    assert host.asked == []


def test_a_start_that_waits_for_those_before_it_may_begin_late(host: Host) -> None:
    loading = round(60 / watch.POLL_SECONDS)
    host.states = {"first": [STARTING] * loading + [ACTIVE], "second": [INACTIVE] * (loading + 5) + [ACTIVE]}
    host.journals.update({"first": [[]] * loading + [LOADED], "second": [LOADED]})
    plans = [plan("first"), plan("second", stop_seconds=10, after=["sglang-first.service"])]
    found = follow(plans, {"first": "", "second": ""})
    assert {name: one["state"] for name, one in found.items()} == {"first": "ready", "second": "ready"}


@pytest.mark.parametrize("previous", [{}, {"chat": ""}])
def test_inactive_trap_a_unit_that_systemd_forgets_when_it_is_stopped_was_stopped(
    host: Host, previous: dict[str, str]
) -> None:
    host.states["chat"] = [STARTING, INACTIVE]
    host.journals["chat"] = [LOADED[:1]]
    verdict = follow([plan()], previous)["chat"]
    assert (verdict["state"], verdict["cause"]) == ("stopped", "stopped-by-request")


def test_a_unit_that_was_stopped_and_forgotten_before_has_been_started(host: Host) -> None:
    host.states["chat"] = [INACTIVE]
    host.past = {"invocation": OLD, "started": BEGIN - 50}
    assert follow([plan()], {})["chat"]["state"] == "stopped"


# --- the launcher's proof ------------------------------------------------------------------------


def test_the_proof_of_this_invocation_completes_the_verdict(host: Host, tmp_path: Path) -> None:
    host.states["chat"] = [SERVING]
    known = keep_proof(tmp_path, "chat", NEW)
    verdict = follow([plan()], {})["chat"]
    assert {key: verdict[key] for key in known} == known
    assert verdict["checks"] != []


def test_the_proof_of_another_invocation_is_left_alone(host: Host, tmp_path: Path) -> None:
    host.states["chat"] = [SERVING]
    keep_proof(tmp_path, "chat", OLD)
    verdict = follow([plan()], {})["chat"]
    assert verdict["state"] == "ready"
    assert (verdict["allocated"], verdict["stages"], verdict["notes"]) == ({}, (), ())


# --- several instances ---------------------------------------------------------------------------


def test_no_instances_are_no_question(host: Host) -> None:
    assert follow([], {}) == {}
    assert host.looked_at == []


def test_instances_are_watched_together_until_the_last_is_decided(host: Host) -> None:
    host.states["chat"] = [STARTING, STARTING, ACTIVE]
    host.states["coder"] = [SERVING]
    host.states["broken"] = [FAILED]
    host.journals["chat"] = [[], [], LOADED]
    verdicts = follow([plan("chat"), plan("coder"), plan("broken")], {})
    assert {name: verdict["state"] for name, verdict in verdicts.items()} == {
        "coder": "ready",
        "broken": "failed",
        "chat": "ready",
    }
    assert host.looked_at == [["chat", "coder", "broken"], ["chat", "broken"], ["chat"]]


def test_each_instance_has_its_own_previous_invocation(host: Host) -> None:
    host.states["chat"] = [OLD_SERVING, SERVING]
    host.states["coder"] = [OLD_SERVING]
    verdicts = follow([plan("chat"), plan("coder")], {"chat": OLD})
    assert {name: verdict["main_pid"] for name, verdict in verdicts.items()} == {"coder": 66, "chat": 77}


# --- step by step --------------------------------------------------------------------------------


def steps(host: Host, plans: list[dict[str, Any]], previous: dict[str, str]) -> list[watch.Seen]:
    """Call again and again as the action plugin does; JSON lies between the calls."""
    seen = [watch.follow(plans, previous, stepwise=True)]
    while seen[-1].bookmarks:
        bookmarks = json.loads(json.dumps(seen[-1].bookmarks))
        open_plans = [plan for plan in plans if plan["name"] in bookmarks]
        host.now += 0.7
        seen.append(watch.follow(open_plans, previous, bookmarks=bookmarks, stepwise=True))
    return seen


def replay_journals(host: Host) -> None:
    """Give each new reader the whole journal so far, as journalctl does."""
    growing = defaultdict(list, host.journals)
    lines: dict[str, list[str]] = defaultdict(list)

    def journal_reader(unit: str, state: UnitState) -> SimpleNamespace:
        host.readers.append((unit, state))
        name = unit[len("sglang-") : -len(".service")]
        given = 0

        def read() -> Iterator[Line]:
            nonlocal given
            if growing[name]:
                lines[name] += growing[name].pop(0)
            fresh, given = lines[name][given:], len(lines[name])
            yield from (Line(number, text, host.now, 77) for number, text in enumerate(fresh, given + 1))

        return SimpleNamespace(read=read, records=lambda: iter([RECORD]))

    host.patch("JournalReader", journal_reader)


def test_every_stage_is_told_when_it_begins_and_again_in_a_silence(host: Host, tmp_path: Path) -> None:
    (tmp_path / "state" / "starts").mkdir(parents=True)
    took = {"seconds": 80.0, "stages": {"import": 31.4}}
    (tmp_path / "state" / "starts" / "chat.json").write_text(json.dumps(took), encoding="utf-8")
    host.states["chat"] = [STARTING] * 90 + [SERVING]
    host.journals["chat"] = [LOADED[:1]]
    keep_proof(tmp_path, "chat", NEW)
    replay_journals(host)
    seen = steps(host, [plan()], {})
    said = [line for step in seen for line in step.said]
    assert said[0] == "chat: 0:00 arguments"
    assert said[1].startswith("chat: 0:01 import (last time 0:31)")
    assert said[2] == "chat: 0:21 import (last time 0:31)"
    assert said[-1].endswith(" ready (last time 1:20)")
    assert seen[-1].instances["chat"]["state"] == "ready"
    assert all(state.invocation == NEW for _, state in host.readers)


def test_a_failure_is_told_at_once_beside_what_still_loads(host: Host) -> None:
    host.states["broken"] = [FAILED]
    host.states["chat"] = [STARTING] * 5 + [ACTIVE]
    host.journals["chat"] = [LOADED]
    replay_journals(host)
    seen = steps(host, [plan("chat"), plan("broken")], {})
    first = next(step for step in seen if step.files)
    assert first.files == {"broken": {"journal.log": "broken ['a record'] False"}}
    assert set(first.bookmarks) == {"chat"}
    assert seen[-1].instances["chat"]["state"] == "ready"


def test_a_restart_between_two_steps_is_a_failure_of_the_first_start(host: Host) -> None:
    again = replace(STARTING, invocation="2" * 32, started=BEGIN + 5)
    host.states["chat"] = [STARTING, again]
    host.journals["chat"] = [LOADED[:1]]
    replay_journals(host)
    seen = steps(host, [plan()], {"chat": OLD})
    assert seen[-1].instances["chat"]["state"] == "restarting"
    assert {(state.invocation, state.started) for _, state in host.readers} == {(NEW, STARTING.started)}


def test_a_silent_stage_ends_the_watch_over_all_its_steps(host: Host) -> None:
    host.states["chat"] = [STARTING]
    host.journals["chat"] = [LOADED[:2]]
    lines = [Line(number, text, BEGIN, 77) for number, text in enumerate(LOADED[:2], 1)]
    reader = SimpleNamespace(read=lambda: iter(lines), records=lambda: iter([RECORD]))
    host.patch("JournalReader", lambda *_: reader)
    seen = steps(host, [plan(stage_seconds={"weights": 100})], {})
    assert seen[-1].instances["chat"]["state"] == "stalled"
    assert seen[-1].instances["chat"]["cause"] == "no-progress"
    assert 100 <= host.now - BEGIN < 102
    assert len(seen) > 4


def test_what_served_and_hangs_is_not_taken_for_ready_by_its_old_proof(host: Host, tmp_path: Path) -> None:
    host.states = {"chat": [SERVING]}
    host.answers["health"] = Answer(503)
    keep_proof(tmp_path, "chat", NEW)
    *_, last = steps(host, [plan()], {})
    verdict = last.instances["chat"]
    assert (verdict["state"], verdict["phase"], verdict["cause"]) == ("stalled", "serving", "no-progress")
    assert host.now < BEGIN + 200


def test_what_served_and_dies_meanwhile_is_explained_by_its_journal(host: Host) -> None:
    host.states = {"chat": [SERVING] * 11 + [FAILED]}
    host.answers["health"] = Answer(503)
    host.journals["chat"] = [["Traceback (most recent call last):", "  File", "RuntimeError: the last words"]]
    replay_journals(host)
    *_, last = steps(host, [plan()], {})
    assert last.instances["chat"]["state"] == "failed"
    assert "RuntimeError: the last words" in last.instances["chat"]["sentence"]


def test_a_wait_for_the_stop_before_goes_over_all_steps(host: Host) -> None:
    host.states["chat"] = [OLD_STOPPING]
    seen = steps(host, [plan(stop_seconds=60)], {"chat": OLD})
    assert seen[-1].instances["chat"]["state"] == "failed"
    assert 90 <= host.now - BEGIN < 92
    assert next(line for step in seen for line in step.said) == "chat: 0:20 has not begun yet"


# --- looking back --------------------------------------------------------------------------------


def test_what_serves_is_told_from_its_proof(host: Host, tmp_path: Path) -> None:
    host.states["chat"] = [SERVING]
    keep_proof(tmp_path, "chat", NEW)
    verdict, state = watch.look_back(plan())
    assert (verdict.state, state) == ("ready", SERVING)
    assert host.readers == []


def test_the_last_invocation_is_judged_again(host: Host) -> None:
    host.states["chat"] = [FAILED]
    host.journals["chat"] = [["launch_server.py: error: unrecognized arguments: --x"]]
    verdict, state = watch.look_back(plan())
    assert (verdict.state, verdict.cause) == ("failed", "argument-unknown")
    assert host.readers == [("sglang-chat.service", state)]


def test_after_a_reboot_the_journal_knows_the_last_invocation(host: Host) -> None:
    host.states["chat"] = [INACTIVE]
    host.past = {"invocation": OLD}
    host.journals["chat"] = [["launch_server.py: error: unrecognized arguments: --x"]]
    verdict, _ = watch.look_back(plan())
    assert (verdict.state, verdict.cause) == ("never_started", "argument-unknown")
    assert host.readers[0][1].invocation == OLD
    assert host.readers[0][1].started == math.inf


def test_a_start_that_systemd_has_forgotten_began_with_its_first_line(host: Host) -> None:
    host.states["chat"] = [INACTIVE]
    host.past = {"invocation": OLD, "started": host.now + 500}
    host.journals["chat"] = [LOADED]
    verdict, _ = watch.look_back(plan())
    assert verdict.state == "stopped"
    assert {stage.begin for stage in verdict.stages} == {host.now}
    assert host.readers[0][1].started == math.inf


def test_what_serves_without_a_proof_is_judged_by_its_journal(host: Host) -> None:
    host.states["chat"] = [SERVING]
    host.journals["chat"] = [LOADED]
    assert watch.look_back(plan())[0].state == "loading"
    assert len(host.readers) == 1
