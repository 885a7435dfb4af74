"""Why did it fail, and what should be done?

The catalogue (``ROOTS``, then ``CONSEQUENCES``) is data: a cause is recognised by a pattern on what the
engine raised or printed as fatal, on what systemd and the kernel said, or by a check that does not hold.
Patterns never look at ordinary output, and a failure that no row describes is ``unknown``, shown with its
first exception: the later ones are mostly consequences.

The first row that matches anything names the cause: rows stand from the special to the general.
References are issues of sgl-project/sglang unless they name another repository.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .journal import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .journal import Event
    from .readiness import Observation, UnitState

UNKNOWN = "unknown"
_PHASES = {"draft_weights": "weights"}


@dataclass(frozen=True)
class Evidence:
    """One line of the log, whole, with its number."""

    number: int
    text: str


@dataclass(frozen=True)
class Cause:
    """One row. ``pattern`` is searched in the statements of the given ``kinds``; ``check`` names a check.

    ``phase`` is empty where the failure belongs to the stage in which it happened; ``stages``, where
    given, are the only ones in which the row applies, and ``frame`` must be in the traceback's lines.
    ``shows`` are the events in which a failed check is seen.
    Sentence and remedy may use the pattern's groups.
    """

    id: str
    sentence: str
    remedy: str
    pattern: re.Pattern[str] | None = None
    kinds: tuple[str, ...] = ("traceback",)
    check: str = ""
    phase: str = ""
    stages: tuple[str, ...] = ()
    frame: str = ""
    shows: tuple[str, ...] = ()
    reference: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The cause in a sentence, what to change, and the lines that prove it."""

    cause: str
    phase: str
    sentence: str
    remedy: str
    evidence: tuple[Evidence, ...]
    reference: str = ""


def diagnose(seen: Observation) -> Diagnosis:
    """Name the cause of a failure.

    An exception that no root describes is unknown, whatever else followed from it.
    """
    statements = tuple(_statements(seen))
    unexplained = any(one.kind == "traceback" and not one.follows for one in statements)
    found = _described(ROOTS, seen, statements)
    if found is None and not unexplained:
        found = _judged(seen) or _described(CONSEQUENCES, seen, statements)
    return found or _unknown(seen, statements)


def _described(
    rows: tuple[Cause, ...], seen: Observation, statements: tuple[_Statement, ...]
) -> Diagnosis | None:
    for cause in rows:
        found = _match(cause, seen, statements)
        if found:
            words, statement = found
            return Diagnosis(
                cause=cause.id,
                phase=cause.phase or _PHASES.get(statement.stage, statement.stage),
                sentence=cause.sentence.format_map(words),
                remedy=cause.remedy.format_map(words),
                evidence=statement.evidence,
                reference=cause.reference,
            )
    return None


def _judged(seen: Observation) -> Diagnosis | None:
    """Take the launcher's word for what the log alone does not show: what the engine answered over HTTP."""
    event = seen.first("judged")
    if event is None or event.fields["cause"] == UNKNOWN:
        return None
    words = {name: str(event.fields.get(name, "")) for name in ("cause", "phase", "sentence", "remedy")}
    return Diagnosis(**words, evidence=tuple(Evidence(line.number, line.text) for line in event.lines))


# --- what can be judged --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Statement:
    """Something said that may be a cause: its kind, its text, the stage it was said in."""

    kind: str
    text: str
    stage: str
    evidence: tuple[Evidence, ...] = ()

    @property
    def follows(self) -> bool:
        """Whether it only tells that another process is gone."""
        return bool(_FOLLOWS.search(self.text))


_FOLLOWS = re.compile(
    r"^(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|KeyboardInterrupt|SystemExit)\b"
    r"|scheduler died during initialization|other ranks that didn't finish loading|ncclRemoteError"
    r"|Connection (?:closed|reset) by peer|DistStoreError|TCPStore|Watchdog caught collective operation"
)
_SAID = frozenset(
    (
        "usage_error",
        "bind_failed",
        "warmup_failed",
        "watchdog",
        "child_ended",
        "build_error",
        "link_error",
        "exec_failed",
        "unit_result",
        "unit_oom",
    )
)
LAST_WORD_LINES = 6
"""Lines that may follow a traceback that was the last word: the main process cleans up."""


def is_last_word(event: Event, last: int) -> bool:
    """Whether nothing but cleaning up followed a traceback; ``last`` is the number of the last line."""
    return event.kind == "traceback" and last - event.lines[-1].number <= LAST_WORD_LINES


def _statements(seen: Observation) -> Iterator[_Statement]:
    """List what may be a cause, in the order of the log.

    Left out are tracebacks that the engine survived, and what the kernel says of other processes.
    """
    pids = _pids(seen)
    last = seen.last_lines[-1].number if seen.last_lines else 0
    for event in seen.events:
        evidence = tuple(Evidence(line.number, line.text) for line in event.lines)
        stage = seen.stages_at.get(event.number, seen.stage)
        if event.kind == "traceback":
            texts = [str(raised) for raised in event.raised]
            said = bool(event.fields["decisive"]) or is_last_word(event, last)
        else:
            texts = [event.text]
            said = event.kind in _SAID or event.fields.get("killed_pid", event.fields.get("xid_pid")) in pids
        if said:
            yield from (_Statement(event.kind, text, stage, evidence) for text in texts)
    if seen.unit is not None and seen.unit.lifecycle != "alive":
        yield _Statement("unit", _unit_text(seen.unit), seen.stage)


def _pids(seen: Observation) -> set[object]:
    """Collect the processes of this invocation: the kernel speaks of others, too."""
    pids: set[object] = {line.pid for event in seen.events for line in event.lines}
    pids |= {event.fields.get("ended_pid") for event in seen.events}
    if seen.unit is not None:
        pids.add(seen.unit.main_pid)
    return pids - {None, 0}


def _unit_text(unit: UnitState) -> str:
    return f"load={unit.load_state} result={unit.result} end={unit.end} status={unit.end_status}"


def _applies(cause: Cause, statement: _Statement) -> bool:
    """Whether a row may be looked for here: roots are not in what only follows."""
    if statement.kind not in cause.kinds or (statement.follows and cause in ROOTS):
        return False
    if cause.frame and not any(cause.frame in line.text for line in statement.evidence):
        return False
    return not cause.stages or statement.stage in cause.stages


def _match(
    cause: Cause, seen: Observation, statements: tuple[_Statement, ...]
) -> tuple[dict[str, str], _Statement] | None:
    if cause.check:
        failed = next((check for check in seen.checks if check.name == cause.check), None)
        if failed is None or failed.held is not False:
            return None
        shown = seen.first(*cause.shows)
        lines = () if shown is None else shown.lines
        evidence = tuple(Evidence(line.number, line.text) for line in lines)
        return {"detail": failed.detail}, _Statement("check", failed.detail, seen.stage, evidence)
    for statement in statements:
        if not _applies(cause, statement):
            continue
        match = cause.pattern.search(statement.text) if cause.pattern else None
        if match:
            words = match.groupdict(default="unknown")
            return {**words, "message": statement.text}, statement
    return None


def _unknown(seen: Observation, statements: tuple[_Statement, ...]) -> Diagnosis:
    """Show the first exception, else the first thing said, else how the process ended."""
    said = [one for one in statements if one.kind != "unit"]
    first = min(said, key=lambda one: (one.follows, one.kind != "traceback"), default=None)
    if first is None:
        sentence = "; ".join(part for part in (_end(seen), "the log shows no error") if part)
        return Diagnosis(UNKNOWN, seen.stage, sentence, "", last_lines(seen))
    sentence = f"the cause is not in the catalogue; the first error is: {first.text}"
    return Diagnosis(UNKNOWN, _PHASES.get(first.stage, first.stage), sentence, "", first.evidence)


def _end(seen: Observation) -> str:
    unit = seen.unit
    if unit is None or not unit.end:
        return ""
    if unit.end == "exited":
        return f"the main process exited with status {unit.end_status}"
    return f"the main process was ended by {signal_name(unit.end_status)}"


def last_lines(seen: Observation) -> tuple[Evidence, ...]:
    """Return the end of the log, where nothing in it stands out."""
    return tuple(Evidence(line.number, redact(line.text)) for line in seen.last_lines)


def signal_name(number: int) -> str:
    """Name a signal for people."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- the catalogue -------------------------------------------------------------------------------


def _row(cause: str, pattern: str, sentence: str, remedy: str, **more: str | tuple[str, ...]) -> Cause:
    return Cause(cause, sentence, remedy, re.compile(pattern, re.DOTALL), **more)  # type: ignore[arg-type]


_OOM = r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"
_SCHEDULER = r"(?:Subprocess scheduler_\d+|Rank \d+ scheduler) "
_KILLED = (
    "look for the OOM killer in the kernel's log (dmesg -T), and for people and tools that kill processes"
)

ROOTS: tuple[Cause, ...] = (
    # arguments
    _row(
        "speculative-algorithm-unknown",
        r"Unknown speculative algorithm name: (?P<name>\S+)"
        r"|argument --speculative-algorithm: invalid choice: '(?P<choice>[^']*)'",
        "this engine has no such speculative algorithm: {message}",
        "choose a strategy.method that this version knows, or an engine that registers the algorithm",
        kinds=("traceback", "usage_error"),
        phase="arguments",
        reference="#22887",
    ),
    _row(
        "argument-unknown",
        r"error: unrecognized arguments: (?P<flags>.*)",
        "the engine does not know these flags: {flags}",
        "remove them or write the name that this version has; flags are renamed and removed between versions",
        kinds=("usage_error",),
        phase="arguments",
    ),
    _row(
        "argument-ambiguous",
        r"error: ambiguous option: (?P<flag>\S+) could match (?P<names>.*)",
        "{flag} is no flag of this version; it could mean {names}",
        "write the full name of the flag that is meant",
        kinds=("usage_error",),
        phase="arguments",
    ),
    _row(
        "argument-invalid",
        r"error: (?P<what>.*)",
        "the engine refuses an argument: {what}",
        "correct the value",
        kinds=("usage_error",),
        phase="arguments",
    ),
    _row(
        "speculation-needs-extra-buffer",
        r"not compatible with radix cache when using --mamba-\S+-strategy no_buffer",
        "speculative decoding on a hybrid model needs the state strategy extra_buffer while the prefix cache"
        " is on",
        "use state strategy extra_buffer, or set prefix_cache: false",
        phase="arguments",
        reference="QwenLM/Qwen3.8#108",
    ),
    _row(
        "extra-buffer-without-prefix-cache",
        r"extra_buffer is not compatible with --disable-radix-cache",
        "the state strategy extra_buffer only makes sense with the prefix cache: {message}",
        "use state strategy no_buffer, or set prefix_cache: true",
        phase="arguments",
        reference="#19169",
    ),
    _row(
        "extra-buffer-unsupported",
        r"extra_buffer requires platform support|Mamba extra_buffer is only supported on",
        "the state strategy extra_buffer does not work on this device",
        "use state strategy no_buffer",
        phase="arguments",
    ),
    _row(
        "no-buffer-with-overlap",
        r"no_buffer do not support overlap schedule",
        "the state strategy no_buffer does not work with overlapped scheduling on this version",
        "add disable-overlap-schedule: true to args, or use state strategy extra_buffer",
        phase="arguments",
    ),
    _row(
        "page-size-with-state-cache",
        r"Page size must be 1 for MambaRadixCache|mamba_track_interval \d+ must be divisible by page_size"
        r"|FLA_CHUNK_SIZE or page_size must be divisible",
        "the page size does not fit the state cache: {message}",
        "use page size 1, or extra_buffer with a page size that divides 256",
        reference="Ascend/sglang#171",
    ),
    _row(
        "context-too-long",
        r"context_length \((?P<asked>\d+)\) is greater than the derived context_length \((?P<limit>\d+)\)",
        "context_length {asked} is more than the model's {limit} tokens",
        "set context_length to {limit} or less",
        phase="arguments",
    ),
    _row(
        "architecture-unknown",
        r"model type `(?P<type>[^`]*)` but Transformers does not recognize"
        r"|Model architectures (?P<names>\[[^\]]*\]) are not supported for now",
        "this engine does not know the model's architecture: {message}",
        "use an SGLang version that has the architecture, or another model",
    ),
    # files of the model
    _row(
        "model-missing",
        r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '(?P<path>/[^']*)'"
        r"|(?P<other>/\S*) is not a local folder and is not a valid model identifier"
        r"|Incorrect path_or_model_id: '(?P<given>/[^']*)'",
        "the model's directory is not on the host: {message}",
        "correct model, or put the model's files there",
    ),
    _row(
        "model-file-missing",
        r"Can't load image processor for '(?P<path>[^']*)'|Can't load feature extractor for"
        r"|Unrecognized model in (?P<folder>\S+)\. Should have a `model_type` key"
        r"|does not appear to have a file named (?P<file>\S+?)\."
        r"|Couldn't instantiate the backend tokenizer|Can't load (?:tokenizer for|the configuration of)",
        "a file of the model is missing or empty: {message}",
        "complete the model's directory (config, tokenizer and processor files belong to it)",
    ),
    _row(
        "weights-missing",
        r"Cannot find any model weights with `(?P<path>[^`]*)`"
        r"|No such file or directory: '?\"?(?P<file>[^'\"]*\.(?:safetensors|bin|gguf))",
        "weight files are missing: {message}",
        "complete the model's directory",
        phase="weights",
    ),
    _row(
        "weights-damaged",
        r"SafetensorError: (?P<what>Error while deserializing header.*)",
        "a weight file is cut off or damaged: {what}",
        "fetch the weight files again and verify their sizes",
        phase="weights",
    ),
    # imports and libraries: the first ImportError counts
    _row(
        "library-missing",
        r"(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "the shared library {library} is not installed or not on the library path",
        "install the package that holds {library} (libnuma.so.1: libnuma1; libcuda.so.1: the NVIDIA driver)",
        kinds=("traceback", "link_error"),
        reference="#4778",
        phase="import",
    ),
    _row(
        "glibc-too-old",
        r"version [`'](?P<symbol>GLIBC(?:XX)?_[\d.]+)' not found",
        "the host's C library is too old: {symbol} is wanted",
        "use a newer distribution (glibc 2.34 or later)",
        phase="import",
    ),
    _row(
        "packages-do-not-match",
        r"undefined symbol: (?P<symbol>\w+)|Either a revision or a version must be specified"
        r"|is installed with version (?P<version>\S+),? which is less than the minimum"
        r"|with minimum required version (?P<minimum>\S+) is not installed",
        "packages of the release do not fit each other: {message}",
        "install the release from its lock, not by hand",
        reference="#27654, #5100",
        phase="import",
    ),
    _row(
        "import-failed",
        r"^(?:ModuleNotFoundError|ImportError): (?P<what>.*)",
        "a Python package cannot be imported: {what}",
        "install the release from its lock; look for a PYTHONPATH or user packages that shadow it",
        phase="import",
    ),
    # tools for kernels compiled at run time
    _row(
        "cuda-home-wrong",
        r"/bin/nvcc: (?:No such file|not found)|CUDA_HOME environment variable is not set"
        r"|Could not find nvcc|nvcc: (?:command )?not found",
        "the CUDA toolkit is not where the engine looks for it: {message}",
        "set CUDA_HOME to one absolute path that holds bin/nvcc",
        reference="#5002",
    ),
    _row(
        "ninja-missing",
        r"Ninja is required to load C\+\+ extensions|No such file or directory: '(?:\S*/)?ninja'",
        "ninja, which compiles kernels at run time, is not on the PATH",
        "install ninja, and put the release's bin directory on the PATH",
    ),
    _row(
        "compiler-missing",
        r"Python\.h: No such file or directory|Failed to find C compiler"
        r"|No such file or directory: '(?:\S*/)?(?:gcc|g\+\+|cc)'",
        "the compiler or the Python headers are missing: {message}",
        "install gcc and the Python development headers",
        reference="#1117",
    ),
    _row(
        "kernel-build-failed",
        r"(?:Ninja build failed|Error building extension)(?:.*?\berror: (?P<what>[^\n]*))?",
        "a kernel could not be compiled: {what}",
        "read the compiler's first error; the CUDA toolkit, the compiler and the release must fit each other",
        reference="flashinfer-ai/flashinfer#4410",
    ),
    # devices
    _row(
        "no-accelerator",
        r"No accelerator \(CUDA|No CUDA GPUs are available|Found no NVIDIA driver on your system"
        r"|CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected",
        "the engine sees no GPU",
        "check the driver, CUDA_VISIBLE_DEVICES, and the unit's access to /dev/nvidia*",
    ),
    _row(
        "driver-too-old",
        r"driver version is insufficient|The NVIDIA driver on your system is too old|unsupported toolchain",
        "the NVIDIA driver is too old for this release: {message}",
        "update the driver, or use an older release",
    ),
    _row(
        "gpu-index-wrong",
        r"invalid device ordinal",
        "the instance names a GPU that it cannot see",
        "correct gpus; the numbers count the visible devices",
    ),
    _row(
        "kernel-not-for-this-gpu",
        r"no kernel image is available for execution on the device",
        "a kernel of this release was not built for this GPU",
        "use a release that supports the GPU, or another backend",
    ),
    _row(
        "memory-unbalanced",
        r"The memory capacity is unbalanced",
        "the GPUs of this instance do not have the same free memory: another process holds one of them",
        "free the GPU (nvidia-smi names the process), or choose other gpus",
        phase="distributed",
        reference="#4233",
    ),
    # memory, by the pool that failed
    _row(
        "graph-capture-out-of-memory",
        rf"Capture .*graph failed: .*(?:out of memory|{_OOM})",
        "no memory was left to capture CUDA graphs",
        "lower the largest captured batch, or lower memory.fraction to leave more outside the pools",
        phase="graphs",
        reference="#4489",
    ),
    _row(
        "graph-capture-failed",
        r"Capture .*graph failed: (?P<what>[^\n]*)",
        "capturing CUDA graphs failed: {what}",
        "look at the first line of the error; disable-cuda-graph: true tells whether the rest works",
        phase="graphs",
        reference="#5285",
    ),
    _row(
        "gpu-memory-taken",
        rf"(?:{_OOM}).*?Process (?P<pid>\d+) has (?P<size>\d+\.\d+ GiB) memory in use",
        "another process ({pid}) holds {size} of the GPU",
        "end that process, or choose other gpus",
    ),
    _row(
        "state-cache-too-small",
        r"max_running_request is zero|state cache is too small to serve any requests"
        r"|Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache",
        "the state cache has too few slots to serve one request: {message}",
        "ask for less concurrency (it sizes the reserve for intermediate states), raise memory.fraction or"
        " memory.state_ratio, or use memory.state_dtype bfloat16",
        phase="state_cache",
        reference="#38846",
    ),
    _row(
        "draft-window-missing",
        r"DFLASH sliding_attention layers require config\.sliding_window",
        "the draft model's config.json names layers with a sliding window, and no window is in effect",
        "set use_sliding_window: true in it where the draft was made with one, or use another draft_model",
        phase="weights",
    ),
    _row(
        "no-memory-for-kv-cache",
        r"leave no GPU memory for the KV cache under --mem-fraction-static=(?P<fraction>[\d.]+)"
        r"(?:\. Raise --mem-fraction-static above (?P<minimum>[\d.]+))?"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
        "the weights, with the state cache and its reserve if any, leave no memory for the KV cache",
        "raise memory.fraction: it is a share of the memory that was free before loading, and the weights"
        " count in it; ask for fewer requests or draft tokens; or use more GPUs",
        phase="kv_cache",
        reference="#322",
    ),
    _row(
        "sliding-window-pool-too-small",
        r"SWA pool \((?P<tokens>\d+) tokens\) cannot hold even one request",
        "the sliding-window pool of {tokens} tokens cannot hold one request",
        "raise swa-full-tokens-ratio or memory.fraction",
        phase="kv_cache",
    ),
    _row(
        "gpu-already-full",
        _OOM,
        "the GPU was full before anything was loaded: another process holds it",
        "free the GPU (nvidia-smi names the process), or choose other gpus",
        stages=("arguments", "import", "distributed"),
        reference="#3265",
    ),
    _row(
        "weights-out-of-memory",
        _OOM,
        "the weights do not fit the GPU",
        "use more GPUs for this instance, or a smaller or quantised model",
        stages=("weights",),
        phase="weights",
    ),
    _row(
        "draft-weights-out-of-memory",
        _OOM,
        "the draft model does not fit beside the target and its pools",
        "lower memory.fraction: up to 0.5.12 the draft model is loaded after the pools and is not counted",
        stages=("draft_weights",),
        phase="weights",
        reference="#6875",
    ),
    _row(
        "pools-out-of-memory",
        _OOM,
        "the pools do not fit beside the weights",
        "lower memory.fraction",
        stages=("state_cache", "kv_cache"),
    ),
    _row(
        "graph-capture-out-of-memory",
        _OOM,
        "no memory was left to capture CUDA graphs",
        "lower the largest captured batch, or lower memory.fraction to leave more outside the pools",
        stages=("graphs",),
        phase="graphs",
        reference="#4489",
    ),
    _row(
        "serving-out-of-memory",
        rf"{_OOM}|(?:Prefill|Decode) out of memory|alloc_req_slots runs out of memory"
        r"|Not enough space for mamba cache",
        "memory ran out while serving",
        "lower memory.fraction or the prefill chunk; it is not cured by raising memory.fraction",
        stages=("warm_up", "serving"),
        reference="#2607",
    ),
    _row(
        "memory-leak-check",
        r"memory leak detected",
        "the engine's own check found that tokens of a pool were lost: an engine bug",
        "use a newer version, or lower the concurrency",
        reference="#12432",
    ),
    # host memory, disk, rights
    _row(
        "host-out-of-memory",
        r"out of memory: Killed process|Out of memory: Killed process|killed by the OOM killer|\boom-kill\b",
        "the kernel killed a process of this instance: the host's memory, or the unit's share of it, ran out",
        "give the unit or the host more memory, or start fewer instances at a time",
        kinds=("kernel_oom", "unit_oom", "unit_result", "unit"),
    ),
    _row(
        "shared-memory-full",
        r"^Fatal Python error: Bus error",
        "the shared-memory file system /dev/shm is full: writing to it ended the process",
        "enlarge /dev/shm, or remove what ended processes left there",
        frame="/load_snapshot.py",
        reference="#5096",
    ),
    _row(
        "disk-full",
        r"^Fatal Python error: Bus error",
        "the file system of the temporary directory is full: writing the metrics' files ended the process",
        "free space in /tmp, or set TMPDIR to a directory of the unit",
        frame="/prometheus_client/mmap_dict.py",
    ),
    _row(
        "mapped-file-lost",
        r"^Fatal Python error: Bus error",
        "a mapped file could not be read or written: its file system is full, or the file became shorter",
        "check /dev/shm, /tmp and the model's file system for space, and that nobody replaces weight files",
    ),
    _row(
        "native-crash",
        r"^Fatal Python error: (?P<what>.*)",
        "native code ended the process: {what}",
        "look at the thread's frames for the library; try another backend or version",
    ),
    _row(
        "shared-memory-full",
        r"No space left on device.*?/dev/shm|/dev/shm.*?No space left on device|insufficient shared memory",
        "the shared-memory file system is full: {message}",
        "enlarge /dev/shm, or remove what ended processes left there",
        reference="#5096",
    ),
    _row(
        "disk-full",
        r"\[Errno 28\] No space left on device(?P<where>[^\n]*)|No space left on device",
        "a file system is full: {message}",
        "free space where the caches, the model and /tmp lie",
    ),
    _row(
        "permission-denied",
        r"\[Errno 13\] Permission denied(?:: '(?P<path>[^']*)')?|\[Errno 30\] Read-only file system",
        "the engine may not use a file or directory: {message}",
        "give the unit's user access, or let the cache variables point to its own directory",
        reference="#472",
    ),
    _row(
        "no-temporary-directory",
        r"No usable temporary directory found",
        "no temporary directory can be written",
        "free space in /tmp, or set TMPDIR to a directory of the unit",
    ),
    _row(
        "too-many-open-files",
        r"\[Errno 24\] Too many open files",
        "the limit of open files is reached",
        "raise LimitNOFILE",
    ),
    # ports and ranks
    _row(
        "port-in-use",
        r"\[Errno 98\] error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)",
        "port {port} on {host} is held by another process",
        "stop that process (ss -ltnp names it), or choose another port",
        kinds=("bind_failed",),
        phase="warm_up",
        reference="#17402",
    ),
    _row(
        "address-not-usable",
        r"error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)[^)]*\): (?P<what>.*)",
        "the server cannot listen on {host} port {port}: {what}",
        "correct host, or choose a port above 1023",
        kinds=("bind_failed",),
        phase="warm_up",
    ),
    _row(
        "nccl-port-in-use",
        r"The server socket has failed to listen.*?port: (?P<port>\d+)|EADDRINUSE",
        "the rendezvous port {port} is held by another process",
        "stop that process, or choose another nccl_port",
        phase="distributed",
        reference="#17402",
    ),
    _row(
        "nccl-error",
        r"DistBackendError: (?P<what>[^\n]*)|NCCL error[^\n]*",
        "the GPUs of this instance cannot talk to each other: {message}",
        "run with NCCL_DEBUG=INFO; check peer access, /dev/shm and LimitMEMLOCK",
    ),
    # warm-up
    _row(
        "loopback-through-proxy",
        r"ProxyError|Tunnel connection failed|(?:403|407|502|503)[^\n]*(?:proxy|Proxy|policy)|via proxy",
        "the engine's warm-up of itself went through a proxy",
        "set NO_PROXY=127.0.0.1,localhost for the unit",
        kinds=("traceback", "warmup_failed"),
        phase="warm_up",
        reference="#11949",
    ),
    _row(
        "grammar-backend-unsupported",
        r"Unsupported device: (?P<device>\w+)",
        "the grammar backend does not work on the device {device}: a JSON schema ends the scheduler",
        "add grammar-backend: llguidance to args",
        frame="xgrammar_backend",
        phase="serving",
    ),
    # hangs
    _row(
        "scheduler-hung",
        r"watchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+)",
        "a batch took longer than the engine's watchdog allows ({seconds} s)",
        "look at the GPU (Xid, clocks) and for the longest prompt; raise watchdog-timeout only if it is slow",
        kinds=("watchdog",),
    ),
)
"""Causes that name themselves."""

CONSEQUENCES: tuple[Cause, ...] = (
    # what the proof found
    Cause(
        "kv-cache-below-context",
        "the KV cache is smaller than one context: {detail}",
        "lower context_length, raise memory.fraction, or use fewer state slots",
        check="context",
        phase="kv_cache",
        shows=("summary",),
    ),
    Cause(
        "listens-elsewhere",
        "the engine listens on another port than planned: {detail}",
        "correct the port in args",
        check="listening",
        phase="warm_up",
        shows=("listen",),
    ),
    Cause(
        "api-key-refused",
        "the server refuses the readiness check's key: {detail}",
        "give the instance and the check the same API key",
        check="authorised",
        phase="serving",
    ),
    Cause(
        "wrong-instance",
        "another server answers on the instance's port: {detail}",
        "stop the other server, or choose another port",
        check="identity",
        phase="serving",
    ),
    Cause(
        "wrong-instance",
        "the server does not serve the planned model: {detail}",
        "stop the other server, or correct served_model_name",
        check="model_name",
        phase="serving",
    ),
    Cause(
        "arguments-overridden",
        "the engine does not run with the planned arguments: {detail}",
        "plan what the engine makes of them, or name them in accept_overrides",
        check="arguments",
        phase="serving",
    ),
    Cause(
        "concurrency-below-asked",
        "the engine serves fewer requests at a time than asked for: {detail}",
        "give the state cache more room (memory.state_ratio, memory.state_dtype), or ask for less",
        check="concurrency",
        phase="serving",
        reference="#38846",
    ),
    Cause(
        "grammar-backend-unsupported",
        "the first JSON schema would end the scheduler of this version: {detail}",
        "add grammar-backend: llguidance to args",
        check="grammar",
        phase="serving",
    ),
    Cause(
        "completion-failed",
        "a completion failed: {detail}",
        "look at the scheduler's log after the request",
        check="completion",
        phase="serving",
        reference="#4191",
    ),
    Cause(
        "schema-completion-failed",
        "a JSON-schema completion failed: {detail}",
        "look at the grammar backend; leave more memory outside the pools if the log shows out of memory",
        check="schema",
        phase="serving",
    ),
    # systemd
    _row(
        "unit-not-found",
        r"load=not-found",
        "systemd knows no such unit",
        "deploy the instance",
        kinds=("unit",),
    ),
    _row(
        "never-started",
        r"result=success end= ",
        "the unit was not started since the host booted",
        "start it",
        kinds=("unit",),
    ),
    _row(
        "start-not-possible",
        r"Failed at step (?P<step>[A-Z_]+) spawning (?P<program>\S*?): (?P<what>.*)",
        "systemd could not start {program}: {what} (step {step})",
        "correct what the step sets up: user, directories, sandboxing, the program itself",
        kinds=("exec_failed",),
        phase="arguments",
    ),
    _row(
        "start-timed-out",
        r"result=timeout|start operation timed out",
        "systemd ended the start because it took too long",
        "raise the start time limit of the unit",
        kinds=("unit", "unit_result"),
        reference="RIDE-Lab/SAGE#1346",
    ),
    _row(
        "restart-loop",
        r"result=start-limit-hit",
        "systemd gave up restarting the unit",
        "look at the first of the failed starts; systemctl reset-failed allows the next",
        kinds=("unit",),
    ),
    # consequences, when nothing better is known
    _row(
        "scheduler-killed",
        rf"{_SCHEDULER}.*?exit code:? -9\b",
        "the scheduler was killed with SIGKILL; nothing in the log says by whom",
        _KILLED,
        kinds=("child_ended", "traceback"),
        reference="#18421",
    ),
    _row(
        "scheduler-crashed",
        rf"{_SCHEDULER}.*?exit code:? -(?P<signal>\d+)\b",
        "the scheduler was ended by signal {signal} outside of Python",
        "look for a core dump and the kernel's log; 11 and 7 are faults in native code or memory",
        kinds=("child_ended", "traceback"),
        reference="#18421",
    ),
    _row(
        "worker-ended",
        r"Subprocess (?P<who>\S+) \(pid=\d+\) crashed with exit code (?P<code>-?\d+)",
        "the process {who} ended with code {code}",
        "look for its last lines in the log",
        kinds=("child_ended",),
    ),
    _row(
        "ranks-did-not-meet",
        r"other ranks that didn't finish loading|DistStoreError|TCPStore|ncclRemoteError"
        r"|Connection (?:closed|reset) by peer|Watchdog caught collective operation timeout",
        "the ranks of this instance did not all come as far: {message}",
        "look for the first failing rank; restart the whole group",
        reference="#3099",
    ),
    _row(
        "warm-up-failed",
        r"Initialization failed\. (?P<what>.*)",
        "the engine's first request to itself failed: {what}",
        "look at the traceback of the scheduler, if there is one",
        kinds=("warmup_failed",),
        phase="warm_up",
    ),
    _row(
        "main-process-killed",
        r"end=(?:killed|dumped) status=9\b",
        "the main process was killed with SIGKILL; nothing in the log says by whom",
        _KILLED,
        kinds=("unit",),
    ),
    # hints, where nothing else is known
    _row(
        "compiler-missing",
        r"Python\.h: No such file or directory",
        "the Python headers are missing: {message}",
        "install the Python development headers",
        kinds=("build_error",),
        reference="#1117",
    ),
    _row(
        "gpu-lost",
        r"Xid \([^)]*\): 79,",
        "a GPU has fallen off the bus: {message}",
        "power-cycle the host and check the card",
        kinds=("xid",),
    ),
    _row(
        "gpu-memory-error",
        r"Xid \([^)]*\): (?:48|63|64|92|94|95|140),",
        "a GPU reported a memory (ECC) error: {message}",
        "drain the host, reset the GPU, and replace the card if it comes back",
        kinds=("xid",),
    ),
)
"""Causes that count only where no exception tells more."""
