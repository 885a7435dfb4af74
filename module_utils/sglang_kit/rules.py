"""Which wishes would the engine refuse, ignore or serve badly, before any number is computed?

``Wish`` is what a user wants of one instance; ``check_rules`` judges it by the rules of the engine's version,
each with its reason and what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .instance import DRAFT_METHODS, MemoryPins, Strategy
from .problem import Problem, ProblemsError
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .engine import EngineFacts
    from .shapes import Model


@dataclass(frozen=True)
class Wish:
    """What a user wants of one instance. ``None`` leaves a value to the planner.

    ``base`` holds what the instance's own ``args`` and ``env`` say; its keys' values win over it.
    """

    strategy: Strategy = field(default_factory=Strategy)
    memory: MemoryPins = field(default_factory=MemoryPins)
    context_length: int | None = None
    concurrency: int | None = None
    prefix_cache: bool = True
    tensor_parallel: int = 1
    base: Settings = field(default_factory=Settings)


def draft_steps(strategy: Strategy) -> int:
    """Count the steps of an EAGLE or MTP draft: the user's, else what pinned tokens ask for, else 3."""
    if strategy.steps or strategy.draft_tokens is None or (strategy.topk or 1) > 1:
        return strategy.steps or 3
    return max(1, strategy.draft_tokens - 1)


def check_rules(*, model: Model, draft: Model | None, facts: EngineFacts, wish: Wish) -> list[Problem]:
    """Judge what the engine would refuse, ignore or do badly, before any number is computed."""
    problems = [*_strategy_problems(model, draft, facts, wish), *_pin_problems(model, draft, facts, wish)]
    if model.state is not None and wish.base.device == "cpu":
        unknown = f"{model.architecture} has a state cache, of which nothing is known on a CPU"
        problems.append(Problem("", "gpus", unknown, "name GPUs, as in `gpus: [0]`"))
    elif model.state is not None and not problems:
        problems += _state_problems(model, facts, wish)
    return problems


def _strategy_problems(
    model: Model, draft: Model | None, facts: EngineFacts, wish: Wish
) -> Iterator[Problem]:
    """Rules of speculation: an algorithm of the engine, with the draft that it needs."""
    method = wish.strategy.method
    try:
        facts.algorithm(method)
    except ProblemsError as error:
        yield from error.problems
        return
    if method == "mtp" and model.mtp is None:
        yield Problem(
            "",
            "strategy.method",
            f"{model.architecture} has no prediction layers of its own (MTP)",
            "use none or ngram, or eagle, eagle3 or dflash with a draft_model",
        )
    if method in DRAFT_METHODS:
        if draft is None:
            yield Problem(
                "", "strategy.draft_model", f"is missing: {method} needs a draft model", "name its path"
            )
        elif draft.method and method not in {draft.method, "ddtree"}:
            yield Problem(
                "",
                "strategy.method",
                f"the draft model is made for {draft.method} ({draft.architecture}), with {method} no draft "
                "would ever be accepted",
                f"use the method {draft.method}",
            )
    if draft is not None and draft.window_unset and facts.dflash_window_checked:
        yield Problem(
            "",
            "strategy.draft_model",
            "layers of it have a window, whose size transformers drops without use_sliding_window: SGLang "
            f"{facts.version} refuses that",
            "set use_sliding_window: true in the draft's config.json",
        )
    tokens = draft_steps(wish.strategy) + 1
    chain = method in ("mtp", "eagle", "eagle3") and (wish.strategy.topk or 1) == 1
    if chain and wish.strategy.draft_tokens not in (None, tokens):
        yield Problem(
            "",
            "strategy.draft_tokens",
            f"{wish.strategy.draft_tokens} with topk 1: the engine would make it {tokens}, one more than the "
            "steps",
            f"use {tokens}, or leave steps or draft_tokens out",
        )
    if method == "dflash" and (wish.strategy.topk or 1) > 1:
        yield Problem(
            "", "strategy.topk", "dflash drafts one block: the engine would make it 1", "leave it out"
        )


def _pin_problems(model: Model, draft: Model | None, facts: EngineFacts, wish: Wish) -> Iterator[Problem]:
    """Rules of single values, which the engine does not check or checks with a useless message."""
    pins, base = wish.memory, wish.base
    if pins.fraction is not None and not 0 < pins.fraction < 1:
        yield Problem(
            "",
            "memory.fraction",
            f"{pins.fraction:g} is not between 0 and 1 (SGLang {facts.version} would take it)",
            "leave it out: it is planned",
        )
    context = wish.context_length or model.context_length
    for whose, one in (("model", model), ("draft model", draft)):
        if one is not None and context > one.context_length and not base.longer_context:
            yield Problem(
                "",
                "context_length",
                f"{context} is longer than the {whose}'s {one.context_length}",
                f"use {one.context_length}, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
            )
    chunk, page = base.prefill_chunk, base.page_size or 1
    if chunk and chunk > 0 and chunk % page:
        yield Problem(
            "",
            "args.chunked-prefill-size",
            f"{chunk} is no multiple of the page size {page}",
            f"use {max(page, chunk // page * page)}",
        )
    if model.state is None:
        for name in ("state_slots", "state_ratio", "state_dtype"):
            if getattr(pins, name) is not None:
                yield Problem(
                    "", f"memory.{name}", f"{model.architecture} has no state cache", "leave it out"
                )
        if base.state_strategy.startswith("extra_buffer"):
            yield Problem(
                "",
                "args",
                f"{base.state_strategy} needs a hybrid model, {model.architecture} has no state cache",
                "leave the strategy out",
            )


def _state_problems(model: Model, facts: EngineFacts, wish: Wish) -> Iterator[Problem]:
    """Rules of hybrid models: strategy, prefix cache, speculation, pages and mixed chunks."""
    base = wish.base
    speculates = wish.strategy.method != "none"
    buffered = base.state_strategy.startswith("extra_buffer")
    supported = model.architecture in facts.extra_buffer_architectures
    flag = f"args.{facts.flag('mamba_strategy')[2:]}"
    if buffered and not wish.prefix_cache:
        yield Problem(
            "",
            flag,
            f"{base.state_strategy} exists for the prefix cache, which is off: it would only waste slots",
            "leave the strategy out, or set prefix_cache: true",
        )
    if buffered and not supported:
        yield Problem(
            "",
            flag,
            f"SGLang {facts.version} has no {base.state_strategy} for {model.architecture}",
            "leave it out",
        )
    needs = facts.speculation_needs_extra_buffer
    if speculates and wish.prefix_cache and not buffered:
        if needs and not supported:
            yield Problem(
                "",
                "prefix_cache",
                f"speculation on a hybrid model needs extra_buffer for the prefix cache, which SGLang "
                f"{facts.version} has not for {model.architecture}",
                "set prefix_cache: false, or strategy.method: none",
            )
        elif needs and base.state_strategy == "no_buffer":
            yield Problem(
                "",
                flag,
                f"SGLang {facts.version} refuses speculation with the prefix cache and no_buffer",
                "leave the strategy out: extra_buffer is planned, or set prefix_cache: false",
            )
    if base.state_strategy == "no_buffer" and wish.prefix_cache:
        if (base.page_size or 1) != 1:
            yield Problem(
                "", "args.page-size", f"no_buffer needs page size 1, not {base.page_size}", "leave it out"
            )
        if base.overlap and not facts.no_buffer_turns_overlap_off:
            yield Problem(
                "",
                flag,
                f"no_buffer does not go with the overlapped scheduler in SGLang {facts.version}",
                "leave the strategy out, or add disable-overlap-schedule: true to args",
            )
    if base.mixed_chunk and (buffered or (base.state_strategy == "auto" and supported and wish.prefix_cache)):
        yield Problem(
            "",
            "args.enable-mixed-chunk",
            "mixed chunks with extra_buffer lose accuracy under load",
            "leave it out",
        )
    page, interval = base.page_size or 1, base.track_interval
    if interval % page:
        near = max(page, interval // page * page)
        yield Problem(
            "",
            "args.mamba-track-interval",
            f"{interval} is no multiple of the page size {page}",
            f"use {near}",
        )
    tokens = wish.strategy.draft_tokens or 0
    if tokens > interval:
        yield Problem(
            "",
            "strategy.draft_tokens",
            f"{tokens} are more than the state's track interval of {interval}",
            f"use at most {interval}",
        )
