"""Given events, unit state and HTTP answers: which stage, ready, failed, or stalled?

A pure state machine. ``Follower`` takes the lines of one invocation as they come and, whenever asked,
judges what is known so far. It never waits and never reads a clock: the caller hands over ``now``, in
seconds on the same clock as the lines.

"Ready" is a list of checks (``CHECKS``), all of which must hold: the engine's own "The server is fired
up" is one of them and proves nothing alone, since 0.5.23 also says it after warming up another server
that holds its port (``entrypoints/http_server.py:_execute_server_warmup``).
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Callable

from . import diagnosis, engine
from .diagnosis import Diagnosis, diagnose
from .journal import ENGINE, Allocated, Event, Fold, Pools
from .quantity import from_gib
from .settings import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .journal import Line

    Outcome = tuple[bool | None, str]

READY = "ready"
FAILED = "failed"
LOADING = "loading"
STALLED = "stalled"
STOPPED = "stopped"
NEVER_STARTED = "never_started"
RESTARTING = "restarting"

STAGE_SECONDS: dict[str, float] = {
    "arguments": 180,
    "import": 300,
    "distributed": 300,
    "weights": 600,
    "state_cache": 180,
    "kv_cache": 180,
    "graphs": 1200,
    "warm_up": 660,
    "serving": 900,
}
"""Stages in the order of a start, and the seconds each may pass without progress.

Kernels are compiled during ``graphs`` with no output (20 minutes seen); the engine's own limit for
its warm-up request is 600 s (``SGLANG_WARMUP_TIMEOUT``); ``serving`` waits for health and completions
of a server that may be busy. The plan sizes ``weights`` by the bytes to load.
"""
STAGE_NAMES = {"state_cache": "state cache", "kv_cache": "KV cache", "warm_up": "warm-up"}

SLOWEST_BYTES_PER_SECOND = 50_000_000
"""A storage that is slower than this while weights load from it counts as stuck."""
PATIENCE = 2.0
"""A stage may be silent for this many times what it took at the last good start."""


def stage_limits(plan: Mapping[str, Any], last_good: Mapping[str, Any]) -> dict[str, float]:
    """Size the seconds that each stage may pass without progress.

    By the bytes to load, and by what the stages of the last good start took (``progress.took``); what the
    plan itself says in ``stage_seconds`` holds as it is.
    """
    pools = (plan.get("memory") or {}).get("pools_gib", {})
    ranks = len(plan.get("gpus", ())) or 1
    bytes_to_load = sum(from_gib(pools.get(name, 0.0)) for name in ("weights", "draft_weights")) * ranks
    limits = {
        stage: max(seconds, PATIENCE * last_good.get("stages", {}).get(stage, 0.0))
        for stage, seconds in STAGE_SECONDS.items()
    }
    limits["weights"] = max(limits["weights"], bytes_to_load / SLOWEST_BYTES_PER_SECOND)
    return {**limits, **plan.get("stage_seconds", {})}


SETTLE_SECONDS = 1.0
"""How long an open traceback may still grow before it is judged as it is."""


# --- what is observed ----------------------------------------------------------------------------

_ENDS = {"1": "exited", "2": "killed", "3": "dumped"}


@dataclass(frozen=True)
class UnitState:
    """What systemd says of the unit (``systemctl show``); times are monotonic seconds, 0 for never."""

    load_state: str = "loaded"
    active_state: str = ""
    sub_state: str = ""
    result: str = "success"
    main_pid: int = 0
    end: str = ""
    """How the last main process ended: ``exited``, ``killed``, ``dumped``, or empty while it runs."""
    end_status: int = 0
    """Its exit status, or the number of the signal."""
    invocation: str = ""
    restarts: int = 0
    status_text: str = ""
    started: float = 0.0

    @property
    def described(self) -> str:
        """Render for people."""
        result = "" if self.result == "success" else f", result {self.result}"
        restarts = f", restarted {self.restarts} times" if self.restarts else ""
        return f"{self.active_state} ({self.sub_state}){result}{restarts}"

    @property
    def lifecycle(self) -> str:
        """``alive``, or one of the final states: stopped by request, never started, failed, restarting."""
        if self.active_state == "activating" and self.sub_state.startswith("auto-restart"):
            return RESTARTING
        if self.active_state == "failed" or self.result != "success":
            return FAILED
        if self.active_state == "deactivating":
            return STOPPED
        if self.active_state == "inactive":
            return STOPPED if self.started else NEVER_STARTED
        return "alive"


UNIT_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "InvocationID",
    "NRestarts",
    "StatusText",
    "ExecMainStartTimestampMonotonic",
)
"""What ``unit_state`` reads; to be asked of ``systemctl show`` by name."""


def unit_state(properties: Mapping[str, str]) -> UnitState:
    """Read the properties of one unit; absent ones keep their defaults."""
    return UnitState(
        load_state=properties.get("LoadState", "loaded"),
        active_state=properties.get("ActiveState", ""),
        sub_state=properties.get("SubState", ""),
        result=properties.get("Result") or "success",
        main_pid=_integer(properties, "MainPID"),
        end=_ENDS.get(properties.get("ExecMainCode", ""), ""),
        end_status=_integer(properties, "ExecMainStatus"),
        invocation=properties.get("InvocationID", ""),
        restarts=_integer(properties, "NRestarts"),
        status_text=properties.get("StatusText", ""),
        started=_integer(properties, "ExecMainStartTimestampMonotonic") / 1e6,
    )


def _integer(properties: Mapping[str, str], name: str) -> int:
    digits = properties.get(name, "")
    return int(digits) if digits.isdigit() else 0


def child_state(*, pid: int, returncode: int | None = None) -> UnitState:
    """Describe an engine that runs as a child, in systemd's terms.

    ``returncode`` is as ``subprocess`` gives it: None while it runs, negative for a signal.
    """
    if returncode is None:
        return UnitState(active_state="active", main_pid=pid)
    if returncode < 0:
        return UnitState(active_state="failed", result="signal", end="killed", end_status=-returncode)
    return UnitState(active_state="failed", result="exit-code", end="exited", end_status=returncode)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: its status (0: none came), its decoded JSON body or text, the client's error."""

    status: int
    body: Any = None
    error: str = ""

    @property
    def said(self) -> str:
        """Render for people."""
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return f"HTTP {self.status}: {text}" if self.status else self.error or "no answer"


@dataclass(frozen=True)
class Answers:
    """What the instance answered; None for what was not asked."""

    health: Answer | None = None
    ready: Answer | None = None
    models: Answer | None = None
    server_info: Answer | None = None
    completion: Answer | None = None
    schema: Answer | None = None

    def updated(self, newer: Answers) -> Answers:
        """Let newer answers replace older ones."""
        changes = {one.name: getattr(newer, one.name) for one in fields(newer) if getattr(newer, one.name)}
        return replace(self, **changes)


@dataclass(frozen=True)
class Question:
    """One request of the readiness check."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}


def questions(expectation: Expectation) -> dict[str, Question]:
    """Name the requests whose answers ``Answers`` holds, by the field that takes each."""
    model = {"model": expectation.served_model_name} if expectation.served_model_name else {}
    schema = {"name": "ready", "schema": ANSWER_SCHEMA, "strict": True}
    return {
        "health": Question("GET", "/health"),
        "ready": Question("GET", "/ready"),
        "models": Question("GET", "/v1/models"),
        "server_info": Question("GET", "/server_info"),
        "completion": Question(
            "POST",
            "/v1/completions",
            {**model, "prompt": "Are you ready?", "max_tokens": 8, "temperature": 0},
        ),
        "schema": Question(
            "POST",
            "/v1/chat/completions",
            {
                **model,
                "messages": [{"role": "user", "content": "Are you ready?"}],
                "response_format": {"type": "json_schema", "json_schema": schema},
                "max_tokens": 64,
                "temperature": 0,
            },
        ),
    }


@dataclass(frozen=True)
class Expectation:
    """What was planned; empty values are not checked.

    ``argv`` is the engine's whole command line; ``pinned`` are the arguments that the user has set, None
    stands for all of them. ``context_length`` is in tokens, ``concurrency`` in requests, ``stage_seconds``
    are the limits of ``stage_limits``. ``log_only`` judges a log alone, without a unit or a server to ask.
    """

    model: str = ""
    served_model_name: str = ""
    port: int = 0
    argv: tuple[str, ...] = ()
    accept_overrides: frozenset[str] = frozenset()
    pinned: frozenset[str] | None = None
    context_length: int = 0
    concurrency: int = 0
    canary: bool = True
    engine_version: str = ""
    stage_seconds: Mapping[str, float] = field(default_factory=lambda: STAGE_SECONDS)
    log_only: bool = False

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any], last_good: Mapping[str, Any] | None = None) -> Expectation:
        """Take what a plan of ``plan.plan_host`` says; what it lacks is not checked."""
        return cls(
            model=plan.get("model", ""),
            served_model_name=plan.get("served_model_name", ""),
            port=plan.get("port", 0),
            argv=tuple(plan.get("argv", ())),
            accept_overrides=frozenset(plan.get("accept_overrides", ())),
            pinned=frozenset(plan["pinned"]) if "pinned" in plan else None,
            context_length=plan.get("context_length") or 0,
            concurrency=plan.get("concurrency") or 0,
            canary=plan.get("canary", True),
            engine_version=plan.get("engine_version", ""),
            stage_seconds=stage_limits(plan, last_good or {}),
        )

    def limit(self, stage: str) -> float:
        """Seconds that a stage may pass without progress."""
        return self.stage_seconds.get(stage, STAGE_SECONDS[stage])

    @property
    def schemas_kill(self) -> bool:
        """Whether a JSON schema ends the scheduler of this version on a CPU with the backend ``xgrammar``."""
        known = self.engine_version in engine.SUPPORTED
        return known and not engine.facts(self.engine_version).xgrammar_on_cpu


@dataclass(frozen=True)
class Observation:
    """Everything known at one moment: the input of checks and of the diagnosis."""

    expectation: Expectation
    events: tuple[Event, ...]
    allocated: Allocated
    stage: str
    unit: UnitState | None = None
    answers: Answers = field(default_factory=Answers)
    stages_at: Mapping[int, str] = field(default_factory=dict)
    """Stage of each event, by its number; ``draft_weights`` where the draft model's were loaded."""
    notified: bool = False
    """Whether the launcher has already told systemd that this invocation is ready."""
    checks: tuple[Check, ...] = ()
    last_lines: tuple[Line, ...] = ()

    def first(self, *kinds: str) -> Event | None:
        """Return the first event of these kinds."""
        return next((event for event in self.events if event.kind in kinds), None)

    @property
    def info(self) -> Mapping[str, Any]:
        """Body of ``/server_info``, empty until it was answered."""
        answer = self.answers.server_info
        return answer.body if answer and answer.status == HTTP_OK and isinstance(answer.body, dict) else {}

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """Internal states of the schedulers, one per data-parallel replica."""
        return self.info.get("internal_states") or ()


# --- what must hold ------------------------------------------------------------------------------

HTTP_OK = 200
HTTP_REFUSALS = frozenset({401, 403})
HTTP_FINAL = range(400, 500)
"""Client errors: asking again would not help. 5xx and no answer at all may be a busy server."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold; ``held`` is None while it cannot be told yet."""

    name: str
    held: bool | None
    detail: str = ""


def _process(seen: Observation) -> Outcome:
    if seen.expectation.log_only or seen.unit is None:
        return True, ""
    return bool(seen.unit.main_pid) or None, f"main process {seen.unit.main_pid}"


def _pools(seen: Observation) -> Outcome:
    tokens = seen.allocated.kv_tokens or seen.info.get("max_total_num_tokens")
    return bool(tokens) or None, f"{tokens} tokens of KV cache" if tokens else "no KV cache yet"


def _context(seen: Observation) -> Outcome:
    asked = seen.expectation.context_length or _asked_in_log(seen, "context_length")
    have = seen.allocated.total_tokens or seen.info.get("max_total_num_tokens")
    if not asked or not have:
        return True, ""
    return have >= asked, f"the KV cache holds {have} tokens, one context is {asked}"


def _asked_in_log(seen: Observation, name: str) -> int:
    event = seen.first("arguments")
    value = event.fields.get(name) if event else None
    return value if isinstance(value, int) else 0


def _listening(seen: Observation) -> Outcome:
    """Find the planned port among those it listens on; there may be one more, for metrics."""
    ports = [event.integer("bound_port") for event in seen.events if event.kind == "listen"]
    wanted = seen.expectation.port
    if seen.notified or wanted in ports or (ports and not wanted):
        return True, ""
    detail = f"listens on {ports}, planned is port {wanted}" if ports else "does not listen yet"
    return (False if ports and seen.first("ready") else None), detail


def _said_ready(seen: Observation) -> Outcome:
    """Only a ready line after the listen line counts, unless the warm-up was skipped."""
    ready, listen, arguments = seen.first("ready"), seen.first("listen"), seen.first("arguments")
    if seen.notified:
        return True, ""
    if ready is None or listen is None:
        return None, "the engine has not said that it is ready"
    skipped = arguments is not None and arguments.fields.get("skip_server_warmup") is True
    if ready.number < listen.number and not skipped:
        return None, "it said so before it listened: it warmed up another server"
    return True, ""


def _authorised(seen: Observation) -> Outcome:
    asked = [answer for answer in (seen.answers.server_info, seen.answers.models) if answer]
    refused = [answer for answer in asked if answer.status in HTTP_REFUSALS]
    if refused:
        return False, refused[0].said
    return bool(asked) or None, "not asked yet"


def _health(seen: Observation) -> Outcome:
    asked = [answer for answer in (seen.answers.health, seen.answers.ready) if answer]
    held = any(answer.status == HTTP_OK for answer in asked)
    return held or None, asked[0].said if asked else "not asked yet"


def _identity(seen: Observation) -> Outcome:
    """Tell the planned instance from another one behind its port."""
    answer, wanted = seen.answers.server_info, seen.expectation
    if not seen.info:
        refused = answer is not None and answer.status in HTTP_FINAL
        return (False if refused else None), answer.said if answer else "not asked yet"
    for name, value in (("model_path", wanted.model), ("port", wanted.port)):
        if value and seen.info.get(name) != value:
            return (
                False,
                f"the server behind the port has {name} {seen.info.get(name)!r}, planned is {value!r}",
            )
    launched, planned = seen.info.get("launch_command"), " ".join(_words(wanted.argv))
    if isinstance(launched, str) and not launched.startswith(planned):
        return False, f"the server behind the port was launched with {launched!r}"
    return True, ""


def _model_name(seen: Observation) -> Outcome:
    answer, wanted = seen.answers.models, seen.expectation.served_model_name
    if answer is None or answer.status != HTTP_OK:
        refused = answer is not None and answer.status in HTTP_FINAL
        return (False if refused else None), answer.said if answer else "not asked yet"
    try:
        names = [model["id"] for model in answer.body["data"]]
    except (KeyError, TypeError):
        return False, answer.said
    return not wanted or wanted in names, f"serves {names}, planned is {wanted!r}"


def _arguments(seen: Observation) -> Outcome:
    """Judge the arguments that the engine changed: none that the user has set, unless it was accepted."""
    if not seen.info:
        return None, "not asked yet"
    pinned, accepted = seen.expectation.pinned, seen.expectation.accept_overrides
    different = [
        text
        for name, text in _overrides(seen).items()
        if name not in accepted and (pinned is None or name in pinned)
    ]
    return not different, "; ".join(different)


def _overrides(seen: Observation) -> dict[str, str]:
    """Compare the planned flags with the values that the server reports as effective."""
    return {
        name: f"{name}: planned {wanted}, effective {seen.info[name]!r}"
        for name, wanted in planned_arguments(seen.expectation.argv).items()
        if name in seen.info and not _same(wanted, seen.info[name])
    }


def _concurrency(seen: Observation) -> Outcome:
    asked = seen.expectation.concurrency
    served = sum(state.get("effective_max_running_requests_per_dp") or 0 for state in seen.states)
    have = served or seen.allocated.running_requests
    if not asked or not have:
        return True, ""
    return have >= asked, f"serves {have} requests at a time, asked for {asked}"


def _grammar(seen: Observation) -> Outcome:
    """Find what would end the scheduler at the first JSON schema: the question itself would be the harm."""
    backend, device = seen.info.get("grammar_backend"), seen.info.get("device")
    if not seen.info:
        return None, "not asked yet"
    deadly = (backend, device) == ("xgrammar", "cpu") and seen.expectation.schemas_kill
    return not deadly, f"grammar backend {backend} on device {device}"


def _completion(seen: Observation) -> Outcome:
    held, text, _ = _generated(seen.answers.completion)
    return held, text


def _schema(seen: Observation) -> Outcome:
    """Judge the JSON-schema completion: it compiles the grammar kernels, where a full card fails first.

    What the launcher has proven at this start is not asked again: a check must never cost the service.
    """
    if seen.info.get("grammar_backend") == "none":
        return True, "not served: the grammar backend is none"
    if seen.notified:
        return True, "proven at the start"
    held, text, finished = _generated(seen.answers.schema)
    if held and finished:
        try:
            held = isinstance(json.loads(text)["ready"], bool)
        except (ValueError, TypeError, KeyError):
            held = False
    return held, text


def _generated(answer: Answer | None) -> tuple[bool | None, str, bool]:
    """Return whether text was generated, the text, and whether it came to its own end."""
    if answer is None:
        return None, "not asked yet", False
    if answer.status != HTTP_OK:
        return (False if answer.status in HTTP_FINAL else None), answer.said, False
    try:
        choice = answer.body["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return False, answer.said, False
    return bool(text), text or "an empty completion", choice.get("finish_reason") == "stop"


CHECKS: tuple[tuple[str, Callable[[Observation], Outcome], str], ...] = (
    # name, function, what it needs: "log", "http" or "canary"
    ("process", _process, "log"),
    ("pools", _pools, "log"),
    ("context", _context, "log"),
    ("listening", _listening, "log"),
    ("said_ready", _said_ready, "log"),
    ("health", _health, "http"),
    ("authorised", _authorised, "http"),
    ("identity", _identity, "http"),
    ("model_name", _model_name, "http"),
    ("arguments", _arguments, "http"),
    ("concurrency", _concurrency, "http"),
    ("grammar", _grammar, "http"),
    ("completion", _completion, "canary"),
    ("schema", _schema, "canary"),
)


def run_checks(seen: Observation) -> tuple[Check, ...]:
    """Judge everything that applies to this instance."""
    wanted = seen.expectation
    needs = {"log"} if wanted.log_only else {"log", "http", "canary"} if wanted.canary else {"log", "http"}
    return tuple(Check(name, *check(seen)) for name, check, need in CHECKS if need in needs)


def planned_arguments(argv: Sequence[str]) -> dict[str, str]:
    """Read flags of a command line as argument names and texts; a bare flag is ``true``.

    A flag's field has the flag's name in nearly all cases; where it has not, the server does not
    report a field of that name, and nothing is compared.
    """
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in _words(argv):
        if word.startswith("--"):
            flag, equals, text = word.partition("=")
            values = found[flag[2:].replace("-", "_")] = [text] if equals else []
        else:
            values.append(word)
    return {name: " ".join(texts) or "true" for name, texts in found.items()}


def _words(argv: Sequence[str]) -> Sequence[str]:
    """Words after the interpreter and the module."""
    first = next((place for place, word in enumerate(argv) if word.startswith("--")), len(argv))
    return argv[first:]


def _same(wanted: str, effective: object) -> bool:
    if effective is None or isinstance(effective, str):
        return wanted == effective
    if isinstance(effective, list) and wanted.split() == [str(item) for item in effective]:
        return True
    return any(_reads(wanted, read, effective) for read in (json.loads, float, size))


def _reads(text: str, read: Callable[[str], object], value: object) -> bool:
    """Whether a text is read as this value."""
    try:
        return bool(read(text) == value)
    except ValueError:
        return False


# --- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One stage of a start: seconds from its beginning, None while it goes on."""

    name: str
    begin: float
    seconds: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What is known, judged. ``since`` is when the state was entered; times are the caller's clock."""

    state: str
    stage: str
    since: float
    sentence: str
    cause: str = ""
    phase: str = ""
    remedy: str = ""
    reference: str = ""
    evidence: tuple[diagnosis.Evidence, ...] = ()
    stages: tuple[Stage, ...] = ()
    progress: str = ""
    allocated: Allocated = field(default_factory=Allocated)
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    """Fields of ``Answers`` whose questions should be asked now."""

    @property
    def final(self) -> bool:
        """Whether waiting longer is pointless."""
        return self.state != LOADING

    @property
    def status(self) -> str:
        """One line, for systemd's STATUS= and for progress."""
        stage = STAGE_NAMES.get(self.stage, self.stage)
        if self.state == LOADING:
            return f"loading: {stage}{f', {self.progress}' if self.progress else ''}"
        return f"{self.state}: {self.sentence}" if self.sentence else self.state

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as modules and ``--json`` hand them out."""
        plain = asdict(self)
        plain["allocated"] = self.allocated.as_dict()
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Verdict:
        """Read what ``as_dict`` returned, also from JSON; other keys are ignored."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in plain.items() if name in known}
        values["allocated"] = Allocated(**values["allocated"])
        for name, kind in (("evidence", diagnosis.Evidence), ("stages", Stage), ("checks", Check)):
            values[name] = tuple(kind(**one) for one in values[name])
        return cls(**{**values, "notes": tuple(values["notes"]), "ask": tuple(values["ask"])})


_BEGINS: dict[str, str] = {
    "arguments": "import",
    "distributed_begin": "distributed",
    "weights_begin": "weights",
    "weights_end": "kv_cache",
    "pools_end": "graphs",
    "graph_begin": "graphs",
    "summary": "warm_up",
    "ready": "serving",
}
"""Event -> the stage that begins with it. A second occurrence on one rank is the draft model's."""

FATAL = (
    "usage_error",
    "bind_failed",
    "warmup_failed",
    "child_exception",
    "child_ended",
    "child_failed",
    "watchdog",
    "exec_failed",
    "unit_result",
    "judged",
)
"""Events after which a start cannot succeed."""
_STOPS = ("stop_requested", "unit_stop")
_EVIDENCE = (
    "notice",
    "traceback",
    "kernel_oom",
    "unit_oom",
    "xid",
    "build_error",
    "link_error",
    "suppressed",
)
_KEPT = frozenset((*FATAL, *_STOPS, *_BEGINS, *_EVIDENCE, "listen"))
_SERVING = frozenset({"access", "batch", "health_timeout"})
"""Events that are no progress of a start: access lines are our own questions."""
MOST_KEPT = 40
"""Events kept per kind: a crash of many ranks repeats itself, and no state may grow with the log."""


class Follower:
    """Follows one invocation of one instance."""

    def __init__(
        self,
        expectation: Expectation,
        *,
        started: float | None = None,
        invocation: str = "",
    ) -> None:
        """Start at ``started``, when the main process did; at the first line's time where it is unknown.

        ``invocation`` is the one to follow, the first one seen where it is unknown.
        """
        self._expectation = expectation
        self._fold = Fold(expectation.engine_version or None)
        self._pools = Pools()
        self._events: list[Event] = []
        self._kept: dict[str, int] = {}
        self._stage_at: dict[int, str] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._begun: set[tuple[str, int]] = set()
        self._started = started
        self._stages: list[Stage] = []
        self._progress = ""
        self._moved = started
        self._answers = Answers()
        self._invocation = invocation
        self._ready_since: float | None = None
        self._held = 0
        self._last = 0
        self._last_lines: deque[Line] = deque(maxlen=5)
        self._recent: deque[Event] = deque(maxlen=5)

    # lines

    def feed(self, lines: Iterable[Line], now: float) -> None:
        """Take new lines; those without a time are of ``now``."""
        for line in lines:
            at = now if line.time is None else line.time
            self._read(line if line.time is not None else replace(line, time=now), at)

    def _read(self, line: Line, at: float) -> None:
        if self._started is None:
            self._started = at
        ours = line.source == ENGINE and bool(line.text.strip())
        if ours:
            self._last = line.number
            self._last_lines.append(line)
            if not self._stages:
                self._enter("arguments", self._started)
        quiet = False
        for event in self._fold.feed(line):
            self._take(event, at)
            quiet = event.kind in _SERVING
        if ours and not quiet and self.stage != "serving":
            self._moved = at

    def _take(self, event: Event, at: float) -> None:
        kind = event.kind
        if kind in _SERVING:
            return
        if kind == "progress":
            what = str(event.fields.get("what", "")).strip()
            self._progress = f"{what} {event.fields['done_percent']}%".strip()
            return
        self._pools.take(event)
        if kind in _KEPT:
            self._keep(event)
        nth = self._seen[kind, event.rank] = self._seen.get((kind, event.rank), 0) + 1
        if kind == "state_cache":
            self._split_off_state_cache(at)
        elif kind in _BEGINS and (kind, nth) not in self._begun:
            self._begun.add((kind, nth))
            self._enter(_BEGINS[kind], at)

    def _keep(self, event: Event) -> None:
        """Remember the first ones of a kind, which tell the cause, and the last tracebacks of a long life."""
        self._kept[event.kind] = self._kept.get(event.kind, 0) + 1
        if self._kept[event.kind] <= MOST_KEPT:
            self._events.append(event)
            self._stage_at[event.number] = self._stage_for_diagnosis()
        elif event.kind == "traceback":
            self._recent.append(event)

    def _stage_for_diagnosis(self) -> str:
        if self.stage == "weights" and any(kind == "weights_end" for kind, _ in self._seen):
            return "draft_weights"
        return self.stage

    def _enter(self, name: str, at: float) -> None:
        if self._stages:
            last = self._stages[-1]
            if last.name == name:
                return
            self._stages[-1] = replace(last, seconds=max(0.0, at - last.begin))
        self._stages.append(Stage(name, at))
        self._progress = ""
        self._moved = at

    def _split_off_state_cache(self, at: float) -> None:
        """Name what has just ended: the engine does not say when it begins with the state cache."""
        if self._stages and self._stages[-1].name == "kv_cache":
            self._stages[-1] = replace(self._stages[-1], name="state_cache")
            self._enter("kv_cache", at)

    # judging

    @property
    def moved(self) -> tuple[int, float]:
        """How many checks have held, and when something moved last: what a later follower resumes from."""
        return self._held, self._moved or 0.0

    def resume(self, held: int, moved: float) -> None:
        """Go on where an earlier follower of the same invocation was; its lines have been fed again."""
        self._held = held
        self._moved = max(self._moved or moved, moved)

    @property
    def stage(self) -> str:
        """Stage that goes on."""
        return self._stages[-1].name if self._stages else "arguments"

    def observe(
        self,
        now: float,
        *,
        unit: UnitState | None = None,
        answers: Answers | None = None,
        ended: bool = False,
    ) -> Verdict:
        """Judge what is known at ``now``.

        ``answers`` are new ones; earlier ones are remembered. ``ended`` says that no line will follow.
        """
        if answers:
            self._answers = self._answers.updated(answers)
        if self._moved is None:
            self._moved = now
        lifecycle = self._lifecycle(unit)
        ended = ended or lifecycle != "alive"
        self._settle(now, ended=ended)
        seen = self._observation(unit)
        if lifecycle == NEVER_STARTED:
            return self._verdict(NEVER_STARTED, seen, now, diagnose(seen))
        fatal = self._fatal(ended=ended)
        if lifecycle == RESTARTING:
            return self._verdict(RESTARTING, seen, now, diagnose(seen))
        if self._stop_came_first(fatal, unit, lifecycle):
            found = Diagnosis("stopped-by-request", self.stage, "stopped by request", "", ())
            return self._verdict(STOPPED, seen, now, found)
        if (fatal and self._fold.open_since is None) or lifecycle == FAILED:
            since = now if fatal is None or fatal.time is None else fatal.time
            return self._verdict(FAILED, seen, since, diagnose(seen))
        return self._living(seen, now)

    def _lifecycle(self, unit: UnitState | None) -> str:
        if unit is None:
            return "alive"
        if not self._invocation:
            self._invocation = unit.invocation
        elif unit.invocation and unit.invocation != self._invocation:
            return RESTARTING
        return unit.lifecycle

    def _settle(self, now: float, *, ended: bool) -> None:
        since = self._fold.open_since
        if ended or (since is not None and now - since >= SETTLE_SECONDS):
            for event in self._fold.close():
                self._take(event, now if event.time is None else event.time)

    def _observation(self, unit: UnitState | None) -> Observation:
        notified = unit is not None and unit.status_text.startswith(READY) and unit.active_state == "active"
        seen = Observation(
            expectation=self._expectation,
            events=(*self._events, *self._recent),
            allocated=self._pools.allocated(),
            stage=self.stage,
            unit=unit,
            answers=self._answers,
            stages_at=self._stage_at,
            notified=notified,
            last_lines=tuple(self._last_lines),
        )
        return replace(seen, checks=run_checks(seen))

    def _fatal(self, *, ended: bool) -> Event | None:
        """Return the first event after which this start cannot succeed.

        Once it serves, a traceback at the end of a log may be that of one request.
        """
        for event in (*self._events, *self._recent):
            if event.kind in FATAL or (event.kind == "traceback" and event.fields["decisive"]):
                return event
        if ended and self._ready_since is None and all(event.kind != "ready" for event in self._events):
            return next((event for event in self._events if diagnosis.is_last_word(event, self._last)), None)
        return None

    def _stop_came_first(self, fatal: Event | None, unit: UnitState | None, lifecycle: str) -> bool:
        """Tell a requested stop from a failure that systemd then cleans up."""
        if unit is not None and unit.result in {"timeout", "watchdog", "oom-kill"}:
            return False
        stop = next((event for event in self._events if event.kind in _STOPS), None)
        if stop is None:
            return fatal is None and lifecycle == STOPPED
        return fatal is None or stop.number < fatal.number

    def _living(self, seen: Observation, now: float) -> Verdict:
        if self._ready_since is not None:
            return self._ready(seen, self._ready_since)
        failed = next((check for check in seen.checks if check.held is False), None)
        if failed:
            return self._verdict(FAILED, seen, now, diagnose(seen))
        held = sum(1 for check in seen.checks if check.held)
        if held == len(seen.checks):
            self._ready_since = now
            return self._ready(seen, now)
        if held > self._held:
            self._held, self._moved = held, max(self._moved or now, now)
        silent = now - (self._moved or now)
        if not self._expectation.log_only and silent >= self._expectation.limit(self.stage):
            # The journal of what was ready before is not read, and tells no stage.
            stage = "serving" if seen.notified else self.stage
            sentence = f"no progress in stage {STAGE_NAMES.get(stage, stage)} for {silent:.0f} s"
            found = Diagnosis("no-progress", stage, sentence, "", diagnosis.last_lines(seen))
            return self._verdict(STALLED, seen, now, found)
        waiting = next(check for check in seen.checks if not check.held)
        found = Diagnosis("", "", waiting.detail, "", ())
        return replace(self._verdict(LOADING, seen, now, found), ask=_questions_now(seen))

    def _ready(self, seen: Observation, since: float) -> Verdict:
        return self._verdict(READY, seen, since, Diagnosis("", "", "", "", ()))

    def _verdict(self, state: str, seen: Observation, since: float, found: Diagnosis) -> Verdict:
        return Verdict(
            state=state,
            stage=self.stage,
            since=since,
            cause=found.cause,
            phase=found.phase,
            sentence=found.sentence,
            remedy=found.remedy,
            reference=found.reference,
            evidence=found.evidence,
            stages=tuple(self._stages),
            progress=self._progress,
            allocated=seen.allocated,
            checks=seen.checks,
            notes=(
                *(event.text for event in seen.events if event.kind in {"notice", "suppressed"}),
                *(f"the engine changed {text}" for text in _overrides(seen).values()),
            ),
        )


_ASKED_BY_CHECK = (
    ("health", ("health",)),
    ("identity", ("server_info",)),
    ("arguments", ("server_info",)),
    ("model_name", ("models",)),
    ("completion", ("completion",)),
    ("schema", ("schema",)),
)


def _questions_now(seen: Observation) -> tuple[str, ...]:
    """Ask one thing after the other: a starting server is not to be loaded with questions."""
    held = {check.name: check.held for check in seen.checks}
    if not held.get("listening", True) or not held.get("said_ready", True):
        return ()
    return next((asks for name, asks in _ASKED_BY_CHECK if name in held and not held[name]), ())
