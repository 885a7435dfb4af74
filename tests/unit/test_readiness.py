"""The state machine: which stage, ready, failed, or stalled."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sglang_kit import readiness
from sglang_kit.journal import SYSTEMD, Line
from sglang_kit.readiness import (
    Answer,
    Answers,
    Expectation,
    Follower,
    UnitState,
    Verdict,
    child_state,
    planned_arguments,
    questions,
    unit_state,
)

from tests.replay.build import RECORDINGS
from tests.replay.recording import load

RUN = load(RECORDINGS / "0.5.23" / "cpu-ready-then-stopped.jsonl")
STOPPED_AT = RUN.stopped_at or 0.0
SERVING = tuple(Line(n, text, at) for n, (at, text) in enumerate(RUN.lines, start=1) if at < STOPPED_AT)
PLAN: dict[str, Any] = {
    "model": "/srv/models/tiny-gpt2",
    "served_model_name": "tiny",
    "port": 31000,
    "argv": list(RUN.argv),
    "context_length": 1024,
    "concurrency": 8,
    "engine_version": RUN.version,
}
ALIVE = UnitState(active_state="activating", sub_state="start", main_pid=77, invocation="i1")
PATHS = {
    "health": "GET /health",
    "models": "GET /v1/models",
    "server_info": "GET /server_info",
    "completion": "POST /v1/completions",
    "schema": "POST /v1/chat/completions",
}


def recorded(name: str) -> Answer:
    answer = RUN.answers[PATHS[name]]
    return Answer(answer["status"], answer["body"])


def all_recorded(**changes: Answer | None) -> Answers:
    return replace(Answers(**{name: recorded(name) for name in PATHS}), **changes)


def follower(*, until: str = "", **plan: Any) -> Follower:  # noqa: ANN401 - values of a plan
    """Follow the recorded run, up to the line that holds ``until``."""
    found = Follower(Expectation.from_plan({**PLAN, **plan}))
    for line in SERVING:
        found.feed([line], line.time or 0.0)
        if until and until in line.text:
            break
    return found


def judge(
    answers: Answers | None = None,
    *,
    unit: UnitState = ALIVE,
    **plan: Any,  # noqa: ANN401 - values of a plan
) -> Verdict:
    return follower(**plan).observe(STOPPED_AT, unit=unit, answers=answers or all_recorded())


def check(verdict: Verdict, name: str) -> readiness.Check:
    return next(one for one in verdict.checks if one.name == name)


# --- what systemd says


def test_the_properties_of_systemctl_show_are_read() -> None:
    properties = {
        "LoadState": "loaded",
        "ActiveState": "failed",
        "SubState": "failed",
        "Result": "exit-code",
        "MainPID": "0",
        "ExecMainCode": "1",
        "ExecMainStatus": "3",
        "InvocationID": "abc",
        "NRestarts": "2",
        "StatusText": "loading: weights=50%",
        "ExecMainStartTimestampMonotonic": "12500000",
        "Unknown": "x",
    }
    assert unit_state(properties) == UnitState(
        active_state="failed",
        sub_state="failed",
        result="exit-code",
        end="exited",
        end_status=3,
        invocation="abc",
        restarts=2,
        status_text="loading: weights=50%",
        started=12.5,
    )


@pytest.mark.parametrize(
    ("unit", "lifecycle"),
    [
        (UnitState(active_state="activating", sub_state="start"), "alive"),
        (UnitState(active_state="active", sub_state="running"), "alive"),
        (UnitState(active_state="activating", sub_state="auto-restart", result="exit-code"), "restarting"),
        (UnitState(active_state="activating", sub_state="auto-restart-queued"), "restarting"),
        (UnitState(active_state="failed", result="signal"), "failed"),
        (UnitState(active_state="deactivating", result="exit-code"), "failed"),
        (UnitState(active_state="deactivating", sub_state="stop-sigterm"), "stopped"),
        (UnitState(active_state="inactive", started=3.0), "stopped"),
        (UnitState(active_state="inactive"), "never_started"),
    ],
)
def test_stopped_never_started_failed_and_restarting_are_told_apart(unit: UnitState, lifecycle: str) -> None:
    assert unit.lifecycle == lifecycle


@pytest.mark.parametrize(
    ("state", "lifecycle", "end"),
    [
        (child_state(pid=5), "alive", ""),
        (child_state(pid=5, returncode=0), "failed", "exited"),
        (child_state(pid=5, returncode=-9), "failed", "killed"),
    ],
)
def test_a_child_is_described_in_the_terms_of_systemd(state: UnitState, lifecycle: str, end: str) -> None:
    assert (state.lifecycle, state.end) == (lifecycle, end)


# --- the way to ready


def test_ready_needs_lines_process_and_answers() -> None:
    verdict = judge()
    assert (verdict.state, verdict.stage, verdict.cause) == ("ready", "serving", "")
    assert verdict.final
    assert verdict.status == "ready"
    assert all(one.held for one in verdict.checks)
    assert verdict.allocated.kv_tokens == 8192


def test_ready_stays_ready_while_nothing_fatal_happens() -> None:
    found = follower()
    first = found.observe(STOPPED_AT, unit=ALIVE, answers=all_recorded())
    later = found.observe(
        STOPPED_AT + 600,
        unit=ALIVE,
        answers=Answers(health=Answer(503), completion=Answer(0, error="timed out")),
    )
    assert (later.state, later.since) == ("ready", first.since)


def test_questions_come_one_after_the_other_and_not_before_the_ready_line() -> None:
    assert follower(until="Uvicorn running").observe(20, unit=ALIVE).ask == ()
    found = follower()
    asked: list[str] = []
    verdict = found.observe(STOPPED_AT, unit=ALIVE)
    while not verdict.final:
        (name,) = verdict.ask
        asked.append(name)
        verdict = found.observe(STOPPED_AT, unit=ALIVE, answers=Answers(**{name: recorded(name)}))
    assert asked == ["health", "server_info", "models", "completion", "schema"]
    assert verdict.state == "ready"


def test_every_question_has_a_request() -> None:
    asked = questions(Expectation.from_plan(PLAN))
    assert set(asked) == {"health", "ready", "models", "server_info", "completion", "schema"}
    assert asked["completion"].body is not None
    assert asked["completion"].body["model"] == "tiny"
    assert questions(Expectation())["schema"].body is not None


def test_an_instance_without_canary_is_not_asked_to_generate() -> None:
    verdict = judge(all_recorded(completion=None, schema=None), canary=False)
    assert verdict.state == "ready"
    assert {"completion", "schema"}.isdisjoint(one.name for one in verdict.checks)


def test_the_ready_endpoint_counts_as_health() -> None:
    assert judge(all_recorded(health=None, ready=Answer(200, ""))).state == "ready"


def test_a_launcher_that_said_ready_proves_the_lines() -> None:
    unit = replace(ALIVE, active_state="active", sub_state="running", status_text="ready")
    verdict = Follower(Expectation.from_plan(PLAN)).observe(5, unit=unit, answers=all_recorded())
    assert verdict.state == "ready"
    assert verdict.stages == ()


def test_a_status_text_of_a_unit_that_is_not_active_proves_nothing() -> None:
    unit = replace(ALIVE, status_text="ready")
    verdict = Follower(Expectation.from_plan(PLAN)).observe(5, unit=unit, answers=all_recorded())
    assert (verdict.state, verdict.sentence) == ("loading", "does not listen yet")


def test_a_process_without_a_pid_is_waited_for() -> None:
    verdict = judge(unit=replace(ALIVE, main_pid=0))
    assert verdict.state == "loading"
    assert check(verdict, "process").held is None


# --- listening and the stranger behind the port

READY_LINE = "[2026-11-29 13:28:17] The server is fired up and ready to roll!"
LISTEN_LINE = "[2026-11-29 13:28:17] INFO:     Uvicorn running on http://127.0.0.1:31000 (Press CTRL+C)"
POOL_LINE = "[2026-11-29 13:28:16] KV Cache is allocated. #tokens: 372189, K size: 11.36 GB, V size: 11.36 GB"


def log_verdict(*texts: str, port: int = 0) -> Verdict:
    found = Follower(Expectation(log_only=True, port=port))
    found.feed([Line(n, text) for n, text in enumerate(texts, start=1)], 1.0)
    return found.observe(2.0)


def test_a_ready_line_before_the_listen_line_is_a_strangers() -> None:
    verdict = log_verdict(POOL_LINE, READY_LINE, LISTEN_LINE)
    assert (verdict.state, verdict.sentence) == (
        "loading",
        "it said so before it listened: it warmed up another server",
    )


def test_without_a_warm_up_the_ready_line_comes_first() -> None:
    skipped = "server_args=ServerArgs(skip_server_warmup=True, port=31000)"
    assert log_verdict(skipped, POOL_LINE, READY_LINE, LISTEN_LINE).state == "ready"


def test_ready_without_a_listen_line_is_not_ready() -> None:
    assert log_verdict(POOL_LINE, READY_LINE).state == "loading"


def test_a_metrics_port_beside_the_planned_one_is_no_fault() -> None:
    metrics = LISTEN_LINE.replace("31000", "9000")
    assert log_verdict(POOL_LINE, metrics, LISTEN_LINE, READY_LINE, port=31000).state == "ready"
    waiting = log_verdict(POOL_LINE, metrics, port=31000)
    assert (waiting.state, waiting.sentence) == ("loading", "listens on [9000], planned is port 31000")


def test_another_port_than_planned_is_a_failure_once_it_is_ready() -> None:
    verdict = log_verdict(POOL_LINE, LISTEN_LINE, READY_LINE, port=31001)
    assert (verdict.state, verdict.cause) == ("failed", "listens-elsewhere")


# --- what the answers say


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model_path": "/srv/models/other"}, "wrong-instance"),
        ({"port": 31001}, "wrong-instance"),
        ({"launch_command": "--model-path=/srv/models/other"}, "wrong-instance"),
        ({"device": "cuda"}, "arguments-overridden"),
        ({"disable_overlap_schedule": False}, "arguments-overridden"),
        ({"max_total_tokens": 4096}, "arguments-overridden"),
        ({"internal_states": [{"effective_max_running_requests_per_dp": 4}]}, "concurrency-below-asked"),
    ],
)
def test_the_servers_own_report_is_compared_with_the_plan(changes: dict[str, Any], cause: str) -> None:
    info = recorded("server_info")
    verdict = judge(all_recorded(server_info=replace(info, body={**info.body, **changes})))
    assert (verdict.state, verdict.cause) == ("failed", cause)


def test_an_accepted_override_is_no_fault() -> None:
    info = recorded("server_info")
    answers = all_recorded(server_info=replace(info, body={**info.body, "device": "cuda"}))
    verdict = judge(answers, accept_overrides=["device"])
    assert verdict.state == "ready"
    assert verdict.notes[-1] == "the engine changed device: planned cpu, effective 'cuda'"


def test_what_the_user_did_not_set_may_be_changed_and_is_told() -> None:
    info = recorded("server_info")
    answers = all_recorded(server_info=replace(info, body={**info.body, "device": "cuda"}))
    assert judge(answers, pinned={"device": "gpus"}).state == "failed"
    verdict = judge(answers, pinned={"context_length": "context_length"})
    assert verdict.state == "ready"
    assert verdict.notes[-1] == "the engine changed device: planned cpu, effective 'cuda'"


def test_concurrency_is_summed_over_replicas_and_else_read_from_the_log() -> None:
    info = recorded("server_info")
    states = [{"effective_max_running_requests_per_dp": 4}, {"effective_max_running_requests_per_dp": 4}]
    for body in ({**info.body, "internal_states": states}, {**info.body, "internal_states": None}):
        assert judge(all_recorded(server_info=replace(info, body=body))).state == "ready"
    body = {**info.body, "internal_states": []}
    verdict = judge(all_recorded(server_info=replace(info, body=body)), concurrency=9)
    assert check(verdict, "concurrency").detail == "serves 8 requests at a time, asked for 9"


def test_a_plan_that_asks_for_nothing_is_satisfied() -> None:
    wanted: dict[str, Any] = {
        "concurrency": None,
        "context_length": None,
        "model": "",
        "served_model_name": "",
        "port": 0,
    }
    assert judge(**wanted, argv=[]).state == "ready"


@pytest.mark.parametrize(
    ("name", "answer", "state", "cause"),
    [
        ("health", Answer(503, ""), "loading", ""),
        ("server_info", Answer(0, error="timed out"), "loading", ""),
        ("server_info", Answer(401, {"error": "Unauthorized"}), "failed", "api-key-refused"),
        ("models", Answer(403, ""), "failed", "api-key-refused"),
        ("server_info", Answer(404, {"detail": "Not Found"}), "failed", "wrong-instance"),
        ("models", Answer(503, ""), "loading", ""),
        ("models", Answer(404, ""), "failed", "wrong-instance"),
        ("models", Answer(200, ["no", "object"]), "failed", "wrong-instance"),
        ("models", Answer(200, {"data": [{"id": "other"}]}), "failed", "wrong-instance"),
        ("completion", Answer(500, "busy"), "loading", ""),
        ("completion", Answer(0), "loading", ""),
        ("completion", Answer(400, {"message": "no"}), "failed", "completion-failed"),
        ("completion", Answer(200, {"choices": []}), "failed", "completion-failed"),
        ("completion", Answer(200, "text"), "failed", "completion-failed"),
        ("completion", Answer(200, {"choices": [{"text": ""}]}), "failed", "completion-failed"),
        ("schema", Answer(400, ""), "failed", "schema-completion-failed"),
        (
            "schema",
            Answer(200, {"choices": [{"message": {"content": "{]"}, "finish_reason": "stop"}]}),
            "failed",
            "schema-completion-failed",
        ),
        (
            "schema",
            Answer(200, {"choices": [{"message": {"content": '{"ready": 1}'}, "finish_reason": "stop"}]}),
            "failed",
            "schema-completion-failed",
        ),
        (
            "schema",
            Answer(200, {"choices": [{"message": {"content": "{  "}, "finish_reason": "length"}]}),
            "ready",
            "",
        ),
    ],
)
def test_answers_that_settle_it_and_answers_of_a_busy_server(
    name: str, answer: Answer, state: str, cause: str
) -> None:
    verdict = judge(all_recorded(**{name: answer}))
    assert (verdict.state, verdict.cause) == (state, cause)


def test_health_503_for_a_while_is_not_a_failure() -> None:
    found = follower()
    for second in range(30):
        verdict = found.observe(STOPPED_AT + second, unit=ALIVE, answers=Answers(health=Answer(503)))
        assert (verdict.state, verdict.ask) == ("loading", ("health",))
    assert found.observe(STOPPED_AT + 30, unit=ALIVE, answers=all_recorded()).state == "ready"


def test_a_pool_smaller_than_the_asked_context_fails_at_once() -> None:
    verdict = follower(until="max_total_num_tokens=", context_length=16384).observe(20, unit=ALIVE)
    assert (verdict.state, verdict.cause, verdict.phase) == ("failed", "kv-cache-below-context", "kv_cache")
    assert "holds 8192 tokens, one context is 16384" in verdict.sentence


def test_without_a_plan_the_log_says_which_context_was_asked_for() -> None:
    summary = (
        "max_total_num_tokens=512, chunked_prefill_size=8192, max_prefill_tokens=16384,"
        " max_running_requests=8, context_len=1024, available_gpu_mem=10.99 GB"
    )
    asked = "server_args=ServerArgs(context_length=1024, port=1)"
    assert log_verdict(asked, summary).cause == "kv-cache-below-context"
    assert log_verdict("server_args=ServerArgs(context_length=None, port=1)", summary).state == "loading"
    assert log_verdict(summary).state == "loading"


# --- stages and stalls


def test_stages_have_times_and_follow_each_other() -> None:
    stages = judge().stages
    assert [stage.name for stage in stages] == [
        *list(readiness.STAGE_SECONDS)[:4],
        "kv_cache",
        "graphs",
        "warm_up",
        "serving",
    ]
    for one, following in zip(stages, stages[1:]):
        assert one.begin + (one.seconds or 0.0) == pytest.approx(following.begin)
    assert stages[-1].seconds is None


def test_progress_is_shown_with_its_percent() -> None:
    verdict = follower(until="Completed | 1/1").observe(20, unit=ALIVE)
    assert verdict.status == "loading: weights, Multi-thread loading shards 100%"


def test_a_later_rank_does_not_begin_a_stage_again() -> None:
    texts = [
        "[2026-11-29 13:28:16 TP0] Load weight begin. avail mem=93.57 GB",
        "[2026-11-29 13:28:17 TP0] Memory pool end. avail mem=1.00 GB",
        "[2026-11-29 13:28:17 TP1] Load weight begin. avail mem=93.57 GB",
        "[2026-11-29 13:28:18 TP1] Memory pool end. avail mem=1.00 GB",
    ]
    assert [stage.name for stage in log_verdict(*texts).stages] == ["arguments", "weights", "graphs"]


def test_a_state_cache_line_outside_of_the_pools_changes_no_stage() -> None:
    state = (
        "Mamba Cache is allocated. max_mamba_cache_size: 8, conv_state size: 0.02GB, ssm_state size: 1.27GB "
    )
    assert [stage.name for stage in log_verdict(state).stages] == ["arguments"]


@pytest.mark.parametrize(("silent", "state"), [(599, "loading"), (600, "stalled")])
def test_a_stage_without_progress_is_stalled_at_its_own_limit(silent: int, state: str) -> None:
    found = follower(until="Load weight begin")
    at = found.observe(0, unit=ALIVE).stages[-1].begin
    verdict = found.observe(at + silent, unit=ALIVE)
    assert verdict.state == state
    if state == "stalled":
        assert (verdict.cause, verdict.phase) == ("no-progress", "weights")
        assert verdict.sentence == "no progress in stage weights for 600 s"
        assert "Load weight begin" in verdict.evidence[-1].text


def test_what_was_ready_and_hangs_is_stalled_while_it_serves() -> None:
    found = Follower(Expectation(), started=0.0)
    ready = UnitState(active_state="active", status_text="ready", main_pid=7)
    assert found.observe(9000, unit=ready).ask == ("health",)
    assert found.observe(9179, unit=ready).state == "loading"
    verdict = found.observe(9180, unit=ready)
    assert (verdict.state, verdict.cause, verdict.phase) == ("stalled", "no-progress", "serving")
    assert verdict.sentence == "no progress in stage serving for 180 s"


def test_a_stage_that_moves_is_never_ended_by_its_total() -> None:
    found = follower(until="Load weight begin")
    for second in range(0, 6000, 300):
        found.feed([Line(1000 + second, f"shards:  {second // 60}% Completed | 1/9")], 100.0 + second)
        assert found.observe(100.0 + second + 299, unit=ALIVE).state == "loading"


def test_access_lines_and_batches_are_no_progress() -> None:
    found = follower(until="max_total_num_tokens=")
    at = found.observe(0, unit=ALIVE).stages[-1].begin
    for second in range(0, 700, 10):
        text = '[2026-11-29 13:28:18] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable'
        found.feed([Line(1000 + second, text)], at + second)
    assert found.observe(at + 700, unit=ALIVE).state == "stalled"


def test_a_check_that_comes_to_hold_is_progress_of_serving() -> None:
    found = follower()
    at = STOPPED_AT
    for name in ("health", "server_info", "models", "completion"):
        at += 800
        assert found.observe(at, unit=ALIVE, answers=Answers(**{name: recorded(name)})).state == "loading"
    assert found.observe(at + 900, unit=ALIVE).state == "stalled"


def test_limits_of_the_plan_win() -> None:
    found = follower(until="Load weight begin", stage_seconds={"weights": 5})
    at = found.observe(0, unit=ALIVE).stages[-1].begin
    assert found.observe(at + 5, unit=ALIVE).state == "stalled"


def test_a_start_that_says_nothing_at_all_stalls() -> None:
    found = Follower(Expectation.from_plan(PLAN))
    assert found.observe(10, unit=ALIVE).state == "loading"
    assert found.observe(190, unit=ALIVE).state == "stalled"


# --- ends

CRASH = """\
[2026-11-29 13:28:13] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/scheduler.py", line 1, in run
ValueError: never seen before"""


def crash(start: int = 1000) -> list[Line]:
    return [Line(start + n, text) for n, text in enumerate(CRASH.split("\n"))]


def test_a_failure_waits_for_the_rest_of_its_traceback_and_no_longer() -> None:
    found = follower(until="Load weight begin")
    found.feed(crash()[:2], 30.0)
    assert found.observe(30.1, unit=ALIVE).state == "loading"
    found.feed(crash()[2:], 30.2)
    assert found.observe(30.9, unit=ALIVE).state == "loading"
    verdict = found.observe(31.2, unit=ALIVE)
    assert (verdict.state, verdict.cause, verdict.phase) == ("failed", "unknown", "weights")
    assert verdict.since == 30.0
    assert verdict.sentence.endswith("the first error is: ValueError: never seen before")
    assert [line.text for line in verdict.evidence] == CRASH.split("\n")


def test_a_failure_after_ready_is_one() -> None:
    found = follower()
    assert found.observe(STOPPED_AT, unit=ALIVE, answers=all_recorded()).state == "ready"
    found.feed(crash(), STOPPED_AT + 10)
    assert found.observe(STOPPED_AT + 12, unit=ALIVE).state == "failed"


def test_an_error_that_the_engine_survived_is_no_failure() -> None:
    text = "Traceback (most recent call last):\n  File '/x/sglang/a.py', line 1, in probe\nOSError: no device"
    found = Follower(Expectation.from_plan(PLAN))
    found.feed([Line(n, one) for n, one in enumerate(text.split("\n"), start=1)], 1.0)
    for line in SERVING:
        found.feed([replace(line, number=line.number + 3)], line.time or 0.0)
    assert found.observe(STOPPED_AT, unit=ALIVE, answers=all_recorded()).state == "ready"


def test_survived_errors_of_a_long_life_do_not_hide_the_last_one() -> None:
    found = follower()
    found.observe(STOPPED_AT, unit=ALIVE, answers=all_recorded())
    for round_ in range(60):
        text = "[2026-11-29 13:28:13] Request failed: Traceback (most recent call last):"
        lines = [
            text,
            "  File '/x/sglang/a.py', line 1, in f",
            f"OSError: {round_}",
            "[2026-11-29 13:28:13] on",
        ]
        found.feed([Line(1000 + 4 * round_ + n, one) for n, one in enumerate(lines)], STOPPED_AT + round_)
    found.feed(crash(2000), STOPPED_AT + 100)
    verdict = found.observe(STOPPED_AT + 102, unit=replace(ALIVE, active_state="failed", result="exit-code"))
    assert verdict.sentence.endswith("ValueError: never seen before")


def test_no_state_grows_with_the_log() -> None:
    found = follower(until="Load weight begin")
    found.feed([Line(1000 + n, "Fail to set RLIMIT_NOFILE") for n in range(1000)], 30.0)
    assert len(found.observe(30, unit=ALIVE).notes) == readiness.MOST_KEPT


def test_a_stop_during_the_start_is_told_from_a_crash() -> None:
    """The inactive trap: somebody stopped the unit."""
    found = follower(until="Load weight begin")
    stopped = UnitState(active_state="inactive", invocation="i1", started=1.0)
    verdict = found.observe(30, unit=stopped)
    assert (verdict.state, verdict.cause) == ("stopped", "stopped-by-request")
    assert verdict.status == "stopped: stopped by request"


def test_what_breaks_after_a_requested_stop_is_no_failure() -> None:
    found = follower()
    found.feed([Line(1000, "SIGTERM received. Draining requests and shutting down...")], STOPPED_AT)
    found.feed([Line(1001, "SIGQUIT received. signum=None")], STOPPED_AT)
    assert found.observe(STOPPED_AT + 1, unit=ALIVE).state == "stopped"


def test_a_crash_before_the_stop_stays_a_crash() -> None:
    found = follower()
    found.feed(crash(), STOPPED_AT)
    found.feed([Line(1003, "SIGTERM received. Draining requests and shutting down...")], STOPPED_AT)
    failed = UnitState(active_state="failed", result="signal", end="killed", end_status=9, invocation="i1")
    assert found.observe(STOPPED_AT + 1, unit=failed).state == "failed"


def test_a_start_that_systemd_ended_by_its_time_limit_has_failed() -> None:
    found = follower(until="Load weight begin")
    found.feed(
        [Line(1000, "sglang-a.service: start operation timed out. Terminating.", source=SYSTEMD)], 30.0
    )
    found.feed([Line(1001, "SIGTERM received. Draining")], 30.0)
    verdict = found.observe(31, unit=UnitState(active_state="failed", result="timeout", invocation="i1"))
    assert (verdict.state, verdict.cause) == ("failed", "start-timed-out")


def test_an_ended_process_has_failed_even_if_the_log_is_silent() -> None:
    verdict = follower(until="Load weight begin").observe(
        30, unit=child_state(pid=5, returncode=-11), ended=True
    )
    assert (verdict.state, verdict.cause) == ("failed", "unknown")
    assert verdict.sentence == "the main process was ended by SIGSEGV; the log shows no error"
    assert "Load weight begin" in verdict.evidence[-1].text


def test_a_restart_is_seen_by_its_state_and_by_its_invocation() -> None:
    found = follower(until="Load weight begin")
    assert found.observe(30, unit=ALIVE).state == "loading"
    waiting = UnitState(active_state="activating", sub_state="auto-restart", result="signal", invocation="i1")
    assert found.observe(30, unit=waiting).state == "restarting"
    assert found.observe(31, unit=replace(ALIVE, invocation="i2")).state == "restarting"
    known = Follower(Expectation.from_plan(PLAN), invocation="i0")
    assert known.observe(1, unit=ALIVE).state == "restarting"


@pytest.mark.parametrize(
    ("load_state", "cause"), [("loaded", "never-started"), ("not-found", "unit-not-found")]
)
def test_a_unit_that_never_ran(load_state: str, cause: str) -> None:
    unit = UnitState(load_state=load_state, active_state="inactive")
    verdict = Follower(Expectation.from_plan(PLAN)).observe(1, unit=unit)
    assert (verdict.state, verdict.cause) == ("never_started", cause)


def test_a_log_that_ends_in_an_exception_has_failed() -> None:
    text = "Traceback (most recent call last):\n  File 'x'\nRuntimeError: Not enough memory. Please try"
    found = Follower(Expectation(log_only=True))
    found.feed([Line(n, one) for n, one in enumerate(text.split("\n"), start=1)], 1.0)
    assert found.observe(1.0).state == "loading"
    assert found.observe(1.0, ended=True).state == "failed"


# --- plain values


def test_a_verdict_becomes_plain_values() -> None:
    plain = judge().as_dict()
    assert json.loads(json.dumps(plain)) == json.loads(json.dumps(plain))
    assert plain["allocated"]["kv_tokens"] == 8192
    assert plain["stages"][0]["name"] == "arguments"


def test_notes_say_what_was_lost_and_what_is_worth_knowing() -> None:
    lost = Line(1, "Suppressed 12 messages from sglang-a.service", source="journald")
    found = Follower(Expectation())
    found.feed([lost], 1.0)
    assert found.observe(1.0).notes == ("Suppressed 12 messages from sglang-a.service",)


def test_flags_become_arguments() -> None:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--tp-size=2", "--enable-metrics"]
    assert planned_arguments([*argv, "--cuda-graph-bs", "1", "2"]) == {
        "model_path": "/m",
        "tp_size": "2",
        "enable_metrics": "true",
        "cuda_graph_bs": "1 2",
    }
    assert planned_arguments(["python", "word"]) == {}


@pytest.mark.parametrize(
    ("wanted", "effective", "same"),
    [
        ("8", 8, True),
        ("0.850", 0.85, True),
        ("x", 8, False),
        ("true", True, True),
        ("true", False, False),
        ("1 2", [1, 2], True),
        ("1", [1, 2], False),
        ('{"a": 1}', {"a": 1}, True),
        ("{", {"a": 1}, False),
        ("[1,2]", [1, 2], True),
        ("16k", 16_000, True),
        ("16Ki", 16_000, False),
        (".5", 0.5, True),
        ("08", 8, True),
        ("cpu", "cpu", True),
        ("cpu", None, False),
    ],
)
def test_a_planned_value_equals_the_effective_one(wanted: str, effective: object, same: bool) -> None:
    info = recorded("server_info")
    body = {**info.body, "launch_command": "--speculative-x " + wanted, "speculative_x": effective}
    argv = ["python", "--speculative-x", *wanted.split()]
    verdict = judge(all_recorded(server_info=replace(info, body=body)), argv=argv)
    assert check(verdict, "arguments").held is same


# --- how long a stage may be silent --------------------------------------------------------------


def test_the_bytes_to_load_size_the_time_without_progress() -> None:
    big = {"memory": {"pools_gib": {"weights": 60.0, "draft_weights": 4.0}}, "gpus": ["0", "1"]}
    limits = readiness.stage_limits(big, {})
    assert limits["weights"] == pytest.approx(128 * 2**30 / readiness.SLOWEST_BYTES_PER_SECOND)
    assert {**limits, "weights": 600} == readiness.STAGE_SECONDS
    assert readiness.stage_limits({"memory": None}, {}) == readiness.STAGE_SECONDS


def test_the_last_good_start_gives_a_slow_stage_more_time_and_a_quick_one_no_less() -> None:
    limits = readiness.stage_limits({}, {"stages": {"graphs": 1500.0, "import": 3.0, "gone": 9.0}})
    assert limits == {**readiness.STAGE_SECONDS, "graphs": 3000.0}


def test_the_plan_has_the_last_word_on_a_stage() -> None:
    limits = readiness.stage_limits({"stage_seconds": {"graphs": 5}}, {"stages": {"graphs": 1500.0}})
    assert limits["graphs"] == 5
    assert Expectation.from_plan({"stage_seconds": {"graphs": 5}}).limit("graphs") == 5


# --- a check must never cost the service ---------------------------------------------------------


def info(**changes: object) -> Answer:
    body = {**recorded("server_info").body, **changes}
    return Answer(200, body)


@pytest.mark.parametrize(
    ("version", "backend", "device", "deadly"),
    [
        ("0.5.15.post1", "xgrammar", "cpu", True),
        ("0.5.15.post1", "llguidance", "cpu", False),
        ("0.5.15.post1", "xgrammar", "cuda", False),
        ("0.5.23", "xgrammar", "cpu", False),
        ("", "xgrammar", "cpu", False),
    ],
)
def test_a_schema_that_would_end_the_scheduler_is_not_asked(
    version: str, backend: str, device: str, deadly: bool
) -> None:
    answers = all_recorded(server_info=info(grammar_backend=backend, device=device), schema=None)
    verdict = judge(answers, engine_version=version, argv=[])
    assert check(verdict, "grammar").held is not deadly
    if deadly:
        assert (verdict.state, verdict.cause) == ("failed", "grammar-backend-unsupported")
        assert verdict.ask == ()
    else:
        assert verdict.ask == ("schema",)


def test_without_a_grammar_backend_no_schema_is_asked() -> None:
    verdict = judge(all_recorded(server_info=info(grammar_backend="none"), schema=None), argv=[])
    assert verdict.state == "ready"


def test_what_the_launcher_has_proven_is_not_asked_again() -> None:
    serving = replace(ALIVE, active_state="active", status_text="ready")
    verdict = judge(all_recorded(schema=None), unit=serving)
    assert verdict.state == "ready"
    assert check(verdict, "schema").detail == "proven at the start"


# --- across processes ----------------------------------------------------------------------------


def test_a_verdict_survives_json() -> None:
    verdict = judge()
    assert Verdict.from_dict(json.loads(json.dumps({**verdict.as_dict(), "invocation": "i1"}))) == verdict


def test_a_follower_resumes_where_another_was() -> None:
    first = follower(until="Load weight begin")
    first.observe(0.0, unit=ALIVE)
    held, moved = first.moved
    second = follower(until="Load weight begin")
    second.resume(held, moved + 500)
    assert second.observe(moved + 1099, unit=ALIVE).state == "loading"
    assert second.observe(moved + 1100, unit=ALIVE).state == "stalled"
    fresh = Follower(Expectation())
    assert fresh.moved == (0, 0.0)
    fresh.resume(0, 7.0)
    assert fresh.moved == (0, 7.0)


def test_a_unit_is_described_for_people() -> None:
    unit = UnitState(active_state="failed", sub_state="failed", result="oom-kill", restarts=3)
    assert unit.described == "failed (failed), result oom-kill, restarted 3 times"
    assert UnitState(active_state="active", sub_state="running").described == "active (running)"
