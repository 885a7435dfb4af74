"""Lines, records and tracebacks become events."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit import journal
from sglang_kit.engine import SUPPORTED
from sglang_kit.journal import (
    JOURNALD,
    KERNEL,
    SYSTEMD,
    Allocated,
    Event,
    Fold,
    Line,
    allocated,
    of_invocation,
    parse_record,
    parse_text,
    read,
    record_lines,
    redact,
)
from sglang_kit.quantity import GIB, from_gib


def lines(text: str, **more: object) -> list[Line]:
    return [Line(number, line, **more) for number, line in enumerate(text.splitlines(), start=1)]  # type: ignore[arg-type]


def only(text: str, source: str = journal.ENGINE, version: str | None = None) -> Event:
    (event,) = read([Line(1, text, source=source)], version)
    return event


# --- the table


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        (
            "[2026-11-29 13:28:13] Init torch distributed ends. elapsed=0.23 s, mem usage=0.09 GB",
            "distributed_end",
            {"elapsed_seconds": 0.23, "used_bytes": from_gib(0.09)},
        ),
        ("[2026-11-29 13:28:13] Init parallel begin.", "distributed_begin", {}),
        (
            "[2026-11-29 13:28:16 TP3] Load weight begin. avail mem=93.57 GB",
            "weights_begin",
            {"free_bytes": from_gib(93.57)},
        ),
        (
            (
                "[2026-11-29 13:28:16] Load weight end. elapsed=0.39 s, type=Qwen3MoeForCausalLM,"
                " quant=fp8, fmt=e4m3, avail mem=42.52 GB, mem usage=-0.00 GB."
            ),
            "weights_end",
            {
                "elapsed_seconds": 0.39,
                "type": "Qwen3MoeForCausalLM",
                "quantization": "quant=fp8, fmt=e4m3",
                "free_bytes": from_gib(42.52),
                "used_bytes": 0,
            },
        ),
        (
            (
                "[..] Mamba Cache is allocated. max_mamba_cache_size: 24, conv_state size: 0.07GB,"
                " ssm_state size: 3.52GB "
            ),
            "state_cache",
            {"state_slots": 24, "conv_bytes": from_gib(0.07), "ssm_bytes": from_gib(3.52)},
        ),
        (
            "[..] KV Cache is allocated. #tokens: 11893, KV size: 0.50 GB",
            "kv_cache",
            {"kv_tokens": 11893, "kv_bytes": GIB // 2},
        ),
        (
            "SWA KV Cache VA upper bound. dtype: torch.float8, #tokens: 9, K size: 1.00 GB, V size: 1.00 GB",
            "kv_cache",
            {"label": "SWA", "dtype": "torch.float8", "kv_tokens": 9, "k_bytes": GIB, "v_bytes": GIB},
        ),
        (
            "[..] Capture cuda graph begin. This can take up to several minutes. avail mem=12.00 GB",
            "graph_begin",
            {"what": "cuda graph", "free_bytes": 12 * GIB},
        ),
        (
            (
                "[..] Capture draft extend cuda graph begin (step 1). This can take up to several minutes."
                " avail mem=12.00 GB"
            ),
            "graph_begin",
            {"what": "draft extend cuda graph", "free_bytes": 12 * GIB},
        ),
        (
            (
                "[..] Capture target decode CUDA graph end. bs=[1, 2], elapsed=2.50 s, mem usage=0.25 GB,"
                " avail mem=11.75 GB."
            ),
            "graph_end",
            {
                "what": "target decode CUDA graph",
                "elapsed_seconds": 2.5,
                "used_bytes": GIB // 4,
                "free_bytes": from_gib(11.75),
            },
        ),
        (
            "INFO:     Uvicorn running on https://[::1]:31000 (Press CTRL+C to quit)",
            "listen",
            {"url": "https://[::1]:31000", "bound_port": 31000},
        ),
        (
            "launch_server.py: error: argument --tp-size: invalid int value: 'x'",
            "usage_error",
            {"program": "launch_server.py", "message": "argument --tp-size: invalid int value: 'x'"},
        ),
        (
            (
                "[..] ERROR:    [Errno 98] error while attempting to bind on address ('::1', 30000, 0, 0):"
                " address already in use"
            ),
            "bind_failed",
            {"errno_code": 98, "host": "::1", "bound_port": 30000, "message": "address already in use"},
        ),
        (
            "[..] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
            "watchdog",
            {"who": "Scheduler", "limit_seconds": 300.0},
        ),
        (
            "[..] Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT...",
            "child_ended",
            {"who": "scheduler_0", "ended_pid": 77, "exit_code": -9},
        ),
        ("Loading safetensors checkpoint shards:  25% Completed | 1/4", "progress", None),
        ("Capturing batches (bs=8):  50%|█████     | 1/2 [00:01<00:01]", "progress", None),
    ],
)
def test_a_line_is_read_with_its_units(text: str, kind: str, fields: dict[str, object] | None) -> None:
    event = only(text)
    assert event.kind == kind
    assert fields is None or dict(event.fields) == fields


@pytest.mark.parametrize(
    ("text", "kind", "source"),
    [
        ("Failed at step EXEC spawning /opt/x/python: No such file or directory", "exec_failed", SYSTEMD),
        ("sglang-a.service: start operation timed out. Terminating.", "unit_result", SYSTEMD),
        ("sglang-a.service: Failed with result 'oom-kill'.", "unit_result", SYSTEMD),
        ("Stopping sglang-a.service - SGLang a...", "unit_stop", SYSTEMD),
        (
            "Memory cgroup out of memory: Killed process 7 (sglang::schedul) total-vm:1kB, anon-rss:2048kB",
            "kernel_oom",
            KERNEL,
        ),
        ("NVRM: Xid (PCI:0000:41:00): 79, pid=7, name=python, GPU has fallen off the bus.", "xid", KERNEL),
        ("Suppressed 12 messages from sglang-a.service", "suppressed", JOURNALD),
    ],
)
def test_systemd_kernel_and_journald_are_read(text: str, kind: str, source: str) -> None:
    assert only(text, source).kind == kind
    assert [event.kind for event in read([Line(1, text)])] in ([], ["exec_failed"])


def test_fields_of_the_kernel_are_typed() -> None:
    event = only("Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:2048kB", KERNEL)
    assert (event.integer("killed_pid"), event.integer("resident_bytes")) == (7, 2 << 20)


def test_a_field_that_is_no_number_is_refused_as_one() -> None:
    event = only("sglang serve: error: x")
    with pytest.raises(TypeError, match=r"usage_error\.message is 'x'"):
        event.integer("message")


def test_rows_of_other_versions_are_left_out() -> None:
    new, old = "[..] Init parallel begin.", "[..] Init torch distributed begin."
    kinds = {version: len(list(read(lines(f"{new}\n{old}"), version))) for version in SUPPORTED}
    assert set(kinds.values()) == {1}
    assert len(list(read(lines(f"{new}\n{old}")))) == 2


def test_a_line_is_at_most_one_event() -> None:
    text = "[2026-11-29 13:28:13 DP0 PP1 TP2 EP3] Load weight begin. avail mem=1.00 GB"
    event = only(text)
    assert (event.rank, event.number, event.text) == ("DP0 PP1 TP2 EP3", 1, text)


@pytest.mark.parametrize(
    "text",
    [
        f"Memory pool end. avail mem={'9' * 400} GB",
        f"Uvicorn running on http://host:{'9' * 5000}",
        f"server_args=ServerArgs(port={'9' * 5000})",
    ],
)
def test_numbers_beyond_all_reason_are_no_event(text: str) -> None:
    assert list(read([Line(1, text)])) == []


@given(st.text())
def test_any_text_is_read_without_a_fault(text: str) -> None:
    for event in read([Line(1, text)]):
        assert event.lines


# --- prefixes and progress bars


def test_a_progress_bar_that_runs_into_a_line_hides_nothing() -> None:
    text = (
        "Compiling:   0%|    | 0/58 [00:00<?, ?it/s][2026-11-29 13:18:06] Memory pool end. avail mem=1.00 GB"
    )
    progress, pools = read([Line(4, text)])
    assert (progress.kind, progress.fields["done_percent"]) == ("progress", 0)
    assert (pools.kind, pools.number) == ("pools_end", 4)


def test_carriage_returns_and_colours_are_taken_off() -> None:
    text = "\x1b[32mshards:   0% Completed | 0/1\rshards: 100% Completed | 1/1\x1b[0m"
    assert [event.fields["done_percent"] for event in read([Line(1, text)])] == [0, 100]


def test_torch_names_its_rank_in_front_of_a_traceback() -> None:
    text = "[rank3]: Traceback (most recent call last):\n[rank3]:   File 'x'\n[rank3]: ValueError: bad"
    (event,) = read(lines(text))
    assert (event.rank, str(event.raised[0])) == ("rank3", "ValueError: bad")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", Line(1, "plain")),
        (
            "[2026-11-29 00:00:01] x",
            Line(1, "[2026-11-29 00:00:01] x", 1795910401.0),
        ),
        ("Nov 29 13:28:13 host python[12]: x", Line(1, "x", pid=12)),
        (
            "2026-11-29T13:28:13+0000 host systemd[1]: Starting x",
            Line(1, "Starting x", pid=1, source=SYSTEMD),
        ),
        ("Nov  9 13:28:13.123456 host kernel: NVRM", Line(1, "NVRM", source=KERNEL)),
        ("2025-10-09T04:12:14.2996491Z x", Line(1, "x")),
        ("sglang-1  | x", Line(1, "x")),
        ("[2026-02-30 00:00:01] x", Line(1, "[2026-02-30 00:00:01] x")),
    ],
)
def test_a_pasted_line_loses_the_journal_prefix(text: str, expected: Line) -> None:
    assert parse_text(1, text) == expected


# --- secrets


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(api_key='sk-1', admin_api_key='sk-2')",
        "server_args={'api_key': 'sk-1', 'ssl_keyfile_password': \"sk-2\"}",
        "launched with --api-key sk-1 --admin-api-key=sk-2",
        "['--api-key', 'sk-1', '--port', '1']",
        '{"api_key": "sk-1", "argv": ["--admin-api-key", "sk-2", "--port", "1"]}',
        'Authorization: "Bearer sk-1"',
    ],
)
def test_secrets_are_masked_in_events(text: str) -> None:
    assert "sk-" not in redact(text)
    for event in read([Line(1, f"{text} Memory pool end. avail mem=1.00 GB")]):
        assert "sk-" not in event.text


def test_arguments_are_read_from_both_forms_without_secrets() -> None:
    old = "server_args=ServerArgs(model_path='/m', tp_size=2, mem_fraction_static=0.85, api_key='s', port=1)"
    new = "server_args={'model_path': '/m', 'tp_size': 2, 'mem_fraction_static': 0.85, 'port': 1}"
    for text in (old, new):
        assert only(text).fields == {"model_path": "/m", "tp_size": 2, "mem_fraction_static": 0.85, "port": 1}


def test_arguments_that_are_no_number_stay_texts() -> None:
    assert only("server_args={'skip_server_warmup': True, 'device': None, 'load_format': auto}").fields == {
        "skip_server_warmup": True,
        "device": None,
        "load_format": "auto",
    }


# --- tracebacks

TRACE = """\
[2026-11-29 13:28:13 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/scheduler.py", line 1, in run
    load()
OSError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/sglang/scheduler.py", line 2, in run
    raise RuntimeError
RuntimeError: second
with a second line

[2026-11-29 13:28:14] SIGQUIT received. signum=None"""


def test_a_chained_traceback_is_one_event_with_its_exceptions_in_order() -> None:
    exception, trace, sigquit = read(lines(TRACE))
    assert [event.kind for event in (exception, trace, sigquit)] == [
        "child_exception",
        "traceback",
        "child_failed",
    ]
    assert [str(raised) for raised in trace.raised] == [
        "OSError: first",
        "RuntimeError: second\nwith a second line",
    ]
    assert [raised.number for raised in trace.raised] == [4, 11]
    assert (trace.number, len(trace.lines), trace.rank) == (1, 12, "TP0")
    assert trace.fields == {"context": "Scheduler hit an exception", "decisive": True}


def test_tracebacks_of_interleaved_processes_are_kept_apart() -> None:
    head = "Traceback (most recent call last):"
    texts = [(1, head), (2, head), (1, "  File 'a'"), (2, "  File 'b'"), (1, "AError: a"), (2, "BError: b")]
    events = list(read(Line(n, text, pid=pid) for n, (pid, text) in enumerate(texts, start=1)))
    assert [str(event.raised[0]) for event in events] == ["AError: a", "BError: b"]


def test_other_output_does_not_enter_a_message() -> None:
    text = (
        "Traceback (most recent call last):\n  File 'a'\nA note of another process\nValueError\n"
        "host:235:235 [1] NCCL INFO Channel 13/0\nINFO:     Shutting down"
    )
    (event,) = read(lines(text))
    assert str(event.raised[0]) == "ValueError"
    assert len(event.lines) == 3


def test_a_second_traceback_of_the_same_process_ends_an_unfinished_one() -> None:
    head = "[2026-11-29 13:28:13] Scheduler hit an exception: Traceback (most recent call last):"
    events = list(read(lines(f"{head}\n  File 'a'\n{head}\n  File 'b'\nXError: x")))
    traces = [event for event in events if event.kind == "traceback"]
    assert [trace.raised[0].type if trace.raised else "" for trace in traces] == ["", "XError"]


def test_a_finished_traceback_ends_at_the_next_one() -> None:
    one = "Traceback (most recent call last):\n  File 'a'\nAError: a"
    assert len(list(read(lines(f"{one}\n{one}")))) == 2


@pytest.mark.parametrize(
    ("before", "frame", "kind", "decisive"),
    [
        ("", 'File "/x/sglang/launch_server.py", line 1, in <module>', "traceback", True),
        ("", 'File "/x/torch/_inductor/compile_worker.py", line 1, in <module>', "traceback", False),
        ("", 'File "/x/sglang/srt/utils.py", line 1, in probe', "traceback", False),
        ("Exception ignored in: <function f>", 'File "x", line 1, in f', "ignored_traceback", False),
        ("Exception in thread Thread-1 (f):", 'File "x", line 1, in f', "traceback", False),
        (
            "[2026-11-29 13:28:13] ERROR:    Exception in ASGI application",
            'File "x"',
            "ignored_traceback",
            False,
        ),
        ("Process SpawnProcess-1:", 'File "/x/sglang/a.py", line 1, in _bootstrap', "traceback", True),
    ],
)
def test_a_traceback_is_decisive_when_it_ended_its_process(
    before: str, frame: str, kind: str, decisive: bool
) -> None:
    text = f"{before}\nTraceback (most recent call last):\n  {frame}\nXError: x"
    (event,) = read(lines(text))
    assert (event.kind, event.fields["decisive"]) == (kind, decisive)


def test_a_traceback_does_not_grow_for_ever() -> None:
    fold = Fold()
    list(fold.feed(Line(1, "Traceback (most recent call last):", 1.0)))
    for number in range(2, journal.LONGEST_TRACEBACK + 100):
        list(fold.feed(Line(number, "  File 'x'", 2.0)))
    assert fold.open_since == 2.0
    (event,) = fold.close()
    assert len(event.lines) == journal.LONGEST_TRACEBACK
    assert fold.open_since is None


# --- records of a journal


def record(**fields: object) -> str:
    base = {
        "MESSAGE": "text",
        "__CURSOR": "s=1",
        "__REALTIME_TIMESTAMP": "1795910401000000",
        "__MONOTONIC_TIMESTAMP": "12500000",
        "_BOOT_ID": "b1",
        "_PID": "77",
        "_TRANSPORT": "stdout",
        "_SYSTEMD_INVOCATION_ID": "new",
    }
    return json.dumps({**base, **fields})


def test_a_record_carries_time_process_boot_and_invocation() -> None:
    parsed = parse_record(record())
    assert parsed is not None
    assert (parsed.text, parsed.time, parsed.wall) == ("text", 12.5, 1795910401.0)
    assert (parsed.pid, parsed.boot, parsed.invocation, parsed.cursor) == (77, "b1", "new", "s=1")
    assert parsed.source == journal.ENGINE


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([72, 105, 13, 255], "Hi\r\\xff"),
        (["one", [116, 119, 111]], "one\ntwo"),
        (["one", [300], [["two"]], None], "one\n\n\n"),
        ("\ud800", "\\ud800"),
        (None, ""),
    ],
)
def test_a_message_may_be_bytes_several_or_missing(message: object, text: str) -> None:
    parsed = parse_record(record(MESSAGE=message))
    assert parsed is not None
    assert parsed.text == text


@pytest.mark.parametrize("raw", ['{"MESSAGE": "cut', "[]", '{"X": 1}', b"\xff", "", '{"a":' * 100_000])
def test_what_is_no_record_is_none(raw: str | bytes) -> None:
    assert parse_record(raw) is None


@pytest.mark.parametrize(("pid", "time"), [(None, "x"), ("\u00b2", "\u00b2"), ("9" * 5000, "9" * 5000)])
def test_a_record_without_numbers_is_still_read(pid: str | None, time: str) -> None:
    parsed = parse_record(record(_PID=pid, __MONOTONIC_TIMESTAMP=time))
    assert parsed is not None
    assert (parsed.pid, parsed.time) == (None, 0.0)


@pytest.mark.parametrize(
    ("fields", "source", "invocation"),
    [
        ({"_TRANSPORT": "kernel"}, KERNEL, "new"),
        ({"_PID": "1", "INVOCATION_ID": "unit's", "_TRANSPORT": "journal"}, SYSTEMD, "unit's"),
        ({"_TRANSPORT": "driver"}, JOURNALD, "new"),
    ],
)
def test_the_source_of_a_record(fields: dict[str, object], source: str, invocation: str) -> None:
    parsed = parse_record(record(**fields))
    assert parsed is not None
    assert (parsed.source, parsed.invocation) == (source, invocation)


def test_old_events_cannot_leak_into_a_new_invocation() -> None:
    """The stale-log trap: an old failure is in the journal, and only it would explain one."""
    old = {"_SYSTEMD_INVOCATION_ID": "old", "MESSAGE": "Memory pool end. avail mem=1.00 GB"}
    planted = [
        record(**old),
        record(**{**old, "_PID": "1", "INVOCATION_ID": "old", "_SYSTEMD_INVOCATION_ID": "new"}),
        record(**old, _TRANSPORT="kernel", _BOOT_ID="b0"),
        record(**old, _TRANSPORT="kernel", __MONOTONIC_TIMESTAMP="9000000"),
        record(_TRANSPORT="driver", MESSAGE="Suppressed 3 messages from sglang-other.service"),
    ]
    ours = [
        record(MESSAGE="ours"),
        record(MESSAGE="systemd's", _PID="1", INVOCATION_ID="new", _SYSTEMD_INVOCATION_ID="x"),
        record(MESSAGE="kernel's", _TRANSPORT="kernel"),
        record(_TRANSPORT="driver", MESSAGE="Suppressed 3 messages from sglang-a.service"),
    ]
    parsed = [one for raw in planted + ours if (one := parse_record(raw))]
    kept = of_invocation(parsed, invocation="new", unit="sglang-a.service", boot="b1", since=10.0)
    assert [one.text for one in kept] == [
        "ours",
        "systemd's",
        "kernel's",
        "Suppressed 3 messages from sglang-a.service",
    ]


def test_records_become_numbered_lines() -> None:
    parsed = [one for raw in (record(MESSAGE="a\nb"), record(MESSAGE="c")) if (one := parse_record(raw))]
    found = list(record_lines(parsed, first=5))
    assert [(line.number, line.text, line.pid, line.time) for line in found] == [
        (5, "a", 77, 12.5),
        (6, "b", 77, 12.5),
        (7, "c", 77, 12.5),
    ]


# --- pools


def test_pools_of_several_ranks_are_folded() -> None:
    text = """\
[2026-11-29 13:28:16 TP0] Load weight begin. avail mem=93.00 GB
[2026-11-29 13:28:16 TP1] Load weight begin. avail mem=92.00 GB
[2026-11-29 13:28:16 TP0] Load weight end. elapsed=1 s, type=A, avail mem=43.00 GB, mem usage=50.00 GB.
[2026-11-29 13:28:16 TP1] Load weight end. elapsed=1 s, type=A, avail mem=41.00 GB, mem usage=51.00 GB.
[2026-11-29 13:28:16 TP0] Memory pool end. avail mem=3.00 GB
[2026-11-29 13:28:16 TP1] Memory pool end. avail mem=2.00 GB"""
    found = allocated(read(lines(text)))
    assert found == Allocated(
        free_before_bytes=92 * GIB, weights_bytes=51 * GIB, free_after_pools_bytes=2 * GIB
    )
    assert set(found.as_dict()) == {"free_before_bytes", "weights_bytes", "free_after_pools_bytes"}


def test_the_second_of_a_kind_is_the_draft_models_in_either_order() -> None:
    weights = "[..] Load weight end. elapsed=1 s, type=A, avail mem=9.00 GB, mem usage={} GB."
    pool = "[..] KV Cache is allocated. #tokens: 10, KV size: {} GB"
    old = [weights.format("5.00"), pool.format("2.00"), weights.format("1.00"), pool.format("0.50")]
    new = [old[0], old[2], old[1], old[3]]
    for texts in (old, new):
        found = allocated(read(lines("\n".join(texts))))
        assert (found.weights_bytes, found.draft_weights_bytes) == (5 * GIB, GIB)
        assert (found.kv_bytes, found.draft_kv_bytes, found.draft_kv_tokens) == (2 * GIB, GIB // 2, 10)


def test_sliding_windows_index_pools_graphs_and_resizing() -> None:
    text = """\
[..] Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100, K size: 1.00 GB, V size: 1.00 GB
[..] SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 80, K size: 0.50 GB, V size: 0.50 GB
[..] MiniMax MSA index KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, KV size: 0.50 GB
[..] Capture target decode CUDA graph end. bs=[1], elapsed=1 s, mem usage=0.25 GB, avail mem=1.00 GB.
[..] Capture draft decode CUDA graph end. bs=[1], elapsed=1 s, mem usage=0.25 GB, avail mem=1.00 GB.
[..] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 90, KV size: 1.50 GB
[..] Load weight end. Committed real weights after CUDA graph capture in 1.00 s"""
    found = allocated(read(lines(text)))
    assert found.as_dict() == {
        "k_bytes": GIB,
        "v_bytes": GIB,
        "kv_bytes": 3 * GIB // 2,
        "kv_tokens": 90,
        "swa_tokens": 80,
        "swa_kv_bytes": GIB,
        "graphs_bytes": GIB // 2,
    }


def test_a_window_pool_without_a_label_is_no_model_of_its_own() -> None:
    row = "[..] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {}, K size: {} GB, V size: {} GB"
    summary = (
        "[..] max_total_num_tokens=100, chunked_prefill_size=8, max_prefill_tokens=16,"
        " max_running_requests=4, context_len=90, available_gpu_mem=1.00 GB"
    )
    texts = [row.format(80, "1.00", "1.00"), row.format(100, "2.00", "2.00"), summary]
    found = allocated(read(lines("\n".join(texts))))
    assert (found.swa_tokens, found.swa_kv_bytes) == (80, 2 * GIB)
    assert (found.kv_tokens, found.k_bytes, found.kv_bytes) == (100, 2 * GIB, 4 * GIB)
    assert found.draft_kv_tokens is None
    halves = allocated(read(lines("\n".join(text.replace("KV Cache", "SWA KV Cache") for text in texts))))
    assert (halves.kv_tokens, halves.swa_tokens, halves.total_tokens) == (None, 80, 100)
    texts.insert(2, row.format(100, "0.25", "0.25"))
    found = allocated(read(lines("\n".join(texts))))
    assert (found.swa_tokens, found.kv_tokens, found.kv_bytes) == (80, 100, 4 * GIB)
    assert (found.draft_kv_tokens, found.draft_kv_bytes) == (100, GIB // 2)


# --- lines that journald has broken


def test_a_line_longer_than_journald_takes_is_one_line_again() -> None:
    parts = [
        parse_record(record(MESSAGE="launch_server.py: error: ", _LINE_BREAK="line-max")),
        parse_record(record(MESSAGE="another process", _PID="78")),
        parse_record(record(MESSAGE="unrecognized ", _LINE_BREAK="line-max")),
        parse_record(record(MESSAGE="arguments: --x")),
        parse_record(record(MESSAGE="cut", _LINE_BREAK="line-max")),
    ]
    found = record_lines(part for part in parts if part is not None)
    assert [(line.number, line.text, line.pid) for line in found] == [
        (1, "another process", 78),
        (2, "launch_server.py: error: unrecognized arguments: --x", 77),
        (3, "cut", 77),
    ]


@pytest.mark.parametrize("end", [".", ""], ids=["now", "of-older-launchers"])
def test_the_launchers_last_word_holds_its_verdict(end: str) -> None:
    text = (
        f"sglang-metal: the engine had to be killed in stage serving: the key is refused: HTTP 401{end}"
        " What to do: give both the same key [cause: api-key-refused, phase: serving]"
    )
    event = only(text)
    assert (event.kind, dict(event.fields)) == (
        "judged",
        {
            "sentence": "the key is refused: HTTP 401",
            "remedy": "give both the same key",
            "cause": "api-key-refused",
            "phase": "serving",
        },
    )
