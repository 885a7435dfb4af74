"""Lets systemd itself read back what ``unit.py`` writes: needs root and a Debian mirror, see sandbox/."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit.unit import command_line, environment_line, value

from sandbox import image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Execute = Callable[..., str]

CHECKOUT = Path(__file__).parents[2]

NASTY = [
    "",
    " ",
    "  a  b  ",
    "\t",
    "a\tb",
    "\n",
    "a\nb",
    "\n\n1",
    "a\r\nb\r",
    "\x01\x1b[31m\x7f",
    "\x0b\x0c\x1c\x1d\x1e",
    "'",
    '"',
    "it's",
    'say "hi"',
    "\"'\"'",
    "`id`",
    "$(id)",
    "$",
    "$$",
    "$HOME",
    "${HOME}",
    "$$HOME ${X:-y}",
    "%",
    "%%",
    "%n",
    "%%n",
    "%i%H%t",
    "100 %",
    "\\",
    "\\\\",
    "a\\",
    "a\\ ",
    "\\n\\x41\\101\\u00e4",
    "\\;",
    ";",
    "a;b",
    "#",
    "# no comment",
    "a #b",
    "a=b",
    'A="b"',
    "=",
    "@",
    ":",
    "+",
    "!",
    "!!",
    "-",
    "--",
    "-x",
    "--flag",
    "--flag=a b",
    "---",
    "|&",
    "<>*?[]~^(){}",
    "größe",
    "模型 🚀",
    "e\u0301",
    "\u00a0",
    "\u2028\u2029\u0085",
    "\ufeff",
    "\u202e",
    '{"a": [1, -2.5e3, "b\\"c"], "d": null}',
    "/etc/../a//b",
    "C:\\Users\\x",
    "[Service]",
    "\nUser=nobody\n",
    "\n[Install]\n",
    "x" * 100_000,
    "% \\\"'$" * 10_000,
]


def made_up(count: int) -> list[str]:
    """Texts of characters that mean something to systemd or a shell, the same ones every time."""
    chance = random.Random(0)  # noqa: S311 - no secret
    alphabet = " \t\n\r\"'\\`$%{};#=@:+!-ab0xnäß🚀"
    return ["".join(chance.choices(alphabet, k=chance.randint(1, 40))) for _ in range(count)]


TEXTS = NASTY + made_up(300)

ECHO = """
import json, os, sys
given = {name.decode(): text.hex() for name, text in os.environb.items() if name.startswith(b"TEXT_")}
with open("/run/echo.json", "w") as stream:
    json.dump({"words": [os.fsencode(word).hex() for word in sys.argv[1:]], "variables": given}, stream)
"""
DESCRIPTION = 'SGLang 100%n (%i größe 🚀 "it\'s" $HOME ${X} \\ ; # `x`)'


def sandbox(*words: str, given: str = "") -> str:
    return subprocess.run(
        [sys.executable, "-m", "sandbox", *words],
        cwd=CHECKOUT,
        check=True,
        input=given.encode(),
        stdout=subprocess.PIPE,
    ).stdout.decode()


@pytest.fixture(scope="module", params=image.SUITES)
def execute(request: pytest.FixtureRequest) -> Iterator[Execute]:
    """Run a command on a fresh host of each Debian release."""
    name = f"unit-text-{request.param}"
    sandbox("up", "--suite", request.param, name)
    yield lambda *words, given="": sandbox("exec", name, "--", *words, given=given)
    sandbox("remove", name)


@pytest.fixture(scope="module")
def echoed(execute: Execute) -> dict[str, Any]:
    """Let a unit's process tell its words and, by name, its variables, in hexadecimal digits."""
    service = [
        "[Unit]",
        f"Description={value(DESCRIPTION)}",
        "[Service]",
        "Type=oneshot",
        "EnvironmentFile=/etc/echo.env",
        f"ExecStart={command_line(['/usr/bin/python3', '/usr/local/lib/echo.py', *TEXTS])}",
        "",
    ]
    variables = [environment_line(f"TEXT_{number}", text) for number, text in enumerate(TEXTS)]
    files = {
        "/usr/local/lib/echo.py": ECHO,
        "/etc/echo.env": "\n".join([*variables, ""]),
        "/etc/systemd/system/echo.service": "\n".join(service),
    }
    for path, content in files.items():
        execute("sh", "-c", f"cat > {path}", given=content)
    execute("systemctl", "daemon-reload")
    execute("systemctl", "start", "echo.service")
    given: dict[str, Any] = json.loads(execute("cat", "/run/echo.json"))
    return given


def read_back(digits: str | None) -> str | None:
    return None if digits is None else bytes.fromhex(digits).decode(errors="backslashreplace")


def test_words_arrive_byte_for_byte(echoed: dict[str, Any]) -> None:
    assert [read_back(digits) for digits in echoed["words"]] == TEXTS


def test_variables_arrive_byte_for_byte(echoed: dict[str, Any]) -> None:
    arrived = [read_back(echoed["variables"].get(f"TEXT_{number}")) for number in range(len(TEXTS))]
    assert {text: got for text, got in zip(TEXTS, arrived, strict=True) if got != text} == {}


@pytest.mark.usefixtures("echoed")
def test_a_value_arrives_as_it_is(execute: Execute) -> None:
    shown = execute("systemctl", "show", "--property=Description", "--value", "echo.service")
    assert shown == f"{DESCRIPTION}\n"


@pytest.mark.usefixtures("echoed")
def test_systemd_finds_nothing_to_complain_of(execute: Execute) -> None:
    complaints = ("journalctl", "--boot", "--quiet", "--priority=warning", "UNIT=echo.service")
    assert execute(*complaints) == ""
