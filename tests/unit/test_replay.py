"""The replayed engine stands in for the real one: same lines, same answers, same end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from sglang_kit.journal import Line
from sglang_kit.readiness import Answer, Answers, Expectation, Follower, Verdict, child_state, questions

from tests.replay.build import RECORDINGS, build
from tests.replay.recording import find, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., "Run"]

HOST = "127.0.0.1"
PATIENCE_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Run:
    """A replayed engine, followed as the launcher follows a real one."""

    def __init__(self, release: Path, argv: list[str], environment: dict[str, str]) -> None:
        self.argv = [str(release / "bin" / "python"), "-m", "sglang.launch_server", *argv]
        self.process = subprocess.Popen(
            self.argv, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
        )
        self.port = int(argv[argv.index("--port") + 1])
        self.text: list[str] = []

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text.append(line.rstrip("\n"))
            if words in line:
                return
        pytest.fail(f"ended before {words!r}:\n" + "\n".join(self.text))

    def end(self) -> int:
        assert self.process.stdout is not None
        self.text += self.process.stdout.read().splitlines()
        return self.process.wait(PATIENCE_SECONDS)

    def ask(self, method: str, path: str, body: object = None, key: str = "") -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_SECONDS)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            content = reply.read().decode()
        finally:
            connection.close()
        return Answer(reply.status, json.loads(content) if content else "")

    def verdict(self, expectation: Expectation, returncode: int | None = None) -> Verdict:
        follower = Follower(expectation)
        follower.feed([Line(n, text) for n, text in enumerate(self.text, start=1)], 1.0)
        unit = child_state(pid=self.process.pid, returncode=returncode)
        verdict = follower.observe(9.0, unit=unit)
        while verdict.ask:
            asked = {name: questions(expectation)[name] for name in verdict.ask}
            answers = {name: self.ask(one.method, one.path, one.body) for name, one in asked.items()}
            verdict = follower.observe(9.0, unit=unit, answers=Answers(**answers))
        return verdict


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("releases")
    for version in ("0.5.11", "0.5.15.post1", "0.5.23"):
        build(folder / version, version)
        build(folder / version, version)
    return folder


@pytest.fixture
def start(releases: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def make(version: str, *argv: str, **environment: str) -> Run:
        words = [
            "--model-path",
            "/srv/models/tiny",
            "--served-model-name",
            "other",
            "--port",
            str(free_port()),
        ]
        speed = {"SGLANG_REPLAY_SPEED": "1000"}
        variables = {f"SGLANG_REPLAY_{name.upper()}": text for name, text in environment.items()}
        runs.append(Run(releases / version, [*words, *argv], {**speed, **variables}))
        return runs[-1]

    yield make
    for run in runs:
        run.process.kill()
        run.process.wait()
        assert run.process.stdout is not None
        run.process.stdout.close()


def expectation(run: Run, *, concurrency: int = 0) -> Expectation:
    return Expectation(
        model="/srv/models/tiny",
        served_model_name="other",
        port=run.port,
        argv=tuple(run.argv),
        concurrency=concurrency,
    )


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.23"])
def test_a_release_says_its_version(releases: Path, version: str) -> None:
    program = "import sglang, importlib.metadata as m; print(sglang.__version__, m.version('sglang'))"
    python = releases / version / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [version, version]


@pytest.mark.parametrize(
    ("version", "recording", "status"),
    [
        ("0.5.23", "ready-then-stopped", 0),
        ("0.5.15.post1", "ready-then-stopped", -9),
        ("0.5.11", "h200-dense-ready-with-graphs", -9),
    ],
)
def test_it_becomes_ready_under_its_own_names_and_stops_as_its_version_does(
    start: Start, version: str, recording: str, status: int
) -> None:
    run = start(version, "--max-running-requests", "4", recording=recording)
    with pytest.raises(OSError, match="refused"):
        run.ask("GET", "/health")
    run.until("fired up")
    if "Uvicorn" not in "\n".join(run.text):
        run.until("Uvicorn")
    verdict = run.verdict(expectation(run, concurrency=4))
    assert (verdict.state, verdict.sentence) == ("ready", "")
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == status
    stamps = {text[1:11] for text in run.text if text.startswith("[20")}
    assert stamps <= {time.strftime("%Y-%m-%d"), time.strftime("%Y-%m-%d", time.gmtime(time.time() - 60))}


def test_every_answer_carries_the_names_of_this_run(start: Start) -> None:
    run = start("0.5.23")
    run.until("fired up")
    assert run.ask("GET", "/ready").status == 200
    assert run.ask("GET", "/v1/models").body["data"][0]["id"] == "other"
    assert run.ask("GET", "/model_info").body["model_path"] == "/srv/models/tiny"
    assert "text" in run.ask("POST", "/generate", {"text": "x"}).body
    assert run.ask("GET", "/absent").status == 404
    run.until("/absent HTTP/1.1")


def test_before_it_is_ready_and_while_it_is_unhealthy_health_is_503(start: Start) -> None:
    run = start("0.5.23", unhealthy_seconds="2")
    run.until("Uvicorn")
    statuses = [run.ask("GET", "/health").status]
    while statuses[-1] == 503:
        time.sleep(0.05)
        statuses.append(run.ask("GET", "/health").status)
    assert statuses[0] == 503
    assert statuses[-1] == 200


def test_a_key_is_wanted_where_one_was_given(start: Start) -> None:
    run = start("0.5.23", "--api-key", "sk-1")
    run.until("fired up")
    assert run.ask("GET", "/health").status == 200
    assert run.ask("GET", "/v1/models").status == 401
    assert run.ask("GET", "/v1/models", key="sk-1").status == 200


@pytest.mark.parametrize(
    ("recording", "status", "cause"),
    [
        ("unknown-flag", 2, "argument-unknown"),
        ("weights-truncated", -9, "weights-damaged"),
        ("scheduler-killed-serving", -9, "scheduler-killed"),
        ("main-killed", -9, "main-process-killed"),
    ],
)
def test_a_recorded_failure_happens_again(start: Start, recording: str, status: int, cause: str) -> None:
    run = start("0.5.23", recording=recording)
    assert run.end() == status
    assert run.verdict(expectation(run), status).cause == cause


def test_a_port_that_is_held_ends_it_as_the_engine_ends(start: Start) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        run = start("0.5.23", "--port", str(holder.getsockname()[1]))
        assert run.end() == 3
    assert run.verdict(expectation(run), 3).cause == "port-in-use"


def test_it_can_be_told_to_die_or_to_fall_silent(start: Start) -> None:
    assert start("0.5.23", die_at="Load weight begin").end() == -signal.SIGKILL
    run = start("0.5.23", hang_at="Load weight begin")
    run.until("Load weight begin")
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == -signal.SIGTERM


def test_a_recorded_hang_goes_on(start: Start) -> None:
    run = start("0.5.23", recording="hang-loading")
    run.until("Init parallel begin")
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == -signal.SIGTERM


def test_a_recording_that_does_not_exist_is_named(start: Start) -> None:
    assert start("0.5.23", recording="absent").end() == 1
    with pytest.raises(SystemExit, match=r"no recording 'absent'.*cpu-ready-then-stopped"):
        find(RECORDINGS / "0.5.23", "absent")


def test_a_plain_log_has_the_times_of_its_stamps_and_its_server_info() -> None:
    recording = load(RECORDINGS / "0.5.11" / "h200-mtp-noradix-ready.log")
    assert (recording.lines[0][0], recording.ended_at) == (0.0, 35.0)
    assert recording.answers["GET /server_info"]["body"]["max_total_num_tokens"] == 372189
