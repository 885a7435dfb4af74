"""A log file is explained with no host and no Ansible."""

from __future__ import annotations

import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_kit import why
from sglang_kit.readiness import Expectation, UnitState, Verdict

from tests.replay.build import RECORDINGS
from tests.replay.recording import load

MODULE_UTILS = Path(why.__file__).resolve().parent.parent
REFUSED = RECORDINGS / "0.5.11" / "h200-mtp-no_buffer-refused.log"
READY = RECORDINGS / "0.5.11" / "h200-mtp-noradix-ready.log"
STOPPED = RECORDINGS / "0.5.23" / "cpu-gpt2-ready-then-stopped.log"


def explain(content: bytes, **plan: object) -> dict[str, Any]:
    return why.as_json(*why.explain(io.BytesIO(content), Expectation.from_plan(plan)))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert why.main(words) == 0
    return capsys.readouterr().out


# --- the command


def test_it_runs_as_a_module_with_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-S", "-m", "sglang_kit.why", "--log", str(REFUSED), "--json"]
    done = subprocess.run(command, cwd=MODULE_UTILS, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert (answer["state"], answer["phase"], answer["cause"]) == (
        "failed",
        "arguments",
        "speculation-needs-extra-buffer",
    )
    assert answer["evidence"][0] == {"number": 7, "text": "Traceback (most recent call last):"}
    assert answer["evidence"][-1]["number"] == 26
    assert answer["remedy"]


def test_its_main_module_is_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["why", "--log", str(REFUSED), "--json"])
    monkeypatch.delitem(sys.modules, why.__name__)
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(why.__name__, run_name="__main__")
    assert json.loads(capsys.readouterr().out)["state"] == "failed"


def test_people_get_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--log", str(REFUSED))
    assert "cause      speculation-needs-extra-buffer: speculative decoding on a hybrid model" in text
    assert "see        QwenLM/Qwen3.8#108" in text
    assert "        26 ValueError: Speculative decoding for Qwen3_5ForConditionalGeneration" in text


def test_stages_pools_and_notes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--log", str(READY))
    assert "state      ready" in text
    assert "stages     arguments 2 s, import 28 s, distributed 3 s" in text
    assert "state 8 slots, conv 20 MiB, ssm 1.27 GiB" in text
    assert "note       [2026-11-29 13:27:45] Fail to set RLIMIT_NOFILE" in text


def test_standard_input_is_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(REFUSED.read_bytes())

    monkeypatch.setattr(sys, "stdin", Input)
    assert "state      failed" in run(capsys, "--log", "-")


def test_a_plan_says_what_was_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"context_length": 500_000}))
    text = run(capsys, "--log", str(READY), "--plan", str(plan))
    assert "kv-cache-below-context" in text


def test_a_plan_that_is_none_is_an_error_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{'port': 30000}")
    with pytest.raises(SystemExit):
        why.main(["--log", str(READY), "--plan", str(plan)])
    assert f"error: {plan}: is no JSON: " in capsys.readouterr().err


def test_a_file_that_is_not_there_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        why.main(["--log", os.devnull + "/absent"])
    assert "absent" in capsys.readouterr().err


# --- kinds of logs


def test_a_ready_log_and_a_stopped_one() -> None:
    ready = explain(READY.read_bytes())
    assert (ready["state"], ready["phase"], ready["cause"]) == ("ready", "serving", None)
    assert ready["stages"][1] == {"name": "import", "begin": 2.0, "seconds": 28.0}
    assert ready["allocated"]["kv_tokens"] == 372189
    assert explain(STOPPED.read_bytes())["state"] == "stopped"


WORDS_OF_A_FAILURE = (
    "Received sigquit from a child process. It usually means the child failed.",
    "SIGTERM received. Draining requests and shutting down...",
    "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
    "Scheduler hit an exception: Traceback (most recent call last):",
    "Subprocess scheduler_0 (pid=1) crashed with exit code -9. Triggering SIGQUIT...",
    "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "KV Cache is allocated. #tokens: 5, K size: 1.00 GB, V size: 1.00 GB",
    "server_args=ServerArgs(model_path='/other')",
    "launch_server.py:5: UserWarning: 'python -m sglang.launch_server' is deprecated",
)


@pytest.mark.parametrize("words", WORDS_OF_A_FAILURE)
def test_what_users_send_is_no_event(words: str) -> None:
    """With --log-requests every prompt is logged; some ask about a failure of another server."""
    prompt = f"Why does mine say: [2026-11-28 10:00:00] {words}"
    lines = (
        f"[2026-11-29 14:00:00] Receive: obj=GenerateReqInput(rid='1', text='{prompt}')",
        f"[2026-11-29 14:00:01] Finish: obj=GenerateReqInput(rid='1'), out={{'text': '{words}'}}",
    )
    log = READY.read_bytes()
    assert explain(log + "\n".join(lines).encode()) == explain(log)


def test_a_request_that_fails_at_the_end_of_a_log_is_no_failed_start() -> None:
    failed_request = """[2026-11-29 14:00:00] Error in request
Traceback (most recent call last):
  File "/v/site-packages/sglang/srt/entrypoints/http_server.py", line 5, in generate_request
ValueError: The input (9 tokens) is longer than the model's context length (8 tokens)."""
    assert explain(READY.read_bytes() + failed_request.encode())["state"] == "ready"


def test_a_log_that_ends_while_loading() -> None:
    content = READY.read_bytes().partition(b"Load weight end")[0]
    answer = explain(content)
    assert (answer["state"], answer["phase"], answer["cause"]) == ("loading", "weights", None)


def test_an_empty_log_says_nothing() -> None:
    answer = explain(b"")
    assert (answer["state"], answer["stages"]) == ("loading", [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "prefix", ["Nov 29 13:28:13 host python[77]: ", "2026-11-29T13:28:13+0000 host launcher[77]: "]
)
def test_the_output_of_journalctl_is_a_log(prefix: str, end: str) -> None:
    lines = REFUSED.read_text().splitlines()
    answer = explain("".join(f"{prefix}{line}{end}" for line in lines).encode())
    assert answer["cause"] == "speculation-needs-extra-buffer"


def records(name: str, invocation: str) -> list[bytes]:
    recording = load(RECORDINGS / name)
    return [
        json.dumps(
            {
                "MESSAGE": list(text.encode()),
                "_PID": "77",
                "_TRANSPORT": "stdout",
                "_SYSTEMD_INVOCATION_ID": invocation,
                "__MONOTONIC_TIMESTAMP": str(int(at * 1e6)),
            }
        ).encode()
        + b"\n"
        for at, text in recording.lines
    ]


def test_of_a_json_journal_the_last_invocation_counts() -> None:
    failed = records("0.5.23/cpu-weights-truncated.jsonl", "one")
    ready = records("0.5.23/cpu-ready-then-stopped.jsonl", "two")
    answer = explain(b"".join([*failed, *ready]))
    assert (answer["state"], answer["starts"]) == ("stopped", 2)
    answer = explain(b"".join([*ready, *failed, b'{"cut']))
    assert (answer["cause"], answer["starts"]) == ("weights-damaged", 2)
    assert answer["evidence"][0]["number"] > len(ready)


def test_an_old_failure_above_a_new_start_is_not_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The stale-log trap."""
    log = tmp_path / "log"
    log.write_bytes(REFUSED.read_bytes() + b"\n" + READY.read_bytes())
    text = run(capsys, "--log", str(log))
    assert "state      ready" in text
    assert "starts     the log holds 2; this is the last one" in text


def test_a_new_start_is_seen_by_its_arguments_and_by_systemd() -> None:
    arguments = b"[2026-11-29 13:28:13] server_args=ServerArgs(port=31000)\n"
    failure = b"[2026-11-29 13:28:14] SIGQUIT received. signum=None\n"
    assert explain(arguments + failure + arguments)["state"] == "loading"
    systemd = b"Nov 29 13:28:13 host systemd[1]: Starting sglang-a.service...\n"
    assert explain(systemd + arguments + failure + systemd)["starts"] == 2
    kernel = b"Nov 29 13:28:13 host kernel: NVRM: loading\n"
    assert explain(kernel + systemd + kernel)["starts"] == 1


def test_lines_before_the_first_time_are_of_that_time() -> None:
    answer = explain(b"launching\n" + b"[2026-11-29 13:28:13] server_args=ServerArgs(port=1)\nTraceback\n")
    assert answer["stages"][0]["seconds"] == 0.0


def test_a_log_without_any_time_does_not_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "UNTIMED_LINES", 2)
    answer = explain(b"one\ntwo\nthree\n")
    assert answer["stages"] == [{"name": "arguments", "begin": 0.0, "seconds": None}]


# --- the truncated-message trap


def test_nothing_is_cut_off(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"Traceback (most recent call last):\n  File 'x'\nValueError: {'x' * 20_000}end\n")
    assert run(capsys, "--log", str(log)).count("x" * 20_000 + "end") == 2


# --- instances of this host ----------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make a host with two instances, one of which has failed."""

    def look_back(plan: dict[str, Any]) -> tuple[Verdict, UnitState]:
        failed = Verdict("failed", "weights", 3.0, "a weight file is cut off", cause="weights-damaged")
        if plan["name"] == "chat":
            return failed, UnitState(active_state="failed", sub_state="failed", restarts=4)
        return Verdict("never_started", "arguments", 3.0, "not started"), UnitState(active_state="inactive")

    monkeypatch.setattr(why, "look_back", look_back)
    monkeypatch.setattr(why, "CONFIGURATION", tmp_path)
    for name in ("chat", "coder"):
        (tmp_path / f"{name}.plan.json").write_text(json.dumps({"name": name}), encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("host")
def test_an_instance_is_explained_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "chat") == (
        "chat\n"
        "state      failed\n"
        "unit       failed (failed), restarted 4 times\n"
        "phase      weights\n"
        "cause      weights-damaged: a weight file is cut off\n"
    )


@pytest.mark.usefixtures("host")
def test_without_a_name_all_instances_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    heads = [line for line in run(capsys).splitlines() if line in {"chat", "coder"}]
    assert heads == ["chat", "coder"]
    assert "because    not started" in run(capsys, "coder")
    assert json.loads(run(capsys, "--json"))["chat"]["cause"] == "weights-damaged"


@pytest.mark.usefixtures("host")
def test_an_instance_that_is_none_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        why.main(["nobody"])
    assert "nobody: is no instance of this host; known are chat, coder" in capsys.readouterr().err


def test_a_host_without_an_instance_says_so(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in host.iterdir():
        place.unlink()
    with pytest.raises(SystemExit):
        why.main([])
    assert "no instance is installed here" in capsys.readouterr().err
