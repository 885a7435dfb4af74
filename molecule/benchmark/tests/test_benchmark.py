"""A matrix is measured with the real engine, goes on after an abort, and leaves the host as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.on_host import ROOT, playbook, show, wait_until

if TYPE_CHECKING:
    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
PLAYBOOK = "playbooks/benchmark.yml"
BEFORE = "/etc/sglang/benchmark.json"
UNIT = "sglang-benchmark"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


def options(artifacts: Path, *more: str) -> list[str]:
    """Measure the real engine; the service on the host keeps its replayed version."""
    given = ("matrix=settings", "sglang_engine_version=0.5.23", f"sglang_artifacts_dir={artifacts}", *more)
    return ["--limit=gpu_hosts", *(f"--extra-vars={one}" for one in given)]


def benchmark(artifacts: Path, *more: str) -> str:
    outcome = playbook(INVENTORY, PLAYBOOK, *options(artifacts, *more))
    assert outcome.returncode == 0, outcome.stdout
    return outcome.stdout


def record(artifacts: Path) -> list[dict[str, Any]]:
    place = artifacts / "benchmark" / "settings" / "results.jsonl"
    lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
    return [json.loads(line) for line in lines]


def results(artifacts: Path) -> list[tuple[str, int, str]]:
    return [(one["variant"], one["concurrency"], one["result"]) for one in record(artifacts)]


REFUSED = [("ddtree", 1, "refused"), ("ddtree", 2, "refused")]
PLAIN = [("plain", 1, "measured"), ("plain", 2, "measured")]
OTHERS = [
    ("chunked", 1, "measured"),
    ("chunked", 2, "measured"),
    ("taken", 1, "failed"),
    ("taken", 2, "failed"),
]


def test_a_matrix_is_asked_for() -> None:
    outcome = playbook(INVENTORY, PLAYBOOK, "--limit=gpu_hosts")
    assert outcome.returncode != 0
    assert "-e matrix=NAME" in outcome.stdout


def test_a_plan_alone_touches_nothing(host: Host, artifacts: Path) -> None:
    kept = show(host, "sglang-tiny", "MainPID")
    told = benchmark(artifacts, "plan_only=true")
    assert "has no speculative algorithm for 'ddtree'" in told
    assert results(artifacts) == REFUSED
    assert show(host, "sglang-tiny", "MainPID") == kept


def is_as_before(host: Host) -> bool:
    gone = show(host, UNIT, "LoadState") == "not-found"
    return gone and show(host, "sglang-tiny", "StatusText") == "ready" and not host.file(BEFORE).exists


def test_what_ran_before_an_abort_can_be_brought_back(host: Host, artifacts: Path) -> None:
    """The run is killed while the second variant starts, with the first one measured."""
    run = subprocess.Popen(
        ["ansible-playbook", f"--inventory={INVENTORY}", PLAYBOOK, *options(artifacts)],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: set(PLAIN) <= set(results(artifacts)) or run.poll() is not None, 1200)
    host.check_output(
        f"timeout 300 sh -c 'until systemctl show {UNIT} | grep -q =activating; do sleep 0.1; done'"
    )
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert show(host, "sglang-tiny", "ActiveState") == "inactive"
    assert json.loads(host.file(BEFORE).content_string) == ["tiny"]
    outcome = playbook(INVENTORY, PLAYBOOK, "--limit=gpu_hosts", "--extra-vars=restore=true")
    assert outcome.returncode == 0, outcome.stdout
    assert is_as_before(host)
    deployed, *since = host.file("/run/balancer").content_string.splitlines()
    assert deployed == "undrain tiny active"
    assert since == ["drain tiny active", "undrain tiny active"]


def test_the_next_run_goes_on_where_it_was(host: Host, artifacts: Path) -> None:
    host.check_output("systemd-run --unit=by-hand --service-type=exec python3 -m http.server 32620")
    try:
        wait_until(lambda: bool(host.socket("tcp://0.0.0.0:32620").is_listening), 20)
        told = benchmark(artifacts)
    finally:
        host.check_output("systemctl stop by-hand")
    assert results(artifacts) == [*REFUSED, *PLAIN, *OTHERS]
    assert "taken, 1, 2 clients: failed" in told
    assert is_as_before(host)
    assert host.run("pgrep --full /etc/sglang/benchmark.plan.json").stdout == ""


def test_each_result_tells_what_was_measured_of_what(artifacts: Path) -> None:
    for one in record(artifacts):
        if one["result"] == "measured":
            assert one["engine_version"] == "0.5.23"
            assert one["allocated"]["kv_tokens"] == 8192
            assert one["measured"]["completed"] == 2 * one["concurrency"]
            assert one["measured"]["output_throughput"] > 0
            assert one["concurrency"] <= one["effective"]
            assert one["plan"]["fingerprint"] == one["fingerprint"]
        else:
            assert one["reason"]
            assert one.get("cause") == ("port-held" if one["result"] == "failed" else None)


def test_a_finished_matrix_is_only_reported(host: Host, artifacts: Path) -> None:
    kept = show(host, "sglang-tiny", "MainPID")
    before = record(artifacts)
    told = benchmark(artifacts)
    assert record(artifacts) == before
    assert show(host, "sglang-tiny", "MainPID") == kept
    assert "of base" in told
    page = (artifacts / "benchmark" / "settings" / "report.html").read_text(encoding="utf-8")
    assert "Output tokens per second" in page
    assert "<script" not in page
