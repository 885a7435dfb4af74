from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import hook

from tests import modules
from tests.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.conftest import Tools


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ([], None),
        (["/usr/local/bin/lb", "drain", 1], ("/usr/local/bin/lb", "drain", "1")),
        ("https://lb.example/{name}", "https://lb.example/{name}"),
        ("http://lb.example", "http://lb.example"),
    ],
)
def test_a_hook_is_a_command_or_a_url(value: object, read: object) -> None:
    assert hook.read(value) == read


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/usr/local/bin/lb drain", "is neither a list of words nor a URL"),
        ("ftp://lb.example", "is neither a list of words nor a URL"),
        (True, "is neither a list of words nor a URL"),
        (["lb", "drain"], "'lb' is not the absolute path of a program"),
    ],
)
def test_anything_else_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hook.read(value)


class Balancer:
    """A load balancer's command that notes what it is told."""

    def __init__(self, tools: Tools, directory: Path) -> None:
        self._tools = tools
        self.command = str(directory / "tools" / "lb")
        self.says()

    def says(self, script: str = "") -> None:
        self._tools.place("lb", script)

    def instance(self, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any entry
        hooks = {when: [self.command, when, "{name}", "{host}:{port}"] for when in ("drain", "undrain")}
        return {"name": name, "host": "127.0.0.1", "port": 30001, **hooks, **changes}

    def calls(self) -> list[str]:
        return self._tools.calls("lb")


@pytest.fixture
def balancer(tools: Tools, tmp_path: Path) -> Balancer:
    return Balancer(tools, tmp_path)


def test_a_command_learns_which_instance_it_is(balancer: Balancer, tmp_path: Path) -> None:
    balancer.says(f'echo "$SGLANG_NAME $SGLANG_HOST $SGLANG_PORT" > {tmp_path}/told')
    assert hook.run([balancer.instance("chat")], "drain") == ""
    assert balancer.calls() == ["drain chat 127.0.0.1:30001"]
    assert (tmp_path / "told").read_text(encoding="utf-8") == "chat 127.0.0.1 30001\n"


def test_without_a_hook_nothing_is_called(balancer: Balancer) -> None:
    assert hook.run([balancer.instance("chat", drain=None)], "drain") == ""
    assert balancer.calls() == []


def test_a_command_that_fails_says_why_and_the_others_are_put_back(balancer: Balancer) -> None:
    balancer.says('test "$2" = chat || { echo "no such backend" >&2; exit 3; }')
    wrong = hook.run([balancer.instance("chat"), balancer.instance("coder")], "drain")
    assert wrong == f"coder: drain: {balancer.command} ended with status 3: no such backend"
    assert balancer.calls() == [
        "drain chat 127.0.0.1:30001",
        "drain coder 127.0.0.1:30001",
        "undrain chat 127.0.0.1:30001",
    ]


def test_what_fails_on_the_way_back_is_told_too(balancer: Balancer) -> None:
    balancer.says('test "$1 $2" = "drain chat" || { echo "is away"; exit 1; }')
    wrong = hook.run([balancer.instance("chat"), balancer.instance("coder")], "drain")
    assert wrong.count("is away") == 2
    assert "chat: undrain: " in wrong


def test_one_that_cannot_be_put_back_keeps_no_other_from_it(balancer: Balancer) -> None:
    balancer.says('test "$2" != chat || { echo "is away"; exit 1; }')
    wrong = hook.run([balancer.instance("chat"), balancer.instance("coder")], "undrain")
    assert wrong == f"chat: undrain: {balancer.command} ended with status 1: is away"
    assert balancer.calls() == ["undrain chat 127.0.0.1:30001", "undrain coder 127.0.0.1:30001"]


def test_a_command_that_is_not_there(balancer: Balancer) -> None:
    wrong = hook.run([balancer.instance("chat", undrain=["/no/such/program"])], "undrain")
    assert wrong.startswith("chat: undrain: [Errno 2] No such file or directory")


def test_a_command_that_never_ends(balancer: Balancer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "TIMEOUT_SECONDS", 0.2)
    balancer.says("exec sleep 60")
    assert "timed out after 0.2 seconds" in hook.run([balancer.instance("chat")], "drain")


def test_a_url_gets_a_post_that_tells_of_the_instance(balancer: Balancer) -> None:
    with Serving() as serving:
        url = f"http://127.0.0.1:{serving.port}/drain/{{name}}"
        serving.answers["POST /drain/chat"] = (200, "")
        serving.answers["POST /drain/coder"] = (503, "")
        assert hook.run([balancer.instance("chat", drain=url)], "drain") == ""
        wrong = hook.run([balancer.instance("coder", drain=url)], "drain")
    assert serving.asked[0].body == {"name": "chat", "host": "127.0.0.1", "port": 30001}
    assert wrong.endswith(f"http://127.0.0.1:{serving.port}/drain/coder answers 503 Service Unavailable")
    assert "refused" in hook.run([balancer.instance("chat", drain=url)], "drain")


def test_a_url_that_http_does_not_take_is_told_and_the_others_are_put_back(balancer: Balancer) -> None:
    wrong = hook.run([balancer.instance("chat"), balancer.instance("coder", drain="http://lb/a b")], "drain")
    assert wrong.startswith("coder: drain: http://lb/a b: URL can't contain control characters")
    assert balancer.calls()[-1] == "undrain chat 127.0.0.1:30001"


# --- the module ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return modules.load("sglang_hook")


def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    assert modules.documented(module) == module.ARGUMENTS


def test_the_module_calls_and_fails(
    module: ModuleType, balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = balancer.instance("chat")
    assert modules.run(module, capsys, {"plans": [chat], "when": "drain"}, check=True)["changed"]
    assert balancer.calls() == []
    assert modules.run(module, capsys, {"plans": [chat], "when": "drain"})["changed"]
    without = balancer.instance("chat", undrain=None)
    assert not modules.run(module, capsys, {"plans": [without], "when": "undrain"})["changed"]
    balancer.says("exit 1")
    assert modules.run(module, capsys, {"plans": [chat], "when": "drain"})["failed"]
