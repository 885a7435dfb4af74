"""Write the generated tables into the documentation; with ``--check`` only say which are stale.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. The variables of each role come
from its argument specification, defaults from its defaults file. The plans are made of the shipped inventory
``inventories/ct200``, as its playbook would.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit import diagnosis, report  # noqa: E402 - after the path above
from sglang_kit.plan import HostSettings, plan_host, read_host  # noqa: E402
from sglang_kit.problem import ProblemsError  # noqa: E402

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


CT200 = ROOT / "inventories/ct200"
REFUSALS: tuple[dict[str, Any], ...] = (
    {"concurrency": 48},
    {"context_length": 262144},
    {"memory": {"headroom_gib": 30}},
    {"memory": {"state_slots": 60}},
    {"memory": {"state_slots": 2}},
    {"strategy": {"method": "eagle3", "draft_model": "/srv/models/qwen36-27b-dflash"}},
    {"gpus": [0]},
    {"args": {"mem-fraction-static": 0.9}},
)


@cache
def _ct200() -> tuple[dict[str, Any], HostSettings, dict[str, Any]]:
    """Read the first instance of the shipped inventory, its host and its models."""
    values = yaml.safe_load((CT200 / "host_vars/ct200.yml").read_text(encoding="utf-8"))
    models = {
        entry["path"]: json.loads(
            Path(entry["config"].replace("{{ inventory_dir }}", str(CT200))).read_text(encoding="utf-8")
        )
        for entry in values["sglang_model_catalog"]
    }
    known = ("accelerator", "gpus", "reserved_gpus", "reserved_ports")
    host = {key: values[f"sglang_host_{key}"] for key in known}
    named = {"name": "ct200", "engine_version": values["sglang_engine_version"], "release": "/release"}
    return values["sglang_service_instances"][0], read_host({**host, **named}), models


def _planned(changes: dict[str, Any]) -> list[dict[str, Any]]:
    instance, host, models = _ct200()
    return plan_host(instances=[{**instance, **changes}], settings=host, models=models)


def plan(_document: Path) -> str:
    """Show a plan as the playbook does."""
    return _block(report.lines(_planned({})))


def plan_notes(_document: Path) -> str:
    """Show what a plan says of a pinned fraction."""
    (pinned,) = _planned({"memory": {"fraction": 0.99}})
    return "\n".join(f"- {note}" for note in pinned["memory"]["notes"])


def refusals(_document: Path) -> str:
    """Show changes that are refused, and the refusal."""
    rows = [f"| `{_flow(changes)}` | {_refusal(changes)} |" for changes in REFUSALS]
    return "\n".join(["| change | refusal |", "|---|---|", *rows])


def _flow(changes: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(changes, default_flow_style=True, width=1000, sort_keys=False)
    return text.strip().strip("{}") + "}" * (text.count("}") - 1)


def _refusal(changes: dict[str, Any]) -> str:
    try:
        _planned(changes)
    except ProblemsError as refused:
        return "<br>".join(map(str, refused.problems))
    raise RuntimeError(f"{changes} is no longer refused")


def proof(_document: Path) -> str:
    """Show the recorded proof that the tests compare with."""
    return _block((ROOT / "tests/fixtures/plans/h200-mtp.txt").read_text(encoding="utf-8").splitlines())


def _block(lines: list[str]) -> str:
    return "\n".join(["```", *lines, "```"])


def causes(_document: Path) -> str:
    """Return the catalogue of ``diagnosis.py``; of several rows of a cause the first."""
    rows: dict[str, str] = {}
    for cause in (*diagnosis.ROOTS, *diagnosis.CONSEQUENCES):
        cells = (
            f"`{cause.id}`",
            cause.phase.replace("_", " "),
            cause.sentence,
            cause.remedy,
            cause.reference,
        )
        text = " | ".join(re.sub(r"\{(\w+)\}", r"*\1*", cell).replace("|", "\\|") for cell in cells)
        rows.setdefault(cause.id, f"| {text} |")
    return "\n".join(
        ["| cause | phase | what it says | what to do | see |", "|---|---|---|---|---|", *rows.values()]
    )


TABLES: dict[str, Callable[[Path], str]] = {
    "causes": causes,
    "variables": variables,
    "plan": plan,
    "plan-notes": plan_notes,
    "refusals": refusals,
    "proof": proof,
}


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
