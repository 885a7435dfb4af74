"""Every recorded run of a real engine, judged: stages, pools, verdict, cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from sglang_kit.journal import Line
from sglang_kit.quantity import GIB
from sglang_kit.readiness import Expectation, Follower, UnitState, Verdict, child_state

from tests.replay.build import RECORDINGS
from tests.replay.recording import load

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTED = ("arguments", "import", "distributed", "weights", "kv_cache", "graphs", "warm_up", "serving")


@dataclass(frozen=True)
class Expected:
    state: str
    cause: str = ""
    phase: str = ""
    stages: tuple[str, ...] = STARTED
    allocated: Mapping[str, float] = field(default_factory=dict)


CPU_POOLS = {"kv_tokens": 8192, "total_tokens": 8192, "running_requests": 8, "context_tokens": 1024}

CASES: dict[str, Expected] = {
    "0.5.11/h200-dense-ready-with-graphs.log": Expected(
        "ready",
        allocated={
            "free_before_bytes": 139.13,
            "weights_bytes": 15.28,
            "kv_tokens": 803502,
            "k_bytes": 55.17,
            "v_bytes": 55.17,
            "graphs_bytes": 1.29,
            "running_requests": 4096,
            "context_tokens": 40960,
            "free_bytes": 11.43,
        },
    ),
    "0.5.11/h200-mtp-noradix-ready.log": Expected(
        "ready",
        # The draft model is loaded after the target's pools: the stages come twice.
        stages=(
            *("arguments", "import", "distributed", "weights", "state_cache", "kv_cache", "graphs"),
            *("distributed", "weights", "kv_cache", "graphs", "warm_up", "serving"),
        ),
        allocated={
            "weights_bytes": 51.05,
            "draft_weights_bytes": 5.53,
            "state_slots": 8,
            "conv_bytes": 0.02,
            "ssm_bytes": 1.27,
            "intermediate_ssm_bytes": 5.06,
            "intermediate_conv_bytes": 0.10,
            "kv_tokens": 372189,
            "k_bytes": 11.36,
            "v_bytes": 11.36,
            "draft_kv_tokens": 372189,
            "draft_kv_bytes": 1.42,
            "free_after_pools_bytes": 6.25,
            "running_requests": 8,
            "context_tokens": 32768,
            "free_bytes": 10.99,
        },
    ),
    "0.5.11/h200-mtp-no_buffer-refused.log": Expected(
        "failed", "speculation-needs-extra-buffer", "arguments", stages=("arguments",)
    ),
    "0.5.11/h200-image-processor-config-missing.log": Expected(
        "failed", "model-file-missing", "import", stages=("arguments", "import")
    ),
    "0.5.12.post1/h200-mtp-reserve-takes-all.log": Expected(
        "failed", "no-memory-for-kv-cache", "kv_cache", STARTED[:5]
    ),
    "0.5.12.post1/h200-weights-take-all.log": Expected(
        "failed", "no-memory-for-kv-cache", "kv_cache", STARTED[:5]
    ),
    "0.5.15.post1/h200-dflash-window-refused.log": Expected(
        "failed", "draft-window-missing", "weights", (*STARTED[:5], "distributed", "weights")
    ),
    "0.5.15.post1/h200-sliding-window-ready.log": Expected(
        "ready",
        allocated={
            "weights_bytes": 15.02,
            "kv_tokens": 2335843,
            "k_bytes": 26.73,
            "swa_tokens": 1868674,
            "swa_kv_bytes": 42.78,
        },
    ),
    "0.5.15.post1/cpu-gpt2-ready-then-stopped.log": Expected(
        "stopped", "stopped-by-request", "serving", allocated=CPU_POOLS
    ),
    "0.5.23/cpu-gpt2-ready-then-stopped.log": Expected(
        "stopped", "stopped-by-request", "serving", allocated=CPU_POOLS
    ),
}

TO_IMPORT = STARTED[:2]
TO_DISTRIBUTED = STARTED[:3]
TO_WEIGHTS = STARTED[:4]
TO_KV_CACHE = STARTED[:5]
TO_WARM_UP = STARTED[:7]

# Recorded on a CPU with both versions.
CPU_CASES: dict[str, Expected] = {
    "ready-then-stopped": Expected("stopped", "stopped-by-request", "serving", allocated=CPU_POOLS),
    "unknown-flag": Expected("failed", "argument-unknown", "arguments", STARTED[:1]),
    "unknown-algorithm": Expected("failed", "speculative-algorithm-unknown", "arguments", STARTED[:1]),
    "context-too-long": Expected("failed", "context-too-long", "arguments", STARTED[:1]),
    "port-held": Expected("failed", "port-in-use", "warm_up", TO_WARM_UP),
    "port-held-by-server": Expected("failed", "port-in-use", "warm_up"),
    "nccl-port-held": Expected("failed", "nccl-port-in-use", "distributed", TO_DISTRIBUTED),
    "kv-below-context": Expected(
        "stopped", "stopped-by-request", "serving", allocated={"kv_tokens": 512, "context_tokens": 1024}
    ),
    "no-memory-for-kv": Expected("failed", "no-memory-for-kv-cache", "kv_cache", TO_KV_CACHE),
    "model-missing": Expected("failed", "model-missing", "arguments", STARTED[:1]),
    "config-missing": Expected("failed", "model-file-missing", "arguments", STARTED[:1]),
    "tokenizer-missing": Expected("failed", "model-file-missing", "import", TO_IMPORT),
    "weights-missing": Expected("failed", "weights-missing", "weights", TO_WEIGHTS),
    "weights-truncated": Expected("failed", "weights-damaged", "weights", TO_WEIGHTS),
    "weights-truncated-in-header": Expected("failed", "weights-damaged", "weights", TO_WEIGHTS),
    "architecture-unknown": Expected("failed", "architecture-unknown", "arguments", STARTED[:1]),
    "scheduler-killed-loading": Expected("failed", "scheduler-killed", "distributed", TO_DISTRIBUTED),
    "scheduler-killed-serving": Expected("failed", "scheduler-killed", "serving"),
    "main-killed": Expected("failed", "main-process-killed", "serving"),
    "stopped-loading": Expected("stopped", "stopped-by-request", "distributed", TO_DISTRIBUTED),
    "hang-loading": Expected("loading", stages=TO_DISTRIBUTED),
    "import-error-at-start": Expected("failed", "import-failed", "import", STARTED[:1]),
    "library-missing": Expected("failed", "library-missing", "import", STARTED[:1]),
    "behind-proxy": Expected("failed", "loopback-through-proxy", "warm_up", TO_WARM_UP),
    "api-key": Expected("stopped", "stopped-by-request", "serving"),
}
CPU_CASES_THAT_DIFFER: dict[str, Expected] = {
    # An alias of the new name until 0.5.18.
    "0.5.15.post1/cpu-removed-flag.jsonl": Expected("stopped", "stopped-by-request", "serving"),
    "0.5.23/cpu-removed-flag.jsonl": Expected("failed", "argument-ambiguous", "arguments", STARTED[:1]),
    "0.5.15.post1/cpu-schema-on-cpu.jsonl": Expected("failed", "grammar-backend-unsupported", "serving"),
    "0.5.23/cpu-schema-on-cpu.jsonl": Expected("stopped", "stopped-by-request", "serving"),
    # The grammar package is imported when it is used first.
    "0.5.15.post1/cpu-import-error.jsonl": Expected("failed", "import-failed", "import", TO_WARM_UP),
    "0.5.23/cpu-import-error.jsonl": Expected("failed", "import-failed", "import", STARTED[:1]),
    "0.5.15.post1/cpu-disk-full.jsonl": Expected("failed", "disk-full", "warm_up", TO_WARM_UP),
    "0.5.23/cpu-disk-full.jsonl": Expected("failed", "disk-full", "distributed", TO_DISTRIBUTED),
    "0.5.15.post1/cpu-shared-memory-full.jsonl": Expected(
        "failed", "shared-memory-full", "import", TO_IMPORT
    ),
    "0.5.23/cpu-shared-memory-full.jsonl": Expected(
        "failed", "shared-memory-full", "distributed", TO_DISTRIBUTED
    ),
}
VERSIONS = ("0.5.15.post1", "0.5.23")
CASES |= {
    f"{version}/cpu-{case}.jsonl": expected for version in VERSIONS for case, expected in CPU_CASES.items()
}
CASES |= CPU_CASES_THAT_DIFFER


def judge(name: str) -> Verdict:
    recording = load(RECORDINGS / name)
    follower = Follower(Expectation(log_only=True, engine_version=recording.version))
    for number, (at, text) in enumerate(recording.lines, start=1):
        follower.feed([Line(number, text, at)], at)
    unit = None
    if recording.stopped_at is not None:
        unit = UnitState(active_state="inactive", started=1.0)
    elif recording.returncode is not None:
        unit = child_state(pid=0, returncode=recording.returncode)
    return follower.observe(recording.ended_at, unit=unit, ended=True)


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_run_is_judged_rightly(name: str) -> None:
    expected, verdict = CASES[name], judge(name)
    assert (verdict.state, verdict.cause, verdict.phase) == (expected.state, expected.cause, expected.phase)
    assert tuple(stage.name for stage in verdict.stages) == expected.stages
    allocated = verdict.allocated.as_dict()
    for pool, amount in expected.allocated.items():
        scale = GIB if pool.endswith("_bytes") else 1
        assert allocated[pool] / scale == pytest.approx(amount, abs=1e-6), pool


def test_every_recording_has_its_case() -> None:
    recordings = (path for path in RECORDINGS.glob("*/*") if path.suffix != ".json")
    assert {f"{path.parent.name}/{path.name}" for path in recordings} == set(CASES)
