"""Write the generated tables into the documentation; with ``--check`` only say which are stale.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. The variables of each role come
from its argument specification, defaults from its defaults file.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def variables(document: Path) -> str:
    """Variables of the role whose README this is."""
    role = document.parent
    specification = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    options = specification["argument_specs"]["main"].get("options", {})
    rows = [
        f"| `{name}` | {option['type']} | {_default(option)} | {_prose(option)} |"
        for name, option in _flatten(options)
    ]
    return "\n".join(["| variable | type | default | meaning |", "|---|---|---|---|", *rows])


def _flatten(options: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, option in options.items():
        yield f"{prefix}{name}", option
        yield from _flatten(option.get("options", {}), f"{prefix}{name}.")


def _default(option: dict[str, Any]) -> str:
    if option.get("required"):
        return "**required**"
    if "default" not in option:
        return ""
    value = option["default"]
    return f"`{'true' if value is True else 'false' if value is False else value}`"


def _prose(option: dict[str, Any]) -> str:
    description = option["description"]
    text = " ".join(description) if isinstance(description, list) else description
    text = re.sub(r"[CVO]\(([^)]*)\)", r"`\1`", text.strip())
    choices = option.get("choices")
    return f"{text} One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else text


TABLES: dict[str, Callable[[Path], str]] = {"variables": variables}


def _filled(document: Path, block: re.Match[str]) -> str:
    return f"{block[1]}{TABLES[block['name']](document)}\n{block[3]}"


def stale(*, write: bool) -> list[Path]:
    """Find the documents whose tables differ from their source, and mend them if asked."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md")]
    found = []
    for document in sorted(documents):
        text = document.read_text(encoding="utf-8")
        fresh = BLOCK.sub(partial(_filled, document), text)
        if fresh != text:
            found.append(document.relative_to(ROOT))
            if write:
                document.write_text(fresh, encoding="utf-8")
    return found


def main() -> int:
    """Rewrite, or check."""
    check = "--check" in sys.argv[1:]
    documents = stale(write=not check)
    for document in documents:
        sys.stdout.write(f"{'stale' if check else 'written'}: {document}\n")
    return 1 if check and documents else 0


if __name__ == "__main__":
    sys.exit(main())
