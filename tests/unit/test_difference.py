"""Two states are held against each other, and what matters first stands first."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from sglang_kit import difference, unit
from sglang_kit.difference import Difference

RELEASE = "/opt/sglang/releases/0.5.23-52d6472cc106"
OLD_RELEASE = "/opt/sglang/releases/0.5.15.post1-0a1b2c3d4e5f"
FLAGS = (
    "--model-path",
    "/srv/models/m",
    "--mem-fraction-static",
    "0.85",
    "--port",
    "30000",
    "--api-key",
    "s3cr3t",
)


def plan(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of a plan
    argv = [f"{RELEASE}/bin/python", "-m", "sglang.launch_server", *FLAGS]
    environment = {"PATH": f"{RELEASE}/bin:/usr/bin", "GREETING": 'a "word"', "SGLANG_METAL_FINGERPRINT": "1"}
    return {
        "name": "chat",
        "engine_version": "0.5.23",
        "release": RELEASE,
        "model": "/srv/models/m",
        "argv": argv,
        "environment": environment,
        "environment_lines": [unit.environment_line(*item) for item in environment.items()],
        "exec_start": unit.command_line(["/usr/bin/python3", "launch", "--", *argv]),
        "exec_start_pre": "+:/usr/bin/python3 preflight",
        "unit_file": "/etc/systemd/system/sglang-chat.service",
        "environment_file": "/etc/sglang/chat.env",
        "secrets": {"api_key": "/etc/sglang/credentials/chat.api_key"},
        "gpus": ["1"],
        "memory": {"kv_tokens": 165_000, "pools_gib": {"weights": 50.5, "draft_weights": 0.0}},
        **changes,
    }


def state(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of a plan
    return {
        "id": "20261129T101500Z-667903be",
        "made": "2026-11-29T10:15:00+00:00",
        "by": {"user": "ada", "controller": "desk", "commit": "0123456"},
        "model": {"path": "/srv/models/m", "fingerprint": "aaaa.bbbb"},
        "host": {"driver": "580.1", "kernel": "6.1.0", "gpus": ["1: NVIDIA H200"]},
        "plan": plan(**changes),
        "files": [{"path": "/etc/sglang/credentials/chat.api_key", "sha256": "digest"}],
        "results": [{"result": "ready", "allocated": {"kv_tokens": 165_100}}, {"result": "failed"}],
    }


def texts(of: dict[str, Any], extra: str = "") -> dict[str, str]:
    text = (
        f"# managed\n[Service]\nExecStartPre={of['exec_start_pre']}\nExecStart={of['exec_start']}\n"
        f"TimeoutStartSec=120\nSyslogIdentifier=sglang-{of['name']}\n{extra}"
    )
    return {of["unit_file"]: text, of["environment_file"]: "# managed\n" + "\n".join(of["environment_lines"])}


def view(extra: str = "", **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of a plan
    found = state(**changes)
    return {**difference.of_state(found, texts(found["plan"], extra), "known-good"), "on": "ct200"}


def rows(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    found = difference.compare(left, right).differences
    return [(one.kind, one.name, one.left, one.right) for one in found]


def test_equal_states_do_not_differ() -> None:
    found = difference.told(view(), view())
    assert found["differences"] == []
    assert found["unknown"] == []
    assert "no difference" in found["lines"]


def test_what_matters_first_stands_first() -> None:
    argv = plan()["argv"]
    now = view(
        argv=[*argv[:6], "0.95", *argv[7:], "--log-level", "debug", "--speculative-num-steps=3"],
        engine_version="0.5.15.post1",
        release=OLD_RELEASE,
        environment={"PATH": f"{OLD_RELEASE}/bin:/usr/bin", "GREETING": "no", "NCCL_DEBUG": "INFO"},
        memory={"kv_tokens": 100, "pools_gib": {"weights": 50.75, "key": 5.5}},
        gpus=["2"],
    )
    now["host"]["driver"] = "590.2"
    now["allocated"] = {"kv_tokens": 101, "kv_bytes": 5 << 29}
    assert rows(now, view()) == [
        ("engine", "SGLang", "0.5.15.post1", "0.5.23"),
        ("engine", "release", "0.5.15.post1-0a1b2c3d4e5f", "0.5.23-52d6472cc106"),
        ("host", "driver", "590.2", "580.1"),
        ("memory", "--mem-fraction-static", "0.95", "0.85"),
        ("speculation", "--speculative-num-steps", "3", ""),
        ("argument", "--log-level", "debug", ""),
        ("environment", "GREETING", "no", 'a "word"'),
        ("environment", "NCCL_DEBUG", "INFO", ""),
        ("address", "gpus", "2", "1"),
        ("planned", "K", "5.50 GiB", ""),
        ("planned", "KV tokens", "100", "165,000"),
        ("planned", "weights", "50.75 GiB", "50.50 GiB"),
        ("allocated", "KV", "2.50 GiB", ""),
        ("allocated", "KV tokens", "101", "165,100"),
    ]


def test_a_replaced_model_is_told_on_its_host_and_a_copy_is_not() -> None:
    now = view()
    now["models"] = {"files": "aaaa.cccc", "draft files": "dddd.eeee"}
    assert rows(now, view()) == [("model", "files", "aaaa.cccc", "aaaa.bbbb")]
    assert rows({**now, "on": "ct201"}, view()) == []
    now["models"] = {"files": ""}
    assert rows(now, view()) == [("model", "files", "absent", "aaaa.bbbb")]


def test_what_one_side_cannot_know_is_named_and_not_compared() -> None:
    found = difference.told(difference.of_plan(plan()), view())
    assert found["differences"] == []
    assert found["unknown"] == ["host", "secret", "file", "allocated"]
    assert found["lines"][-1] == "not compared, since one side does not know it: host, secret, file"
    assert found["left"] == {"title": "inventory", "on": "", "of": ""}
    assert (
        found["right"]["of"]
        == "20261129T101500Z-667903be, deployed 2026-11-29T10:15:00+00:00 by ada from desk"
    )


def test_that_nothing_is_allocated_before_a_start_is_not_told() -> None:
    new = {**view(), "allocated": None}
    assert difference.told(new, view())["lines"][-1] == "no difference"


def test_a_state_without_a_proof_and_without_an_origin() -> None:
    new = {**state(), "results": [], "by": None, "model": {}}
    found = difference.of_state(new, texts(new["plan"]), "installed")
    assert found["allocated"] is None
    assert found["models"] == {}
    assert found["of"].endswith("+00:00")


# --- secrets -------------------------------------------------------------------------------------


def test_secrets_are_never_shown() -> None:
    argv = [word if word != "s3cr3t" else "0th3r" for word in plan()["argv"]]
    now = view(argv=argv, environment={**plan()["environment"], "HF_TOKEN": "t0k3n"})
    now["secrets"] = {"api_key": "another digest", "hf_token": "digest"}
    found = difference.told(now, view())
    assert rows(now, view()) == [
        ("argument", "--api-key", "***", "*** (another one)"),
        ("environment", "HF_TOKEN", "***", ""),
        ("secret", "api_key", "***", "*** (another one)"),
        ("secret", "hf_token", "***", ""),
    ]
    for secret in ("s3cr3t", "0th3r", "t0k3n", "digest"):
        assert secret not in str(found)


# --- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "m"], {"command": "-m m"}),
        (["--a", "1", "--b", "--c=2"], {"--a": "1", "--b": "set", "--c": "2", "command": "set"}),
        (["--a", "1", "2", "--a", "3"], {"--a": "3", "command": "set"}),
        (["--a", "-1"], {"--a": "-1", "command": "set"}),
    ],
)
def test_flags_are_read_as_the_engine_reads_them(words: list[str], expected: dict[str, str]) -> None:
    assert dict(difference.flags(["python", *words])) == expected


# --- files ---------------------------------------------------------------------------------------


def test_an_edited_unit_and_a_drop_in_are_told_by_their_directives() -> None:
    now = view("LimitNOFILE=1\n;LimitCPU=2\nDeviceAllow=a\nDeviceAllow=b\n")
    now["files"]["/etc/systemd/system/sglang-chat.service.d/override.conf"] = "[Service]\nNice=5\n"
    assert rows(view(), now) == [
        ("file", "[Service] DeviceAllow", "", "a; b"),
        ("file", "[Service] LimitNOFILE", "", "1"),
        ("file", "drop-in override.conf: [Service] Nice", "", "5"),
    ]


def test_an_edited_command_line_is_told_and_a_planned_one_is_not_told_twice() -> None:
    edited = deepcopy(view())
    edited["files"]["unit"] = edited["files"]["unit"].replace("0.85", "0.99")
    ((kind, name, left, right),) = rows(view(), edited)
    assert (kind, name, left) == ("file", "[Service] ExecStart", "as planned")
    assert right == "--mem-fraction-static 0.99"
    changed = [word if word != "0.85" else "0.99" for word in plan()["argv"]]
    deployed = view(
        argv=changed, exec_start=unit.command_line(["/usr/bin/python3", "launch", "--", *changed])
    )
    assert [row[:2] for row in rows(view(), deployed)] == [("memory", "--mem-fraction-static")]


def test_an_edited_environment_file_is_told_by_its_variables() -> None:
    now = view()
    lines = plan()["environment_lines"]
    now["files"]["environment"] = "\n".join(["# by hand", lines[0], "NEW=two words", 'HF_TOKEN="t0k3n"'])
    assert rows(view(), now) == [
        ("file", "environment file: GREETING", "", "(removed)"),
        ("file", "environment file: HF_TOKEN", "", "***"),
        ("file", "environment file: NEW", "", "two words"),
        ("file", "environment file: SGLANG_METAL_FINGERPRINT", "", "(removed)"),
    ]


def test_another_instance_differs_only_in_what_it_is() -> None:
    other = plan(name="web", gpus=["2"], environment={**plan()["environment"], "DIR": "/run/sglang/web"})
    mine = plan(environment={**plan()["environment"], "DIR": "/run/sglang/chat"})
    assert rows(difference.of_plan(mine), difference.of_plan(other)) == [("address", "gpus", "1", "2")]


# --- drift ---------------------------------------------------------------------------------------


def test_drift_is_what_changed_without_a_deploy() -> None:
    now = view("Nice=5\n")
    now["allocated"] = {"kv_tokens": 1}
    now["host"]["kernel"] = "6.2.0"
    now["held"] = {"port 30000": "held by pid 9 (python3)"}
    found = difference.drift(view(), now)
    assert [difference.sentence(one) for one in found] == [
        "port 30000: held by pid 9 (python3)",
        "file [Service] Nice: 5, deployed without it",
    ]


def test_drift_that_took_something_away() -> None:
    one = Difference("environment", "GREETING", "hello", "")
    assert difference.sentence(one) == "variable GREETING: gone, deployed hello"


# --- for people ----------------------------------------------------------------------------------


def test_long_texts_are_shown_where_they_part() -> None:
    same = "/usr/local/a/long/common/path/" * 2
    left = view(environment={"A": f"{same}one", "B": "x" * 40, "C": "\n"})
    right = view(environment={"A": f"{same}two/more", "B": "y", "C": ""})
    found = difference.told(left, right)
    lines = found["lines"]
    assert lines[0] == "chat: known-good against known-good"
    assert lines[4].split() == ["what", "name", "known-good", "known-good"]
    (first,) = [line for line in lines if " A " in line]
    assert "one" in first
    assert "two/more" in first
    (second,) = [line for line in lines if " B " in line]
    assert second.rstrip().endswith("y")
    assert all(len(line) <= 92 for line in lines[4 : lines.index("what matters first")])
    assert "  variable: switches kernels, communication and logging" in lines


def test_the_reason_of_a_restart_is_one_line() -> None:
    other = [*plan()["argv"], "--page-size", "64"]
    assert difference.reason(plan(), plan()) == ""
    assert difference.reason(plan(), plan(argv=other)) == "--page-size - -> 64"
    environment = {**plan()["environment"], **dict.fromkeys("ABCD", "1")}
    assert difference.reason(plan(), plan(environment=environment)) == "A - -> 1, B - -> 1, C - -> 1, 1 more"
    assert "s3cr3t" not in difference.reason(plan(), plan(argv=plan()["argv"][:-2]))
