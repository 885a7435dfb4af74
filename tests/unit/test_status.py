"""Lives of instances are told apart, and what else lives on a host is found."""

from __future__ import annotations

import grp
import ipaddress
import json
import os
import pwd
import subprocess
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import fileset, present, probe, processes, status, survey, systemd
from sglang_kit.fileset import File
from sglang_kit.journal import parse_text
from sglang_kit.platform_facts import Gpu, GpuProcess
from sglang_kit.problem import ProblemsError
from sglang_kit.processes import Listener, Process
from sglang_kit.quantity import GIB, MIB
from sglang_kit.readiness import Answer, Answers, UnitState
from sglang_kit.state import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.conftest import Tools

INVOCATION = "5c1ac8ca8c1f4b4d8e2f4a0d3f4a0a11"
PLAN = {
    "name": "chat",
    "unit": "sglang-chat.service",
    "host": "127.0.0.1",
    "port": 30000,
    "gpus": ["0"],
    "argv": ["/r/bin/python", "-m", "sglang.launch_server"],
    "environment": {"GREETING": "hello"},
    "environment_lines": ['GREETING="hello"'],
    "unit_file": "/absent/sglang-chat.service",
    "environment_file": "/absent/chat.env",
    "release": "/r",
    "engine_version": "0.5.23",
    "nccl_port": None,
    "secrets": {},
    "model": "/srv/models/chat",
    "draft_model": None,
    "concurrency": 16,
    "fingerprint": "667903beab97f70c",
    "memory": {"pools_gib": {"weights": 50.5}},
}
ACTIVE = UnitState(active_state="active", sub_state="running", main_pid=7, invocation=INVOCATION, started=1.0)
LOADING = replace(ACTIVE, active_state="activating", sub_state="start", status_text="loading: weights, 50%")
FAILED = UnitState(active_state="failed", sub_state="failed", result="exit-code", invocation=INVOCATION)
RESTARTING = replace(FAILED, active_state="activating", sub_state="auto-restart")
STOPPED = UnitState(active_state="inactive", sub_state="dead", started=1.0)
NEVER = UnitState(active_state="inactive", sub_state="dead")
ABSENT = UnitState(load_state="not-found", active_state="inactive")
STOPPING = UnitState(active_state="deactivating", sub_state="stop-sigterm", main_pid=7, started=1.0)
BY_HAND = Process(99, 1000, ("python3", "-m", "sglang.launch_server", "--port", "30000"), "session-3.scope")


# --- lives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "orphans", "healthy", "life"),
    [
        (ACTIVE, False, True, "ready"),
        (ACTIVE, False, False, "silent"),
        (LOADING, False, False, "loading"),
        (FAILED, False, False, "failed"),
        (RESTARTING, False, False, "restarting"),
        (STOPPING, False, False, "stopping"),
        (STOPPED, False, False, "stopped"),
        (STOPPED, True, False, "orphaned"),
        (NEVER, False, False, "never_started"),
        (ABSENT, False, False, "not_installed"),
        (ABSENT, True, False, "orphaned"),
    ],
)
def test_lives_are_told_apart(unit: UnitState, orphans: bool, healthy: bool, life: str) -> None:
    assert status.life(unit, orphans=orphans, healthy=healthy) == life
    assert life in status.STATES


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("python3", "-m", "sglang.launch_server", "--port", "1"), True),
        (("python3", "sglang/launch_server.py"), True),
        (("sglang::scheduler_TP0",), True),
        (("python3", "-m", "sglang_router.launch_server"), False),
        (("grep", "launch_server"), False),
    ],
)
def test_engines_are_known_by_their_command(argv: tuple[str, ...], expected: bool) -> None:
    assert status.is_engine(Process(1, 0, argv, "")) is expected


# --- a host --------------------------------------------------------------------------------------


class World:
    """A host that answers as it is told to."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.monkeypatch = monkeypatch
        self.units: dict[str, UnitState] = {}
        self.processes: list[Process] = []
        self.answers = Answers(health=Answer(200))
        self.journal: list[str] = []
        self.fingerprints: dict[int, str] = {7: PLAN["fingerprint"]}  # type: ignore[dict-item]
        self.gpus: tuple[tuple[Gpu, ...], tuple[GpuProcess, ...]] = ((), ())
        self.asked: list[str] = []
        self.listeners: list[Listener] = []

    def install(self, **changes: object) -> None:
        plan = {**PLAN, **changes}
        (self.directory / f"{plan['name']}.plan.json").write_text(json.dumps(plan), encoding="utf-8")

    def unit_states(self, units: Iterable[str]) -> dict[str, UnitState]:
        return {unit: self.units.get(unit, ABSENT) for unit in units}

    def ask(
        self, _expectation: object, _host: str, names: Iterable[str], *_: object, **__: object
    ) -> Answers:
        self.asked += names
        return self.answers

    def look(self, **wanted: str) -> dict[str, Any]:
        places = {
            name: str(self.directory)
            for name in ("config_directory", "cache_directory", "state_directory", "package_cache")
        }
        host = status.Host(
            root=str(self.directory / "opt"),
            models_directory=str(self.directory / "models"),
            unit_directory=str(self.directory),
            reserved_gpus=("0",),
            **places,
        )
        return status.look(wanted, host)

    def instance(self, **wanted: str) -> dict[str, Any]:
        (one,) = self.look(**wanted)["instances"]
        return dict(one)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, monkeypatch)

    class Reader:
        def __init__(self, unit: str, state: UnitState) -> None:
            assert (unit, state.invocation) == ("sglang-chat.service", INVOCATION)

        def read(self) -> list[Any]:
            return [parse_text(number, text) for number, text in enumerate(world.journal, 1)]

    monkeypatch.setattr(systemd, "unit_states", world.unit_states)
    monkeypatch.setattr(systemd, "running_fingerprint", world.fingerprints.get)
    monkeypatch.setattr(systemd, "JournalReader", Reader)
    monkeypatch.setattr(processes, "running", lambda: world.processes)
    monkeypatch.setattr(probe, "ask", world.ask)
    monkeypatch.setattr(survey, "gpus_in_use", lambda: world.gpus)
    monkeypatch.setattr(systemd, "show", lambda units, _properties: {unit: {} for unit in units})
    monkeypatch.setattr(survey, "marks", lambda: {"driver": "", "kernel": "6.1.0", "gpus": []})
    monkeypatch.setattr(processes, "listeners", lambda: world.listeners)
    monkeypatch.setattr(present, "RUNTIME", tmp_path / "run")
    return world


def prove(world: World, invocation: str = INVOCATION) -> None:
    place = world.directory / "run" / "chat" / "proof.json"
    place.parent.mkdir(parents=True)
    proof = {"invocation": invocation, "allocated": {"kv_tokens": 165_000, "running_requests": 12}}
    place.write_text(json.dumps(proof), encoding="utf-8")


def test_one_instance_is_told_alone(world: World) -> None:
    world.install()
    seen = status.only(world.look(chat="started", coder="stopped"), "coder")
    assert [one["name"] for one in seen["instances"]] == ["coder"]
    assert seen["as_wanted"], "whatever the others do"
    with pytest.raises(ProblemsError, match="known are chat, coder"):
        status.only(world.look(chat="started", coder="stopped"), "nobody")


def test_a_ready_instance_with_its_pools(world: World) -> None:
    world.install()
    prove(world)
    world.units["sglang-chat.service"] = replace(ACTIVE, started=time.monotonic() - 7_300)
    seen = world.look(chat="started")
    (one,) = seen["instances"]
    assert seen["as_wanted"]
    assert (one["state"], one["main_pid"], one["invocation"]) == ("ready", 7, INVOCATION)
    assert one["uptime_seconds"] >= 7_300
    assert one["fingerprint"] == {"wanted": "667903beab97f70c", "running": "667903beab97f70c"}
    assert one["pools"]["planned"] == {"weights": 50.5}
    assert one["pools"]["allocated"]["kv_tokens"] == 165_000
    assert one["concurrency"] == {"asked": 16, "effective": 12}
    assert world.asked == ["health", "server_info"]
    assert status.lines(seen)[2].split() == [
        *("chat", "started", "ready", "2", "h", "7", "as", "wanted", "165,000", "12", "of", "16")
    ]


def test_the_servers_own_report_of_its_concurrency_comes_first(world: World) -> None:
    world.install(memory=None, concurrency=None)
    prove(world)
    world.units["sglang-chat.service"] = ACTIVE
    states = [{"effective_max_running_requests_per_dp": 4}, {"effective_max_running_requests_per_dp": 4}]
    world.answers = Answers(health=Answer(200), server_info=Answer(200, {"internal_states": states}))
    one = world.instance(chat="started")
    assert one["concurrency"] == {"asked": None, "effective": 8}
    assert one["pools"]["planned"] == {}


def test_the_proof_of_another_invocation_counts_for_nothing(world: World) -> None:
    world.install()
    prove(world, "other")
    world.units["sglang-chat.service"] = ACTIVE
    world.answers = Answers(health=Answer(200), server_info=Answer(401, "Unauthorized"))
    one = world.instance(chat="started")
    assert one["pools"]["allocated"] == {}
    assert one["concurrency"]["effective"] is None


def test_an_active_unit_that_does_not_answer_is_not_ready(world: World) -> None:
    world.install()
    world.units["sglang-chat.service"] = ACTIVE
    world.answers = Answers(health=Answer(503))
    one = world.instance(chat="started")
    assert (one["state"], one["as_wanted"]) == ("silent", False)


@pytest.mark.parametrize(("text", "stage"), [("loading: weights, 50%", "weights, 50%"), ("", "gate")])
def test_a_start_tells_its_stage(world: World, text: str, stage: str) -> None:
    world.install()
    world.units["sglang-chat.service"] = replace(LOADING, status_text=text)
    seen = world.look(chat="started")
    (one,) = seen["instances"]
    assert (one["state"], one["stage"], one["as_wanted"]) == ("loading", stage, False)
    assert f"loading: {stage}" in status.lines(seen)[2]


def test_a_failure_tells_the_cause_of_this_invocation(world: World) -> None:
    world.install()
    world.units["sglang-chat.service"] = FAILED
    world.journal = [
        "Traceback (most recent call last):",
        '  File "/x/sglang/launch_server.py", line 1, in <module>',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    seen = world.look(chat="started")
    (one,) = seen["instances"]
    assert one["state"] == "failed"
    assert one["cause"]
    assert one["remedy"]
    text = "\n".join(status.lines(seen))
    assert f"chat: {one['cause']}" in text
    assert f"  what to do: {one['remedy']}" in text


def test_a_cause_without_a_remedy(world: World) -> None:
    world.install()
    world.units["sglang-chat.service"] = RESTARTING
    seen = world.look(chat="started")
    (one,) = seen["instances"]
    one["remedy"] = ""
    assert one["state"] == "restarting"
    assert "what to do" not in "\n".join(status.lines(seen))


@pytest.mark.parametrize(
    ("wanted", "unit", "as_wanted"),
    [
        ("stopped", STOPPED, True),
        ("stopped", NEVER, True),
        ("stopped", ACTIVE, False),
        ("started", STOPPED, False),
        ("absent", ACTIVE, True),
    ],
)
def test_what_is_wanted(world: World, wanted: str, unit: UnitState, as_wanted: bool) -> None:
    world.install()
    world.units["sglang-chat.service"] = unit
    assert world.instance(chat=wanted)["as_wanted"] is as_wanted


def test_what_was_never_deployed_and_what_left_the_inventory(world: World) -> None:
    world.install()
    world.units["sglang-chat.service"] = ACTIVE
    seen = world.look(new="started")
    old, new = seen["instances"]
    assert status.lines(seen)[3].split() == ["new", "started", "not", "installed"]
    assert (old["name"], old["wanted"], old["state"]) == ("chat", "absent", "ready")
    assert (new["name"], new["wanted"], new["state"]) == ("new", "started", "not_installed")
    assert new["fingerprint"] == {"wanted": None, "running": None}
    assert (old["models"], new["models"]) == (["/srv/models/chat"], [])


@pytest.mark.parametrize(
    "process",
    [
        BY_HAND,
        replace(BY_HAND, argv=("python3", "-m", "sglang.launch_server", "--port=30000")),
        replace(BY_HAND, pid=7, argv=("sglang::scheduler",), unit=""),
    ],
)
def test_an_engine_without_its_unit_is_an_orphan(world: World, process: Process) -> None:
    world.install()
    world.units["sglang-chat.service"] = STOPPED
    world.processes = [process]
    one = world.instance(chat="started")
    assert (one["state"], one["orphans"]) == ("orphaned", [process.pid])


def test_engines_by_hand_are_found_and_ours_are_not(world: World) -> None:
    world.install()
    world.units["sglang-chat.service"] = ACTIVE
    other = replace(BY_HAND, argv=("python3", "-m", "sglang.launch_server", "--port", "1", "--api-key", "x"))
    ours = replace(BY_HAND, unit="sglang-chat.service")
    world.processes = [ours, other, Process(3, 0, ("sshd",), "ssh.service")]
    seen = world.look(chat="started")
    assert [one["pid"] for one in seen["engines"]] == [99]
    text = status.lines(seen)
    assert "Engines that no unit of ours runs" in text
    assert "  pid 99 (python3 -m sglang.launch_server --port 1 --api-key ***) of session-3.scope" in text


def test_others_on_the_gpus(world: World) -> None:
    world.install()
    gpus = (Gpu(0, "GPU-a", "", "9.0", 0, 0), Gpu(1, "GPU-b", "", "9.0", 0, 0))
    ours = GpuProcess(1, 5, 40_000 * MIB, "sglang-chat.service", "python3")
    users = (
        GpuProcess(0, 77, 4706 * MIB, "train.service", "train"),
        GpuProcess(1, 78, 9 * MIB, "", ""),
        ours,
    )
    world.gpus = (gpus, users)
    seen = world.look(chat="started")
    assert [(one["gpu"], one["pid"], one["reserved"]) for one in seen["foreign"]] == [
        (0, 77, True),
        (1, 78, False),
    ]
    text = status.lines(seen)
    assert "  GPU 0 (reserved): 4706 MiB, pid 77 (train) of train.service" in text
    assert "  GPU 1 (not reserved): 9 MiB, pid 78" in text


# --- drift ---------------------------------------------------------------------------------------


ME = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name


def store_of(world: World) -> Store:
    return Store(str(world.directory / "instances"), *ME)


def deploy(world: World, **changes: object) -> dict[str, Any]:
    """Install an instance with its files and its state, as a deploy does."""
    plan: dict[str, Any] = {
        **PLAN,
        "unit_file": str(world.directory / "sglang-chat.service"),
        "environment_file": str(world.directory / "chat.env"),
        **changes,
    }
    world.install(**plan)
    files = [
        File(plan["unit_file"], "[Service]\nNice=1\n", 0o644, *ME),
        File(plan["environment_file"], "\n".join(plan["environment_lines"]), 0o640, *ME),
    ]
    fileset.apply(fileset.compare(files, []))
    store = store_of(world)
    store.stage(plan, files, {"host": {}, "model": {}, "by": {}}, datetime.now(timezone.utc))
    world.monkeypatch.setattr(status, "Store", lambda _root: store)
    return plan


def told(world: World) -> list[str]:
    lines = status.lines(world.look(chat="started"))
    heading = "Changed since the deploy (docs/diff.md says what the next one does)"
    return lines[lines.index(heading) + 1 :][:1] if heading in lines else []


def test_an_instance_as_it_was_deployed_has_no_drift(world: World) -> None:
    deploy(world)
    world.units["sglang-chat.service"] = STOPPED
    assert world.instance(chat="started")["drift"] == []
    assert told(world) == []


def test_a_unit_edited_by_hand_is_told(world: World) -> None:
    plan = deploy(world)
    world.units["sglang-chat.service"] = ACTIVE
    Path(plan["unit_file"]).write_text("[Service]\nNice=2\n", encoding="utf-8")
    seen = world.look(chat="started")
    (one,) = seen["instances"]
    assert one["drift"] == [{"kind": "file", "name": "[Service] Nice", "left": "1", "right": "2"}]
    assert "changed" in status.lines(seen)[2]
    assert told(world) == ["  chat: file [Service] Nice: 2, deployed 1"]


def test_somebody_on_the_port_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(world)
    world.units["sglang-chat.service"] = STOPPED
    world.listeners = [Listener(ipaddress.ip_address("127.0.0.1"), 30000, 5)]
    monkeypatch.setattr(processes, "owners", lambda _inodes: {5: BY_HAND})
    (line,) = told(world)
    assert line.startswith(
        "  chat: port 30000: held by pid 99 (python3 -m sglang.launch_server --port 30000)"
    )


def test_a_process_of_another_plan_is_no_drift(world: World, tmp_path: Path) -> None:
    deploy(world)
    world.units["sglang-chat.service"] = ACTIVE
    world.fingerprints[7] = "of an older deploy"
    place = tmp_path / "proc" / "7"
    place.mkdir(parents=True)
    (place / "cmdline").write_bytes(b"sleep\x0060\0")
    (place / "environ").write_bytes(b"GREETING=bye\0")
    world.monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    assert world.instance(chat="started")["drift"] == []
    world.fingerprints[7] = str(PLAN["fingerprint"])
    names = [one["name"] for one in world.instance(chat="started")["drift"]]
    assert names == ["command", "GREETING"]


def test_what_is_wanted_and_not_installed_yet_is_no_drift(world: World) -> None:
    plan = deploy(world)
    world.units["sglang-chat.service"] = ACTIVE
    store_of(world).stage({**plan, "fingerprint": "e" * 16}, [], {}, datetime.now(timezone.utc))
    seen = world.look(chat="started")
    (one,) = seen["instances"]
    assert one["drift"] == []
    assert "not as wanted" in status.lines(seen)[2]
    assert f"  chat: state {one['pending']['state']} was never started" in status.lines(seen)
    failed = {"time": "2026-11-29T23:29:00+00:00", "result": "failed", "cause": "", "sentence": "cut off"}
    store_of(world).record("chat", one["pending"]["state"], failed)
    told_then = f"  chat: state {one['pending']['state']} failed 2026-11-29T23:29: cut off"
    assert told_then in status.lines(world.look(chat="started"))


def test_a_host_that_was_deployed_before_there_were_states(world: World) -> None:
    world.install()
    world.units["sglang-chat.service"] = STOPPED
    assert world.instance(chat="started")["drift"] == []


# --- the rest ------------------------------------------------------------------------------------


def test_an_empty_host(world: World) -> None:
    seen = world.look()
    assert seen["as_wanted"]
    assert status.lines(seen)[0] == "no instances"


# --- the disk ------------------------------------------------------------------------------------


def host(directory: Path) -> status.Host:
    return status.Host(
        root=str(directory / "opt"),
        config_directory="/nonesuch",
        cache_directory=str(directory / "cache"),
        state_directory="/nonesuch",
        package_cache=str(directory / "uv"),
        models_directory="/nonesuch",
        unit_directory=str(directory / "system"),
    )


def test_what_releases_share_with_the_cache_counts_once(tmp_path: Path) -> None:
    release, cache = tmp_path / "opt" / "releases" / "1", tmp_path / "uv"
    for directory in (release, cache, tmp_path / "cache" / "triton"):
        directory.mkdir(parents=True)
    (tmp_path / "opt" / "releases" / ".lock").touch()
    (release / "big").write_bytes(b"x" * MIB)
    (cache / "big").hardlink_to(release / "big")
    found = {one["path"]: one for one in status.disk(host(tmp_path))}
    assert [one["kind"] for one in found.values()] == ["releases", "kernel caches", "package cache"]
    assert found[str(release)]["bytes"] >= MIB
    assert found[str(cache)]["bytes"] < MIB
    assert found[str(release)]["size"] == "1 MiB"


def test_drop_ins_are_found_whatever_became_of_their_units(tmp_path: Path) -> None:
    ours, others = (tmp_path / "system" / f"{name}.service.d" for name in ("sglang-chat", "ssh"))
    for directory in (ours, others):
        directory.mkdir(parents=True)
    assert [(one["kind"], one["path"]) for one in status.disk(host(tmp_path))] == [("drop-ins", str(ours))]


def test_a_host_without_du_or_directories(tmp_path: Path, tools: Tools) -> None:
    assert status.disk(host(tmp_path)) == []
    (tmp_path / "uv").mkdir()
    tools.place("du", "exit 1")
    (one,) = status.disk(host(tmp_path))
    assert one["bytes"] == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, ""), (59, "59 s"), (300, "5 min"), (10_000, "2 h"), (200_000, "2 d")]
)
def test_ages_for_people(seconds: int, text: str) -> None:
    assert status._age(seconds) == text  # noqa: SLF001 - a table of its own


def test_sizes_are_those_of_du(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    shown = subprocess.run(
        ["du", "-s", "-B1", str(tmp_path / "uv")], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    (one,) = status.disk(host(tmp_path))
    assert one["bytes"] == int(shown.split()[0]) < GIB
