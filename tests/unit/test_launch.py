"""The launcher runs in this process: it is the parent of real engines and hears real signals."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Callable, Protocol

import pytest
from sglang_kit import credentials, launch, probe
from sglang_kit.attempts import EXIT_GAVE_UP
from sglang_kit.credentials import Credentials

from tests.replay.build import build
from tests.serving import MODEL, NAME, Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

INVOCATION = "0123456789abcdef0123456789abcdef"
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (*(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD), *(signal.SIGQUIT, signal.SIGHUP, signal.SIGALRM))
LONGEST_TEST_SECONDS = 20

# Lines of 0.5.23, in the order of a start; each begins the stage that is named beside it.
ARGUMENTS = "server_args={'model_path': '/srv/models/tiny'}"  # import
PARALLEL = "Init parallel begin."  # distributed
WEIGHTS = "Load weight begin. avail mem=20.80 GB"  # weights
WEIGHTS_END = "Load weight end. elapsed=0.01 s, type=T, avail mem=20.80 GB, mem usage=0.00 GB."  # KV cache
KV_CACHE = "KV Cache is allocated. dtype: torch.float16, #tokens: 8192, K size: 0.00 GB, V size: 0.00 GB"
POOLS_END = "Memory pool end. avail mem=20.79 GB"  # graphs
SUMMARY = (  # warm-up
    "max_total_num_tokens=8192, chunked_prefill_size=4096, max_prefill_tokens=16384,"
    " max_running_requests=8, context_len=1024, available_cpu_mem=20.79 GB"
)
FIRED_UP = "The server is fired up and ready to roll!"  # serving


def ready_lines(port: int) -> list[str]:
    listen = f"INFO:     Uvicorn running on http://127.0.0.1:{port} (Press CTRL+C to quit)"
    return [ARGUMENTS, PARALLEL, WEIGHTS, WEIGHTS_END, KV_CACHE, POOLS_END, SUMMARY, listen, FIRED_UP]


def children() -> list[int]:
    """List the processes whose parent this one is; a thread that has just ended has none."""
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def interrupt_self(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll for what nothing announces."""
    deadline = time.monotonic() + LONGEST_TEST_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give this process back as it was: signal handlers, wake-up pipe, adopted children."""
    monkeypatch.setattr(launch, "TICK_SECONDS", 0.02)

    def too_late(_number: int, _frame: object) -> None:
        raise TimeoutError("the launcher did not end")

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LONGEST_TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    while left := children():
        os.kill(left[0], signal.SIGKILL)
        os.waitpid(left[0], 0)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Manager:
    """systemd's end of the notification socket: keeps what comes and acts on what a test waits for."""

    def __init__(self, address: str) -> None:
        self.messages: list[str] = []
        self._acts: list[tuple[str, Callable[[], object]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket.bind(self._address)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def on(self, text: str, act: Callable[[], object]) -> None:
        """Act on the next notification that holds ``text``, once, after what was asked for before."""
        self._acts.append((text, act))

    def _listen(self) -> None:
        while message := self._socket.recv(4096).decode():
            self.messages.append(message)
            while self._acts and self._acts[0][0] in message:
                self._acts.pop(0)[1]()
                message = ""

    def close(self) -> None:
        """Read all that was sent."""
        if self._thread.is_alive():
            self._socket.sendto(b"", self._address)
            self._thread.join()
        self._socket.close()

    @property
    def statuses(self) -> list[str]:
        return [
            line.removeprefix("STATUS=")
            for message in self.messages
            for line in message.split("\n")
            if line.startswith("STATUS=")
        ]


class Puppet:
    """An engine that says what the test says: ``cat`` of a pipe that the test holds."""

    def __init__(self, place: Path) -> None:
        os.mkfifo(place)
        self._place = place
        self._end = os.open(place, os.O_RDWR)  # waits for no reader
        self.argv = ["cat", str(place)]

    def say(self, *lines: str) -> Callable[[], None]:
        """Make an act of it."""
        return lambda: self.write("".join(f"{line}\n" for line in lines).encode())

    def write(self, content: bytes) -> None:
        os.write(self._end, content)

    def leave(self) -> None:
        """End with status 0."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def end_after(self, *lines: str) -> Callable[[], None]:
        """Make an act of last words."""

        def end() -> None:
            self.say(*lines)()
            self.leave()

        return end

    def die(self, number: int) -> Callable[[], None]:
        """Make an act of ending by a signal."""
        return lambda: os.kill(children()[0], number)


class Rounds:
    """Counts the rounds of the launcher's loop: each ends with a look at who has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        reap = launch._reap  # noqa: SLF001 - the one call that every round makes

        def counting(engine: int) -> int | None:
            self.count += 1
            return reap(engine)

        monkeypatch.setattr(launch, "_reap", counting)

    def later(self, act: Callable[[], object]) -> Callable[[], None]:
        """Put an act off by a few rounds."""

        def wait_and_act() -> None:
            goal = self.count + 4
            wait_until(lambda: self.count >= goal)
            act()

        return wait_and_act


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


class Bench:
    """Runs the launcher as a unit would."""

    def __init__(self, directory: Path, manager: Manager, capfd: pytest.CaptureFixture[str]) -> None:
        self.runtime = directory / "run"
        self.manager = manager
        self.port = 31000
        self._directory = directory
        self._capfd = capfd
        self._out = ""

    def launch(self, argv: list[str], /, **plan: object) -> int:
        """Start and stay; the result is the unit's exit status."""
        place = self._directory / "plan.json"
        common = {
            "name": NAME,
            "model": MODEL,
            "served_model_name": NAME,
            "host": "127.0.0.1",
            "port": self.port,
        }
        content = {**common, "argv": argv[:1], "engine_version": "0.5.23", **plan}
        place.write_text(json.dumps(content), encoding="utf-8")
        status = launch.main([str(place), "--", *argv])
        self.manager.close()
        return status

    @property
    def journal(self) -> list[str]:
        """Lines that the launcher wrote."""
        self._out += self._capfd.readouterr().out
        return self._out.splitlines()


class MakeBench(Protocol):
    def __call__(self, address: str = ...) -> Bench: ...


@pytest.fixture
def make_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[MakeBench]:
    managers = []

    def make(address: str = str(tmp_path / "notify")) -> Bench:
        manager = Manager(address)
        managers.append(manager)
        bench = Bench(tmp_path, manager, capfd)
        bench.runtime.mkdir()
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(bench.runtime))
        monkeypatch.setenv("INVOCATION_ID", INVOCATION)
        return bench

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


@pytest.fixture
def puppet(tmp_path: Path) -> Iterator[Puppet]:
    puppet = Puppet(tmp_path / "engine")
    yield puppet
    puppet.leave()


@pytest.fixture
def serving(bench: Bench) -> Iterator[Serving]:
    with Serving() as serving:
        bench.port = serving.port
        yield serving


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions that end a clean stop by killing themselves, and that exit."""
    directory = tmp_path_factory.mktemp("releases")
    for version in ("0.5.15.post1", "0.5.23"):
        build(directory / version, version)
    return directory


class MakeReplay(Protocol):
    def __call__(self, version: str, case: str, *flags: str, speed: str = ...) -> list[str]: ...


@pytest.fixture
def replay(releases: Path, monkeypatch: pytest.MonkeyPatch) -> MakeReplay:
    """Give the command line of an engine that plays a recording."""

    def make(version: str, case: str, *flags: str, speed: str = "1e6") -> list[str]:
        monkeypatch.setenv("SGLANG_REPLAY_SPEED", speed)
        monkeypatch.setenv("SGLANG_REPLAY_RECORDING", case)
        return [f"{releases}/{version}/bin/python", "-m", "sglang.launch_server", *flags]

    return make


def program(text: str) -> list[str]:
    return [sys.executable, "-I", "-c", text]


# --- a start that becomes ready ------------------------------------------------------------------


def test_stages_are_told_in_order_until_the_proof_and_the_stop(
    bench: Bench, puppet: Puppet, serving: Serving
) -> None:
    *loading, listen, fired_up = ready_lines(serving.port)
    arguments, parallel, weights, weights_end, kv_cache, pools_end, summary = loading
    listening = ["INFO:     Waiting for application startup.", listen, "requests:   9%|"]
    for status, lines in [
        ("loading: arguments", [arguments]),
        ("loading: import", [parallel]),
        ("loading: distributed", [weights]),
        ("loading: weights", ["\rshards:  50% Completed | 1/2 [00:01"]),
        ("loading: weights, shards 50%", [weights_end, kv_cache]),
        ("loading: KV cache", [pools_end]),
        ("loading: graphs", [summary]),
        ("loading: warm-up", listening),
        ("loading: warm-up, requests 9%", [fired_up]),
    ]:
        bench.manager.on(f"STATUS={status}", puppet.say(*lines))
    bench.manager.on("READY=1", interrupt_self)

    assert bench.launch(puppet.argv, context_length=1024, concurrency=8) == 0

    assert bench.manager.statuses == [
        *("loading: arguments", "loading: import", "loading: distributed", "loading: weights"),
        *("loading: weights, shards 50%", "loading: KV cache", "loading: graphs", "loading: warm-up"),
        *("loading: warm-up, requests 9%", "loading: serving", "ready", "stopping: draining requests"),
    ]
    others = [message for message in bench.manager.messages if not message.startswith("STATUS=")]
    assert others == [
        "EXTEND_TIMEOUT_USEC=60000000",
        "READY=1",
        "STOPPING=1\nSTATUS=stopping: draining requests",
    ]
    assert serving.questions == [
        *("GET /health", "GET /server_info", "GET /v1/models"),
        *("POST /v1/completions", "POST /v1/chat/completions"),
    ]
    assert bench.journal == [
        *(arguments, parallel, weights, "shards:  50% Completed | 1/2 [00:01"),
        *(weights_end, kv_cache, pools_end, summary, *listening, fired_up),
    ]


def test_the_proof_is_of_this_invocation_and_whole(bench: Bench, puppet: Puppet, serving: Serving) -> None:
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    proven = []

    def look_and_stop() -> None:
        proven.append((bench.runtime / launch.PROOF).exists())
        interrupt_self()

    bench.manager.on("READY=1", look_and_stop)
    assert bench.launch(puppet.argv) == 0
    assert proven == [True]
    assert [place.name for place in bench.runtime.iterdir()] == [launch.PROOF]
    proof = json.loads((bench.runtime / launch.PROOF).read_text(encoding="utf-8"))
    assert proof["invocation"] == INVOCATION
    assert proof["state"] == "ready"
    assert proof["allocated"]["kv_tokens"] == 8192
    assert [stage["name"] for stage in proof["stages"]][-1] == "serving"
    assert all(check["held"] for check in proof["checks"])


def test_no_proof_is_kept_where_there_is_no_place_for_it(
    bench: Bench,
    puppet: Puppet,
    serving: Serving,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", interrupt_self)
    assert bench.launch(puppet.argv) == 0
    assert list(bench.runtime.iterdir()) == []


def test_what_a_good_start_took_outlives_it(
    bench: Bench, puppet: Puppet, serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("STATE_DIRECTORY", str(state))
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", interrupt_self)
    assert launch.last_good(state, "chat") == {}
    assert bench.launch(puppet.argv, name="chat") == 0
    took = launch.last_good(state, "chat")
    assert took["seconds"] > 0
    assert set(took["stages"]) >= {"weights", "warm_up"}


def test_a_damaged_memory_of_the_last_start_is_none(tmp_path: Path) -> None:
    place = tmp_path / "starts" / "chat.json"
    place.parent.mkdir()
    place.write_text("", encoding="utf-8")
    assert launch.last_good(tmp_path, "chat") == {}


def test_a_full_disk_does_not_end_what_serves(
    bench: Bench, puppet: Puppet, serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "starts").write_text("no directory", encoding="utf-8")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", interrupt_self)
    assert bench.launch(puppet.argv) == 0


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.23"])
def test_a_recorded_start_becomes_ready_and_stops(bench: Bench, replay: MakeReplay, version: str) -> None:
    bench.port = free_port()
    flags = [f"--model-path={MODEL}", f"--served-model-name={NAME}", f"--port={bench.port}"]
    argv = replay(version, "ready-then-stopped", *flags, speed="1000")
    bench.manager.on("READY=1", interrupt_self)
    assert bench.launch(argv, argv=argv, engine_version=version, context_length=1024, concurrency=8) == 0
    assert "Gracefully exiting" in "\n".join(bench.journal)


def test_a_slow_answer_does_not_stop_the_output(bench: Bench, puppet: Puppet, serving: Serving) -> None:
    def progress_while_asked() -> None:
        assert serving.came.wait(LONGEST_TEST_SECONDS)
        puppet.write(b"weights:  70%|\n")

    serving.may_answer.clear()
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("loading: serving", progress_while_asked)
    bench.manager.on("loading: serving, weights 70%", serving.may_answer.set)
    bench.manager.on("READY=1", interrupt_self)
    assert bench.launch(puppet.argv) == 0
    assert serving.questions.count("GET /health") == 1


def test_an_engine_that_does_not_listen_is_not_asked(
    bench: Bench, puppet: Puppet, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(probe, "ask", lambda *words: asked.append(words))
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(bench.port)[:-2]))
    bench.manager.on("loading: warm-up", rounds.later(interrupt_self))
    assert bench.launch(puppet.argv) == 0
    assert asked == []


def test_output_answers_and_signals_each_wake_the_loop(
    bench: Bench, puppet: Puppet, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TICK_SECONDS", 1000)
    puppet.say(*ready_lines(serving.port))()
    bench.manager.on("READY=1", interrupt_self)
    assert bench.launch(puppet.argv) == 0


def test_the_end_wakes_the_loop_though_a_worker_holds_the_output(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TICK_SECONDS", 1000)
    assert bench.launch(["sh", "-c", "sleep 60 & exit 3"]) == 78


def test_the_time_limit_is_extended_again_and_again_until_ready_is_told_once(
    bench: Bench, puppet: Puppet, serving: Serving, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "EXTENSION_SECONDS", 0)
    for act in (puppet.say(ARGUMENTS), puppet.say(*ready_lines(serving.port)[1:])):
        bench.manager.on("EXTEND_TIMEOUT_USEC=0", act)
    bench.manager.on("READY=1", rounds.later(interrupt_self))
    assert bench.launch(puppet.argv) == 0
    assert bench.manager.messages[-3:] == [
        "STATUS=ready",
        "READY=1",
        "STOPPING=1\nSTATUS=stopping: draining requests",
    ]


def test_the_first_extension_does_not_depend_on_how_long_the_host_is_up(
    bench: Bench, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: 0.0))
    bench.manager.on("EXTEND_TIMEOUT_USEC=60000000", interrupt_self)
    assert bench.launch(puppet.argv) == 0


# --- stops ---------------------------------------------------------------------------------------

ENDS_BY = """
import os, resource, signal, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def end(number, frame):
    {how}
signal.signal(signal.SIGTERM, end)
os.write(1, {line!r}.encode() + b"\\n")
while True:
    time.sleep(0.01)  # not signal.pause(): it would miss a signal that came just before
"""


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("os._exit(0)", 0, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 0, ""),
        ("signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)", 0, ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 1, "ended by SIGSEGV while stopping: "),
        ("os._exit(3)", 1, "ended with status 3 while stopping: "),
    ],
)
def test_a_stop_that_was_asked_for_is_success_and_a_crash_is_not(
    bench: Bench, how: str, status: int, said: str
) -> None:
    bench.manager.on("loading: import", interrupt_self)
    assert bench.launch(program(ENDS_BY.format(how=how, line=ARGUMENTS))) == status
    last = bench.journal[-1]
    assert last.startswith(f"sglang-metal: the engine {said}") if said else last == ARGUMENTS


def test_an_interrupt_is_a_request_to_stop_and_reaches_the_engine_as_sigterm(bench: Bench) -> None:
    bench.manager.on("loading: import", lambda: interrupt_self(signal.SIGINT))
    argv = program(ENDS_BY.format(how="os.write(1, b'got %d' % number); os._exit(0)", line=ARGUMENTS))
    assert bench.launch(argv) == 0
    assert bench.journal[-1] == "got 15"
    assert bench.manager.messages[-1] == "STOPPING=1\nSTATUS=stopping: draining requests"


def test_nothing_that_a_stopping_engine_says_is_told(bench: Bench, puppet: Puppet, rounds: Rounds) -> None:
    def leave() -> None:
        puppet.say(PARALLEL)()
        rounds.later(puppet.leave)()

    bench.manager.on("loading: arguments", puppet.say(ARGUMENTS))
    bench.manager.on("loading: import", interrupt_self)
    bench.manager.on("STOPPING=1", leave)
    assert bench.launch(["sh", "-c", f"trap '' TERM; {' '.join(puppet.argv)}"]) == 0
    assert PARALLEL in bench.journal
    assert bench.manager.statuses[-1] == "stopping: draining requests"


def test_hangup_and_quit_change_nothing(bench: Bench, puppet: Puppet) -> None:
    """Workers of an engine that died while loading send SIGQUIT to who adopted them."""

    def harmless() -> None:
        interrupt_self(signal.SIGHUP)
        interrupt_self(signal.SIGQUIT)
        puppet.write(f"{PARALLEL}\n".encode())

    bench.manager.on("loading: arguments", puppet.say(ARGUMENTS))
    bench.manager.on("loading: import", harmless)
    bench.manager.on("loading: distributed", interrupt_self)
    assert bench.launch(puppet.argv) == 0
    assert bench.manager.statuses[-2:] == ["loading: distributed", "stopping: draining requests"]


def test_an_engine_that_writes_without_end_can_be_stopped(bench: Bench) -> None:
    bench.manager.on("loading: arguments", interrupt_self)
    assert bench.launch(["yes"]) == 0


def test_an_engine_that_closes_its_output_is_left_alone_and_can_be_stopped(
    bench: Bench, puppet: Puppet, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, empty = os.read, []

    def noting(end: int, size: int) -> bytes:
        content = read(end, size)
        if not content and size == launch.PIPE_BYTES:  # subprocess reads pipes of its own
            empty.append(end)
        return content

    monkeypatch.setattr(os, "read", noting)

    def stop_when_closed() -> None:
        wait_until(lambda: bool(empty))
        rounds.later(interrupt_self)()

    quiet = f'echo "{ARGUMENTS}"; exec {" ".join(puppet.argv)} > /dev/null 2>&1'
    bench.manager.on("loading: import", stop_when_closed)
    assert bench.launch(["sh", "-c", quiet]) == 0
    assert len(empty) == 2  # when it was closed, and at the end


# --- failures ------------------------------------------------------------------------------------

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/sglang/launch_server.py", line 1, in <module>',
    "RuntimeError: the fault of this test",
)
BIND_FAILED = "[Errno 98] error while attempting to bind on address ('127.0.0.1', 31000): in use"
USAGE_ERROR = "launch_server.py: error: unrecognized arguments: --x"


@pytest.mark.parametrize(
    ("case", "status", "cause"),
    [
        ("unknown-flag", 78, "the engine does not know these flags: "),
        ("import-error-at-start", 1, "in stage import: "),
        ("weights-missing", 1, "in stage weights: weight files are missing: "),
        ("main-killed", 1, "ended by SIGKILL in stage "),
    ],
)
def test_a_recorded_failure_ends_with_its_cause_in_the_last_line(
    bench: Bench, replay: MakeReplay, case: str, status: int, cause: str
) -> None:
    assert bench.launch(replay("0.5.23", case, f"--port={free_port()}")) == status
    last = bench.journal[-1]
    assert last.startswith("sglang-metal: the engine ended ")
    assert cause in last
    assert ". What to do: " in last
    assert bench.manager.statuses[-1].startswith("failed: ")
    assert "READY=1" not in bench.manager.messages


def test_an_engine_that_cannot_be_executed_would_fail_again(bench: Bench) -> None:
    assert bench.launch(["/nonexistent/bin/python", "-m", "sglang.launch_server"]) == 78
    assert "/nonexistent/bin/python" in bench.journal[0]
    assert bench.journal[-1].startswith("sglang-metal: the engine ended with status 127 in stage arguments: ")


def test_a_crash_while_loading(bench: Bench, puppet: Puppet) -> None:
    bench.manager.on("loading: arguments", puppet.say(ARGUMENTS))
    bench.manager.on("loading: import", puppet.die(signal.SIGSEGV))
    assert bench.launch(puppet.argv) == 1
    assert bench.journal[-1].startswith("sglang-metal: the engine ended by SIGSEGV in stage import: ")


def test_who_is_killed_at_once_has_refused_no_argument(bench: Bench, puppet: Puppet) -> None:
    bench.manager.on("loading: arguments", puppet.die(signal.SIGKILL))
    assert bench.launch(puppet.argv) == 1
    assert bench.journal[-1].startswith("sglang-metal: the engine ended by SIGKILL in stage arguments: ")


def test_a_crash_while_serving_is_explained_by_what_came_after_the_start(
    bench: Bench, puppet: Puppet, serving: Serving
) -> None:
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", puppet.end_after(*TRACEBACK))
    assert bench.launch(puppet.argv) == 1
    last = bench.journal[-1]
    assert last.startswith("sglang-metal: the engine ended with status 0 while serving: ")
    assert TRACEBACK[-1] in last
    assert bench.manager.statuses[-1].startswith("failed: ")


def test_what_has_served_has_not_been_refused(bench: Bench, puppet: Puppet, serving: Serving) -> None:
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", puppet.end_after(USAGE_ERROR))
    assert bench.launch(["sh", "-c", f"{' '.join(puppet.argv)}; exit 2"]) == 1
    assert bench.journal[-1].startswith("sglang-metal: the engine ended with status 2 while serving: ")


def test_only_the_newest_lines_are_kept_while_serving(
    bench: Bench, puppet: Puppet, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TAIL_LINES", 2)
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", puppet.end_after(USAGE_ERROR, "new", "newest"))
    assert bench.launch(puppet.argv) == 1
    assert bench.journal[-4:-1] == [USAGE_ERROR, "new", "newest"]
    assert "--x" not in bench.journal[-1]


@pytest.mark.parametrize(("starts_before", "expected"), [(1, launch.EXIT_CRASHED), (2, EXIT_GAVE_UP)])
def test_the_last_failing_start_in_a_row_says_so(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts_before: int, expected: int
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    (tmp_path / f"{NAME}.starts").write_bytes(b"." * starts_before)
    assert bench.launch(program("import os; os.kill(os.getpid(), 9)")) == expected
    assert ("systemd makes no further one" in bench.journal[-1]) == (expected == EXIT_GAVE_UP)


def test_a_start_that_became_ready_ends_the_row(
    bench: Bench, puppet: Puppet, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    starts = tmp_path / f"{NAME}.starts"
    starts.write_bytes(b"..")
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    gone = []

    def look_and_stop() -> None:
        wait_until(lambda: not starts.exists())
        gone.append(True)
        interrupt_self()

    bench.manager.on("READY=1", look_and_stop)
    assert bench.launch(puppet.argv) == 0
    assert gone


def test_an_engine_that_lingers_after_a_fatal_line_is_killed(
    bench: Bench, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.1)
    bench.manager.on("loading: arguments", puppet.say(ARGUMENTS, BIND_FAILED))
    assert bench.launch(puppet.argv) == 1
    last = bench.journal[-1]
    assert last.startswith("sglang-metal: the engine had to be killed in stage ")
    assert "31000" in last
    assert "SIGKILL" not in last


def test_a_failing_engine_has_the_grace_to_end_by_itself(bench: Bench, puppet: Puppet) -> None:
    bench.manager.on("loading: arguments", puppet.say(ARGUMENTS, BIND_FAILED))
    bench.manager.on("STATUS=failed: ", puppet.leave)
    assert bench.launch(puppet.argv) == 1
    assert bench.journal[-1].startswith("sglang-metal: the engine ended with status 0 in stage ")


def test_an_open_traceback_is_judged_when_nothing_follows(
    bench: Bench, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_kit.readiness.SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.0)
    bench.manager.on("loading: arguments", puppet.say(*TRACEBACK, "has two lines"))
    assert bench.launch(puppet.argv) == 1
    assert bench.journal[-1].startswith("sglang-metal: the engine had to be killed in stage arguments: ")
    assert f"{TRACEBACK[-1]} has two lines" in bench.journal[-1]


def test_a_stage_without_progress_is_ended_and_named(
    bench: Bench, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.0)
    assert bench.launch(puppet.argv, stage_seconds={"arguments": 0.1}) == 1
    assert bench.journal[-1].startswith(
        "sglang-metal: the engine had to be killed in stage arguments: no progress in stage arguments for"
    )
    assert bench.manager.statuses[-1].startswith("stalled: no progress in stage arguments for")


# --- output --------------------------------------------------------------------------------------


def test_output_becomes_whole_readable_lines(bench: Bench) -> None:
    assert bench.launch(["printf", r"one\rtwo\r\n\n   \nthree \377 \303\244\nthe rest"]) == 1
    *lines, cause = bench.journal
    assert lines == ["one", "two", r"three \xff ä", "the rest"]
    assert cause.startswith("sglang-metal: the engine ended with status 0 in stage arguments: ")


def test_the_rest_of_a_line_is_kept_though_a_worker_holds_the_pipe(bench: Bench) -> None:
    assert bench.launch(["sh", "-c", "sleep 60 & printf 'the rest'"]) == 1
    assert bench.journal[0] == "the rest"


def test_lines_are_put_together_over_several_reads(bench: Bench, puppet: Puppet) -> None:
    halves = ARGUMENTS[:20], ARGUMENTS[20:]
    bench.manager.on("loading: arguments", lambda: puppet.write(f"first: 7%|\n{halves[0]}".encode()))
    bench.manager.on("loading: arguments, first 7%", lambda: puppet.write(f"{halves[1]}\n".encode()))
    bench.manager.on("loading: import", interrupt_self)
    assert bench.launch(puppet.argv) == 0
    assert bench.journal == ["first: 7%|", ARGUMENTS]


def test_secrets_are_masked(bench: Bench) -> None:
    assert bench.launch(["printf", r"server_args={'api_key': 'sk-12345'}\n--api-key=sk-12345"]) == 1
    assert bench.journal[:2] == ["server_args={'api_key': '***'}", "--api-key=***"]
    everything = "\n".join([*bench.journal, *bench.manager.messages])
    assert "sk-12345" not in everything


def test_a_write_that_a_signal_cuts_short_is_finished(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda end, content: write(end, content[:3]))
    assert bench.launch(["printf", r"one line\nanother one\n"]) == 1
    assert bench.journal[:2] == ["one line", "another one"]


def test_an_engine_outlives_the_journal(bench: Bench, puppet: Puppet, serving: Serving) -> None:
    bench.manager.on("loading: arguments", puppet.say(*ready_lines(serving.port)))
    bench.manager.on("READY=1", interrupt_self)
    reader, writer = os.pipe()
    os.close(reader)
    output = os.dup(1)
    os.dup2(writer, 1)
    try:
        status = bench.launch(puppet.argv)
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(writer)
    assert status == 0
    assert "READY=1" in bench.manager.messages


# --- processes -----------------------------------------------------------------------------------

ORPHAN = """
import os, signal, sys, time
launcher = os.getppid()
if os.fork() == 0:
    if os.fork() == 0:
        while os.getppid() != launcher:
            time.sleep(0.01)
        with open({place!r}, "w") as place:
            place.write(str(os.getpid()))
        print({line!r}, flush=True)
    os._exit(0)
os.wait()
while True:
    signal.pause()
"""


def test_a_worker_that_lost_its_parent_is_adopted_and_reaped(bench: Bench, tmp_path: Path) -> None:
    place = tmp_path / "orphan"

    def stop_when_reaped() -> None:
        orphan = Path("/proc", place.read_text(encoding="ascii"))
        wait_until(lambda: not orphan.exists())
        interrupt_self()

    bench.manager.on("loading: import", stop_when_reaped)
    assert bench.launch(program(ORPHAN.format(place=str(place), line=ARGUMENTS))) == 0


def test_the_engine_does_not_see_the_notification_socket(bench: Bench) -> None:
    assert bench.launch(["env"]) == 1
    assert f"INVOCATION_ID={INVOCATION}" in bench.journal
    assert not [line for line in bench.journal if line.startswith("NOTIFY_SOCKET")]


LAUNCH = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sglang_kit.cli import main; sys.exit(main())"


def test_the_engine_reads_nothing_and_does_not_outlive_its_launcher(tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    plan = {
        "name": NAME,
        "model": MODEL,
        "served_model_name": NAME,
        "host": "127.0.0.1",
        "port": 31000,
        "argv": [],
    }
    place.write_text(json.dumps(plan), encoding="utf-8")
    kit = Path(launch.__file__).parent.parent
    say_pid = program(
        "import os, signal; print(os.getpid(), os.readlink('/proc/self/fd/0'), flush=True); signal.pause()"
    )
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = [*program(LAUNCH), str(kit), "launch", str(place), "--", *say_pid]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        engine, its_input = launcher.stdout.readline().split()
        launcher.kill()
    assert its_input == "/dev/null"
    _, raw = os.waitpid(int(engine), 0)
    assert os.WTERMSIG(raw) == signal.SIGKILL


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["plan.json"], ["plan.json", "--"], ["plan.json", "cat", "x"]])
def test_wrong_use_says_how(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage: launch PLAN_FILE -- ARGV"):
        launch.main(words)


def test_nothing_is_sent_where_systemd_does_not_listen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert bench.launch(["true"]) == 1
    assert bench.manager.messages == []


def test_an_abstract_socket_is_reached(make_bench: MakeBench) -> None:
    bench = make_bench(f"@sglang-metal-{os.getpid()}")
    bench.manager.on("loading: arguments", interrupt_self)
    assert bench.launch(["sleep", "60"]) == 0
    assert bench.manager.messages[-1].startswith("STOPPING=1\n")


def test_a_value_stays_one_assignment_that_systemd_takes(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        launch.Notifier(address).send(STATUS="failed: \U0001f525\nREADY=1" + "\U0001f525" * 2000, STOPPING=1)
        assert select.select([systemd], [], [], 0)[0]
        message = systemd.recv(1 << 16)
    assert len(message) < 4096
    assert message.decode().split("\n")[0].startswith("STATUS=failed: \U0001f525 READY=1\U0001f525")
    assert message.decode().split("\n")[1:] == ["STOPPING=1"]


# --- secrets -------------------------------------------------------------------------------------


def test_a_key_opens_the_engine_and_is_seen_nowhere(
    bench: Bench, replay: MakeReplay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "key-0123456789"
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "api_key").write_text(key, encoding="utf-8")
    bench.port = free_port()
    commands: list[str] = []

    def look() -> None:
        places = [Path(f"/proc/{pid}/cmdline") for pid in children()]
        commands.extend(place.read_text(encoding="utf-8") for place in places)
        interrupt_self()

    bench.manager.on("READY=1", look)
    argv = replay("0.5.23", "ready-then-stopped", "--model-path", MODEL, "--port", str(bench.port))
    assert bench.launch(argv, served_model_name="") == 0
    assert any("engine_start.py\0sglang.launch_server\0--model-path" in command for command in commands)
    proof = (bench.runtime / "proof.json").read_text(encoding="utf-8")
    assert key not in "\n".join([*bench.journal, *bench.manager.messages, *commands, proof])


def test_what_an_engine_prints_of_its_secrets_is_masked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "with_secrets", list)
    monkeypatch.setattr(credentials, "of_unit", lambda: Credentials({"hf_token": "hf_0123456789"}))
    assert bench.launch(["printf", r"say hf_0123456789 aloud\n"]) == 1
    assert bench.journal[0] == "say *** aloud"
