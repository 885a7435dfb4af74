"""What would this engine allocate? ``python -m sglang_kit.predict`` in ``module_utils``.

Reads one JSON object a line and prints one a line, in the same order. It is a public interface: fields are
added, never renamed.

In, all sizes GiB as SGLang logs them:
    sglang_version            a supported version
    config | model_config     the model's config.json, inline or as a path
    draft_config | draft_model_config   the draft model's, where there is one
    argv                      the engine's words (without interpreter, module and --model-path)
    environment               its variables, as an object
    gpu_total_mib             the smallest card of the host, for the engine's own defaults
    compute_capability        the card's, as nvidia-smi says it: "9.0"
    free_before_gib           free before the weights load ("Load weight begin. avail mem")
    free_after_weights_gib, weights_gib, draft_weights_gib   where known; predicted from shapes otherwise
    implied, mamba_slots      where argv is not known: what the log implies of it

Out: ``case`` (as given), ``weights_gib``, ``mem_fraction_static``, ``max_running_requests``, ``kv_tokens``,
``k_gib``, ``v_gib``; for hybrid models ``mamba_slots``, ``slots_per_request``, ``conv_gib``, ``ssm_gib``;
with speculation ``intermediate_ssm_gib``, ``intermediate_conv_gib``, ``draft_weights_gib`` (while loading),
``draft_k_gib``, ``draft_v_gib``; for sliding windows with a pool of their own ``sliding_tokens``; then
``free_after_target_pools_gib``, the least of the start ``free_least_gib`` with its ``free_least_moment``,
``free_at_end_gib`` of the start and ``free_serving_gib`` under load. Or ``error`` in the engine's words, or
``problems`` where the line cannot be read. ``not_modelled`` names flags that move memory in ways the
formulas do not know, and a draft model whose config is missing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .config_reader import MAX_JSON_BYTES, read_json
from .engine import facts
from .memory import Prediction, predict
from .model import read_config
from .problem import Problem, ProblemsError
from .quantity import from_gib, from_mib, gib
from .resolution import Card
from .settings import CommandLine, Settings, read_argv

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .engine import EngineFacts
    from .shapes import Model


_IMPLIED_FIELDS = (
    "error",
    "max_running_requests",
    "mamba_slots",
    "slots_per_request",
    "conv_gib",
    "ssm_gib",
    "intermediate_ssm_gib",
    "intermediate_conv_gib",
)
"""What follows from slots and requests alone, where the command line is not known."""


_MOST = 10**12
_LEAST_MIB = 1024
"""No card is smaller; the engine's own defaults make no sense below it."""


def predict_row(row: Mapping[str, Any], *, base: Path) -> dict[str, Any]:
    """Predict one object; paths are relative to ``base``.

    Raises ``ProblemsError`` for a row that cannot be read.
    """
    where = str(row.get("case", ""))
    version = row.get("sglang_version")
    if not isinstance(version, str):
        raise ProblemsError([Problem(where, "sglang_version", "is missing or no text", 'write "0.5.23"')])
    found = facts(version)
    model = _model(row, "config", "model_config", base, where)
    if model is None:
        raise ProblemsError([Problem(where, "config", "is missing", "give config or model_config")])
    draft = _model(row, "draft_config", "draft_model_config", base, where)
    line = _command_line(row, found, where)
    card = _card(row, where)
    prediction = predict(settings=line.settings, model=model, facts=found, card=card, draft=draft)
    missing = ("draft model",) if line.settings.draft_model and draft is None else ()
    answer = _answer(prediction, line, model)
    if row.get("argv") is None:
        answer = {field: value for field, value in answer.items() if field in _IMPLIED_FIELDS}
    return {**_case(row), **answer, **_notes((*line.not_modelled, *missing))}


def _case(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"case": row["case"]} if "case" in row else {}


def _notes(not_modelled: Sequence[str]) -> dict[str, Any]:
    return {"not_modelled": list(not_modelled)} if not_modelled else {}


def _model(row: Mapping[str, Any], inline: str, path: str, base: Path, where: str) -> Model | None:
    if row.get(inline) is not None:
        if not isinstance(row[inline], dict):
            raise ProblemsError([Problem(where, inline, "is no object")])
        return read_config(row[inline], where=where)
    if row.get(path) is None:
        return None
    if not isinstance(row[path], str):
        raise ProblemsError([Problem(where, path, "is no path")])
    try:
        with (base / row[path]).open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ProblemsError([Problem(where, path, f"cannot be read: {error}")]) from None
    return read_config(read_json(text, where=where), where=where)


def _command_line(row: Mapping[str, Any], found: EngineFacts, where: str) -> CommandLine:
    argv = row.get("argv")
    environment = row.get("environment") or {}
    if argv is None and isinstance(row.get("implied"), dict):
        return CommandLine(_implied(row, where), ("argv",))
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise ProblemsError([Problem(where, "argv", "is no list of texts", 'write ["--flag", "value"]')])
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise ProblemsError([Problem(where, "environment", "is no object of texts")])
    return read_argv(argv, facts=found, environment=environment, where=where)


def _implied(row: Mapping[str, Any], where: str) -> Settings:
    """Read the settings of a service of which only the log is known: its slots and what they imply."""
    implied = row["implied"]
    algorithm = implied.get("speculative_algorithm")
    if algorithm is not None and not isinstance(algorithm, str):
        raise ProblemsError([Problem(where, "implied.speculative_algorithm", "is no text")])
    return Settings(
        algorithm=algorithm,
        draft_model=algorithm is not None,
        draft_tokens=_count(implied, "speculative_num_draft_tokens", where),
        running_requests=_count(implied, "max_running_requests", where),
        state_slots=_count(row, "mamba_slots", where),
        state_strategy="extra_buffer",
    )


def _count(values: Mapping[str, Any], key: str, where: str) -> int | None:
    value = values.get(key)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < _MOST
    ):
        raise ProblemsError(
            [Problem(where, key, f"{str(value)[:40]} is no whole number from 1 to {_MOST:g}")]
        )
    return value


def _card(row: Mapping[str, Any], where: str) -> Card:
    sizes: dict[str, int | None] = {}
    problems = []
    for key in (
        "gpu_total_mib",
        "free_before_gib",
        "free_after_weights_gib",
        "weights_gib",
        "draft_weights_gib",
    ):
        value = row.get(key)
        if value is None:
            sizes[key] = None
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
            problems.append(Problem(where, key, f"{str(value)[:40]!r} is no size"))
        elif key == "gpu_total_mib" and value < _LEAST_MIB:
            problems.append(Problem(where, key, f"{value} is less than {_LEAST_MIB}, in MiB"))
        else:
            sizes[key] = from_mib(value) if key.endswith("_mib") else from_gib(value)
    if problems:
        raise ProblemsError(problems)
    return Card(
        capability=_capability(row, where),
        total=sizes["gpu_total_mib"],
        free=sizes["free_before_gib"],
        free_after_weights=sizes["free_after_weights_gib"],
        weights=sizes["weights_gib"],
        draft_weights=sizes["draft_weights_gib"],
    )


def _capability(row: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    value = row.get("compute_capability")
    if value is None:
        return None
    parts = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", value) if isinstance(value, str) else None
    if parts is None:
        shown = repr(value)[:40]
        raise ProblemsError([Problem(where, "compute_capability", f"{shown} is none", 'write "9.0"')])
    return int(parts[1]), int(parts[2])


def _answer(found: Prediction, line: CommandLine, model: Model) -> dict[str, Any]:
    resolved = found.resolved
    if found.error or resolved is None:
        answer: dict[str, Any] = {"error": found.error}
        if resolved is not None:
            answer["mem_fraction_static"] = resolved.memory_fraction
        return answer
    answer = {
        "weights_gib": gib(found.weights),
        "mem_fraction_static": resolved.memory_fraction,
        "max_running_requests": found.running_requests,
        "kv_tokens": found.kv_tokens,
        "k_gib": gib(found.key_bytes),
        "v_gib": gib(found.value_bytes),
    }
    if found.sliding_tokens:
        answer["sliding_tokens"] = found.sliding_tokens
    if model.state is not None:
        answer["mamba_slots"] = found.state_slots
        answer["slots_per_request"] = resolved.slots_per_request
        answer["conv_gib"] = gib(found.conv_bytes)
        answer["ssm_gib"] = gib(found.ssm_bytes)
    if model.state is not None and resolved.draft_tokens:
        answer["intermediate_ssm_gib"] = gib(found.intermediate_ssm_bytes)
        answer["intermediate_conv_gib"] = gib(found.intermediate_conv_bytes)
    if line.settings.algorithm not in (None, "NGRAM"):
        answer["draft_weights_gib"] = gib(found.draft_weights_loading)
        answer["draft_k_gib"] = gib(found.draft_key_bytes)
        answer["draft_v_gib"] = gib(found.draft_value_bytes)
    if found.moments:
        pools = next(moment for moment in found.moments if moment.name == "pools allocated")
        answer["free_after_target_pools_gib"] = gib(pools.free)
        *start, serving = found.moments
        least = min(start, key=lambda moment: moment.free)
        answer["free_least_gib"] = gib(least.free)
        answer["free_least_moment"] = least.name
        answer["free_at_end_gib"] = gib(start[-1].free)
        answer["free_serving_gib"] = gib(serving.free)
    return answer


def run(lines: Iterable[bytes], output: TextIO, *, base: Path) -> int:
    """Answer every line; return 1 where a line could not be read, else 0."""
    status = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row: dict[str, Any] = {}
        try:
            row = read_json(line, what=f"line {number}", remedy="write one JSON object a line")
            answer = predict_row(row, base=base)
        except ProblemsError as error:
            answer = {**_case(row), "problems": [str(problem) for problem in error.problems]}
            status = 1
        output.write(json.dumps(answer) + "\n")
        output.flush()
    return status


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_kit.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", type=Path, default=Path(), help="folder that paths are relative to")
    return run(sys.stdin.buffer, sys.stdout, base=parser.parse_args(arguments).base)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
