from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import evidence
from sglang_kit.journal import ENGINE, JOURNALD, KERNEL, SYSTEMD, Record
from sglang_kit.readiness import Expectation
from sglang_kit.systemd import SystemdError
from sglang_kit.why import explain

from tests.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Tools

UNIT = "sglang-chat.service"


def record(text: str, source: str = ENGINE, pid: int | None = 77) -> Record:
    return Record(text, time=5.0, wall=1_700_000_000.25, boot="b", invocation="i", source=source, pid=pid)


def collect(
    tools: Tools, plan: dict[str, Any], *, alive: bool = False, records: tuple[Record, ...] = ()
) -> dict[str, str]:
    tools.place("systemctl", 'case $1 in cat) cat "$UNIT_TEXT";; *) echo ActiveState=failed;; esac')
    common = {"unit": UNIT, "host": "127.0.0.1", "port": 1, "name": "chat"}
    return evidence.collect({**common, **plan}, records, alive=alive)


@pytest.fixture
def unit_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "unit"
    place.write_text('[Service]\nEnvironment=HF_TOKEN=hf_abc\nEnvironment="MY_API_KEY=k"\nExecStart=x\n')
    monkeypatch.setenv("UNIT_TEXT", str(place))
    return place


def test_journal_lines_are_read_again_as_they_were() -> None:
    records = [
        record("Starting SGLang", SYSTEMD, 1),
        record("launch_server.py: error: unrecognized arguments: --x\n--api-key abc"),
        record("Out of memory: Killed process 77 (python)", KERNEL, None),
        record("Suppressed 3 messages from sglang-chat.service", JOURNALD, 40),
    ]
    lines = list(evidence.journal_lines(records, UNIT))
    assert lines[0] == "2023-11-14T22:13:20.250000+00:00 localhost systemd[1]: Starting SGLang\n"
    assert lines[2] == "2023-11-14T22:13:20.250000+00:00 localhost sglang-chat[77]: --api-key ***\n"
    assert lines[3].split(" ", 2)[2] == "kernel: Out of memory: Killed process 77 (python)\n"
    assert " systemd-journald[40]: " in lines[4]
    verdict, _ = explain([line.encode() for line in lines], Expectation())
    assert verdict.cause == "argument-unknown"


def test_a_broken_line_is_whole_again() -> None:
    parts = [replace(record("--no-such-"), broken=True), record("flag")]
    (line,) = evidence.journal_lines(parts, UNIT)
    assert line.endswith(": --no-such-flag\n")


def test_a_long_journal_keeps_its_beginning_and_its_end() -> None:
    lines = [f"{number:04}\n" for number in range(100)]
    kept = list(evidence.bounded(lines, head_bytes=14, tail_bytes=15))
    assert kept == ["0000\n", "0001\n", "... 95 lines are left out here ...\n", *lines[-3:]]
    assert list(evidence.bounded(lines)) == lines
    assert list(evidence.bounded([])) == []
    longer = ["0000\n", f"{'x' * 40}\n", "1\n", "2\n"]
    kept = list(evidence.bounded(longer, head_bytes=8, tail_bytes=15))
    assert kept == ["0000\n", "... 1 lines are left out here ...\n", "1\n", "2\n"]


def test_no_secret_is_kept_in_a_plan() -> None:
    plan = {
        "api_key": "abc",
        "nothing_key": "",
        "tokenizer_path": "/srv",
        "environment": {"HF_TOKEN": "hf", "HOME": "/h"},
        "environment_lines": ['HF_TOKEN="hf"', 'HOME="/h"'],
        "argv": ["--api-key=abc", "--port", 5],
        "port": 5,
    }
    assert evidence.without_secrets(plan) == {
        "api_key": "***",
        "nothing_key": "",
        "tokenizer_path": "/srv",
        "environment": {"HF_TOKEN": "***", "HOME": "/h"},
        "environment_lines": ["HF_TOKEN=***", 'HOME="/h"'],
        "argv": ["--api-key=***", "--port", 5],
        "port": 5,
    }


def test_what_explains_a_failure_is_collected(tools: Tools, unit_text: Path, tmp_path: Path) -> None:
    environment = tmp_path / "chat.env"
    environment.write_text('HOME="/x"\nHF_TOKEN="abc"\n', encoding="utf-8")
    tools.place("nvidia-smi", "echo eight cards")
    texts = collect(tools, {"environment_file": str(environment)}, records=(record("the end"),))
    assert set(texts) == {"journal.log", "plan.json", "unit.txt", "environment.env", "nvidia-smi.txt"}
    assert texts["journal.log"].endswith("sglang-chat[77]: the end\n")
    assert json.loads(texts["plan.json"])["unit"] == UNIT
    assert texts["environment.env"] == 'HOME="/x"\nHF_TOKEN=***\n'
    assert texts["unit.txt"].endswith(
        '[Service]\nEnvironment=HF_TOKEN=***\nEnvironment="MY_API_KEY=***\nExecStart=x\n'
    )
    assert texts["nvidia-smi.txt"] == "eight cards\n"
    assert unit_text.exists()


@pytest.mark.usefixtures("unit_text")
def test_what_is_not_there_is_left_out(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_kit.evidence.shutil.which", lambda _: None)
    texts = collect(tools, {"environment_file": str(tmp_path / "gone.env")})
    assert set(texts) == {"plan.json", "unit.txt"}
    assert set(collect(tools, {}, alive=True)) == {"plan.json", "unit.txt"}


def test_what_cannot_be_had_keeps_nothing_else_from_being_told(tools: Tools, tmp_path: Path) -> None:
    def journal() -> Iterator[Record]:
        yield record("the end")
        raise SystemdError("journalctl ended with status 1")

    tools.place("systemctl", "if [ $1 = cat ]; then echo 'No files found' >&2; exit 1; fi")
    plan = {"unit": UNIT, "name": "chat", "environment_file": str(tmp_path)}
    texts = evidence.collect(plan, journal(), alive=False)
    assert texts["journal.log"] == "not collected: journalctl ended with status 1\n"
    assert texts["unit.txt"] == f"not collected: systemctl cat {UNIT}: No files found\n"
    assert "Is a directory" in texts["environment.env"]
    assert json.loads(texts["plan.json"])["name"] == "chat"


@pytest.mark.usefixtures("unit_text")
def test_a_card_that_does_not_answer_delays_nothing(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LONGEST_ANSWER_SECONDS", 0.05)
    tools.place("nvidia-smi", "exec sleep 9")
    assert collect(tools, {})["nvidia-smi.txt"] == "nvidia-smi did not answer within 0 s\n"


@pytest.mark.usefixtures("unit_text")
def test_a_server_that_lives_reports_itself_without_keys(tools: Tools) -> None:
    with Serving() as serving:
        info = {"api_key": "abc", "states": [{"admin_api_key": "x", "port": 7}]}
        serving.answers["GET /server_info"] = (200, info)
        texts = collect(tools, {"port": serving.port}, alive=True)
    assert json.loads(texts["server_info.json"]) == {
        "api_key": "***",
        "states": [{"admin_api_key": "***", "port": 7}],
    }
