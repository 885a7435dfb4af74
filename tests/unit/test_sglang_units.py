from __future__ import annotations

import getpass
import grp
import importlib.util
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible import module_utils
from ansible.module_utils.testing import patch_module_args
from sglang_kit.state import Store

from tests.replay.build import build

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conftest import Tools

REPOSITORY = Path(__file__).resolve().parent.parent.parent
ROOMS = {place.name for place in (REPOSITORY / "module_utils" / "sglang_kit").glob("*.py")}

SYSTEMCTL = """
case "$1 $2" in
show*) shift 2; for unit; do grep -qx "$unit" {enabled} && echo UnitFileState=enabled || echo UnitFileState=
       echo; done;;
enable*) shift 2; for unit; do echo "$unit" >> {enabled}; done;;
*--now) shift 3; for unit; do test ! -e {units}/"$unit" || echo "$unit" >> {stopped_with_file}; done;;
disable*) shift 2; for unit; do sed -i "/^$unit$/d" {enabled}; done;;
esac
"""

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"


@pytest.fixture(scope="module")
def sglang_units() -> ModuleType:
    path = list(module_utils.__path__)
    module_utils.__path__ = [*path, str(REPOSITORY / "module_utils")]
    spec = importlib.util.spec_from_file_location("sglang_units", REPOSITORY / "library" / "sglang_units.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module_utils.__path__ = path
    return module


class Host:
    """A host below a temporary directory, whose systemd is a script and whose root is who runs the tests."""

    def __init__(
        self, module: ModuleType, directory: Path, tools: Tools, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._module = module
        self._capsys = capsys
        self._tools = tools
        self.units = directory / "units"
        self.etc = directory / "etc"
        self.root = directory / "opt"
        self.manifest = directory / "var" / "files.json"
        self.states = directory / "instances"
        self.stopped_with_file = directory / "stopped"
        enabled = directory / "enabled"
        enabled.touch()
        tools.place(
            "systemctl",
            SYSTEMCTL.format(enabled=enabled, units=self.units, stopped_with_file=self.stopped_with_file),
        )

    def service(self, name: str = "chat", *lines: str) -> dict[str, str]:
        text = ["[Unit]", f"Description={name}", "[Service]", "ExecStart=:/bin/true", *lines, ""]
        return {"path": str(self.units / f"sglang-{name}.service"), "content": "\n".join(text)}

    def variables(self, content: str = 'A="1"\n', **changes: str) -> dict[str, str]:
        return {"path": str(self.etc / "chat.env"), "content": content, "mode": "0640", **changes}

    def run(
        self, *files: dict[str, str], enabled: tuple[str, ...] = (), check: bool = False, **more: object
    ) -> dict[str, Any]:
        arguments = {
            "files": list(files),
            "enabled": list(enabled),
            "root": str(self.root),
            "commands": str(self.root / "bin"),
            "manifest": str(self.manifest),
            "states": str(self.states),
            "user": getpass.getuser(),
            "group": grp.getgrgid(os.getegid()).gr_name,
            "_ansible_check_mode": check,
            **more,
        }
        with patch_module_args(arguments), pytest.raises(SystemExit):
            self._module.main()
        result: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return result

    def systemctl(self) -> list[str]:
        """How systemctl was told to act, without the questions."""
        return [call for call in self._tools.calls("systemctl") if not call.startswith("show ")]


@pytest.fixture
def host(
    sglang_units: ModuleType,
    tmp_path: Path,
    tools: Tools,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Host:
    me, mine = pwd.getpwuid(os.geteuid()), grp.getgrgid(os.getegid())
    others, other_groups = pwd.getpwnam, grp.getgrnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: me if name == "root" else others(name))
    monkeypatch.setattr(grp, "getgrnam", lambda name: mine if name == "root" else other_groups(name))
    return Host(sglang_units, tmp_path, tools, capsys)


def names(directory: Path) -> set[str]:
    return {place.name for place in directory.rglob("*") if not place.is_dir()}


def test_the_first_run_installs_the_set_and_the_kit(host: Host) -> None:
    unit, variables = host.service(), host.variables()
    result = host.run(unit, variables, enabled=("sglang-chat.service",))
    assert result["changed"]
    assert {unit["path"], variables["path"], f"{host.root}/kit", str(host.manifest)} <= set(
        result["changed_paths"]
    )
    assert Path(unit["path"]).read_text(encoding="utf-8") == unit["content"]
    assert Path(variables["path"]).stat().st_mode & 0o7777 == 0o640
    assert names(host.root / "kit" / "sglang_kit") == ROOMS
    assert host.systemctl() == ["daemon-reload", "enable --quiet sglang-chat.service"]


def test_the_second_run_changes_nothing(host: Host) -> None:
    files = host.service(), host.variables('A="a\r\nb"\n')
    host.run(*files, enabled=("sglang-chat.service",))
    told = host.systemctl()
    result = host.run(*files, enabled=("sglang-chat.service",))
    assert not result["changed"]
    assert (result["changed_paths"], result["stopped"], result["diff"]) == ([], [], [])
    assert host.systemctl() == told


def test_check_mode_predicts_the_same_and_does_nothing(host: Host) -> None:
    files = host.service(), host.variables(group="no-such-group-yet")
    predicted = host.run(*files, enabled=("sglang-chat.service",), check=True)
    assert names(host.units) | names(host.etc) | names(host.root) == set()
    assert host.systemctl() == []
    done = host.run(host.service(), host.variables(), enabled=("sglang-chat.service",))
    for answer in (predicted, done):
        answer.pop("invocation", None)  # the arguments, which ansible-core returns up to 2.20
    assert predicted == done


def test_check_mode_predicts_a_removal(host: Host) -> None:
    host.run(host.service(), host.service("old"))
    predicted = host.run(host.service(), check=True)
    assert predicted["stopped"] == ["sglang-old.service"]
    assert (host.units / "sglang-old.service").exists()
    assert host.run(host.service())["changed_paths"] == predicted["changed_paths"]


def test_the_diff_shows_each_file_before_and_after_but_not_the_kit(host: Host) -> None:
    host.run(host.service(), host.variables('A="1"\n'))
    result = host.run(host.service(), host.variables('A="2"\n'))
    path = str(host.etc / "chat.env")
    assert result["diff"] == [
        {"before_header": path, "after_header": path, "before": 'A="1"\n', "after": 'A="2"\n'}
    ]


def test_the_first_diff_shows_the_kit_as_one_link(host: Host) -> None:
    shown = [entry["after_header"] for entry in host.run(host.service())["diff"]]
    assert shown == [
        str(host.units / "sglang-chat.service"),
        f"{host.root}/bin/sglang-why",
        f"{host.root}/kit",
        str(host.manifest),
    ]


def test_a_change_of_no_unit_needs_no_reload(host: Host) -> None:
    host.run(host.service(), host.variables())
    told = host.systemctl()
    assert host.run(host.service(), host.variables("B=1\n"))["changed"]
    assert host.systemctl() == told


def test_only_the_units_that_are_not_yet_enabled_are(host: Host) -> None:
    host.run(host.service(), enabled=("sglang-chat.service",))
    result = host.run(host.service(), enabled=("sglang-chat.service", "sglang.target"))
    assert result["changed"]
    assert result["changed_paths"] == []
    assert host.systemctl()[-1] == "enable --quiet sglang.target"


def test_units_that_systemd_refuses_change_nothing(host: Host) -> None:
    host.run(host.service(), host.service("old"))
    told = host.systemctl()
    result = host.run(host.service("chat", "Typ=notify"), host.service("new"))
    assert result["failed"]
    assert "systemd refuses the units; nothing was changed:\nsglang-chat.service:5: " in result["msg"]
    assert "Typ" in result["msg"]
    assert names(host.units) == {"sglang-chat.service", "sglang-old.service"}
    assert "Typ" not in (host.units / "sglang-chat.service").read_text(encoding="utf-8")
    assert host.systemctl() == told


def test_units_that_left_are_stopped_before_their_files_go(host: Host) -> None:
    host.run(host.service(), host.service("old"), host.variables())
    result = host.run(host.service())
    assert result["stopped"] == ["sglang-old.service"]
    assert set(result["changed_paths"]) == {
        str(host.units / "sglang-old.service"),
        str(host.etc / "chat.env"),
        str(host.manifest),
    }
    assert host.stopped_with_file.read_text(encoding="utf-8") == "sglang-old.service\n"
    assert host.systemctl()[-2:] == ["disable --now --quiet sglang-old.service", "daemon-reload"]
    assert names(host.units) == {"sglang-chat.service"}


def test_an_instance_that_left_is_stopped_also_when_its_unit_was_removed_by_hand(
    host: Host, release: Path
) -> None:
    plan = planned(host, release)
    host.run(host.service(), plan_file(plan), host.variables(), plans=[plan])
    (host.units / "sglang-chat.service").unlink()
    assert host.run()["stopped"] == ["sglang-chat.service"]
    assert host.run()["stopped"] == []


def test_files_of_others_stay(host: Host) -> None:
    host.run(host.service())
    foreign = host.units / "sglang-foreign.service"
    foreign.write_text("[Unit]\n", encoding="utf-8")
    host.run()
    assert names(host.units) == {"sglang-foreign.service"}


def test_a_missing_group_changes_nothing(host: Host) -> None:
    host.run(host.variables('A="1"\n'))
    with pytest.raises(KeyError, match="no-such-group"):
        host.run(host.service(), host.variables('A="2"\n', group="no-such-group"))
    assert names(host.units) == set()
    assert (host.etc / "chat.env").read_text(encoding="utf-8") == 'A="1"\n'


def test_what_systemctl_refuses_is_told_in_its_words(
    host: Host, tools: Tools, sglang_units: ModuleType
) -> None:
    tools.place("systemctl", "echo 'Unit sglang-chat.service is masked.' >&2; exit 1")
    with pytest.raises(sglang_units.systemd.SystemdError, match="is masked"):
        host.run(host.service(), enabled=("sglang-chat.service",))


def test_what_stood_there_before_may_be_no_text(host: Host) -> None:
    host.etc.mkdir()
    (host.etc / "chat.env").write_bytes(b"\xff\xfe")
    assert host.run(host.variables())["changed"]
    assert (host.etc / "chat.env").read_text(encoding="utf-8") == 'A="1"\n'


def test_ansible_ships_every_room_that_the_kit_needs_on_the_host(tmp_path: Path, host: Host) -> None:
    """The rooms on the host come from the payload, which holds what the module imports."""
    arguments = {"files": [host.service()], "root": str(host.root), "manifest": str(host.manifest)}
    predicted = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"),
            *("-e", f"ansible_python_interpreter={sys.executable}", "-m", "sglang_units"),
            *("-a", json.dumps(arguments), "--check"),
        ],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
        },
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    needed = subprocess.run(
        [sys.executable, "-c", "import sys, sglang_kit.cli; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "module_utils")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    shipped = set(re.findall(r"/sglang_kit/(\w+)\.py", predicted))
    assert {"cli", "launch"} <= shipped <= {place.removesuffix(".py") for place in ROOMS}
    assert {room.removeprefix("sglang_kit.") for room in needed if room.startswith("sglang_kit.")} <= shipped


# --- the engine's check --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("releases") / "0.5.23"
    build(place, "0.5.23")
    return place


def planned(host: Host, release: Path, *words: str, name: str = "chat", **changes: object) -> dict[str, Any]:
    return {
        "name": name,
        "engine_version": "0.5.23",
        "argv": [str(release / "bin" / "python"), "-m", "sglang.launch_server", "--model-path", "/m", *words],
        "environment": {"HOME": "/"},
        "secrets": {},
        "pinned": {"page_size": "args.page-size"},
        "accept_overrides": [],
        "model": "/",
        "draft_model": None,
        "release": str(release),
        "fingerprint": "0123456789abcdef",
        "state": "started",
        "unit": f"sglang-{name}.service",
        "unit_file": str(host.units / f"sglang-{name}.service"),
        "environment_file": str(host.etc / f"{name}.env"),
        "plan_file": str(host.etc / f"{name}.plan.json"),
        **changes,
    }


def plan_file(plan: dict[str, Any]) -> dict[str, str]:
    return {"path": plan["plan_file"], "content": json.dumps(plan)}


def test_an_engine_that_refuses_changes_nothing(host: Host, release: Path) -> None:
    good, bad = planned(host, release), planned(host, release, "--prt", "1", name="bad")
    result = host.run(host.service(), plan_file(good), plans=[good, bad])
    assert result["msg"] == (
        "nothing was changed: bad: argv: SGLang 0.5.23 refuses it (parse): "
        "sglang serve: error: unrecognized arguments: --prt 1"
    )
    assert result["checks"]["chat"]["phase"] == "ok"
    assert names(host.units) | names(host.etc) == set()
    assert host.systemctl() == []


def test_every_refusal_is_told_at_once(host: Host, release: Path) -> None:
    plans = [planned(host, release, "--prt", "1", name=name) for name in ("a", "b")]
    assert host.run(plans=plans)["msg"].startswith("nothing was changed: 2 problems:\n  1. a: argv: ")


def test_only_what_changed_is_checked_again(host: Host, release: Path) -> None:
    plan, other = planned(host, release), planned(host, release, name="other")
    assert set(host.run(plan_file(plan), plan_file(other), plans=[plan, other])["checks"]) == {
        "chat",
        "other",
    }
    changed = planned(host, release, "--page-size", "1", name="other")
    result = host.run(plan_file(plan), plan_file(changed), plans=[plan, changed])
    assert set(result["checks"]) == {"other"}
    assert host.run(plan_file(plan), plan_file(changed), plans=[plan, changed])["checks"] == {}


def test_an_override_of_what_is_pinned_is_refused_until_it_is_accepted(host: Host, release: Path) -> None:
    environment = {"HOME": "/", "SGLANG_REPLAY_OVERRIDES": '{"page_size": 64}'}
    plan = planned(host, release, "--page-size", "1", environment=environment)
    assert "page_size: asked 1, the engine makes it 64" in host.run(plans=[plan])["msg"]
    accepting = {**plan, "accept_overrides": ["page_size"]}
    assert host.run(plans=[accepting])["notes"] == ["chat: page_size: asked 1, the engine makes it 64"]


def test_check_mode_checks_where_the_release_is_and_says_where_it_is_not(host: Host, release: Path) -> None:
    plans = [
        planned(host, release),
        planned(host, Path("/nonexistent"), name="new"),
        planned(host, release, name="fetched", model="/srv/models/still-to-come"),
    ]
    result = host.run(plans=plans, check=True)
    assert set(result["checks"]) == {"chat"}
    assert result["unchecked"] == ["new", "fetched"]
    assert result["notes"] == [
        f"{name}: not checked, its release, model or user is not on this host yet"
        for name in ("new", "fetched")
    ]
    assert "refuses it (parse)" in host.run(plans=[planned(host, release, "--prt", "1")], check=True)["msg"]


# --- secrets -------------------------------------------------------------------------------------


def test_secrets_are_for_root_alone_and_never_shown(host: Host) -> None:
    place = host.etc / "credentials" / "chat.api_key"

    def secret(value: str) -> list[dict[str, str]]:
        return [{"path": str(place), "content": value}]

    first = host.run(host.service(), secrets=secret("key-0123456789"))
    assert place.read_text(encoding="utf-8") == "key-0123456789"
    assert place.stat().st_mode & 0o7777 == 0o600
    second = host.run(host.service(), secrets=secret("new-0123456789"))
    gone = host.run(host.service())
    assert not place.exists()
    shown = [(entry["before"], entry["after"]) for entry in second["diff"]]
    assert shown == [("the old secret\n", "the new secret\n")]
    assert "0123456789" not in json.dumps([first, second, gone])


# --- states, and files that wait for their turn ---------------------------------------------------


def instance(host: Host, release: Path, *words: str, name: str = "chat", **changes: object) -> dict[str, Any]:
    """Give the arguments of a deploy of one instance."""
    plan = planned(host, release, *words, name=name, **changes)
    variables = {"path": plan["environment_file"], "content": f"ARGV={' '.join(words)}\n"}
    return {"files": [host.service(name), variables, plan_file(plan)], "plans": [plan]}


def store(host: Host) -> Store:
    return Store(str(host.states), group=grp.getgrgid(os.getegid()).gr_name)


def test_each_instance_gets_a_state_with_its_files(host: Host, release: Path) -> None:
    by = {"user": "ann", "controller": "desk", "commit": "0123abc"}
    result = host.run(**instance(host, release), by=by)
    state = store(host).at("chat", "wanted")
    assert state is not None
    assert result["states"] == {"chat": state["id"]}
    assert (result["unproven"], state["by"]) == (["chat"], by)
    assert {file["path"] for file in state["files"]} == {
        str(host.units / "sglang-chat.service"),
        str(host.etc / "chat.env"),
        str(host.etc / "chat.plan.json"),
    }
    again = host.run(**instance(host, release), by={"user": "bob"})
    assert (again["changed"], again["states"]) == (False, result["states"])


def test_what_has_its_turn_later_is_recorded_and_not_touched(host: Host, release: Path) -> None:
    host.run(**instance(host, release))
    told = host.systemctl()
    later = instance(host, release, "--page-size", "1", fingerprint="f" * 16)
    result = host.run(**later, later=["chat"])
    assert set(result["changed_paths"]) == {str(host.etc / "chat.env"), str(host.etc / "chat.plan.json")}
    assert (host.etc / "chat.env").read_text(encoding="utf-8") == "ARGV=\n"
    assert host.systemctl() == told
    state = store(host).at("chat", "wanted")
    assert state is not None
    assert [file.content for file in store(host).files(state) if file.path.endswith(".env")] == [
        "ARGV=--page-size 1\n"
    ]


def test_check_mode_predicts_new_states_and_records_none(host: Host, release: Path) -> None:
    predicted = host.run(**instance(host, release), later=["chat"], check=True)
    assert predicted["changed"]
    assert (predicted["states"], predicted["unproven"]) == ({"chat": None}, ["chat"])
    assert not host.states.exists()
    done = host.run(**instance(host, release), later=["chat"])
    assert done["changed_paths"] == predicted["changed_paths"]
    assert not (host.etc / "chat.env").exists()


def test_an_instance_that_shall_not_run_does_not_come_up_at_boot(host: Host, release: Path) -> None:
    host.run(**instance(host, release))
    assert host.systemctl()[-1] == "enable --quiet sglang-chat.service"
    stopped = instance(host, release, state="stopped")
    assert host.run(**stopped, check=True)["changed"]
    host.run(**stopped)
    assert host.systemctl()[-1] == "disable --quiet sglang-chat.service"
    assert not host.run(**stopped)["changed"]


def test_files_of_an_instance_that_left_go_whatever_put_them_there(host: Host, release: Path) -> None:
    """The manifest may be that of a run that was interrupted."""
    host.run(**instance(host, release))
    host.manifest.unlink()
    assert host.run()["stopped"] == ["sglang-chat.service"]
    assert names(host.units) | names(host.etc) == set()
    assert store(host).ids("chat") != []


def test_what_a_change_takes_away_stays_until_its_turn(host: Host, release: Path) -> None:
    place = host.etc / "credentials" / "chat.api_key"
    keyed = instance(host, release, secrets={"api_key": str(place)})
    host.run(**keyed, secrets=[{"path": str(place), "content": "key-0123456789"}])
    host.run(**instance(host, release), later=["chat"])
    assert place.exists()
    host.run(**instance(host, release))
    assert not place.exists()


# --- what is taken over from others ----------------------------------------------------------------


def test_what_is_taken_over_is_stopped_before_any_file_changes(host: Host) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        adopted = {"units": ["mine.service"], "pids": [process.pid]}
        predicted = host.run(host.service(), adopted=adopted, check=True)
        assert process.poll() is None
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        done = host.run(host.service(), adopted=adopted)
        reaper.join()
        assert process.returncode == -signal.SIGTERM
    assert predicted["stopped"] == done["stopped"] == ["mine.service", f"pid {process.pid}"]
    assert host.systemctl()[0] == "disable --now --quiet mine.service"


def test_a_process_that_does_not_end_changes_no_file(host: Host, sglang_units: ModuleType) -> None:
    sglang_units.adopt.WAIT_SECONDS = 0.0
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = host.run(host.service(), adopted={"units": [], "pids": [process.pid]})
        process.kill()
    assert result["msg"] == f"these processes do not end; no file was changed: [{process.pid}]"
    assert names(host.units) == set()
