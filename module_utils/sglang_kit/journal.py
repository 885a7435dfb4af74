"""Which event is this log line?

Lines come from a journal (``parse_record``), a pipe or a pasted file (``parse_text``); ``Fold`` turns
them into events by the table ``PATTERNS`` and joins Python tracebacks across lines, processes and
ranks. The state is constant however long the log is.

SGLang prefixes a line with ``[YYYY-MM-DD HH:MM:SS DP0 PP0 TP0 EP0]`` (only dimensions larger than one;
``managers/scheduler.py:configure_scheduler_process``), prints GiB as GB, and lets progress bars run
into the next line.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from time import strptime
from typing import TYPE_CHECKING, Callable, Union

from .engine import version_key
from .quantity import KIB, from_gib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Field = Union[str, int, float, bool, None]

ENGINE, SYSTEMD, KERNEL, JOURNALD = "engine", "systemd", "kernel", "journald"


@dataclass(frozen=True)
class Line:
    """One line of a log.

    ``number`` counts from 1, ``time`` is in seconds on the reader's clock, ``pid`` the process that
    wrote it (None where the reader cannot know), ``source`` who wrote it.
    """

    number: int
    text: str
    time: float | None = None
    pid: int | None = None
    source: str = ENGINE


@dataclass(frozen=True)
class Raised:
    """One exception of a traceback: its dotted type, its whole message and the line it stands on."""

    type: str
    message: str
    number: int

    def __str__(self) -> str:
        """Render as Python prints it."""
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True)
class Event:
    """What a line, or the lines of a traceback, say.

    ``fields`` hold numbers in the unit that ends their name (``_bytes``, ``_seconds``, ``_tokens``).
    ``lines`` are the raw lines, whole, with secrets masked; ``raised`` the exceptions of a traceback.
    """

    kind: str
    fields: Mapping[str, Field]
    lines: tuple[Line, ...]
    rank: str = ""
    raised: tuple[Raised, ...] = ()

    @property
    def number(self) -> int:
        """Number of the first line."""
        return self.lines[0].number

    @property
    def time(self) -> float | None:
        """Time of the first line."""
        return self.lines[0].time

    @property
    def text(self) -> str:
        """All lines as one text."""
        return "\n".join(line.text for line in self.lines)

    def integer(self, name: str) -> int:
        """Read a field that the kind always has as a whole number."""
        value = self.fields[name]
        if isinstance(value, int):
            return value
        raise TypeError(f"{self.kind}.{name} is {value!r}, not a whole number")


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """One row: a line that holds ``needle`` and matches ``regex`` is an event of this ``kind``.

    The engine's own words begin its line; further on stands what users have sent (``--log-requests``).
    A named group's last word is its unit and decides its type (``_UNITS``). ``first`` and ``last``
    are the versions that print it (empty: up to the newest known one).
    """

    kind: str
    needle: str
    regex: re.Pattern[str]
    source: str = ENGINE
    first: str = "0.5.11"
    last: str = ""


def _size(text: str) -> int:
    return from_gib(float(text))


_UNITS: dict[str, tuple[str, Callable[[str], Field]]] = {
    "gib": ("bytes", _size),
    "kib": ("bytes", lambda text: int(text) * KIB),
    "seconds": ("seconds", float),
    **{
        unit: (unit, int)
        for unit in ("tokens", "slots", "requests", "percent", "pid", "port", "code", "count")
    },
}

_DECIMAL = r"\d+(?:\.\d+)?"
_GIB = rf"-?{_DECIMAL}"
_GRAPH = r"Capture (?P<what>.*?(?:cuda|CUDA|cpu|CPU) graph)"


_HEAD = r"^(?:\[[^\]]*\] ?)?(?:(?:[A-Z]+|RuntimeError): +)?"
"""What may stand before the engine's own words: a prefix in brackets, and a level as uvicorn writes it."""


def _row(
    kind: str, needle: str, regex: str, *, source: str = ENGINE, anywhere: bool = False, **more: str
) -> Pattern:
    begin = _HEAD if source == ENGINE and not anywhere else ""
    return Pattern(kind, needle, re.compile(begin + regex), source=source, **more)


PATTERNS: tuple[Pattern, ...] = (
    # While serving: nearly all lines of a long log, so they are tried first
    _row("batch", " batch, #", r"(?:Prefill|Decode) batch, #"),
    _row(
        "access",
        ' HTTP/1.1" ',
        r'"(?:GET|POST|HEAD|PUT|DELETE) \S+ HTTP/1\.1" (?P<status_code>\d+)',
        anywhere=True,
    ),
    # Life of a start, in the order of a start
    _row(
        "usage_error",
        ": error: ",
        r"(?P<program>sglang(?: serve)?|launch_server\.py|__main__\.py): error: (?P<message>.*)",
    ),
    _row("arguments", "server_args=", r"\bserver_args=(?:ServerArgs\(|\{)"),
    _row(
        "distributed_begin", "Init torch distributed begin.", r"Init torch distributed begin\.", last="0.5.20"
    ),
    _row("distributed_begin", "Init parallel begin.", r"Init parallel begin\.", first="0.5.23"),
    _row(
        "distributed_end",
        "Init torch distributed ends.",
        rf"Init torch distributed ends\. elapsed=(?P<elapsed_seconds>{_DECIMAL}) s,"
        rf" mem usage=(?P<used_gib>{_GIB}) GB",
        last="0.5.20",
    ),
    _row(
        "distributed_end",
        "Init parallel ends.",
        rf"Init parallel ends\. elapsed=(?P<elapsed_seconds>{_DECIMAL}) s",
        first="0.5.23",
    ),
    _row("weights_begin", "Load weight begin.", rf"Load weight begin\. avail mem=(?P<free_gib>{_GIB}) GB"),
    _row(
        "weights_end",
        "Load weight end.",
        rf"Load weight end\. elapsed=(?P<elapsed_seconds>{_DECIMAL}) s, type=(?P<type>\w+),"
        rf"(?: (?P<quantization>.*?),)? avail mem=(?P<free_gib>{_GIB}) GB, mem usage=(?P<used_gib>{_GIB}) GB",
    ),
    _row(
        "weights_end",
        "Load weight end. Committed",
        r"Load weight end\. Committed real weights",
        first="0.5.23",
    ),
    _row(
        "state_cache",
        "Mamba Cache is allocated.",
        r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<state_slots>\d+),"
        rf" conv_state size: (?P<conv_gib>{_GIB})GB, ssm_state size: (?P<ssm_gib>{_GIB})GB"
        rf"(?: intermediate_ssm_state_cache size: (?P<intermediate_ssm_gib>{_GIB})GB)?"
        rf"(?: intermediate_conv_window_cache size: (?P<intermediate_conv_gib>{_GIB})GB)?",
    ),
    _row(
        "kv_cache",
        "KV Cache ",
        r"(?:(?P<label>Full|SWA|[\w -]*index) )?KV Cache (?:is allocated|VA upper bound)\."
        r"(?: dtype: (?P<dtype>[\w.]+),)? #tokens: (?P<kv_tokens>\d+),"
        rf" (?:K size: (?P<k_gib>{_GIB}) GB, V size: (?P<v_gib>{_GIB}) GB|KV size: (?P<kv_gib>{_GIB}) GB)",
    ),
    _row(
        "kv_resized",
        "Post-capture KV sizing: KV cache allocated.",
        r"Post-capture KV sizing: KV cache allocated\. dtype: (?P<dtype>[\w.]+), #tokens: (?P<kv_tokens>\d+),"
        rf" KV size: (?P<kv_gib>{_GIB}) GB",
        first="0.5.18",
    ),
    _row("pools_end", "Memory pool end.", rf"Memory pool end\. avail mem=(?P<free_gib>{_GIB}) GB"),
    _row(
        "graph_begin",
        " graph begin",
        rf"{_GRAPH} begin(?: \(step \d+\))?\..*?avail mem=(?P<free_gib>{_GIB}) GB",
    ),
    _row(
        "graph_end",
        " graph end.",
        rf"{_GRAPH} end\..*?(?:Time elapsed: |elapsed=)(?P<elapsed_seconds>{_DECIMAL}) s"
        rf".*?mem usage=(?P<used_gib>{_GIB}) GB[.,] avail mem=(?P<free_gib>{_GIB}) GB",
    ),
    _row(
        "summary",
        "max_total_num_tokens=",
        r"max_total_num_tokens=(?P<total_tokens>\d+), chunked_prefill_size=(?P<chunk>-?\d+|None),"
        r" max_prefill_tokens=\d+, max_running_requests=(?P<running_requests>\d+),"
        rf" context_len=(?P<context_tokens>\d+), available_(?:gpu|cpu)_mem=(?P<free_gib>{_GIB}) GB",
    ),
    _row(
        "listen",
        "Uvicorn running on",
        r"Uvicorn running on (?P<url>https?://\S+?:(?P<bound_port>\d+))(?:\s|$)",
    ),
    _row("ready", "The server is fired up", r"The server is fired up and ready to roll!"),
    # Stopping
    _row("stop_requested", "SIGTERM received.", r"SIGTERM received\."),
    _row("stop_requested", "Signal SIGTERM received", r"Signal SIGTERM received while health check failed"),
    # Ends of processes
    _row(
        "bind_failed",
        "attempting to bind on address",
        r"\[Errno (?P<errno_code>\d+)\] error while attempting to bind on address"
        r" \('(?P<host>[^']*)', (?P<bound_port>\d+)[^)]*\): (?P<message>.*)",
    ),
    _row("warmup_failed", "Initialization failed.", r"Initialization failed\. (?P<message>.*)"),
    _row(
        "child_exception",
        " hit an exception:",
        r"(?P<who>Scheduler|DetokenizerManager|TokenizerManager|DataParallelController|Multi(?:De)?[Tt]okenizerRouter)"
        r" hit an exception:",
    ),
    _row(
        "child_ended",
        " crashed with exit code ",
        r"Subprocess (?P<who>\S+) \(pid=(?P<ended_pid>\d+)\) crashed with exit code (?P<exit_code>-?\d+)",
    ),
    _row(
        "child_ended",
        "scheduler died during initialization",
        r"(?P<who>Rank \d+ scheduler) died during initialization \(exit code: (?P<exit_code>-?\d+)\)",
    ),
    _row(
        "child_ended",
        "Scheduler or DataParallelController",
        r"(?P<who>Scheduler or DataParallelController) \d+ terminated with (?P<exit_code>-?\d+)",
    ),
    _row("child_failed", "Received sigquit", r"Received sigquit from a child process"),
    _row("child_failed", "SIGQUIT received.", r"SIGQUIT received\."),
    _row(
        "watchdog",
        "watchdog timeout",
        r"(?P<who>\w+) watchdog timeout "
        rf"\(self\.watchdog_timeout=(?P<limit_seconds>{_DECIMAL}), self\.soft=False",
    ),
    # Trouble while serving
    _row(
        "health_timeout",
        "from detokenizer for last",
        r"couldn't get a response from detokenizer for last (?P<limit_seconds>\d+)",
    ),
    # Said in passing, and worth knowing
    _row("notice", "fewer than --context-length", r"KV pool holds \d+ tokens, fewer than --context-length"),
    _row("notice", "no_buffer is not compatible", r"Disabling overlap schedule since mamba no_buffer"),
    _row("notice", "disable radix cache", r"Hybrid GDN model detected, disable radix cache"),
    _row("notice", "RLIMIT_NOFILE", r"Fail to set RLIMIT_NOFILE"),
    _row("build_error", "Python.h", r"Python\.h: No such file or directory", anywhere=True),
    _row(
        "link_error",
        "shared libraries:",
        r"error while loading shared libraries: (?P<library>[^:\s]+)",
        anywhere=True,
    ),
    # The launcher's last word on the engine: it also knew what the engine answered over HTTP
    _row(
        "judged",
        "sglang-metal: the engine ",
        r"sglang-metal: the engine .+? (?:in stage \S+|while serving|while stopping): (?P<sentence>.*?)"
        r"(?:\.? What to do: (?P<remedy>.*))? \[cause: (?P<cause>[\w-]+), phase: (?P<phase>\w+)\]$",
    ),
    # Progress bars
    _row("progress", "%|", r"(?:^|\s)(?P<what>[^|]{0,80}?):?\s*(?P<done_percent>\d+)%\|", anywhere=True),
    _row(
        "progress",
        "% Completed |",
        r"(?P<what>[^|]{0,80}?):\s*(?P<done_percent>\d+)% Completed \|",
        anywhere=True,
    ),
    # systemd, of the unit
    _row(
        "exec_failed",
        "Failed at step",
        r"Failed at step (?P<step>[A-Z_]+) spawning (?P<program>.*?): (?P<message>.*)",
        source=SYSTEMD,
    ),
    _row("unit_start", "Start", r"^Start(?:ing|ed) ", source=SYSTEMD),
    _row("unit_stop", "Stopp", r"^Stopp(?:ing|ed) ", source=SYSTEMD),
    _row("unit_result", "Failed with result", r"Failed with result '(?P<result>[\w-]+)'", source=SYSTEMD),
    _row("unit_result", "timed out", r"(?P<result>\w+) operation timed out", source=SYSTEMD),
    _row("unit_oom", "OOM killer", r"killed by the OOM killer", source=SYSTEMD),
    # The kernel
    _row(
        "kernel_oom",
        "Killed process",
        r"(?P<scope>Memory cgroup out of memory|Out of memory): Killed process (?P<killed_pid>\d+)"
        r" \((?P<name>[^)]*)\)(?:.*?anon-rss:(?P<resident_kib>\d+)kB)?",
        source=KERNEL,
    ),
    _row(
        "xid",
        "NVRM: Xid",
        r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid_code>\d+),"
        r"(?: pid='?(?P<xid_pid>\d+)'?,)? ?(?P<message>.*)",
        source=KERNEL,
    ),
    # journald
    _row(
        "suppressed",
        "Suppressed",
        r"Suppressed (?P<lost_count>\d+) messages from (?P<unit>\S+)",
        source=JOURNALD,
    ),
)


def patterns_for(version: str | None) -> dict[str, tuple[Pattern, ...]]:
    """Rows of the table that ``version`` prints, by source; all of them where the version is unknown."""
    key = version_key(version) if version else None
    rows = [
        row
        for row in PATTERNS
        if key is None or (version_key(row.first) <= key and (not row.last or key <= version_key(row.last)))
    ]
    return {
        source: tuple(row for row in rows if row.source == source)
        for source in (ENGINE, SYSTEMD, KERNEL, JOURNALD)
    }


def _typed(match: re.Match[str]) -> dict[str, Field]:
    """Named groups as fields: ``free_gib`` becomes ``free_bytes``, groups without a match are left out."""
    values: dict[str, Field] = {}
    for name, text in match.groupdict().items():
        if text is None:
            continue
        stem, _, unit = name.rpartition("_")
        if unit in _UNITS and stem:
            unit, convert = _UNITS[unit]
            values[f"{stem}_{unit}"] = convert(text)
        else:
            values[name] = text
    return values


_ARGUMENT_NAMES = """
model_path served_model_name host port nccl_port device tp_size pp_size dp_size nnodes node_rank
context_length mem_fraction_static max_running_requests max_total_tokens max_mamba_cache_size
mamba_full_memory_ratio mamba_ssm_dtype mamba_scheduler_strategy mamba_radix_cache_strategy
disable_radix_cache kv_cache_dtype chunked_prefill_size page_size speculative_algorithm
speculative_draft_model_path speculative_num_draft_tokens skip_server_warmup skip_tokenizer_init
load_format is_embedding
"""
ARGUMENTS = tuple(_ARGUMENT_NAMES.split())
"""Arguments kept from the engine's own ``server_args=`` line; it holds hundreds, secrets among them."""

_ARGUMENT = re.compile(
    rf"[(,{{ ]'?(?P<name>{'|'.join(ARGUMENTS)})'?(?:=|:\s)"
    r"""(?P<value>'[^']*'|"[^"]*"|[\w.+-]+)(?=[,)}])"""
)
_CONSTANTS: dict[str, Field] = {"None": None, "True": True, "False": False}
_NUMBER = re.compile(r"-?\d+(?P<fraction>\.\d+)?(?:e-?\d+)?")


def _argument(text: str) -> Field:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number = _NUMBER.fullmatch(text)
    if number:
        return float(text) if number["fraction"] else int(text)
    return text.strip("'\"")


def _arguments(text: str) -> dict[str, Field]:
    """Read ``ServerArgs(name=value, ...)`` (to 0.5.18) or ``{'name': value, ...}``."""
    return {match["name"]: _argument(match["value"]) for match in _ARGUMENT.finditer(text)}


# --- secrets -------------------------------------------------------------------------------------

_SECRETS = (
    re.compile(r"""(?P<head>(?:api_key|password|hf_token)['"]?(?:=|:\s?)['"])[^'"]+"""),
    re.compile(r"""(?P<head>--(?:admin-)?api-key(?:=|\s+|['"],\s*['"]))[^\s'",]+"""),
    re.compile(r"(?P<head>Bearer\s+)[^\s'\"]+"),
)


def redact(text: str) -> str:
    """Mask the values of keys and tokens that the engine prints (0.5.23 logs its whole argument record)."""
    if "key" in text or "password" in text or "hf_token" in text or "Bearer" in text:
        for secret in _SECRETS:
            text = secret.sub(r"\g<head>***", text)
    return text


# --- from lines to events ------------------------------------------------------------------------

_STAMP = re.compile(r"\[(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<rank>(?: [A-Z_]+\d+)*)\] ?")
_TORCH_RANK = re.compile(r"\[(?P<rank>rank\d+)\]: ?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(?P<message>.*))?$")
# What cannot continue an exception's message: other output of processes that share the log.
_FOREIGN = re.compile(
    r"Traceback \(most recent|Fatal Python error|INFO:  |WARNING:  |ERROR:  |\S+:\d+: \w*Warning: |.*\d+%\|"
    r"|Exception ignored in|Process \S+:$|\S+:\d+:\d+ \[\d+\] NCCL |\[[WE]\d{3}|sglang-metal: "
)
_CONTEXT = re.compile(r"(?P<context>Exception ignored in|Exception in thread|Exception in ASGI application)")
_IGNORED = ("Exception ignored in", "Exception in ASGI application")
"""Python goes on after the first (a destructor), the server after the second (one request)."""
_FATAL = re.compile(r"(?P<type>Fatal Python error): (?P<message>.*)")
"""Head of what Python's faulthandler writes when native code ends the process."""
_FATAL_LINE = re.compile(r"\s|$|Current thread 0x|Thread 0x|Extension modules: ")
_LAST_HANDLER = re.compile(r"^\w+ hit an exception$|^Initialization failed")
_TOP_FRAMES = (", in <module>", ", in _run_module_as_main", ", in _bootstrap")
"""First frame of a traceback that ended a process: the main one's, a spawned one's or a forked one's."""
LONGEST_TRACEBACK = 5000
"""Lines after which an open traceback is closed: no state may grow with the log."""


@dataclass(frozen=True)
class _Piece:
    """A line without its prefix."""

    line: Line
    text: str
    rank: str
    stamped: bool


class _Traceback:
    """A traceback that is being read from one process."""

    def __init__(self, head: _Piece, context: str) -> None:
        fatal = _FATAL.match(head.text)
        self.context = context
        self.lines = [head]
        self.raised = [Raised(fatal["type"], fatal["message"], head.line.number)] if fatal else []
        self.is_fatal = fatal is not None
        self.in_frames = fatal is None

    @property
    def time(self) -> float | None:
        return self.lines[-1].line.time

    @property
    def complete(self) -> bool:
        """Whether an exception has been read and no further one was announced."""
        return bool(self.raised) and not self.in_frames

    def take(self, piece: _Piece) -> bool:
        """Take the line if it belongs here."""
        text = piece.text
        if piece.stamped or len(self.lines) >= LONGEST_TRACEBACK:
            return False
        if self.is_fatal:
            taken = bool(_FATAL_LINE.match(text))
        else:
            taken = self._frame(piece) if self.in_frames else self._message(text)
        if taken:
            self.lines.append(piece)
        return taken

    def _frame(self, piece: _Piece) -> bool:
        text = piece.text
        if not text.strip() or text[0] in " \t" or text.startswith(TRACEBACK):
            return True
        match = _EXCEPTION.match(text)
        if match:
            self.raised.append(Raised(match["type"], match["message"] or "", piece.line.number))
            self.in_frames = False
        return bool(match)

    def _message(self, text: str) -> bool:
        if text in _CHAINED:
            self.in_frames = True
            return True
        if _FOREIGN.match(text):
            return False
        last = self.raised[-1]
        self.raised[-1] = replace(last, message=f"{last.message}\n{text}")
        return True

    def _decisive(self) -> bool:
        """Whether it ended its process: nothing caught it, or the engine's own last handler did.

        Others may have been logged and survived. A process of a compiler is none of the engine's.
        """
        if self.is_fatal:
            return True
        if self.context:
            return bool(_LAST_HANDLER.search(self.context))
        texts = [piece.text for piece in self.lines]
        last_head = max(place for place, text in enumerate(texts) if TRACEBACK in text)
        frames = [text for text in texts[last_head:] if text.startswith("  File ")]
        ends_process = bool(frames) and frames[0].endswith(_TOP_FRAMES)
        return ends_process and any("/sglang/" in frame for frame in frames)

    def event(self) -> Event:
        """Close it."""
        while not self.lines[-1].text.strip():
            self.lines.pop()
        head = self.lines[0]
        raised = tuple(replace(one, message=one.message.strip()) for one in self.raised)
        return Event(
            kind="ignored_traceback" if self.context in _IGNORED else "traceback",
            fields={"context": self.context, "decisive": self._decisive()},
            lines=tuple(piece.line for piece in self.lines),
            rank=head.rank,
            raised=raised,
        )


class Fold:
    """Turns lines into events; keeps open tracebacks and the last line of each process, and nothing else."""

    def __init__(self, version: str | None = None) -> None:
        """Read with the rows of one version, or with all where it is unknown."""
        self._patterns = patterns_for(version)
        self._open: dict[int | None, _Traceback] = {}
        self._before: dict[int | None, str] = {}

    @property
    def open_since(self) -> float | None:
        """Time of the newest line of a traceback that may still go on; None where none is open."""
        return max((traceback.time or 0.0 for traceback in self._open.values()), default=None)

    def feed(self, line: Line) -> Iterator[Event]:
        """Yield what this line, and the traceback that it ends, say."""
        for piece in _pieces(line):
            yield from self._feed(piece)

    def close(self) -> Iterator[Event]:
        """Yield the tracebacks that are still open, as far as they were read."""
        for traceback in self._open.values():
            yield traceback.event()
        self._open.clear()

    def _feed(self, piece: _Piece) -> Iterator[Event]:
        pid = piece.line.pid
        is_engine = piece.line.source == ENGINE
        traceback = self._open.get(pid) if is_engine else None
        if traceback is not None:
            if traceback.take(piece):
                return
            if traceback.complete:
                yield self._open.pop(pid).event()
        event = self._read(piece)
        if event:
            yield event
        if is_engine and (piece.text.rstrip().endswith(TRACEBACK) or _FATAL.match(piece.text)):
            if pid in self._open:
                yield self._open.pop(pid).event()
            self._open[pid] = _Traceback(piece, self._context(piece))
        self._before[pid] = piece.text

    def _context(self, piece: _Piece) -> str:
        """Say who reports the traceback: a logger's words before it, or the line above it."""
        own = piece.text.partition(TRACEBACK)[0].strip(" :+|")
        if own or piece.stamped:
            return own
        match = _CONTEXT.search(self._before.get(piece.line.pid, ""))
        return match["context"] if match else ""

    def _read(self, piece: _Piece) -> Event | None:
        text = piece.text
        for row in self._patterns[piece.line.source]:
            if row.needle in text:
                match = row.regex.search(text)
                if match:
                    return _event(row, match, piece)
        return None


def _event(row: Pattern, match: re.Match[str], piece: _Piece) -> Event | None:
    """Type the fields of a line; one whose numbers are beyond all reason says nothing."""
    try:
        found = _arguments(piece.text) if row.kind == "arguments" else _typed(match)
    except (ValueError, OverflowError):
        return None
    return Event(row.kind, found, (piece.line,), piece.rank)


def _pieces(line: Line) -> Iterator[_Piece]:
    """Split a line where a progress bar ran into it, and take prefix and colours off."""
    whole = redact(line.text)
    if "\x1b" in whole:
        whole = _COLOUR.sub("", whole)
    for part in whole.split("\r"):
        stamp = _STAMP.search(part)
        if stamp and stamp.start():
            yield _piece(line, part[: stamp.start()], None)
            part = part[stamp.start() :]  # noqa: PLW2901 - the rest of the same line
        yield _piece(line, part, stamp)


def _piece(line: Line, text: str, stamp: re.Match[str] | None) -> _Piece:
    whole = replace(line, text=text) if text != line.text else line
    if stamp:
        return _Piece(whole, text[stamp.end() - stamp.start() :], stamp["rank"].strip(), stamped=True)
    torch = _TORCH_RANK.match(text)
    if torch:
        return _Piece(whole, text[torch.end() :], torch["rank"], stamped=False)
    return _Piece(whole, text, "", stamped=False)


def read(lines: Iterable[Line], version: str | None = None) -> Iterator[Event]:
    """Turn a whole log into events."""
    fold = Fold(version)
    for line in lines:
        yield from fold.feed(line)
    yield from fold.close()


# --- readers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One record of ``journalctl -o json --all``.

    ``time`` is monotonic seconds of the boot ``boot`` (steps of the wall clock do not move it),
    ``wall`` seconds since 1970. ``invocation`` is the unit's, also for what systemd says of it.
    ``broken`` says that the line was longer than journald's ``LineMax=`` and goes on in the next record
    of the same process.
    """

    text: str
    time: float
    wall: float
    boot: str
    invocation: str
    source: str
    pid: int | None = None
    cursor: str = ""
    broken: bool = False


RECORD_FIELDS = (
    "MESSAGE",
    "_PID",
    "_TRANSPORT",
    "_SYSTEMD_INVOCATION_ID",
    "INVOCATION_ID",
    "_LINE_BREAK",
)
"""What ``parse_record`` reads besides the cursor, the times and the boot, which are always there."""


_WHOLE = re.compile(r"\d{1,20}")
_BYTE = range(256)


def parse_record(raw: str | bytes) -> Record | None:
    """Read one line of ``journalctl -o json``; None for a line that is not a whole record.

    A MESSAGE is a text, an array of bytes (where it is not printable: carriage returns, colours), an
    array of several messages, or null.
    """
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or "MESSAGE" not in entry:
        return None
    pid = _whole(entry, "_PID")
    return Record(
        text=_message(entry["MESSAGE"]),
        time=_microseconds(entry, "__MONOTONIC_TIMESTAMP"),
        wall=_microseconds(entry, "__REALTIME_TIMESTAMP"),
        boot=_text(entry, "_BOOT_ID"),
        invocation=_text(entry, "_SYSTEMD_INVOCATION_ID") if pid != 1 else _text(entry, "INVOCATION_ID"),
        source=_source(entry, pid),
        pid=pid,
        cursor=_text(entry, "__CURSOR"),
        broken=_text(entry, "_LINE_BREAK") == "line-max",
    )


def _message(value: object) -> str:
    text = _single(value)
    if text is None:
        items = value if isinstance(value, list) else []
        return "\n".join(_single(item) or "" for item in items)
    return text


def _single(value: object) -> str | None:
    """Read a text or an array of bytes; what is neither, nor can be printed, does not end the reading."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list) and all(isinstance(item, int) and item in _BYTE for item in value):
        return bytes(value).decode(errors="backslashreplace")
    return None


def _text(entry: Mapping[str, object], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _microseconds(entry: Mapping[str, object], name: str) -> float:
    return (_whole(entry, name) or 0) / 1e6


def _whole(entry: Mapping[str, object], name: str) -> int | None:
    digits = _text(entry, name)
    return int(digits) if _WHOLE.fullmatch(digits) else None


def _source(entry: Mapping[str, object], pid: int | None) -> str:
    if _text(entry, "_TRANSPORT") == "kernel":
        return KERNEL
    if pid == 1:
        return SYSTEMD
    if _text(entry, "_TRANSPORT") == "driver":
        return JOURNALD
    return ENGINE


def of_invocation(
    records: Iterable[Record], *, invocation: str, unit: str, boot: str, since: float
) -> Iterator[Record]:
    """Let through what belongs to one invocation of a unit, and nothing older.

    The engine's and systemd's records must carry the invocation's identifier. Kernel records and
    journald's own carry none: they must be of the same boot and not older than ``since`` (monotonic
    seconds of the start), and journald's must name the unit.
    """
    for record in records:
        if record.source in {KERNEL, JOURNALD}:
            ours = record.boot == boot and record.time >= since
            if ours and (record.source == KERNEL or unit in record.text):
                yield record
        elif record.invocation == invocation:
            yield record


def joined(records: Iterable[Record]) -> Iterator[Record]:
    """Put lines together again that journald has broken; one that is still open at the end comes last."""
    open_lines: dict[int | None, Record] = {}
    for record in records:
        head = open_lines.pop(record.pid, None)
        whole = record if head is None else replace(head, text=head.text + record.text)
        if record.broken:
            open_lines[record.pid] = whole
        else:
            yield whole
    yield from open_lines.values()


def record_lines(records: Iterable[Record], *, first: int = 1) -> Iterator[Line]:
    """Turn records into numbered lines; a record may hold several."""
    number = first
    for record in joined(records):
        for text in record.text.split("\n"):
            yield Line(number, text, record.time, record.pid, record.source)
            number += 1


_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) \S+"
    r" (?P<name>[^\s\[:]+)(?:\[(?P<pid>\d{1,20})\])?: (?P<text>.*)",
    re.DOTALL,
)
_RELAYED = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z |[\w.-]+ +\| ")
"""Prefix of lines that came through a container's log: a time, or a service's name."""
_SOURCES = {"systemd": SYSTEMD, "kernel": KERNEL, "systemd-journald": JOURNALD}


def parse_text(number: int, text: str) -> Line:
    """Read one line of a pasted log, with or without the prefix of ``journalctl`` or of a container.

    The time is the engine's own stamp, in seconds since 1970 as if it were UTC; None without one.
    """
    relayed = _RELAYED.match(text)
    if relayed:
        text = text[relayed.end() :]
    syslog = _SYSLOG.match(text)
    pid, source = None, ENGINE
    if syslog:
        text = syslog["text"]
        pid = int(syslog["pid"]) if syslog["pid"] else None
        source = _SOURCES.get(syslog["name"], ENGINE)
    stamp = _STAMP.search(text)
    return Line(number, text, _seconds(stamp["date"]) if stamp else None, pid, source)


@lru_cache(maxsize=8)
def _seconds(date: str) -> float | None:
    """Seconds since 1970; None where the digits of a stamp are no date."""
    try:
        return float(timegm(strptime(date, "%Y-%m-%d %H:%M:%S")))
    except ValueError:
        return None


# --- pools ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocated:
    """Pools of one rank as the engine reported them; None where it said nothing.

    Of several ranks, the largest of each pool and the smallest of each free amount. Sizes are bytes,
    rounded by the engine to 0.01 GiB.
    """

    free_before_bytes: int | None = None
    weights_bytes: int | None = None
    draft_weights_bytes: int | None = None
    state_slots: int | None = None
    conv_bytes: int | None = None
    ssm_bytes: int | None = None
    intermediate_ssm_bytes: int | None = None
    intermediate_conv_bytes: int | None = None
    kv_tokens: int | None = None
    k_bytes: int | None = None
    v_bytes: int | None = None
    kv_bytes: int | None = None
    swa_tokens: int | None = None
    swa_kv_bytes: int | None = None
    draft_kv_tokens: int | None = None
    draft_kv_bytes: int | None = None
    graphs_bytes: int | None = None
    free_after_pools_bytes: int | None = None
    total_tokens: int | None = None
    running_requests: int | None = None
    context_tokens: int | None = None
    free_bytes: int | None = None

    def as_dict(self) -> dict[str, int]:
        """Return what is known, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


_SMALLEST = {"free_before_bytes", "free_after_pools_bytes", "free_bytes", "running_requests", "total_tokens"}


@dataclass
class _RankPools:
    """Counts what one rank has reported: the first of a kind is the target's, the next the draft's.

    The order of the two differs by version (the draft's weights come before the target's pools since
    0.5.15, after them before), but never within a kind.
    """

    seen: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    later_kv: list[dict[str, int]] = field(default_factory=list)

    def told(self) -> dict[str, int]:
        """Return the values.

        A pool for sliding windows may come before the whole one, with the same words (gpt-oss up to
        0.5.15.post1); then the second of them, not the first, has as many tokens as the summary tells.
        """
        values = dict(self.values)
        first, total, later = values.get("kv_tokens"), values.get("total_tokens"), self.later_kv
        if first is not None and later and later[0]["kv_tokens"] == total != first:
            values.update(swa_tokens=first, swa_kv_bytes=values["kv_bytes"])
            values.update(later[0])
            if len(later) == 1:
                del values["draft_kv_tokens"], values["draft_kv_bytes"]
        return values

    def take(self, event: Event) -> None:
        kind = event.kind
        label = str(event.fields.get("label", ""))
        nth = self.seen[kind + label] = self.seen.get(kind + label, 0) + 1
        found = {name: value for name, value in event.fields.items() if isinstance(value, int)}
        if kind in _PLACES:
            self._place(found, _PLACES[kind], nth)
        elif kind in {"state_cache", "kv_resized"}:
            self.values.update(found)
        elif kind == "kv_cache":
            self._kv(found, label, nth)
        elif kind == "graph_end":
            self.values["graphs_bytes"] = self.values.get("graphs_bytes", 0) + found["used_bytes"]

    def _place(self, found: Mapping[str, int], places: Sequence[tuple[int, str, str]], nth: int) -> None:
        for wanted, name, place in places:
            if nth == wanted and name in found:
                self.values[place] = found[name]

    def _kv(self, found: Mapping[str, int], label: str, nth: int) -> None:
        size = found["kv_bytes"] if "kv_bytes" in found else found["k_bytes"] + found["v_bytes"]
        if label.endswith("index"):
            return
        if nth > 1:
            self.later_kv.append({**found, "kv_bytes": size})
            self.values.update(draft_kv_tokens=found["kv_tokens"], draft_kv_bytes=size)
        elif label == "SWA":
            self.values.update(swa_tokens=found["kv_tokens"], swa_kv_bytes=size)
        else:
            self.values.update({**found, "kv_bytes": size})


_PLACES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "weights_begin": ((1, "free_bytes", "free_before_bytes"),),
    "weights_end": ((1, "used_bytes", "weights_bytes"), (2, "used_bytes", "draft_weights_bytes")),
    "pools_end": ((1, "free_bytes", "free_after_pools_bytes"), (2, "free_bytes", "free_after_pools_bytes")),
    "summary": (
        (1, "total_tokens", "total_tokens"),
        (1, "running_requests", "running_requests"),
        (1, "context_tokens", "context_tokens"),
        (1, "free_bytes", "free_bytes"),
    ),
}


class Pools:
    """Collects the pools that events report, rank by rank."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._ranks: dict[str, _RankPools] = {}

    def take(self, event: Event) -> None:
        """Read one event."""
        self._ranks.setdefault(event.rank, _RankPools()).take(event)

    def allocated(self) -> Allocated:
        """Fold the ranks."""
        together: dict[str, int] = {}
        for pools in self._ranks.values():
            for name, value in pools.told().items():
                choose = min if name in _SMALLEST else max
                together[name] = choose(together.get(name, value), value)
        return Allocated(**together)


def allocated(events: Iterable[Event]) -> Allocated:
    """Extract the pools from the events of one start."""
    pools = Pools()
    for event in events:
        pools.take(event)
    return pools.allocated()
