"""The catalogue of causes: every row on an example, and nothing on what it does not know."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_kit import diagnosis
from sglang_kit.diagnosis import CONSEQUENCES, ROOTS, diagnose
from sglang_kit.journal import KERNEL, SYSTEMD, Allocated, Line
from sglang_kit.readiness import Expectation, Follower, Observation, UnitState, Verdict

from tests.replay.build import RECORDINGS
from tests.replay.recording import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

STAGE_LINES = {
    "arguments": "launching",
    "import": "server_args={'port': 31000}",
    "distributed": "[2026-11-29 13:28:13] Init torch distributed begin.",
    "weights": "[2026-11-29 13:28:16] Load weight begin. avail mem=93.57 GB",
    "kv_cache": "[2026-11-29 13:28:16] Load weight end. elapsed=1 s, type=A, avail mem=9 GB, mem usage=9 GB.",
    "graphs": "[2026-11-29 13:28:16] Memory pool end. avail mem=1.00 GB",
    "warm_up": (
        "max_total_num_tokens=10, chunked_prefill_size=8192, max_prefill_tokens=16384,"
        " max_running_requests=8, context_len=1024, available_gpu_mem=10.99 GB"
    ),
    "serving": "[2026-11-29 13:28:17] The server is fired up and ready to roll!",
}
STAGES = list(STAGE_LINES)
FAILED = UnitState(active_state="failed", result="signal", end="killed", end_status=9)


def judge(
    *texts: str, stage: str = "arguments", unit: UnitState | None = None, source: str = "engine"
) -> Verdict:
    """Let a start get as far as ``stage`` and then say this."""
    before = [STAGE_LINES[name] for name in STAGES[: STAGES.index(stage) + 1]]
    found = Follower(Expectation())
    found.feed([Line(n, text, pid=7) for n, text in enumerate(before, start=1)], 1.0)
    found.feed([Line(100 + n, text, pid=7, source=source) for n, text in enumerate(texts)], 2.0)
    return found.observe(9.0, unit=unit)


def raise_(error: str, *, stage: str = "arguments", frame: str = "/x/sglang/a.py") -> Verdict:
    head = "[2026-11-29 13:28:18] Scheduler hit an exception: Traceback (most recent call last):"
    return judge(head, f'  File "{frame}", line 1, in run', *error.split("\n"), stage=stage)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total of 93 GiB."
BUS = "Fatal Python error: Bus error"

RAISED = [
    # cause, phase, stage it happens in, exception
    (
        "speculative-algorithm-unknown",
        "arguments",
        "arguments",
        "ValueError: Unknown speculative algorithm name: X",
    ),
    (
        "speculation-needs-extra-buffer",
        "arguments",
        "arguments",
        (
            "ValueError: Speculative decoding for Qwen3_5 is not compatible with radix cache when using"
            " --mamba-radix-cache-strategy no_buffer.To use radix cache with speculative decoding, please use"
            " --mamba-radix-cache-strategy extra_buffer"
        ),
    ),
    (
        "extra-buffer-without-prefix-cache",
        "arguments",
        "arguments",
        "ValueError: mamba extra_buffer is not compatible with --disable-radix-cache Overlap scheduling",
    ),
    (
        "extra-buffer-unsupported",
        "arguments",
        "arguments",
        "AssertionError: extra_buffer requires platform support for Mamba cache state snapshots.",
    ),
    (
        "no-buffer-with-overlap",
        "arguments",
        "arguments",
        "AssertionError: no_buffer do not support overlap schedule, use extra_buffer",
    ),
    (
        "page-size-with-state-cache",
        "kv_cache",
        "kv_cache",
        "AssertionError: Page size must be 1 for MambaRadixCache v1, got 128",
    ),
    (
        "context-too-long",
        "arguments",
        "arguments",
        "ValueError: User-specified context_length (99999) is greater than the derived context_length (1024)",
    ),
    (
        "architecture-unknown",
        "weights",
        "weights",
        "ValueError: Model architectures ['NewForCausalLM'] are not supported for now. Supported: x",
    ),
    (
        "model-missing",
        "import",
        "import",
        "OSError: Incorrect path_or_model_id: '/srv/models/x'. Please provide",
    ),
    (
        "model-file-missing",
        "arguments",
        "arguments",
        "OSError: /srv/models/x does not appear to have a file named config.json. Checkout",
    ),
    (
        "weights-missing",
        "weights",
        "weights",
        "RuntimeError: Cannot find any model weights with `/srv/models/x`",
    ),
    (
        "weights-missing",
        "weights",
        "weights",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/models/x/model-00002.safetensors'",
    ),
    (
        "weights-damaged",
        "weights",
        "weights",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    (
        "library-missing",
        "import",
        "import",
        (
            "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\n"
            "- ImportError: libnuma.so.1: cannot open shared object file: No such file or directory"
        ),
    ),
    ("glibc-too-old", "import", "import", "ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found"),
    ("packages-do-not-match", "import", "import", "ImportError: common_ops.so: undefined symbol: _ZN3c104"),
    (
        "packages-do-not-match",
        "import",
        "arguments",
        "ValueError: Either a revision or a version must be specified for kernels.",
    ),
    (
        "packages-do-not-match",
        "import",
        "import",
        "Exception: flashinfer_python is installed with version 0.6, which is less than the minimum required",
    ),
    ("import-failed", "import", "arguments", "ModuleNotFoundError: No module named 'pycountry'"),
    (
        "cuda-home-wrong",
        "graphs",
        "graphs",
        "RuntimeError: Ninja build failed. Ninja output:\n/bin/sh: 1: :/usr/local/cuda/bin/nvcc: not found",
    ),
    (
        "kernel-build-failed",
        "graphs",
        "graphs",
        "RuntimeError: Ninja build failed. Ninja output:\nx.cu:1: fatal error: curand_kernel.h: No such file",
    ),
    ("ninja-missing", "graphs", "graphs", "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    (
        "compiler-missing",
        "graphs",
        "graphs",
        "RuntimeError: Failed to find C compiler. Please specify via CC",
    ),
    (
        "no-accelerator",
        "arguments",
        "arguments",
        "RuntimeError: No accelerator (CUDA, XPU) or platform plugin",
    ),
    (
        "driver-too-old",
        "import",
        "import",
        "RuntimeError: The NVIDIA driver on your system is too old (found 1)",
    ),
    ("gpu-index-wrong", "import", "import", "RuntimeError: CUDA error: invalid device ordinal"),
    (
        "kernel-not-for-this-gpu",
        "graphs",
        "graphs",
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ),
    (
        "memory-unbalanced",
        "distributed",
        "distributed",
        "RuntimeError: The memory capacity is unbalanced. Some GPUs",
    ),
    (
        "graph-capture-out-of-memory",
        "graphs",
        "graphs",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate\nPossible solutions:",
    ),
    (
        "graph-capture-failed",
        "graphs",
        "graphs",
        "Exception: Capture cuda graph failed: invalid argument\nPossible",
    ),
    ("graph-capture-out-of-memory", "graphs", "graphs", OOM),
    ("gpu-memory-taken", "weights", "weights", f"{OOM} Process 4321 has 70.10 GiB memory in use. Including"),
    ("gpu-already-full", "distributed", "distributed", OOM),
    ("weights-out-of-memory", "weights", "weights", OOM),
    ("pools-out-of-memory", "kv_cache", "kv_cache", OOM),
    ("serving-out-of-memory", "warm_up", "warm_up", OOM),
    (
        "serving-out-of-memory",
        "serving",
        "serving",
        "RuntimeError: Prefill out of memory. Try to lower your batch",
    ),
    ("state-cache-too-small", "state_cache", "graphs", "AssertionError: max_running_request is zero"),
    (
        "state-cache-too-small",
        "state_cache",
        "kv_cache",
        "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max",
    ),
    (
        "draft-window-missing",
        "weights",
        "weights",
        "ValueError: DFLASH sliding_attention layers require config.sliding_window.",
    ),
    (
        "no-memory-for-kv-cache",
        "kv_cache",
        "kv_cache",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    (
        "sliding-window-pool-too-small",
        "kv_cache",
        "kv_cache",
        "ValueError: SWA pool (12 tokens) cannot hold even one request: the prefill",
    ),
    (
        "memory-leak-check",
        "serving",
        "serving",
        "ValueError: token_to_kv_pool_allocator memory leak detected! x",
    ),
    (
        "shared-memory-full",
        "import",
        "import",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
    ),
    ("disk-full", "import", "import", "OSError: [Errno 28] No space left on device: '/var/cache/sglang/x'"),
    (
        "permission-denied",
        "graphs",
        "graphs",
        "PermissionError: [Errno 13] Permission denied: '/var/cache/sglang'",
    ),
    (
        "no-temporary-directory",
        "arguments",
        "arguments",
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp']",
    ),
    ("too-many-open-files", "serving", "serving", "OSError: [Errno 24] Too many open files"),
    (
        "nccl-port-in-use",
        "distributed",
        "distributed",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network."
            " port: 31050, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
    ),
    (
        "ranks-did-not-meet",
        "distributed",
        "distributed",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 joined.",
    ),
    (
        "nccl-error",
        "distributed",
        "distributed",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error",
    ),
    (
        "grammar-backend-unsupported",
        "serving",
        "serving",
        "RuntimeError: Unsupported device: cpu",
    ),
]


@pytest.mark.parametrize(("cause", "phase", "stage", "error"), RAISED)
def test_an_exception_is_named(cause: str, phase: str, stage: str, error: str) -> None:
    frame = "/x/sglang/xgrammar_backend.py" if cause == "grammar-backend-unsupported" else "/x/sglang/a.py"
    verdict = raise_(error, stage=stage, frame=frame)
    assert (verdict.state, verdict.cause, verdict.phase) == ("failed", cause, phase)
    assert verdict.sentence
    assert verdict.remedy
    assert "unknown" not in verdict.sentence.replace(error, "")
    assert [line.text for line in verdict.evidence][2:] == error.split("\n")


SAID = [
    # cause, phase, stage, line
    (
        "speculative-algorithm-unknown",
        "arguments",
        (
            "launch_server.py: error: argument --speculative-algorithm:"
            " invalid choice: 'DDTREE' (choose from 'EAGLE')"
        ),
    ),
    ("argument-unknown", "arguments", "sglang serve: error: unrecognized arguments: --no-such-flag 1"),
    (
        "argument-ambiguous",
        "arguments",
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --a, --b",
    ),
    ("argument-invalid", "arguments", "sglang serve: error: argument --port: invalid int value: 'x'"),
    (
        "port-in-use",
        "warm_up",
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31000):"
            " address already in use"
        ),
    ),
    (
        "address-not-usable",
        "warm_up",
        (
            "ERROR:    [Errno 99] error while attempting to bind on address ('10.1.1.1', 1):"
            " cannot assign requested address"
        ),
    ),
    (
        "scheduler-hung",
        "arguments",
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    ),
    ("scheduler-killed", "arguments", "Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering"),
    (
        "scheduler-crashed",
        "arguments",
        "Subprocess scheduler_0 (pid=9) crashed with exit code -11. Triggering",
    ),
    ("worker-ended", "arguments", "Subprocess detokenizer (pid=9) crashed with exit code 1. Triggering"),
    ("warm-up-failed", "warm_up", "Initialization failed. warmup error: something"),
    (
        "loopback-through-proxy",
        "warm_up",
        "Initialization failed. warmup error: ProxyError: Tunnel connection failed",
    ),
]


@pytest.mark.parametrize(("cause", "phase", "text"), SAID)
def test_a_fatal_line_is_named(cause: str, phase: str, text: str) -> None:
    verdict = judge(text)
    assert (verdict.state, verdict.cause, verdict.phase) == ("failed", cause, phase)
    assert [line.text for line in verdict.evidence] == [text]


def test_a_scheduler_that_was_killed_while_loading() -> None:
    error = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9"
    assert raise_(
        f"EOFError\n\nDuring handling of the above exception, another exception occurred:\n\n{error}"
    ).cause
    head = 'Traceback (most recent call last):\n  File "/x/sglang/launch_server.py", line 1, in <module>'
    verdict = judge(*head.split("\n"), error, unit=FAILED)
    assert verdict.cause == "scheduler-killed"


UNITS = [
    ("start-not-possible", "Failed at step EXEC spawning /opt/x/python: No such file or directory", FAILED),
    ("start-timed-out", "", UnitState(active_state="failed", result="timeout")),
    ("restart-loop", "", UnitState(active_state="failed", result="start-limit-hit")),
    ("main-process-killed", "", FAILED),
    ("host-out-of-memory", "", UnitState(active_state="failed", result="oom-kill")),
    (
        "host-out-of-memory",
        "sglang-a.service: A process of this unit has been killed by the OOM killer.",
        FAILED,
    ),
]


@pytest.mark.parametrize(("cause", "text", "unit"), UNITS)
def test_what_systemd_knows_is_named(cause: str, text: str, unit: UnitState) -> None:
    verdict = judge(*[text] if text else [], unit=unit, source=SYSTEMD)
    assert (verdict.state, verdict.cause) == ("failed", cause)


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("/x/sglang/srt/managers/load_snapshot.py", "shared-memory-full"),
        ("/x/prometheus_client/mmap_dict.py", "disk-full"),
        ("/x/safetensors/torch.py", "mapped-file-lost"),
    ],
)
def test_a_bus_error_is_explained_by_its_frame(frame: str, cause: str) -> None:
    verdict = judge(BUS, "", "Current thread 0x1 (most recent call first):", f'  File "{frame}", line 1 in f')
    assert verdict.cause == cause
    assert len(verdict.evidence) == 4


def test_another_native_crash_is_named() -> None:
    verdict = judge("Fatal Python error: Segmentation fault", "", "Thread 0x1:", "sglang-metal: ended")
    assert verdict.sentence == "native code ended the process: Segmentation fault"


# --- the kernel speaks of many processes

KILLED = "Memory cgroup out of memory: Killed process {pid} (sglang::schedul) total-vm:1kB, anon-rss:2048kB"


@pytest.mark.parametrize(
    ("pid", "cause"), [(7, "host-out-of-memory"), (9, "host-out-of-memory"), (8, "scheduler-killed")]
)
def test_the_oom_killer_counts_only_for_our_processes(pid: int, cause: str) -> None:
    found = Follower(Expectation())
    found.feed(
        [
            Line(1, KILLED.format(pid=pid), source=KERNEL),
            Line(2, "Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering", pid=7),
        ],
        1.0,
    )
    assert found.observe(9.0).cause == cause


@pytest.mark.parametrize(
    ("code", "pid", "cause"),
    [
        (79, 7, "gpu-lost"),
        (95, 7, "gpu-memory-error"),
        (79, 8, "unknown"),
        (13, 7, "unknown"),
    ],
)
def test_an_xid_counts_only_for_our_processes_and_where_nothing_else_is_known(
    code: int, pid: int, cause: str
) -> None:
    found = Follower(Expectation())
    found.feed(
        [
            Line(1, f"NVRM: Xid (PCI:0000:41:00): {code}, pid={pid}, name=python, something", source=KERNEL),
            Line(2, "[2026-11-29 13:28:18] SIGQUIT received. signum=None", pid=7),
        ],
        1.0,
    )
    assert found.observe(9.0).cause == cause


def test_headers_that_were_missing_are_a_hint_when_nothing_else_is_known() -> None:
    line = "main.c:4:10: fatal error: Python.h: No such file or directory"
    assert judge(line, "[2026-11-29 13:28:18] SIGQUIT received. signum=None").cause == "compiler-missing"
    assert raise_(f"{OOM}", stage="weights").cause == "weights-out-of-memory"


def test_a_missing_library_of_the_interpreter_itself() -> None:
    line = "python: error while loading shared libraries: libpython3.so: cannot open shared object file"
    assert judge(
        line, unit=UnitState(active_state="failed", result="exit-code", end="exited", end_status=127)
    ).cause


def test_a_rank_that_lost_the_others_is_not_the_cause() -> None:
    lost = "Exception: Capture cuda graph failed: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    assert raise_(lost, stage="graphs").cause == "ranks-did-not-meet"
    found = Follower(Expectation())
    for pid, error in ((1, lost), (2, "RuntimeError: the root")):
        lines = [
            "[2026-11-29 13:28:18] Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/x/sglang/a.py", line 1, in run',
            error,
        ]
        found.feed([Line(10 * pid + n, text, pid=pid) for n, text in enumerate(lines)], 1.0)
    assert found.observe(9.0).sentence.endswith("RuntimeError: the root")


# --- not knowing


def test_an_unexplained_exception_is_unknown_whatever_followed_from_it() -> None:
    found = Follower(Expectation())
    text = (
        "[2026-11-29 13:28:18] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/a.py", line 1, in run\n'
        "RuntimeError: never seen before\n"
        "[2026-11-29 13:28:19] Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering"
    )
    found.feed([Line(n, one) for n, one in enumerate(text.split("\n"), start=1)], 1.0)
    verdict = found.observe(9.0, unit=FAILED)
    assert verdict.cause == "unknown"
    assert verdict.sentence.endswith("the first error is: RuntimeError: never seen before")


def test_the_first_exception_is_shown_and_not_a_consequence() -> None:
    found = Follower(Expectation())
    for number, (error, pid) in enumerate([("EOFError", 1), ("RuntimeError: the root", 2)]):
        text = (
            "[2026-11-29 13:28:18] Scheduler hit an exception: Traceback (most recent call last):\n"
            f'  File "/x/sglang/a.py", line 1, in run\n{error}'
        )
        lines = [Line(10 * number + n, one, pid=pid) for n, one in enumerate(text.split("\n"), start=1)]
        found.feed(lines, 1.0)
    assert found.observe(9.0).sentence.endswith("RuntimeError: the root")


def test_an_error_that_was_survived_explains_nothing() -> None:
    """An early import problem that the engine works around is not why it was killed later."""
    found = Follower(Expectation())
    survived = (
        "Traceback (most recent call last):\n  File 'x', line 1, in probe\nImportError: No module named 'a'"
    )
    texts = survived.split("\n") + [f"[2026-11-29 13:28:18] line {n}" for n in range(20)]
    found.feed([Line(n, text) for n, text in enumerate(texts, start=1)], 1.0)
    unit = UnitState(active_state="failed", result="exit-code", end="exited", end_status=4)
    verdict = found.observe(9.0, unit=unit)
    assert (verdict.cause, verdict.sentence) == (
        "unknown",
        "the main process exited with status 4; the log shows no error",
    )


@pytest.mark.parametrize(
    "text",
    [
        "[2026-11-29 13:28:18] Decode batch, CUDA out of memory is not what this says",
        "[2026-11-29 13:28:18] user prompt: Address already in use EADDRINUSE",
        "[2026-11-29 13:28:18] Ignore import error when loading x: No module named 'vllm'",
        "[2026-11-29 13:28:18] nvcc: not found, using precompiled kernels",
    ],
)
def test_ordinary_output_is_never_a_cause(text: str) -> None:
    assert judge(text).state == "loading"
    unit = UnitState(active_state="failed", result="exit-code", end="exited", end_status=4)
    assert judge(text, unit=unit).cause == "unknown"


def test_nothing_at_all_is_known_without_a_process() -> None:
    seen = Observation(expectation=Expectation(), events=(), allocated=Allocated(), stage="weights")
    found = diagnose(seen)
    assert (found.cause, found.sentence, found.evidence) == ("unknown", "the log shows no error", ())


def test_an_unknown_signal_is_a_number() -> None:
    assert diagnosis.signal_name(9) == "SIGKILL"
    assert diagnosis.signal_name(500) == "signal 500"


def test_long_messages_are_never_cut() -> None:
    verdict = raise_("ValueError: " + "x" * 100_000)
    assert len(verdict.sentence) > 100_000
    assert verdict.evidence[-1].text.endswith("x" * 100_000)


def test_a_draft_model_that_does_not_fit_is_told_from_the_target() -> None:
    texts = [STAGE_LINES["weights"], STAGE_LINES["kv_cache"], STAGE_LINES["graphs"], STAGE_LINES["weights"]]
    found = Follower(Expectation())
    found.feed([Line(n, text) for n, text in enumerate(texts, start=1)], 1.0)
    head = "[2026-11-29 13:28:18] Scheduler hit an exception: Traceback (most recent call last):"
    found.feed([Line(n, text) for n, text in enumerate([head, "  File 'x'", OOM], start=50)], 2.0)
    verdict = found.observe(9.0)
    assert (verdict.cause, verdict.phase) == ("draft-weights-out-of-memory", "weights")


def test_an_unknown_error_of_the_draft_model_belongs_to_the_weights() -> None:
    texts = [STAGE_LINES["weights"], STAGE_LINES["kv_cache"], STAGE_LINES["weights"]]
    found = Follower(Expectation())
    found.feed([Line(n, text) for n, text in enumerate(texts, start=1)], 1.0)
    head = "[2026-11-29 13:28:18] Scheduler hit an exception: Traceback (most recent call last):"
    found.feed([Line(n, text) for n, text in enumerate([head, "  File 'x'", "ValueError: y"], start=50)], 2.0)
    assert found.observe(9.0).phase == "weights"


# --- the catalogue itself


def test_every_row_has_an_example() -> None:
    shown = {row[0] for row in (*RAISED, *SAID, *UNITS)}
    elsewhere = {
        "mapped-file-lost",
        "native-crash",
        "gpu-lost",
        "gpu-memory-error",
        "draft-weights-out-of-memory",
        # test_readiness.py
        "kv-cache-below-context",
        "listens-elsewhere",
        "api-key-refused",
        "wrong-instance",
        "arguments-overridden",
        "concurrency-below-asked",
        "completion-failed",
        "schema-completion-failed",
        "unit-not-found",
        "never-started",
    }
    assert {cause.id for cause in (*ROOTS, *CONSEQUENCES)} == shown | elsewhere


def test_rows_are_well_formed() -> None:
    for cause in (*ROOTS, *CONSEQUENCES):
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cause.id)
        assert (cause.pattern is None) == bool(cause.check)
        names = set(re.findall(r"{(\w+)}", cause.sentence + cause.remedy))
        groups = set(cause.pattern.groupindex) if cause.pattern else {"detail"}
        assert names <= groups | {"message"}, cause.id


def test_a_failed_check_shows_the_line_in_which_it_is_seen() -> None:
    found = Follower(Expectation(context_length=4096))
    texts = list(STAGE_LINES.values())
    found.feed([Line(number, text, pid=7) for number, text in enumerate(texts, start=1)], 1.0)
    verdict = found.observe(2.0)
    assert verdict.cause == "kv-cache-below-context"
    assert [line.text for line in verdict.evidence] == [STAGE_LINES["warm_up"]]


# --- the launcher's word -------------------------------------------------------------------------

LAST_WORD = "sglang-metal: the engine had to be killed in stage serving: {} [cause: {}, phase: serving]"


def test_what_only_the_launcher_could_see_is_taken_from_its_last_word() -> None:
    text = LAST_WORD.format("the key is refused. What to do: give the key", "api-key-refused")
    verdict = judge(text, stage="serving", unit=FAILED)
    assert (verdict.cause, verdict.phase) == ("api-key-refused", "serving")
    assert (verdict.sentence, verdict.remedy) == ("the key is refused", "give the key")
    assert [line.text for line in verdict.evidence] == [text]


def test_a_root_in_the_log_says_more_than_the_launchers_word() -> None:
    killed = "Out of memory: Killed process 7 (python3) total-vm:1kB, anon-rss:2kB"
    found = Follower(Expectation())
    found.feed([Line(1, LAST_WORD.format("killed", "main-process-killed"), pid=7)], 1.0)
    found.feed([Line(2, killed, source="kernel")], 1.0)
    assert found.observe(2.0, unit=FAILED).cause == "host-out-of-memory"


def test_an_unknown_word_of_the_launcher_tells_nothing() -> None:
    verdict = judge(LAST_WORD.format("who knows", "unknown"), stage="serving", unit=FAILED)
    assert verdict.cause == "main-process-killed"


# --- logs never seen -----------------------------------------------------------------------------

RECORDED = {
    f"{path.parent.name}/{path.stem}": load(path)
    for path in sorted(RECORDINGS.glob("*/*"))
    if path.suffix != ".json"
}
"""Recordings of real runs by version and case."""
SAYS_LESS = {"shared-memory-full": "mapped-file-lost", "disk-full": "mapped-file-lost"}
"""The same cause in other words, where the frame that tells the file system is lost."""


def _explained(texts: Sequence[str], version: str) -> Verdict:
    found = Follower(Expectation(engine_version=version, log_only=True))
    found.feed([Line(number, text) for number, text in enumerate(texts, start=1)], 1.0)
    return found.observe(9.0, ended=True)


@cache
def _other_roots(case: str) -> set[str]:
    """Causes that name themselves, and would be wrong; what only follows says no more than what is seen."""
    recording = RECORDED[case]
    cause = _explained([text for _, text in recording.lines], recording.version).cause
    return {row.id for row in ROOTS} - {cause, SAYS_LESS.get(cause, cause)}


@settings(max_examples=60)
@given(case=st.sampled_from(sorted(RECORDED)), begin=st.floats(0, 1), length=st.floats(0, 1))
def test_a_log_cut_anywhere_never_gets_another_cause(case: str, begin: float, length: float) -> None:
    recording = RECORDED[case]
    lines = recording.lines
    first = int(begin * len(lines))
    last = first + int(length * (len(lines) - first))
    assert _explained([text for _, text in lines[first:last]], recording.version).cause not in _other_roots(
        case
    )


@settings(max_examples=40)
@given(case=st.sampled_from(sorted(RECORDED)), random=st.randoms(use_true_random=False))
def test_a_shuffled_log_never_gets_the_cause_of_another(case: str, random: Random) -> None:
    recording = RECORDED[case]
    texts = [text for _, text in recording.lines]
    random.shuffle(texts)
    assert _explained(texts, recording.version).cause not in _other_roots(case)


@given(st.lists(st.text(max_size=200), max_size=30))
def test_any_text_is_unknown(texts: list[str]) -> None:
    assert _explained(texts, "0.5.23").cause in {"", "unknown"}
