"""In what do two states differ, and which differences matter first?

A view holds a state as plain values: one of the store, what the inventory wants, or what runs now. Its facts
are texts by kind and name. Two views are compared fact by fact, in the order of ``KINDS``: what causes before
what follows. What one of them cannot know (an inventory has allocated nothing) is not compared, and named.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .credentials import MASK
from .evidence import without_secrets
from .fingerprint import VARIABLE
from .quantity import GIB
from .report import WIDTH, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    View = Mapping[str, Any]
    """``title`` and ``of`` for people, ``on`` (its host), ``plan``; and where they are known ``host``
    (driver, kernel, gpus), ``models`` (fingerprint by ``MODEL_FILES``), ``secrets`` (digest by name),
    ``files`` (texts of ``unit``, ``environment`` and drop-ins by path), ``held`` (who is in the way, by port)
    and ``allocated`` (pools)."""
    Facts = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Kind:
    """A kind of difference, its name for people, and why it stands where it stands."""

    id: str
    title: str
    reason: str


KINDS = (
    Kind("engine", "engine", "another release reads the same flags with its own defaults, rules and pools"),
    Kind("model", "model", "other files need other memory and give other answers"),
    Kind("host", "host", "a driver, kernel or card that changed underneath is in no file of the instance"),
    Kind("held", "in the way", "the start is refused while somebody holds what the instance needs"),
    Kind("memory", "memory flag", "decides what is allocated, and whether the start succeeds"),
    Kind("speculation", "draft flag", "sizes the reserve of every request, and what the graphs capture"),
    Kind("argument", "flag", "changes what the engine does, rarely whether it starts"),
    Kind("environment", "variable", "switches kernels, communication and logging"),
    Kind("secret", "secret", "shown as set or not, and whether it is the same; never itself"),
    Kind("file", "file", "limits, sandboxing and drop-ins, which the next start obeys"),
    Kind("address", "place", "GPUs and ports differ between instances by their nature"),
    Kind("planned", "planned", "follows from the rows above: how much room they make"),
    Kind("allocated", "allocated", "follows from the rows above: what the engine made of them"),
)
"""The order of the rows: what causes first, what follows last."""

MODEL_FILES = ("files", "draft files")
_FLAGS = (
    ("model", re.compile(r"--(?:model-path|tokenizer-path|revision|.*draft-model-path|lora-paths)")),
    ("speculation", re.compile(r"--speculative-.*")),
    (
        "memory",
        re.compile(
            r"--(?:mem-fraction-static|max-.*|context-length|.*kv-cache-dtype|.*mamba.*|.*cuda-graph.*|page-size"
            r"|chunked-prefill-size|swa-.*|dtype|quantization|device|load-format|.*offload.*|tp|tp-size"
            r"|tensor-parallel-size|dp-size|ep-size|disable-radix-cache)"
        ),
    ),
    ("address", re.compile(r"--(?:host|port|nccl-port|served-model-name)")),
    ("argument", re.compile(".*")),
)
"""Kind of each flag: the first pattern that matches it whole."""

_PLACE = ("gpus", "shared", "after")
_PLANNED = ("kv_tokens", "state_slots", "sliding_tokens", "full_contexts", "concurrency", "headroom_gib")
_GIB = {"gib": 1, "bytes": GIB}
_WORDS = {"k": "K", "key": "K", "v": "V", "value": "V", "kv": "KV", "swa": "SWA", "ssm": "SSM"}
_ASSIGNMENT = re.compile(
    r'^(?P<name>\w+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\n]*))$', re.MULTILINE | re.DOTALL
)
_FOLDED = re.compile(r"\s*\\\n\s*")
_AS_PLANNED = {"[Service] ExecStart": "exec_start", "[Service] ExecStartPre": "exec_start_pre"}


@dataclass(frozen=True)
class Difference:
    """One fact that differs; an empty text says that a side does not have it. Secrets are masked."""

    kind: str
    name: str
    left: str
    right: str


@dataclass(frozen=True)
class Comparison:
    """What differs, what matters first at the top, and the kinds that one side knows nothing of."""

    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"differences": [asdict(one) for one in self.differences], "unknown": list(self.unknown)}


def of_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """View a plan that no host has seen yet."""
    return {"title": "inventory", "plan": plan, "held": {}}


def of_state(state: Mapping[str, Any], texts: Mapping[str, str], title: str) -> dict[str, Any]:
    """View a state of the store; ``texts`` are its files by their path on the host."""
    plan, model = state["plan"], state.get("model") or {}
    digests = {file["path"]: file["sha256"] for file in state["files"]}
    proven = [one["allocated"] for one in state["results"] if one.get("allocated")]
    return {
        **of_plan(plan),
        "title": title,
        "of": f"{state['id']}, deployed {state['made']}{_by(state.get('by') or {})}",
        "host": state.get("host"),
        "models": {"files": model["fingerprint"]} if model.get("fingerprint") else {},
        "secrets": {name: digests[path] for name, path in plan["secrets"].items() if path in digests},
        "files": {name: texts[plan[f"{name}_file"]] for name in ("unit", "environment")},
        "allocated": proven[-1] if proven else None,
    }


def _by(origin: Mapping[str, Any]) -> str:
    return f" by {origin['user']} from {origin['controller']}" if origin else ""


def compare(left: View, right: View) -> Comparison:
    """Compare two views; times of model files count only on one host, since a copy has its own."""
    one_host = left.get("on") == right.get("on")
    first, second = facts(left, times=one_host), facts(right, times=one_host)
    found = [
        _difference(kind.id, name, first[kind.id].get(name, ""), second[kind.id].get(name, ""))
        for kind in KINDS
        if kind.id in first and kind.id in second
        for name in _names(first[kind.id], second[kind.id])
        if first[kind.id].get(name, "") != second[kind.id].get(name, "")
    ]
    unknown = [kind.id for kind in KINDS if (kind.id in first) != (kind.id in second)]
    return Comparison(tuple(found), tuple(unknown))


def _names(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[str]:
    """Give the names of both sides; model files that only one of them has looked at are no difference."""
    for name in sorted({*left, *right}):
        if name not in MODEL_FILES or (name in left and name in right):
            yield name


def _difference(kind: str, name: str, left: str, right: str) -> Difference:
    key = name.rpartition(" ")[2]
    shown = [
        text and (MASK if kind == "secret" else str(without_secrets({key: text})[key]))
        for text in (left, right)
    ]
    if shown[0] == shown[1]:
        shown[1] += " (another one)"
    return Difference(kind, name, *shown)


def facts(view: View, *, times: bool = True) -> Facts:
    """Say by kind and name what a view knows; a kind of which it knows nothing is left out."""
    plan = view["plan"]
    found: Facts = {
        kind: {} for kind in ("engine", "model", *(kind for kind, _ in _FLAGS), "environment", "planned")
    }
    found["engine"] = {"SGLang": plan["engine_version"], "release": plan["release"].rpartition("/")[2]}
    for flag, text in flags(plan["argv"]):
        kind = next(kind for kind, pattern in _FLAGS if pattern.fullmatch(flag))
        found[kind][flag] = text
    for name, text in plan["environment"].items():
        if name != VARIABLE:
            found["environment"][name] = _neutral(text, plan)
    found["address"].update({name: _text(plan[name]) for name in _PLACE if plan.get(name)})
    memory = plan.get("memory") or {}
    pools = {f"{name}_gib": size for name, size in (memory.get("pools_gib") or {}).items()}
    found["planned"].update(_amounts({**{name: memory.get(name) for name in _PLANNED}, **pools}))
    for name, mark in (view.get("models") or {}).items():
        found["model"][name] = (mark if times else mark.partition(".")[0]) or "absent"
    if view.get("allocated") is not None:
        found["allocated"] = dict(_amounts(view["allocated"]))
    for kind, key in (("host", "host"), ("held", "held"), ("secret", "secrets")):
        if view.get(key) is not None:
            found[kind] = {name: _text(value) for name, value in view[key].items()}
    if view.get("files") is not None:
        found["file"] = dict(_files(view["files"], plan))
    return found


def flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Give the flags of a command line with their values; of a repeated one the last, as the engine does."""
    found: dict[str, list[str]] = {"command": []}
    last = "command"
    for word in argv[1:]:
        if word.startswith("--"):
            last, separator, text = word.partition("=")
            found[last] = [text] if separator else []
        else:
            found[last].append(word)
    return ((flag, " ".join(words) or "set") for flag, words in found.items())


def _text(value: object) -> str:
    return ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else f"{value}"


def _amounts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name what a plan or an engine counts, and write it as tables do; nothing of what is not there."""
    for key, value in values.items():
        words = [_WORDS.get(word, word) for word in key.split("_")]
        if value and words[-1] in _GIB:
            yield " ".join(words[:-1]), f"{value / _GIB[words[-1]]:.2f} GiB"
        elif value:
            yield " ".join(words), f"{value:,}"


def _neutral(text: str, plan: Mapping[str, Any]) -> str:
    """Leave out what follows from the release and the name alone; other rows tell of them."""
    name = plan["name"]
    for own, common in (
        (plan["release"], "RELEASE"),
        (f"sglang-{name}", "sglang-NAME"),
        (f"sglang/{name}", "sglang/NAME"),
    ):
        text = re.sub(rf"{re.escape(own)}(?![\w-])", common, text)
    return text


# --- files ---------------------------------------------------------------------------------------


def _files(files: Mapping[str, str], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Read the unit, its drop-ins and the environment file; what only repeats the plan is not told again."""
    for path, text in files.items():
        if path == "environment":
            yield from _variables(text, plan)
            continue
        prefix = "" if path == "unit" else f"drop-in {path.rpartition('/')[2]}: "
        for name, value in directives(text):
            planned = _FOLDED.sub(" ", plan.get(_AS_PLANNED.get(name, ""), ""))
            told = "as planned" if value == planned else _edited(value, planned)
            yield f"{prefix}{name}", _neutral(told, plan)


def _edited(text: str, planned: str) -> str:
    """Keep of a command line what somebody made of the planned one, with the word before it."""
    words, theirs = text.split(" "), planned.split(" ")
    same = _parting(words, theirs)
    ends = _parting(words[same:][::-1], theirs[same:][::-1])
    return " ".join(words[max(0, same - 1) : len(words) - ends])


def directives(text: str) -> Iterator[tuple[str, str]]:
    """Read a unit (systemd.syntax(7)): the values of each directive of each section, joined by "; "."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in _FOLDED.sub(" ", text).splitlines():
        if line.startswith("["):
            section = line.strip()
        elif "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            found.setdefault(f"{section} {key.strip()}", []).append(value.strip())
    return ((name, "; ".join(values)) for name, values in found.items())


def _variables(text: str, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Tell the variables of an environment file that are not those of the plan."""
    planned, found = _assignments("\n".join(plan["environment_lines"])), _assignments(text)
    for name in {**planned, **found}:
        if planned.get(name) != found.get(name):
            yield f"environment file: {name}", found.get(name, "(removed)")


def _assignments(text: str) -> dict[str, str]:
    return {
        match["name"]: match["plain"] if match["quoted"] is None else match["quoted"]
        for match in _ASSIGNMENT.finditer(text)
    }


# --- drift ---------------------------------------------------------------------------------------

DRIFT = (
    "engine",
    "model",
    "held",
    "memory",
    "speculation",
    "argument",
    "address",
    "environment",
    "secret",
    "file",
)
"""Kinds in which an instance can leave what was installed without a deploy."""


def drift(installed: View, now: View) -> list[Difference]:
    """Find what was changed on the host since the deploy, by hand or underneath."""
    return [one for one in compare(installed, now).differences if one.kind in DRIFT]


def reason(runs: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Say in one line what a restart would change, from plan to plan; empty where they say the same."""
    changed = [one for one in compare(of_plan(runs), of_plan(wanted)).differences if one.kind != "planned"]
    told = [f"{one.name} {_short(one.left) or '-'} -> {_short(one.right) or '-'}" for one in changed]
    more = [f"{len(told) - _TOLD} more"] if len(told) > _TOLD else []
    return ", ".join([*told[:_TOLD], *more])


def sentence(one: Difference) -> str:
    """Say a drift for people."""
    title = next(kind.title for kind in KINDS if kind.id == one.kind)
    if one.kind == "held":
        return f"{one.name}: {one.right}"
    return f"{title} {one.name}: {_short(one.right) or 'gone'}, deployed {_short(one.left) or 'without it'}"


# --- for people ----------------------------------------------------------------------------------

_TOLD = 3
_NAME = 36


def told(left: View, right: View) -> dict[str, Any]:
    """Compare two views, for programs and in ``lines`` for people."""
    found = compare(left, right)
    return {
        "name": left["plan"]["name"],
        "left": _side(left),
        "right": _side(right),
        **found.as_dict(),
        "lines": lines(left, right, found),
    }


def _side(view: View) -> dict[str, Any]:
    return {key: view.get(key, "") for key in ("title", "on", "of")}


def lines(left: View, right: View, found: Comparison) -> list[str]:
    """Lay out a comparison: the rows side by side, and below it why the first ones matter."""
    sides = [f"  {one['title']}: {one['of']}" for one in (left, right) if one.get("of")]
    head = [f"{left['plan']['name']}: {left['title']} against {right['title']}", *sides, ""]
    # What has not run has allocated nothing: that goes without saying.
    unknown = [kind.title for kind in KINDS if kind.id in found.unknown and kind.id != "allocated"]
    rest = ["", f"not compared, since one side does not know it: {', '.join(unknown)}"] if unknown else []
    if not found.differences:
        return [*head, "no difference", *rest]
    titles = {kind.id: kind.title for kind in KINDS}
    names = [[titles[one.kind], _cut(one.name, _NAME)] for one in found.differences]
    widths = [max(map(len, column)) for column in zip(("what", "name"), *names)]
    room = (WIDTH - sum(widths) - len("  " * 3)) // 2
    rows = [[*name, *_cells(one.left, one.right, room)] for name, one in zip(names, found.differences)]
    seen = {one.kind for one in found.differences}
    why = [f"{kind.title}: {kind.reason}" for kind in KINDS if kind.id in seen]
    headings = ("what", "name", _cut(left["title"], room), _cut(right["title"], room))
    return [*head, *table(headings, rows), "", "what matters first", *(f"  {text}" for text in why), *rest]


def _short(text: str) -> str:
    return _cut(" ".join(text.split()), WIDTH)


def _cells(left: str, right: str, room: int) -> list[str]:
    """Show two texts in their cells, long ones from shortly before where they part."""
    texts = [" ".join(text.split()) or "-" for text in (left, right)]
    if max(map(len, texts)) <= room:
        return texts
    part = _parting(*texts)
    start = max(0, min(part - room // 3, max(map(len, texts)) - room + 1))
    return [_cut(f"…{text[start + 1 :]}" if start and len(text) > start else text, room) for text in texts]


def _parting(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the characters or words until two texts part."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
