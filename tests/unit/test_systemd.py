from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sglang_kit import systemd
from sglang_kit.fingerprint import VARIABLE
from sglang_kit.readiness import UNIT_PROPERTIES, UnitState

if TYPE_CHECKING:
    from tests.conftest import Tools

CHAT, CODER = "sglang-chat.service", "sglang-coder.service"
INVOCATION = "0123456789abcdef0123456789abcdef"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")


def unit(*lines: str) -> str:
    return "\n".join(["[Unit]", "Description=x", "[Service]", "ExecStart=:/bin/true", *lines, ""])


def test_units_among_paths() -> None:
    paths = [
        "/etc/systemd/system/sglang-chat.service",
        "/etc/systemd/system/sglang.target",
        "/etc/sglang/chat.env",
        "/opt/sglang/kit",
        "/etc/systemd/system/nginx.service",
        "/etc/systemd/system/sglang-chat.service.d/mine.conf",
        "/etc/systemd/system/sglang-.service",
    ]
    assert systemd.unit_names(paths) == ["sglang-chat.service", "sglang.target"]


def test_sound_units_are_judged_together_without_complaint() -> None:
    files = {
        f"/etc/systemd/system/{CHAT}": unit(),
        f"/etc/systemd/system/{CODER}": unit() + f"[Unit]\nAfter={CHAT}\nRequires={CHAT}\n",
        "/etc/sglang/chat.env": "no unit [[[",
    }
    assert systemd.verify(files) == []


def test_a_complaint_names_the_unit_and_its_line() -> None:
    files = {
        f"/etc/systemd/system/{CHAT}": unit("Typ=notify"),
        f"/etc/systemd/system/{CODER}": unit("ExecStart=:/no/such/program"),
    }
    complaints = systemd.verify(files)
    assert any(line.startswith(f"{CHAT}:5: ") and "Typ" in line for line in complaints)
    assert any(line.startswith(f"{CODER}: ") for line in complaints)
    assert not any("/tmp" in line for line in complaints)  # noqa: S108 - where it was judged is noise


def test_without_units_nobody_is_asked(tools: Tools) -> None:
    tools.place("systemd-analyze")
    assert systemd.verify({"/etc/sglang/chat.env": "x"}) == []
    assert tools.calls("systemd-analyze") == []


def test_complaints_about_units_of_others_are_theirs(tools: Tools) -> None:
    tools.place("systemd-analyze", "echo 'nginx.service:3: Unknown key'")
    assert systemd.verify({f"/x/{CHAT}": unit()}) == []


def test_a_refusal_in_unknown_words_is_shown_whole(tools: Tools) -> None:
    tools.place("systemd-analyze", "echo 'out of files' >&2; exit 1")
    assert systemd.verify({f"/x/{CHAT}": unit()}) == ["out of files"]


def test_a_refusal_without_words_is_one_still(tools: Tools) -> None:
    tools.place("systemd-analyze", "exit 3")
    assert systemd.verify({f"/x/{CHAT}": unit()}) == ["systemd-analyze verify ended with status 3"]


def test_what_systemctl_is_told(tools: Tools) -> None:
    tools.place("systemctl")
    systemd.reload()
    systemd.enable([CHAT, CODER])
    systemd.stop_and_disable([CHAT])
    assert [call for call in tools.calls("systemctl") if not call.startswith("show")] == [
        "daemon-reload",
        f"enable --quiet {CHAT} {CODER}",
        f"disable --now --quiet {CHAT}",
    ]


def test_what_runs_without_its_file_is_stopped(tools: Tools) -> None:
    """Whoever removes a unit by hand mostly forgets to stop it."""
    lost = "LoadState=not-found ActiveState=active '' LoadState=not-found ActiveState=inactive"
    tools.place("systemctl", f"printf '%s\\n' {lost} '' LoadState=loaded ActiveState=active")
    systemd.stop_and_disable([CHAT, CODER, "sglang-long.service"])
    assert [call for call in tools.calls("systemctl") if not call.startswith("show")] == [
        f"stop {CHAT}",
        "disable --now --quiet sglang-long.service",
    ]
    tools.place("systemctl", "printf '%s\\n' LoadState=not-found ActiveState=inactive")
    systemd.stop_and_disable([CHAT])
    assert tools.calls("systemctl")[-1].startswith("show")


def test_what_has_failed_and_goes_is_not_listed_as_failed_for_ever(tools: Tools) -> None:
    tools.place("systemctl", "printf '%s\\n' ActiveState=inactive '' ActiveState=failed")
    systemd.stop_and_disable([CHAT, CODER])
    assert tools.calls("systemctl")[-1] == f"reset-failed {CODER}"


def test_without_units_systemctl_is_told_nothing(tools: Tools) -> None:
    tools.place("systemctl")
    systemd.enable([])
    systemd.stop_and_disable([])
    assert systemd.show([], ["ActiveState"]) == {}
    assert systemd.not_enabled([]) == []
    assert tools.calls("systemctl") == []


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo 'Unit is masked.' >&2; exit 1", "Unit is masked."), ("exit 4", "status 4")],
)
def test_a_refusal_of_systemctl_says_what_was_asked_and_answered(
    tools: Tools, script: str, said: str
) -> None:
    tools.place("systemctl", script)
    with pytest.raises(systemd.SystemdError) as raised:
        systemd.enable([CHAT])
    assert str(raised.value) == f"systemctl enable --quiet {CHAT}: {said}"


def test_properties_of_several_units_in_one_call(tools: Tools) -> None:
    tools.place(
        "systemctl", r"printf 'ActiveState=active\nStatusText=a=b\n\nActiveState=failed\nStatusText=\n'"
    )
    assert systemd.show([CHAT, CODER], ["ActiveState", "StatusText"]) == {
        CHAT: {"ActiveState": "active", "StatusText": "a=b"},
        CODER: {"ActiveState": "failed", "StatusText": ""},
    }
    assert tools.calls("systemctl") == [f"show --property=ActiveState,StatusText {CHAT} {CODER}"]


def test_a_status_text_cannot_forge_another_property(tools: Tools) -> None:
    separators = r"\013\014\034\302\205\342\200\250"  # what str.splitlines() takes for line ends
    tools.place("systemctl", rf"printf 'StatusText=a{separators}ActiveState=failed\n'")
    assert list(systemd.show([CHAT], ["StatusText"])[CHAT]) == ["StatusText"]


def test_units_that_do_not_start_at_boot_yet(tools: Tools) -> None:
    tools.place(
        "systemctl",
        r"printf 'UnitFileState=enabled\n\nUnitFileState=disabled\n\nUnitFileState=\n'",
    )
    assert systemd.not_enabled([CHAT, CODER, "sglang.target"]) == [CODER, "sglang.target"]


def test_unit_states(tools: Tools) -> None:
    tools.place("systemctl", r"printf 'ActiveState=active\nMainPID=42\n\nActiveState=inactive\nMainPID=0\n'")
    states = systemd.unit_states([CHAT, CODER])
    assert (states[CHAT].active_state, states[CHAT].main_pid) == ("active", 42)
    assert (states[CODER].active_state, states[CODER].main_pid) == ("inactive", 0)
    assert tools.calls("systemctl")[0].startswith(f"show --property={','.join(UNIT_PROPERTIES)} ")


def entry(cursor: str, text: str, **changes: str) -> str:
    ours = {
        "__CURSOR": cursor,
        "__MONOTONIC_TIMESTAMP": "5000000",
        "_BOOT_ID": BOOT,
        "_PID": "42",
        "_SYSTEMD_INVOCATION_ID": INVOCATION,
        "MESSAGE": text,
    }
    return json.dumps({**ours, **changes})


def reader(started: float = 1.0) -> systemd.JournalReader:
    state = UnitState(active_state="active", invocation=INVOCATION, started=started)
    return systemd.JournalReader(CHAT, state)


def journal(tools: Tools, directory: Path, *entries: str, status: int = 0) -> None:
    records = directory / "records.json"
    records.write_text("".join(f"{one}\n" for one in entries), encoding="utf-8")
    tools.place("journalctl", f"cat {records}; exit {status}")


def test_the_journal_is_read_on_from_where_it_was_left(tools: Tools, tmp_path: Path) -> None:
    journal(tools, tmp_path, entry("c1", "first"), entry("c2", "second\nthird"))
    reading = reader()
    assert [(line.number, line.text) for line in reading.read()] == [
        (1, "first"),
        (2, "second"),
        (3, "third"),
    ]
    journal(tools, tmp_path, "-- no record --", entry("c3", "fourth"))
    assert [(line.number, line.text) for line in reading.read()] == [(4, "fourth")]
    journal(tools, tmp_path)
    assert list(reading.read()) == []
    first, second, third = tools.calls("journalctl")
    assert "--after-cursor" not in first
    assert f"_SYSTEMD_INVOCATION_ID={INVOCATION}" in first
    assert "--after-cursor=c2" in second
    assert "--after-cursor=c3" in third


def test_nothing_of_another_invocation_or_boot_or_time_is_shown(tools: Tools, tmp_path: Path) -> None:
    kernel = {"_TRANSPORT": "kernel", "_SYSTEMD_INVOCATION_ID": ""}
    journal(
        tools,
        tmp_path,
        entry("c1", "an older run", _SYSTEMD_INVOCATION_ID="f" * 32),
        entry("c2", "an older boot", _BOOT_ID="f" * 32, **kernel),
        entry("c3", "before the start", __MONOTONIC_TIMESTAMP="999999", **kernel),
        entry("c4", "NVRM: Xid", **kernel),
    )
    assert [line.text for line in reader().read()] == ["NVRM: Xid"]


def test_a_unit_that_never_ran_has_no_lines(tools: Tools, tmp_path: Path) -> None:
    journal(tools, tmp_path, entry("c1", "NVRM: Xid", _TRANSPORT="kernel"))
    assert list(systemd.JournalReader(CHAT, UnitState(active_state="inactive")).read()) == []


def test_a_journal_that_cannot_be_read(tools: Tools, tmp_path: Path) -> None:
    journal(tools, tmp_path, entry("c1", "first"), status=1)
    lines = reader().read()
    assert next(lines).text == "first"
    with pytest.raises(systemd.SystemdError, match="journalctl ended with status 1"):
        next(lines)


def test_the_fingerprint_of_a_running_process() -> None:
    environment = {**os.environ, f"X{VARIABLE}": "no", VARIABLE: "0123456789abcdef"}
    waiting = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(waiting, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert systemd.running_fingerprint(process.pid) == "0123456789abcdef"
        process.communicate(b"\n")
    assert systemd.running_fingerprint(process.pid) is None


def test_a_process_without_a_fingerprint() -> None:
    assert systemd.running_fingerprint(os.getpid()) is None
    assert systemd.running_fingerprint(0) is None


# --- what explains a failure later ---------------------------------------------------------------


def test_a_unit_is_described_by_its_state_and_its_text(tools: Tools) -> None:
    tools.place("systemctl", "if [ $1 = cat ]; then echo '[Service]'; else echo 'Result=oom-kill'; fi")
    assert systemd.describe(CHAT) == "# Result=oom-kill\n[Service]\n"
    assert tools.calls("systemctl")[1] == f"cat {CHAT}"


@pytest.mark.parametrize(("boot", "started"), [(BOOT, 12.5), ("another", 0.0)])
def test_the_journal_remembers_a_unit_that_systemd_has_forgotten(
    tools: Tools, boot: str, started: float
) -> None:
    record = {
        "MESSAGE": "Stopped",
        "_PID": "1",
        "INVOCATION_ID": INVOCATION,
        "_BOOT_ID": boot,
        "__MONOTONIC_TIMESTAMP": "12500000",
    }
    tools.place("journalctl", f"printf '%s' {shlex.quote(json.dumps(record))}")
    state = systemd.remembered(CHAT, UnitState(active_state="inactive"))
    assert state == UnitState(active_state="inactive", invocation=INVOCATION, started=started)
    assert f"--unit={CHAT}" in tools.calls("journalctl")[0]


def test_what_systemd_knows_is_not_looked_up(tools: Tools) -> None:
    tools.place("journalctl")
    known = UnitState(active_state="failed", invocation=INVOCATION)
    assert systemd.remembered(CHAT, known) == known
    assert tools.calls("journalctl") == []


def test_a_unit_without_a_journal_has_no_past(tools: Tools) -> None:
    tools.place("journalctl")
    assert systemd.remembered(CHAT, UnitState()) == UnitState()
