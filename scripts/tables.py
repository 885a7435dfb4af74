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

import tomllib
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_kit import benchmark, diagnosis, difference, engine, gates, report  # noqa: E402 - after the path above
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
    """Read the shipped inventory: all values, its host and its models."""
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
    return values, read_host({**host, **named}), models


def _planned(changes: dict[str, Any]) -> list[dict[str, Any]]:
    values, host, models = _ct200()
    instance = values["sglang_service_instances"][0]
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


def matrix(_document: Path) -> str:
    """Show the cells of the shipped matrix as the playbook does."""
    values, host, models = _ct200()
    shipped = benchmark.read_matrix("strategies", values["sglang_benchmark_matrices"])
    return _block(benchmark.outlook(shipped, settings=host, models=models, text="")["lines"])


GPU = ROOT / "tests/fixtures/gpu/2026-11-30-h200"
COMPARED = (
    ("requests at once", "running_requests", ",", True),
    (
        "output tokens a second, full batch (median of the engine's lines)",
        "decode_tokens_per_second_median",
        ".1f",
        True,
    ),
    ("output tokens a second, whole run", "output_tokens_per_second", ".1f", True),
    ("seconds a request, median", "request_seconds_p50", ".1f", False),
    ("seconds a request, 99th percentile", "request_seconds_p99", ".1f", False),
    ("least free under load, GiB", "free_gib_least", ".1f", False),
    ("seconds of load", "load_seconds", ".0f", False),
    ("requests answered", "answered", ",", False),
)
"""Rows of the comparison on a GPU: title, key of a load, form, and whether the ratio says something."""


def by_hand(_document: Path) -> str:
    """Compare flags tuned by hand with a plan, as measured on a GPU."""
    sides = {side["case"]: side for side in json.loads((GPU / "comparison.json").read_text(encoding="utf-8"))}
    hand, planned = sides["hand"], sides["planned"]
    tokens = [side["kv_tokens"] for side in (hand, planned)]
    rows = [
        "| | by hand | planned | |",
        "|---|---:|---:|---:|",
        _compared("KV tokens", tokens, ",", ratio=True),
    ]
    for loads in zip(hand["loads"], planned["loads"]):
        rows.append(
            f"| **{loads[0]['prompt_tokens']:,} tokens in, {loads[0]['answer_tokens']:,} out** | | | |"
        )
        rows += [
            _compared(title, [load[key] for load in loads], form, ratio=ratio)
            for title, key, form, ratio in COMPARED
        ]
    return "\n".join(rows)


def _compared(title: str, pair: list[float], form: str, *, ratio: bool) -> str:
    gain = f"{pair[1] / pair[0]:.2f} x" if ratio else ""
    return f"| {title} | {pair[0]:{form}} | {pair[1]:{form}} | {gain} |"


def gpu_benchmark(_document: Path) -> str:
    """Show the results of a matrix on a GPU as the playbook does."""
    found = benchmark.records((GPU / "benchmark/results.jsonl").read_text(encoding="utf-8"))
    return _block(benchmark.lines(found, "autoregressive"))


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


SYSTEMS = (
    ("Debian 12", "252", "2.36", (3, 11), "deployed to by the tests"),
    ("Debian 13", "257", "2.41", (3, 13), "deployed to by the tests"),
    ("Ubuntu 24.04", "255", "2.39", (3, 12), "meets the needs below"),
)
"""System, its systemd, its glibc, its own Python, and how it is known to work."""


def systems(_document: Path) -> str:
    """Say which engines run on each system's own Python."""
    rows = [
        f"| {name} | {systemd} | {glibc} | {_dotted(python)} | {_engines_on(python)} | {known} |"
        for name, systemd, glibc, python, known in SYSTEMS
    ]
    head = "| system | systemd | glibc | its Python | engines on it | known to work |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def _engines_on(python: tuple[int, int]) -> str:
    every = [engine.facts(version) for version in engine.SUPPORTED]
    serving = [facts.version for facts in every if facts.python_first <= python <= facts.python_last]
    return "all" if len(serving) == len(every) else ", ".join(serving) or "none: bring another Python"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def needs(_document: Path) -> str:
    """Say what the gate asks of a host."""
    rows = (
        ("systemd", f"{gates.SYSTEMD} or newer"),
        ("glibc", f"{_dotted(gates.GLIBC)} or newer"),
        ("NVIDIA driver, for GPUs", f"one that serves CUDA {_dotted(gates.CUDA)} (R580 or newer)"),
        ("CUDA toolkit, for GPUs", f"{gates.CUDA[0]}.x with `nvcc`"),
    )
    return "\n".join(["| what | version |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)])


LOCKS = ROOT / "roles/sglang_engine/files/locks"
PACKAGES = ("torch", "nvidia-cuda-runtime", "transformers", "flashinfer-python", "sglang-kernel")


def engines(_document: Path) -> str:
    """Say what each version of the engine needs, brings and can do."""
    head = f"| SGLang | lock | Python | {' | '.join(PACKAGES)} | speculative algorithms |"
    return "\n".join([head, "|---" * (len(PACKAGES) + 4) + "|", *map(_engine, engine.SUPPORTED)])


def _engine(version: str) -> str:
    facts, lock = engine.facts(version), LOCKS / f"{version}.txt"
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", text, re.MULTILINE))
    cells = (
        version,
        "shipped" if text else "",
        f"{_dotted(facts.python_first)} to {_dotted(facts.python_last)}",
        *(pins.get(package, "") for package in PACKAGES),
        ", ".join(facts.algorithms),
    )
    return f"| {' | '.join(cells)} |"


def controller(_document: Path) -> str:
    """Say what the machine needs that runs the playbooks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [f"| Python | {project['requires-python']} |"]
    for need in project["dependencies"]:
        name, bounds = re.split(r"(?=[<>=])", need, maxsplit=1)
        rows.append(f"| {name} | {bounds} |")
    return "\n".join(["| what | version |", "|---|---|", *rows])


def kinds(_document: Path) -> str:
    """List the kinds of differences in their order."""
    rows = [f"| {kind.title} | {kind.reason} |" for kind in difference.KINDS]
    return "\n".join(["| what | why it stands here |", "|---|---|", *rows])


TABLES: dict[str, Callable[[Path], str]] = {
    "by-hand": by_hand,
    "causes": causes,
    "controller": controller,
    "engines": engines,
    "gpu-benchmark": gpu_benchmark,
    "kinds": kinds,
    "matrix": matrix,
    "needs": needs,
    "systems": systems,
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
