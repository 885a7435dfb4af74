"""An instance as it looks on this host: real processes, ports and files."""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import socket
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import difference, fileset, model_files, present, processes, survey, systemd
from sglang_kit.problem import ProblemsError
from sglang_kit.readiness import UnitState
from sglang_kit.state import READY, Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

INVOCATION = "5c1ac8ca8c1f4b4d8e2f4a0d3f4a0a11"
RELEASE = "/opt/sglang/releases/0.5.23-52d6472cc106"
BELOW = {"driver": "580.1", "kernel": "6.1.0", "gpus": ["0: NVIDIA H200"]}
ME = pwd.getpwuid(os.geteuid()).pw_name
MY_GROUP = grp.getgrgid(os.getegid()).gr_name
NOW = datetime(2026, 11, 29, 10, 15, tzinfo=timezone.utc)


class Host:
    """A host with one instance; its files are real, systemd answers as it is told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.unit = UnitState(active_state="inactive")
        self.drop_ins: list[Path] = []
        self.fingerprints: dict[int, str] = {}
        self.store = Store(str(directory / "instances"), owner=ME, group=MY_GROUP)
        self.model = directory / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}", encoding="utf-8")
        (directory / "api_key").write_text("s3cr3t", encoding="utf-8")

    def plan(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of a plan
        return {
            "name": "chat",
            "unit": "sglang-chat.service",
            "unit_file": str(self.directory / "sglang-chat.service"),
            "environment_file": str(self.directory / "chat.env"),
            "engine_version": "0.5.23",
            "release": RELEASE,
            "model": str(self.model),
            "draft_model": None,
            "secrets": {
                "api_key": str(self.directory / "api_key"),
                "hf_token": str(self.directory / "absent"),
            },
            "argv": [f"{RELEASE}/bin/python", "-m", "sglang.launch_server"],
            "environment": {"GREETING": "hello", "PATH": "/usr/bin"},
            "environment_lines": ['GREETING="hello"', 'PATH="/usr/bin"'],
            "gpus": [],
            "host": "127.0.0.1",
            "port": 1,
            "nccl_port": None,
            "fingerprint": "667903beab97f70c",
            **changes,
        }

    def install(self, plan: dict[str, Any]) -> str:
        """Install a plan as a deploy does."""
        files = [
            fileset.File(plan["unit_file"], "[Service]\nNice=1\n", owner=ME, group=MY_GROUP),
            fileset.File(
                plan["environment_file"], "\n".join(plan["environment_lines"]), owner=ME, group=MY_GROUP
            ),
        ]
        files.append(fileset.File(plan["secrets"]["api_key"], "s3cr3t", 0o600, ME, MY_GROUP))
        fileset.apply(fileset.compare(files, []))
        (self.directory / "chat.plan.json").write_text(json.dumps(plan), encoding="utf-8")
        return self.store.stage(plan, files, {"host": BELOW}, NOW)

    def views(self, *states: str, plan: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
        return present.views(
            name="chat",
            states=states,
            host="ct200",
            known=["chat"],
            plan=plan,
            unit="[Service]\nNice=1\n",
            secrets={str(self.directory / "api_key"): "s3cr3t"},
            directory=self.store.root,
            config_directory=str(self.directory),
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path)

    def show(units: Iterable[str], properties: Iterable[str]) -> dict[str, dict[str, str]]:
        assert tuple(properties) == ("DropInPaths",)
        return {unit: {"DropInPaths": " ".join(map(str, host.drop_ins))} for unit in units}

    monkeypatch.setattr(systemd, "show", show)
    monkeypatch.setattr(systemd, "unit_states", lambda units: dict.fromkeys(units, host.unit))
    monkeypatch.setattr(systemd, "running_fingerprint", host.fingerprints.get)
    monkeypatch.setattr(survey, "marks", lambda: BELOW)
    monkeypatch.setattr(present, "RUNTIME", tmp_path / "run")
    monkeypatch.setattr(present, "Store", lambda _root: host.store)
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    return host


def run(host: Host, pid: int, argv: list[str], environment: dict[str, str]) -> None:
    place = host.directory / "proc" / str(pid)
    place.mkdir(parents=True)
    place.joinpath("cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in argv))
    pairs = "".join(f"{name}={text}\0" for name, text in environment.items())
    place.joinpath("environ").write_bytes(os.fsencode(pairs))
    host.unit = UnitState(active_state="active", main_pid=pid, invocation=INVOCATION)
    host.fingerprints[pid] = "667903beab97f70c"


LAUNCHER = ["/usr/bin/python3", "-IB", "/opt/sglang/kit", "launch", "/etc/sglang/chat.plan.json", "--"]


# --- at present ----------------------------------------------------------------------------------


def test_what_would_start_next_is_told_from_the_disk(host: Host) -> None:
    plan = host.plan()
    host.install(plan)
    drop_in = host.directory / "override.conf"
    drop_in.write_text("[Service]\nNice=5\n", encoding="utf-8")
    host.drop_ins = [drop_in]
    found = present.view(plan, BELOW)
    assert found["plan"] == plan
    assert found["host"] == BELOW
    assert found["models"] == {"files": model_files.fingerprint(plan["model"])}
    assert found["secrets"] == {"api_key": hashlib.sha256(b"s3cr3t").hexdigest()}
    assert found["files"] == {
        "unit": "[Service]\nNice=1\n",
        "environment": 'GREETING="hello"\nPATH="/usr/bin"',
        str(drop_in): "[Service]\nNice=5\n",
    }
    assert found["held"] == {}
    assert found["allocated"] is None


def test_what_runs_is_told_by_its_process(host: Host) -> None:
    plan = host.plan()
    other = "/opt/sglang/releases/0.5.15.post1-0a1b2c3d4e5f"
    engine = [f"{other}/bin/python", "-m", "sglang.launch_server", "--port", "7"]
    run(
        host,
        7,
        [*LAUNCHER, *engine],
        {"GREETING": "bye", "PATH": "/x", "HOME": "/", "LC_ALL": "C", "NEW": "1"},
    )
    found = present.view(plan, BELOW, main_pid=7, invocation=INVOCATION)["plan"]
    assert found["argv"] == engine
    assert found["environment"] == {"GREETING": "bye", "PATH": "/x", "NEW": "1"}
    assert (found["release"], found["engine_version"]) == (other, "0.5.15.post1")


def test_a_main_process_that_is_no_launcher(host: Host) -> None:
    run(host, 7, ["/bin/sleep", "60"], {})
    found = present.view(host.plan(), BELOW, main_pid=7, invocation=INVOCATION)["plan"]
    assert found["argv"] == ["/bin/sleep", "60"]
    assert (found["release"], found["engine_version"]) == (RELEASE, "0.5.23")
    gone = present.view(host.plan(), BELOW, main_pid=8, invocation=INVOCATION)["plan"]
    assert gone["argv"] == host.plan()["argv"]


def test_the_proof_of_this_invocation_tells_the_pools(host: Host) -> None:
    place = host.directory / "run" / "chat" / "proof.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"invocation": INVOCATION, "allocated": {"kv_tokens": 1}}), encoding="utf-8")
    assert present.view(host.plan(), BELOW, invocation=INVOCATION)["allocated"] == {"kv_tokens": 1}
    assert present.view(host.plan(), BELOW, invocation="other")["allocated"] is None


def test_a_draft_model_is_looked_at_too(host: Host) -> None:
    found = present.models(host.plan(draft_model=str(host.directory / "absent")))
    assert list(found) == ["files", "draft files"]
    assert found["draft files"] == ""


def test_somebody_else_on_the_port_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        found = present.held(host.plan(port=port, nccl_port=None))
        (who,) = found.values()
        assert list(found) == [f"port {port}"]
        assert f"held by pid {os.getpid()}" in who
        mine = processes.Process(os.getpid(), 0, ("python3",), "sglang-chat.service")
        monkeypatch.setattr(processes, "owners", lambda inodes: dict.fromkeys(inodes, mine))
        assert present.held(host.plan(port=port)) == {}
        monkeypatch.setattr(processes, "owners", lambda _inodes: {})
        assert present.held(host.plan(port=port)) == {f"port {port}": "held by a process that is not visible"}


# --- what a process was started with -------------------------------------------------------------


def test_a_process_that_runs_its_plan(host: Host) -> None:
    plan = host.plan()
    assert present.changed(plan, 0) == ""
    run(host, 7, [*LAUNCHER, *plan["argv"]], {**plan["environment"], "HOME": "/", "MORE": "1"})
    assert present.changed(plan, 7) == ""


def test_a_process_that_was_started_from_edited_files(host: Host) -> None:
    plan = host.plan()
    run(host, 7, [*LAUNCHER, *plan["argv"], "--more"], {"GREETING": "bye", "PATH": "/usr/bin"})
    assert present.changed(plan, 7) == "other arguments, another GREETING"


def test_a_drop_in_has_its_reasons(host: Host) -> None:
    plan = host.plan()
    run(host, 7, [*LAUNCHER, *plan["argv"]], {"PATH": "/usr/bin"})
    assert present.changed(plan, 7) == "another GREETING"
    host.drop_ins = [host.directory / "override.conf"]
    assert present.changed(plan, 7) == ""


# --- by their words ------------------------------------------------------------------------------


def test_before_the_first_deploy_every_word_says_why_there_is_nothing(host: Host) -> None:
    found, missing = host.views("inventory", "running", "installed", "known-good")
    assert found == {}
    assert missing == [
        "chat on ct200: is not in the inventory",
        "chat on ct200: does not run",
        "chat on ct200: has not been deployed yet",
        "chat on ct200: has no known-good state: no start of it was proven since it was first deployed",
    ]


def test_a_deployed_and_proven_instance_is_the_same_by_every_word(host: Host) -> None:
    plan = host.plan()
    made = host.install(plan)
    host.store.record("chat", made, {"result": READY, "allocated": {"kv_tokens": 1}})
    run(host, 7, [*LAUNCHER, *plan["argv"]], plan["environment"])
    words = ("inventory", "running", "installed", "known-good", made)
    found, missing = host.views(*words, plan=plan)
    assert missing == []
    assert list(found) == list(words)
    assert {one["on"] for one in found.values()} == {"ct200"}
    for word in words:
        assert difference.compare(found["running"], found[word]).differences == ()
    assert found[made]["title"] == made


def test_a_process_of_an_earlier_state_is_told_by_that_state(host: Host) -> None:
    earlier = host.plan()
    host.install(earlier)
    run(host, 7, [*LAUNCHER, *earlier["argv"]], earlier["environment"])
    host.install(host.plan(fingerprint="other", context_length=1, environment_lines=[]))
    found, _ = host.views("running")
    assert "context_length" not in found["running"]["plan"]
    host.fingerprints[7] = "of no state"
    found, _ = host.views("running")
    assert found["running"]["plan"]["context_length"] == 1


def test_an_unknown_state_is_an_error(host: Host) -> None:
    made = host.install(host.plan())
    known = f"has no state 'yesterday'; there are inventory, running, installed, known-good, {made}"
    with pytest.raises(ProblemsError, match=known):
        host.views("yesterday")
