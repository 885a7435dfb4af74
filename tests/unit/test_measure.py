"""The client of the engine is run as the account, and what it cannot measure has a reason."""

from __future__ import annotations

import json
import os
import pwd
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import measure, present, status, systemd
from sglang_kit.benchmark import Load
from sglang_kit.readiness import Answers, UnitState

from tests import modules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

ME = pwd.getpwuid(os.geteuid()).pw_name
LOAD = {"requests_per_client": 2, "input_tokens": 8, "output_tokens": 4, "seed": 1}
RUNNING = UnitState(active_state="active", sub_state="running", main_pid=7, invocation="i")
RESULT = {"completed": 4, "output_throughput": 159.1, "server_info": {}}
CLIENT = """#!/bin/sh
env > {place}/environment
printf '%s\\n' "$@" > {place}/words
while [ "$1" != --output-file ]; do shift; done
echo '{result}' > "$2"
echo "key-0123456789 is refused"
exit {status}
"""


class Bench:
    """A release whose client does as it is told, and an instance that serves four requests."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.unit = RUNNING
        self.proof: dict[str, Any] = {"allocated": {"kv_tokens": 8192}}
        (place / "key").write_text("key-0123456789", encoding="utf-8")
        self.plan = {
            "name": "benchmark",
            "unit": "sglang-benchmark.service",
            "release": str(place),
            "host": "127.0.0.1",
            "port": 30090,
            "model": "/m",
            "secrets": {},
        }
        self.client()

    def client(self, *, code: int = 0, result: dict[str, Any] = RESULT, text: str = "") -> None:
        program = self.place / "bin" / "python"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            text or CLIENT.format(place=self.place, result=json.dumps(result), status=code), encoding="utf-8"
        )
        program.chmod(0o755)

    def level(self, concurrency: int = 2, seconds: int = 60) -> dict[str, Any]:
        return measure.level(
            self.plan, Load(**LOAD), concurrency=concurrency, user=ME, timeout_seconds=seconds
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    monkeypatch.setattr(systemd, "unit_states", lambda units: dict.fromkeys(units, bench.unit))
    monkeypatch.setattr(present, "proof", lambda _name, _invocation: bench.proof)
    monkeypatch.setattr(status, "ask", lambda _plan: Answers())
    monkeypatch.setattr(status, "served", lambda _answers, _proof: 4)
    return bench


def test_a_level_is_measured_without_gpus_and_without_a_network_of_models(bench: Bench) -> None:
    assert bench.level() == {
        "result": "measured",
        "effective": 4,
        "allocated": {"kv_tokens": 8192},
        "measured": {"completed": 4, "output_throughput": 159.1},
    }
    environment = (bench.place / "environment").read_text(encoding="utf-8").splitlines()
    assert {"CUDA_VISIBLE_DEVICES=", "HF_HUB_OFFLINE=1"} <= set(environment)
    assert not any(line.startswith("OPENAI_API_KEY") for line in environment)


def test_a_key_reaches_the_client_by_its_environment_alone(bench: Bench) -> None:
    bench.plan["secrets"] = {"api_key": str(bench.place / "key")}
    assert bench.level()["result"] == "measured"
    environment = (bench.place / "environment").read_text(encoding="utf-8")
    assert "OPENAI_API_KEY=key-0123456789" in environment
    assert "key-0123456789" not in (bench.place / "words").read_text(encoding="utf-8")


def test_more_than_is_served_at_once_is_skipped(bench: Bench) -> None:
    assert bench.level(8) == {
        "result": "skipped",
        "effective": 4,
        "allocated": {"kv_tokens": 8192},
        "reason": "the engine serves 4 requests at once, 8 were asked for",
    }
    assert not (bench.place / "words").exists()


def test_an_engine_that_does_not_tell_what_it_serves_is_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "served", lambda _answers, _proof: None)
    assert bench.level()["result"] == "measured"


def test_a_client_that_fails_is_told_without_the_key(bench: Bench) -> None:
    bench.plan["secrets"] = {"api_key": str(bench.place / "key")}
    bench.client(code=1)
    found = bench.level()
    assert (found["result"], found["cause"]) == ("failed", "")
    assert found["reason"] == "the client failed: *** is refused"


def test_requests_that_were_not_served_are_a_failure(bench: Bench) -> None:
    bench.client(result={**RESULT, "completed": 3})
    assert bench.level()["reason"] == "the client failed: only 3 of its requests were served"


def test_a_client_that_hangs_is_ended(bench: Bench) -> None:
    bench.client(text="#!/bin/sh\necho so far so good\nexec sleep 60\n")
    assert bench.level(seconds=1)["reason"] == "the client failed: so far so good"


def test_an_engine_that_has_ended_is_the_cause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.client(code=1)
    bench.unit = UnitState(active_state="failed", sub_state="failed", invocation="i")
    told = SimpleNamespace(cause="gpu-out-of-memory", sentence="the GPU had no memory left")
    monkeypatch.setattr(status, "judge", lambda _plan, _unit: told)
    found = bench.level()
    assert (found["cause"], found["reason"]) == ("gpu-out-of-memory", "the GPU had no memory left")


# --- the module ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return modules.load("sglang_benchmark")


def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    assert modules.documented(module) == module.ARGUMENTS


def test_the_module_answers_what_was_measured(
    module: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    monkeypatch.setattr(module.measure, "level", measure.level)
    answer = modules.run(module, capsys, {"plan": bench.plan, "concurrency": 2, "load": LOAD, "user": ME})
    assert answer["result"] == "measured"
    assert not answer["changed"]
