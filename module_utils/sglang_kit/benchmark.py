"""Which cells does a benchmark matrix have, which of them can work, and what came out?

A matrix is {groups of GPUs} x {variants of an instance} x {concurrency}. One start serves all levels of
concurrency of a group and a variant: it is planned for the highest level that can be planned. What cannot is
refused with the plan's own reason and costs nothing.

A cell is known by a fingerprint of all that makes its result: host, plan, level and load. Results are lines
of JSON, the record of the matrix; a cell that has one is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from .evidence import without_secrets
from .plan import plan_host
from .problem import Collector, ProblemsError
from .report import WIDTH, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .plan import HostSettings

    Record = dict[str, Any]

NAME = "benchmark"
"""Name of the temporary instance; its unit is ``sglang-benchmark.service``."""
MEASURED, REFUSED, FAILED, SKIPPED = "measured", "refused", "failed", "skipped"
MODULE = "sglang.bench_serving"


@dataclass(frozen=True)
class Load:
    """What each level sends: requests of random tokens, all of one length, as fast as they are served."""

    requests_per_client: int = 4
    input_tokens: int = 512
    output_tokens: int = 128
    seed: int = 1


@dataclass(frozen=True)
class Matrix:
    """A sound matrix; ``groups`` are lists of GPUs and ``variants`` parts of an instance, by name."""

    name: str
    instance: Mapping[str, Any]
    groups: Mapping[str, Sequence[Any]]
    variants: Mapping[str, Mapping[str, Any]]
    baseline: str
    concurrency: tuple[int, ...]
    load: Load


_KEYS = ("instance", "gpus", "variants", "baseline", "concurrency", "load")
_OURS = ("name", "gpus", "concurrency", "state")
"""Keys of an instance that the matrix itself sets."""


def read_matrix(name: str, matrices: Mapping[str, Any]) -> Matrix:
    """Read one of ``sglang_benchmark_matrices``; raises ``ProblemsError`` with every fault."""
    found = Collector()
    if name not in matrices:
        known = ", ".join(sorted(matrices)) or "none"
        found.add(name, "matrix", "is not in sglang_benchmark_matrices", f"there are {known}")
        found.check()
    raw = matrices[name]
    for key in sorted(set(raw) - set(_KEYS)):
        found.add(name, key, "is not a known key", f"known are {', '.join(_KEYS)}")
    instance = _mapping(raw.get("instance"), name, "instance", found)
    groups = _mapping(raw.get("gpus"), name, "gpus", found)
    variants = _mapping(raw.get("variants"), name, "variants", found)
    for label, part in {"instance": instance, **variants}.items():
        for key in sorted(set(part) & set(_OURS)):
            found.add(name, f"{label}.{key}", "is set by the matrix", "leave it out")
    baseline = raw.get("baseline", next(iter(variants), ""))
    if baseline not in variants:
        found.add(
            name, "baseline", f"{baseline!r} is no variant", f"there are {', '.join(variants) or 'none'}"
        )
    levels = raw.get("concurrency")
    if not isinstance(levels, (list, tuple)) or not levels or not all(map(_is_count, levels)):
        found.add(
            name, "concurrency", f"{levels!r} is not a list of whole numbers from 1", "write [1, 4, 16]"
        )
        levels = (1,)
    load = _load(raw.get("load") or {}, name, found)
    found.check()
    return Matrix(name, instance, groups, variants, str(baseline), tuple(sorted(set(levels))), load)


def _mapping(value: Any, name: str, key: str, found: Collector) -> dict[str, Any]:  # noqa: ANN401 - any YAML
    if isinstance(value, dict) and value:
        return {str(label): part if part is not None else {} for label, part in value.items()}
    found.add(name, key, f"{value!r} is not a mapping with entries")
    return {}


def _load(raw: Mapping[str, Any], name: str, found: Collector) -> Load:
    known = [field.name for field in fields(Load)]
    for key, value in raw.items():
        if key not in known:
            found.add(name, f"load.{key}", "is not a known key", f"known are {', '.join(known)}")
        elif not _is_count(value):
            found.add(name, f"load.{key}", f"{value!r} is not a whole number from 1")
    return Load(**{key: value for key, value in raw.items() if key in known})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# --- the plan ------------------------------------------------------------------------------------


def planned(
    matrix: Matrix, *, settings: HostSettings, models: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[Record]]:
    """Plan every cell: the starts with their levels, and records of the cells that cannot work.

    The host's services are stopped before anything starts; what a deploy would take over stays.
    """
    settings = replace(settings, adopted=())
    starts, refused = [], []
    for group, gpus in matrix.groups.items():
        for variant, change in matrix.variants.items():
            plan, reasons = None, {}
            for level in matrix.concurrency:
                definition = {
                    **_merged(matrix.instance, change),
                    "name": NAME,
                    "gpus": gpus,
                    "concurrency": level,
                }
                try:
                    (plan,) = plan_host(instances=[definition], settings=settings, models=models)
                except ProblemsError as error:
                    reasons[level] = "; ".join(str(one).removeprefix(f"{NAME}: ") for one in error.problems)
            where: dict[str, Any] = {
                "matrix": matrix.name,
                "host": settings.name,
                "group": group,
                "tensor_parallel": max(1, len(gpus)),
                "variant": variant,
            }
            refused += [
                {**where, "id": _id(where, None, level, matrix.load), "concurrency": level, "result": REFUSED}
                | {"engine_version": settings.engine_version, "reason": reason}
                for level, reason in reasons.items()
            ]
            if plan is not None:
                levels = [
                    {"id": _id(where, plan["fingerprint"], level, matrix.load), "concurrency": level}
                    for level in matrix.concurrency
                    if level not in reasons
                ]
                starts.append({**where, "load": asdict(matrix.load), "plan": plan, "levels": levels})
    return starts, refused


def outlook(
    matrix: Matrix,
    *,
    settings: HostSettings,
    models: Mapping[str, Any],
    text: str,
) -> dict[str, Any]:
    """Say what is left to do: ``starts``, the new ``refused`` records, and ``lines`` for people.

    ``text`` is the record so far.
    """
    starts, refused = planned(matrix, settings=settings, models=models)
    known = {one["id"]: one["result"] for one in records(text)}
    return {
        "starts": pending(starts, known),
        "refused": [one for one in refused if one["id"] not in known],
        "baseline": matrix.baseline,
        "lines": [*_outlook(starts, known), *_reasons(refused, list(matrix.variants))],
    }


_OUTLOOK = ("GPUs", "variant", "clients", "KV tokens", "to measure")


def _outlook(starts: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> list[str]:
    if not starts:
        return ["no cell of this matrix can work"]
    rows = []
    for one in starts:
        left = [str(level["concurrency"]) for level in one["levels"] if level["id"] not in known]
        memory = one["plan"]["memory"] or {}
        rows.append(
            [
                one["group"],
                one["variant"],
                ", ".join(str(level["concurrency"]) for level in one["levels"]),
                f"{memory['kv_tokens']:,}" if "kv_tokens" in memory else "engine's",
                ", ".join(left) or "has results",
            ]
        )
    return table(_OUTLOOK, rows)


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Put a variant over the common definition; mappings as ``args`` are merged."""
    both = {
        key: {**base[key], **value} if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in change.items()
    }
    return {**base, **both}


def _id(where: Mapping[str, Any], fingerprint: str | None, level: int, load: Load) -> str:
    text = json.dumps([where, fingerprint, level, asdict(load)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pending(starts: Iterable[Mapping[str, Any]], known: Iterable[str]) -> list[dict[str, Any]]:
    """Leave the starts of which at least one cell has no result yet, with those cells."""
    done = set(known)
    left = [
        {**one, "levels": [level for level in one["levels"] if level["id"] not in done]} for one in starts
    ]
    return [one for one in left if one["levels"]]


# --- the record ----------------------------------------------------------------------------------


def records(text: str) -> list[Record]:
    """Read the lines of a record, the last one of each cell; one that was cut off is no result."""
    found: dict[tuple[Any, ...], Record] = {}
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[tuple(one[key] for key in ("host", "group", "variant", "concurrency"))] = one
    return list(found.values())


OUTCOME = ("result", "effective", "allocated", "measured", "cause", "phase", "reason")


def recorded(
    start: Mapping[str, Any], level: Mapping[str, Any], outcome: Mapping[str, Any], time: str
) -> Record:
    """Make the record of a cell that was started.

    ``outcome`` is what ``sglang_benchmark`` returned, or says why the start has failed.
    """
    plan = start["plan"]
    return {
        **{key: value for key, value in start.items() if key not in ("levels", "plan")},
        **level,
        "time": time,
        "engine_version": plan["engine_version"],
        "release": plan["release"],
        "fingerprint": plan["fingerprint"],
        **{key: outcome[key] for key in OUTCOME if key in outcome},
        "plan": without_secrets(plan),
    }


def command(plan: Mapping[str, Any], *, load: Load, concurrency: int, output: str) -> list[str]:
    """Measure with the release's own client (``sglang/bench_serving.py``; options of 0.5.11 to 0.5.23).

    Prompts are random tokens, so that no data set is needed. Each level has its own seed, the same for every
    variant: it must not find the prompts of the level before in the prefix cache.
    """
    host = "127.0.0.1" if plan["host"] in ("0.0.0.0", "::") else plan["host"]  # noqa: S104 - compared
    options = {
        "backend": "sglang",
        "host": host,
        "port": plan["port"],
        "model": plan["model"],
        "tokenizer": plan["model"],
        "dataset-name": "random-ids",
        "random-input-len": load.input_tokens,
        "random-output-len": load.output_tokens,
        "random-range-ratio": 1.0,
        "num-prompts": load.requests_per_client * concurrency,
        "max-concurrency": concurrency,
        "warmup-requests": min(concurrency, 4),
        "seed": load.seed + concurrency,
        "output-file": output,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [f"{plan['release']}/bin/python", "-m", MODULE, *words, "--tokenize-prompt", "--disable-tqdm"]


_FIELDS = (
    "completed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "median_e2e_latency_ms",
    "p99_e2e_latency_ms",
    "accept_length",
)


def measured(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what is compared of the client's result; an acceptance length only where tokens are drafted."""
    return {name: raw[name] for name in _FIELDS if raw.get(name) is not None}


# --- for people ----------------------------------------------------------------------------------

_HEADINGS = (
    "GPUs",
    "variant",
    "clients",
    "tokens/s",
    "of base",
    "TTFT ms",
    "TPOT ms",
    "p99 s",
    "accepted",
    "result",
)
_NUMBERS = _HEADINGS[2:-1]


def lines(found: Sequence[Record], baseline: str) -> list[str]:
    """Lay out all results of a matrix beside the baseline on the same GPUs, and why others have none."""
    if not found:
        return ["no results yet"]
    cells = [_row(one, found, baseline) for one in ordered(found, [baseline])]
    return [*table(_HEADINGS, cells, right=_NUMBERS), *_reasons(found, [baseline])]


def ordered(found: Sequence[Record], variants: Iterable[str] = ()) -> list[Record]:
    """Sort by host, group, variant (``variants`` first, others as first seen) and concurrency."""
    hosts, groups = (list(dict.fromkeys(one[key] for one in found)) for key in ("host", "group"))
    names = list(dict.fromkeys([*variants, *(one["variant"] for one in found)]))

    def place(one: Record) -> tuple[int, ...]:
        at = hosts.index(one["host"]), groups.index(one["group"]), names.index(one["variant"])
        return *at, one["concurrency"]

    return sorted(found, key=place)


def speedup(one: Record, found: Iterable[Record], baseline: str) -> float | None:
    """Output tokens per second over the baseline's at the same GPUs and concurrency; None without it."""
    base = next((other for other in found if _is_base(other, one, baseline)), None)
    if base is None or one["result"] != MEASURED or not base["measured"]["output_throughput"]:
        return None
    return float(one["measured"]["output_throughput"] / base["measured"]["output_throughput"])


def _is_base(other: Record, one: Record, baseline: str) -> bool:
    same = all(other[key] == one[key] for key in ("host", "group", "concurrency"))
    return same and other["variant"] == baseline and other["result"] == MEASURED


def _gpus(one: Record, found: Iterable[Record]) -> str:
    """Name a group, and its host where there are results of several."""
    hosts = {other["host"] for other in found}
    return f"{one['host']} {one['group']}" if len(hosts) > 1 else str(one["group"])


def _row(one: Record, found: Sequence[Record], baseline: str) -> list[str]:
    cells = [_gpus(one, found), one["variant"], f"{one['concurrency']:,}"]
    if one["result"] != MEASURED:
        return [*cells, "", "", "", "", "", "", one["result"]]
    seen, ratio = one["measured"], speedup(one, found, baseline)
    accepted = seen.get("accept_length")
    return [
        *cells,
        f"{seen['output_throughput']:,.1f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{seen['median_ttft_ms']:,.0f}",
        f"{seen['median_tpot_ms']:,.1f}",
        f"{seen['p99_e2e_latency_ms'] / 1000:,.2f}",
        "" if accepted is None else f"{accepted:.2f}",
        one["result"],
    ]


def _reasons(found: Sequence[Record], variants: Sequence[str]) -> Iterator[str]:
    """Say why cells have no result, each reason once."""
    levels: dict[tuple[str, str, str, str], list[str]] = {}
    for one in ordered(found, variants):
        if one["result"] != MEASURED:
            key = (_gpus(one, found), one["variant"], one["result"], one.get("reason", ""))
            levels.setdefault(key, []).append(str(one["concurrency"]))
    for (group, variant, result, reason), clients in levels.items():
        yield ""
        yield f"{group}, {variant}, {', '.join(clients)} clients: {result}"
        yield from textwrap.wrap(
            reason, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
