"""How is a word written so that systemd reads back exactly that word?

Rules: systemd.service(5) "Command lines", systemd.syntax(7) "Quoting" and systemd.exec(5)
"EnvironmentFile=".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_@:,./=+-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def value(text: str) -> str:
    """One directive's value: specifiers are switched off, nothing else is special."""
    return text.replace("%", "%%")


def word(text: str) -> str:
    """One word of a command line whose executable has the ``:`` prefix.

    The prefix switches variable expansion off, so ``$`` needs no care; ``%`` would start a
    specifier, and quotes, backslashes and control characters are written as C escapes.
    """
    if _PLAIN.fullmatch(text):
        return text
    escaped = value(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", escaped) + '"'


def essence(template: str) -> str:
    """Reduce a unit's template to the lines that matter to what it starts.

    With the values that a plan fills in, it tells whether the unit's text makes a difference.
    """
    lines = (line.strip() for line in template.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("#", ";", "Description=")))


def command_line(argv: Sequence[str]) -> str:
    """Write a command, one flag with its values a line, ready to stand after ``ExecStart=``."""
    lines = [f":{word(argv[0])}"]
    for argument in argv[1:]:
        if argument.startswith("--"):
            lines.append(f"  {word(argument)}")
        else:
            lines[-1] += f" {word(argument)}"
    return " \\\n".join(lines)


def environment_line(name: str, text: str) -> str:
    """Write one assignment of an ``EnvironmentFile=``; the value may hold any text, also line ends."""
    return f'{name}="' + re.sub(r'(["\\`$])', r"\\\1", text) + '"'
