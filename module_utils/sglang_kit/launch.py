"""The main process of an instance's unit: starts the engine, tells systemd how far it is, translates its end.

The engine runs as the one child of this process, in the same control group:

* its output passes through here to the journal, line by line, so that the stage is known at once;
* ``READY=1`` is sent when the readiness functions say so, ``STATUS=`` carries the stage, and the
  start's time limit is extended whenever a stage moves;
* SIGTERM goes to the engine's main process alone, which drains; the engine's workers have no
  handler and would drop their requests;
* the instance's keys reach the engine inside its process, and no line of its output;
* a requested stop ends with status 0 however the engine's version ends its own (up to 0.5.18 it
  kills itself with SIGKILL after a clean drain), and a crash never does;
* workers that lose their parent while loading are adopted here instead of by PID 1, which they
  would send SIGQUIT to when they are done (``sglang/srt/managers/scheduler.py`` 0.5.11 and 0.5.23).
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import credentials, probe
from .attempts import EXIT_GAVE_UP, SENTENCE, Attempts
from .command import HOME
from .diagnosis import UNKNOWN, signal_name
from .journal import Line, redact
from .progress import took
from .readiness import FAILED, LOADING, READY, STALLED, Answers, Expectation, Follower, child_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .credentials import Credentials
    from .readiness import Verdict

EXIT_CRASHED = 1
EXIT_ARGUMENTS = 78
"""EX_CONFIG of sysexits.h: the unit's ``RestartPreventExitStatus=``; the same argv would fail again."""
GRACE_SECONDS = 2.0
"""How long an engine whose start has failed may go on writing before it is killed."""
TICK_SECONDS = 0.25
EXTENSION_SECONDS = 60
PIPE_BYTES = 1 << 20
"""No pipe holds more by default (16 pages of 4 to 64 KiB): one read takes all there is."""
TAIL_LINES = 2000
"""Newest lines that are kept while serving and judged only when the engine has ended: none of the texts
that requests bring into the log can disturb what serves."""
STATUS_LENGTH = 1000
"""Characters; systemd ignores a notification of more than 4096 bytes."""
PROOF = "proof.json"
STATE = Path(HOME)
TERMINAL_STOPS = {0, -signal.SIGTERM, -signal.SIGKILL}
"""Ends of the engine's main process that a requested stop explains: a drain, one before the listener
was up, and the drain of 0.5.11 to 0.5.18, which kills itself."""

_PR_SET_CHILD_SUBREAPER = 36


def main(words: Sequence[str]) -> int:
    """Run ``launch PLAN_FILE -- ARGV...``; the result is the unit's exit status."""
    if list(words[1:2]) != ["--"] or not words[2:]:
        raise SystemExit("usage: launch PLAN_FILE -- ARGV...")
    plan_file, _, *argv = words
    plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    return Launcher(plan, argv, Notifier(os.environ.pop("NOTIFY_SOCKET", ""))).run()


class Notifier:
    """sd_notify(3) without libsystemd; silent where systemd does not listen."""

    def __init__(self, address: str) -> None:
        """``address`` is the text of ``NOTIFY_SOCKET``; a leading ``@`` stands for an abstract socket."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def send(self, **fields: object) -> None:
        """Send assignments such as ``READY=1``; a value cannot bring in further ones."""
        if self._address:
            lines = [f"{name}={_one_line(str(value))[:STATUS_LENGTH]}" for name, value in fields.items()]
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)


class Launcher:
    """One start of one instance, from the first line to the end of the engine."""

    def __init__(self, plan: Mapping[str, Any], argv: Sequence[str], notifier: Notifier) -> None:
        """``plan`` is the instance's plan file, ``argv`` the engine's command line without secrets."""
        expectation = Expectation.from_plan(plan, last_good(STATE, plan["name"]))
        self._name: str = plan["name"]
        self._secrets = credentials.of_unit()
        self._argv = with_secrets(argv) if self._secrets.values else list(argv)
        self._attempts = Attempts(plan["name"])
        self._notifier = notifier
        self._follower = Follower(expectation, started=time.monotonic())
        self._wakeup, self._wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._prober = Prober(expectation, plan["host"], self._wakeup_end, self._secrets)
        self._rest = b""
        self._lines = 0
        self._tail: deque[Line] = deque(maxlen=TAIL_LINES)
        self._verdict: Verdict | None = None
        self._failed_since: float | None = None
        self._condemned: Verdict | None = None
        self._extended = -float(EXTENSION_SECONDS)
        self._stop_requested = False

    def run(self) -> int:
        """Start the engine and stay until it has ended."""
        self._attempts.begin()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.set_wakeup_fd(self._wakeup_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, _only_wake)
        engine, output = _spawn(self._argv)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            status = None
            while status is None:
                for key, _ in selector.select(TICK_SECONDS):
                    if key.fd == self._wakeup:
                        self._pass_signals_on(os.read(self._wakeup, 512), engine)
                    elif not self._relay(output):
                        selector.unregister(output)
                self._follow(engine)
                status = _reap(engine)
        self._relay(output)
        self._take([self._rest])
        return self._translate(engine, status)

    @property
    def _serving(self) -> bool:
        return self._verdict is not None and self._verdict.state == READY

    def _pass_signals_on(self, received: bytes, engine: int) -> None:
        """Hand a request to stop to the engine's main process; other signals only wake the loop."""
        if not {signal.SIGTERM, signal.SIGINT}.isdisjoint(received):
            self._stop_requested = True
            os.kill(engine, signal.SIGTERM)  # not reaped yet: the pid is still the engine's
            self._notifier.send(STOPPING=1, STATUS="stopping: draining requests")

    def _relay(self, output: int) -> bool:
        """Copy what the pipe holds to the journal, whole lines, secrets masked; False at its end.

        One read at a time: an engine that writes without end must not keep the loop from signals.
        """
        try:
            chunk = os.read(output, PIPE_BYTES)
        except BlockingIOError:
            return True
        # A progress bar writes carriage returns; in a journal each of its states is a line.
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        self._take(lines)
        return bool(chunk)

    def _take(self, raw: Sequence[bytes]) -> None:
        texts = [self._masked(line.decode(errors="backslashreplace")) for line in raw if line.strip()]
        _write("".join(f"{text}\n" for text in texts))
        now = time.monotonic()
        lines = [Line(number, text, now) for number, text in enumerate(texts, self._lines + 1)]
        self._lines += len(lines)
        if self._serving:
            self._tail.extend(lines)
        else:
            self._follower.feed(lines, now)

    def _masked(self, text: str) -> str:
        """Hide the instance's own secrets, and what looks like one of somebody else's."""
        return redact(self._secrets.masked(text))

    def _follow(self, engine: int) -> None:
        """Tell systemd about a start until it is ready, and end one that cannot become ready."""
        if self._stop_requested or self._serving:
            return
        now = time.monotonic()
        verdict = self._follower.observe(now, unit=child_state(pid=engine), answers=self._prober.answers())
        if self._verdict is None or verdict.status != self._verdict.status:
            self._notifier.send(STATUS=verdict.status)
        if verdict.state == LOADING and now - self._extended >= EXTENSION_SECONDS / 4:
            # Silence is judged stage by stage in here; systemd's own limit only guards this process.
            self._notifier.send(EXTEND_TIMEOUT_USEC=EXTENSION_SECONDS * 1_000_000)
            self._extended = now
        self._verdict = verdict
        if verdict.state == READY:
            _keep(verdict, self._name)
            self._attempts.forget()
            self._notifier.send(READY=1)
        elif verdict.state in (FAILED, STALLED):
            self._failed_since = self._failed_since or now
            if now - self._failed_since >= GRACE_SECONDS:
                self._condemned = verdict
                os.kill(engine, signal.SIGKILL)
        else:
            self._prober.ask(verdict.ask)

    def _translate(self, engine: int, status: int) -> int:
        """Turn the engine's end into the unit's, with the cause as the last line of the journal."""
        if self._stop_requested and status in TERMINAL_STOPS:
            self._attempts.forget()
            return 0
        now = time.monotonic()
        self._follower.feed(self._tail, now)
        verdict = self._condemned or self._follower.observe(
            now, unit=child_state(pid=engine, returncode=status), ended=True
        )
        place = f"in stage {verdict.phase or verdict.stage}"
        when = "while stopping" if self._stop_requested else "while serving" if self._serving else place
        how = f"ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
        what = "had to be killed" if self._condemned else how
        last = self._attempts.exhausted()
        remedy = f"What to do: {verdict.remedy}" if verdict.remedy else ""
        told = ". ".join(filter(None, [verdict.sentence, remedy, SENTENCE if last else ""]))
        mark = f" [cause: {verdict.cause or UNKNOWN}, phase: {verdict.phase or verdict.stage}]"
        _write(_one_line(f"sglang-metal: the engine {what} {when}: {told}{mark}") + "\n")
        self._notifier.send(STATUS=verdict.status)
        # Whoever is killed has refused nothing.
        refused = verdict.phase == "arguments" and status > 0 and not self._serving
        return EXIT_ARGUMENTS if refused else EXIT_GAVE_UP if last else EXIT_CRASHED


class Prober:
    """Asks the engine in a thread of its own: a slow answer must not stop the engine's output."""

    def __init__(self, expectation: Expectation, host: str, wakeup_end: int, secrets: Credentials) -> None:
        """``host`` is the address that the instance is bound to; an answer wakes the loop."""
        self._expectation = expectation
        self._host = host
        self._wakeup_end = wakeup_end
        self._secrets = secrets
        self._thread: threading.Thread | None = None
        self._newest: Answers | None = None

    def ask(self, names: Sequence[str]) -> None:
        """Put questions, unless some are still open."""
        if names and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(names,), daemon=True)
            self._thread.start()

    def answers(self) -> Answers | None:
        """Take what came since the last call."""
        newest = self._newest
        if newest is not None:  # the thread has written its one answer, and no other runs yet
            self._newest = self._thread = None
        return newest

    def _run(self, names: Sequence[str]) -> None:
        self._newest = probe.ask(self._expectation, self._host, names, self._secrets)
        os.write(self._wakeup_end, b"\0")


def with_secrets(argv: Sequence[str]) -> list[str]:
    """Let ``engine_start.py`` run the engine's module in place of ``python -m``."""
    python, _, module, *words = argv
    return [python, str(Path(__file__).with_name("engine_start.py")), module, *words]


def _spawn(argv: Sequence[str]) -> tuple[int, int]:
    """Start the engine; return its pid and the end of the pipe that its whole output comes through.

    ``setpriv`` ties its life to this process (PR_SET_PDEATHSIG survives the exec) and is gone then.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    engine = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *argv],
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    engine.returncode = 0  # it is reaped here, together with the workers that it leaves behind
    return engine.pid, reader


def _reap(engine: int) -> int | None:
    """Collect every child that has ended; return the engine's status (negative: a signal) if it has."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == engine:
            status = os.waitstatus_to_exitcode(raw)
        elif pid == 0:
            return status


def _keep(verdict: Verdict, name: str) -> None:
    """Leave the proof in the unit's runtime directory, which systemd removes with the invocation.

    What the start took outlives it, in the state directory.
    """
    runtime, state = os.environ.get("RUNTIME_DIRECTORY"), os.environ.get("STATE_DIRECTORY")
    if runtime:
        proof = {"invocation": os.environ.get("INVOCATION_ID", ""), **verdict.as_dict()}
        _write_file(Path(runtime, PROOF), proof)
    if state:
        _write_file(_last_good(Path(state), name), took(verdict))


def last_good(state: Path, name: str) -> dict[str, Any]:
    """Read what the last good start of an instance took, in seconds; empty where that is not known.

    A file that a power cut has left empty must not keep anything from starting.
    """
    try:
        times: dict[str, Any] = json.loads(_last_good(state, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return times


def _last_good(state: Path, name: str) -> Path:
    return state / "starts" / f"{name}.json"


def _write_file(place: Path, content: Mapping[str, Any]) -> None:
    """Replace a file, whole; a full disk must not end what serves."""
    fresh = place.with_name(f"{place.name}.new")
    with suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        fresh.write_text(json.dumps(content), encoding="utf-8")
        fresh.replace(place)


def _write(text: str) -> None:
    """Write to the journal, whatever the locale; what serves outlives a journal that is gone."""
    rest = text.encode()
    with suppress(BrokenPipeError):
        while rest:
            rest = rest[os.write(1, rest) :]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _only_wake(_number: int, _frame: object) -> None:
    """Leave the work to the loop that the signal wakes."""
