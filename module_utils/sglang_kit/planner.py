"""Which settings give what the user wants, and what would be better?

``plan`` turns a wish into settings by search over the real forward function (``memory.py``): every number it
promises or suggests was put through it. A wish that cannot be met is refused with every fault, its numbers,
and the nearest settings that do work, or the statement that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .command import remedy
from .instance import MemoryPins, Strategy
from .memory import Prediction, Start, forward, free_memory
from .pricing import Demand, demand
from .problem import Problem, ProblemsError
from .quantity import GIB, from_gib, gib, human
from .resolution import Card, EngineError, Resolved, resolve
from .rules import Wish, check_rules, draft_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .engine import EngineFacts
    from .settings import Settings
    from .shapes import Model

LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of requests to choose from where the user names none, and to compare with."""
_STEP = 1000  # fractions are whole thousandths, as SGLang rounds its own
_HIGHEST = 0.99
_LOWEST = 0.01
_LEAST_CONTEXT = 1024
_CPU_REQUESTS = 8
_REMEDIES = 3
_RANKS = (2, 4, 8)


@dataclass(frozen=True)
class Alternative:
    """What another number of requests would give. ``fault`` says why it would not work, "" if it does."""

    concurrency: int
    kv_tokens: int
    full_contexts: int
    memory_fraction: float
    tightest_bytes: int
    fault: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, memory in GiB."""
        return {
            "concurrency": self.concurrency,
            "kv_tokens": self.kv_tokens,
            "full_contexts": self.full_contexts,
            "memory_fraction": self.memory_fraction,
            "tightest_gib": gib(self.tightest_bytes),
            "fault": self.fault,
        }


@dataclass(frozen=True)
class Plan:
    """Settings that were put through the forward function, with what they give and why.

    ``values`` are the flags to render, by meaning. ``binds`` names what stops more, ``reasons`` say why each
    value was chosen, ``notes`` what the user should know about values they pinned.
    """

    values: tuple[tuple[str, Any], ...]
    settings: Settings
    prediction: Prediction
    card: Card
    context_length: int
    headroom_bytes: int
    binds: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def full_contexts(self) -> int:
        """How many requests of the whole context length fit at once."""
        return self.prediction.kv_tokens // self.context_length

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for templates and reports, memory in GiB."""
        found = self.prediction
        tightest = found.tightest if found.moments else None
        return {
            "settings": dict(self.values),
            "card": _card(self.card),
            "context_length": self.context_length,
            "concurrency": found.running_requests,
            "slots_per_request": found.resolved.slots_per_request if found.resolved else 0,
            "state_slots": found.state_slots,
            "kv_tokens": found.kv_tokens,
            "sliding_tokens": found.sliding_tokens,
            "full_contexts": self.full_contexts,
            "headroom_gib": gib(self.headroom_bytes),
            "tightest": {"moment": tightest.name, "free_gib": gib(tightest.free)} if tightest else {},
            "pools_gib": {
                "weights": gib(found.weights),
                "draft_weights": gib(found.draft_weights),
                "draft_weights_loading": gib(found.draft_weights_loading),
                "conv": gib(found.conv_bytes),
                "ssm": gib(found.ssm_bytes),
                "intermediate_conv": gib(found.intermediate_conv_bytes),
                "intermediate_ssm": gib(found.intermediate_ssm_bytes),
                "key": gib(found.key_bytes),
                "value": gib(found.value_bytes),
                "draft_key": gib(found.draft_key_bytes),
                "draft_value": gib(found.draft_value_bytes),
                "graphs": gib(found.graph_bytes),
                "activations": gib(found.activation_bytes),
            },
            "moments": [{"moment": moment.name, "free_gib": gib(moment.free)} for moment in found.moments],
            "binds": self.binds,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "alternatives": [alternative.as_dict() for alternative in self.alternatives],
        }


def _card(card: Card) -> dict[str, Any] | None:
    """Describe the card that was planned for; None without one."""
    size = card.size or card.total
    if size is None or card.free is None:
        return None
    return {"name": card.name, "total_gib": gib(size), "free_gib": gib(card.free)}


def default_headroom(card: Card) -> int:
    """Bytes to leave free at the tightest moment: a twentieth of the card, 4 GiB at most.

    Grammar kernels, long prompts with log probabilities and a vision tower's inputs live there.
    """
    return min(4 * GIB, (card.total or 0) // 20)


def plan(
    *, model: Model, draft: Model | None, facts: EngineFacts, card: Card, wish: Wish, where: str = ""
) -> Plan:
    """Plan one instance on ``card`` (the rank that has least).

    Raises ``ProblemsError`` with every fault of the wish and the nearest settings that work.
    """
    problems = check_rules(model=model, draft=draft, facts=facts, wish=wish)
    if problems:
        raise ProblemsError([replace(problem, where=where) for problem in problems])
    try:
        case = _case(model, draft, facts, card, wish)
    except ProblemsError as error:
        raise ProblemsError([replace(problem, where=where) for problem in error.problems]) from None
    best = _best(case)
    if best.faults:
        ways = _remedy(case)
        raise ProblemsError([Problem(where, key, message, ways) for key, message in best.faults])
    return _explain(case, best)


@dataclass(frozen=True)
class _Case:
    """A wish with everything computed that does not depend on the number of requests."""

    model: Model
    draft: Model | None
    facts: EngineFacts
    card: Card
    wish: Wish
    start: Start
    headroom: int
    tries: dict[int | None, _Try] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """Arguments as wished; what follows from the number of requests is open."""
        return self.start.settings

    @property
    def resolved(self) -> Resolved:
        """The same, as the engine resolves them."""
        return self.start.resolved

    @property
    def price(self) -> Demand:
        """What tokens, slots and weights cost."""
        return self.start.price


@dataclass(frozen=True)
class _Try:
    """One number of requests put through the forward function, with the faults of what it gives."""

    requests: int | None
    settings: Settings
    prediction: Prediction
    faults: tuple[tuple[str, str], ...]


def _case(model: Model, draft: Model | None, facts: EngineFacts, card: Card, wish: Wish) -> _Case:
    """Translate a wish; raises ``ProblemsError`` for what cannot be priced or the engine refuses."""
    pins = wish.memory
    algorithm = facts.algorithm(wish.strategy.method)
    values: dict[str, Any] = {
        "tensor_parallel": wish.tensor_parallel,
        "context_length": wish.context_length or model.context_length,
        "prefix_cache": wish.prefix_cache,
        "algorithm": algorithm,
        "draft_model": wish.strategy.draft_model is not None,
        **_speculation(wish.strategy, draft),
    }
    for name in ("kv_dtype", "state_dtype", "state_ratio", "state_slots"):
        if getattr(pins, name) is not None:
            values[name] = getattr(pins, name)
    settings = replace(wish.base, **values)
    if model.state is not None and settings.state_strategy == "auto" and wish.prefix_cache:
        buffered = model.architecture in facts.extra_buffer_architectures
        settings = replace(settings, state_strategy="extra_buffer" if buffered else "auto")
    try:
        resolved = resolve(settings=settings, model=model, facts=facts, draft=draft, card=card)
    except EngineError as error:
        message = f"SGLang {facts.version} would stop with {error}"
        raise ProblemsError([Problem("", "args", message, remedy(str(error), facts, {}))]) from None
    price = demand(settings=settings, model=model, facts=facts, draft=draft, card=card)
    headroom = default_headroom(card) if pins.headroom_gib is None else from_gib(pins.headroom_gib)
    return _Case(model, draft, facts, card, wish, Start(settings, resolved, price, model, facts), headroom)


def _speculation(strategy: Strategy, draft: Model | None) -> dict[str, int]:
    """Numbers of a strategy, with the engine's own defaults written out."""
    method = strategy.method
    if method == "none":
        return {}
    if method == "ngram":
        return {"draft_tokens": strategy.draft_tokens or 12}
    if method == "dflash":
        block = draft.block_size if draft and draft.block_size else 16
        return {"draft_tokens": strategy.draft_tokens or block}
    topk = strategy.topk or 1
    steps = draft_steps(strategy)
    return {"draft_steps": steps, "draft_topk": topk, "draft_tokens": strategy.draft_tokens or steps + 1}


def _best(case: _Case) -> _Try:
    """Find the number of requests: the user's, or the largest of the ladder that gets a full context each.

    Without a state cache a request costs nothing by itself, so their number is left to the engine.
    """
    wanted = case.wish.concurrency
    slots = case.settings.state_slots
    if wanted is None and slots is not None:
        wanted = max(1, slots // max(1, case.resolved.slots_per_request))
    if wanted is not None or case.model.state is None or case.settings.device == "cpu":
        return _attempt(case, wanted)
    low, high = 0, len(LADDER) - 1
    while low < high:
        middle = (low + high + 1) // 2
        tried = _attempt(case, LADDER[middle])
        if tried.faults or tried.prediction.kv_tokens < LADDER[middle] * case.resolved.context_length:
            high = middle - 1
        else:
            low = middle
    return _attempt(case, LADDER[low])


def _attempt(case: _Case, requests: int | None) -> _Try:
    """Try a number of requests, once."""
    if requests not in case.tries:
        case.tries[requests] = _try(case, requests)
    return case.tries[requests]


def _try(case: _Case, requests: int | None) -> _Try:
    """Put a number of requests through the forward function, with the best fraction for the headroom."""
    settings = _settings(case, requests)
    resolved = replace(
        case.resolved,
        requested=case.resolved.requested if requests is None else requests,
        graph_requests=settings.graph_max_bs_decode or case.resolved.graph_requests,
    )

    def forward_at(fraction: float) -> Prediction:
        start = Start(
            settings, replace(resolved, memory_fraction=fraction), case.price, case.model, case.facts
        )
        return forward(start, case.card)

    pinned = case.wish.memory.fraction
    if pinned is not None or case.card.free is None:
        found = forward_at(case.resolved.memory_fraction if pinned is None else pinned)
    else:
        found = _fraction(case, forward_at)
    fraction = found.resolved.memory_fraction if found.resolved else None
    settings = replace(settings, memory_fraction=None if case.settings.device == "cpu" else fraction)
    return _Try(requests, settings, found, tuple(_faults(case, requests, found)))


def _settings(case: _Case, requests: int | None) -> Settings:
    """Write out what follows from the number of requests."""
    settings = case.settings
    graphs = settings.graph_max_bs_decode
    if graphs is None:
        graphs = min(case.resolved.graph_requests, requests or case.resolved.graph_requests)
    tokens = settings.total_tokens
    if settings.device == "cpu" and tokens is None:
        tokens = case.resolved.context_length * (requests or _CPU_REQUESTS)
    return replace(
        settings,
        running_requests=requests,
        state_slots=_slots(case, requests),
        graph_max_bs_decode=graphs,
        prefill_chunk=case.resolved.prefill_chunk,
        total_tokens=tokens,
    )


def _slots(case: _Case, requests: int | None) -> int | None:
    """State slots to write: pinned ones, or what the requests need; none where a pinned ratio sizes them."""
    pinned, by_ratio = case.settings.state_slots, case.wish.memory.state_ratio is not None
    if pinned is not None or by_ratio or case.model.state is None or requests is None:
        return pinned
    return requests * case.resolved.slots_per_request


def _fraction(case: _Case, forward_at: Callable[[float], Prediction]) -> Prediction:
    """Find the largest fraction, in thousandths, that leaves the headroom at every moment.

    What is free falls linearly with the fraction, so one step from the highest fraction lands on the
    right one; rounding may take another.
    """
    found = forward_at(_HIGHEST)
    if not found.moments:
        return found
    before, _ = free_memory(case.start, case.card)
    price, settings = case.price, case.settings
    charged = price.cell + settings.swa_ratio * price.sliding_cell
    taken = (
        price.key
        + price.value
        + settings.swa_ratio * (price.sliding_key + price.sliding_value)
        + price.draft_key
        + price.draft_value
    )
    slope = (before or 0.0) * GIB * taken / charged
    fraction = _HIGHEST
    while found.tightest.free < case.headroom and fraction > _LOWEST:
        step = max(1, -(-int((case.headroom - found.tightest.free) * _STEP) // int(slope)))
        fraction = max(_LOWEST, round(fraction - step / _STEP, 3))
        lower = forward_at(fraction)
        if not lower.moments:
            return lower
        found = lower
    return found


def _faults(case: _Case, requests: int | None, found: Prediction) -> Iterator[tuple[str, str]]:
    """Say what is wrong with a prediction, each fault with its numbers."""
    resolved = case.resolved
    if found.error and not found.moments:
        yield _error_fault(case, requests, found)
        return
    if found.error or (found.moments and found.tightest.free < 0):
        missing = f"{human(-found.tightest.free)} are missing at the moment '{found.tightest.name}'"
        yield "memory", missing
    elif found.moments and found.tightest.free < case.headroom and case.wish.memory.fraction is None:
        left = f"only {human(found.tightest.free)} of {human(case.headroom)} headroom are left"
        yield "memory.headroom_gib", f"{left} at the moment '{found.tightest.name}', whatever the fraction"
    if requests is not None and found.running_requests < requests:
        yield _requests_fault(case, requests, found)
    if found.kv_tokens < resolved.context_length:
        pool = f"the KV pool of {found.kv_tokens:,} tokens is smaller than one context"
        yield "context_length", f"{pool} of {resolved.context_length:,}{_held(case, requests)}"


def _error_fault(case: _Case, requests: int | None, found: Prediction) -> tuple[str, str]:
    """Say with numbers what the engine would only say in words."""
    free = case.card.free or 0
    needed = found.weights + (found.draft_weights_loading if case.facts.draft_weights_before_sizing else 0)
    if needed >= free:
        return "model", f"the weights take {human(needed)}, {human(free)} are free"
    per_request = case.resolved.slots_per_request
    slots = case.settings.state_slots
    if case.model.state is not None and slots is not None and slots < per_request:
        few = f"{slots} state slots are fewer than the {per_request} that one request needs"
        return "memory.state_slots", few
    ratio = case.wish.memory.state_ratio
    if ratio is not None and "state cache" in found.error:
        state = f"the {per_request} state slots of one request, {human(case.price.slot)} each"
        return "memory.state_ratio", f"{ratio:g} leaves no room for {state}"
    if "SWA pool" in found.error:
        return "memory", found.error.partition(": ")[2]
    left = f"nothing is left for the KV cache: {human(free)} are free, weights take {human(needed)}"
    kept = f", {human(case.headroom)} stay free" if case.wish.memory.fraction is None else ""
    return "memory", f"{left}{_held(case, requests)}{kept}"


def _requests_fault(case: _Case, requests: int, found: Prediction) -> tuple[str, str]:
    per_request, served = case.resolved.slots_per_request, found.running_requests
    if case.model.state is not None and found.state_slots // per_request <= served:
        slots = f"{found.state_slots} state slots serve {served} requests at {per_request} slots each"
        return "concurrency", f"{slots}, {requests} are wanted"
    return "concurrency", f"{served} of {requests} requests run: the KV pool has {found.kv_tokens:,} tokens"


def _held(case: _Case, requests: int | None) -> str:
    """Say what a number of requests holds besides the KV cache."""
    slots = _slots(case, requests)
    if case.model.state is None or slots is None:
        return ""
    text = f", {slots} state slots take {human((slots + case.facts.state_padding_slots) * case.price.slot)}"
    tokens = case.resolved.draft_tokens
    if tokens and requests:
        reserve = (requests + case.facts.state_padding_slots) * tokens * case.price.slot
        text += f", the reserve for {requests} requests x {tokens} draft tokens takes {human(reserve)}"
    return text


def _remedy(case: _Case) -> str:
    """Name the nearest settings that work, each found by search and put through the forward function."""
    found: list[str] = []
    for text, wish in _changes(case):
        if len(found) == _REMEDIES:
            break
        if _works(case, wish):
            found.append(text)
    if not found:
        found = [text for text, wish in _last_resorts(case) if _works(case, wish)][:1]
    return (
        " or ".join(found)
        or f"no setting works, not on {_RANKS[-1]} times as many such GPUs: use larger ones"
    )


def _works(case: _Case, wish: Wish) -> bool:
    if check_rules(model=case.model, draft=case.draft, facts=case.facts, wish=wish):
        return False
    try:
        return not _best(_case(case.model, case.draft, case.facts, case.card, wish)).faults
    except ProblemsError:
        return False


def _changes(case: _Case) -> Iterator[tuple[str, Wish]]:
    """Wishes that differ in one thing from the refused one, the smallest loss first."""
    wish = case.wish
    pins = wish.memory
    for name in ("fraction", "state_slots", "state_ratio", "headroom_gib"):
        if getattr(pins, name) is not None:
            yield f"leave memory.{name} out", replace(wish, memory=replace(pins, **{name: None}))
    if wish.concurrency is not None:
        fewer = _most_requests(case, wish.concurrency)
        if fewer:
            yield f"ask for at most {fewer} requests", replace(wish, concurrency=fewer)
    yield from _shorter(case, wish, "")
    if wish.strategy.method in ("mtp", "eagle", "eagle3") and wish.strategy.steps != 1:
        fewer_steps = replace(wish.strategy, steps=1, draft_tokens=None)
        yield "draft one token per step (strategy.steps: 1)", replace(wish, strategy=fewer_steps)
    if case.model.state is not None and wish.prefix_cache:
        yield "set prefix_cache: false", replace(wish, prefix_cache=False)
    if case.model.state is not None and pins.state_dtype is None and case.model.state.dtype == "float32":
        yield "set memory.state_dtype: bfloat16", replace(wish, memory=replace(pins, state_dtype="bfloat16"))
    if pins.kv_dtype is None:
        yield "set memory.kv_dtype: fp8_e4m3", replace(wish, memory=replace(pins, kv_dtype="fp8_e4m3"))
    if wish.strategy.method != "none":
        yield "set strategy.method: none", replace(wish, strategy=Strategy())
    for factor in _RANKS:
        ranks = factor * wish.tensor_parallel
        yield f"use {ranks} such GPUs", replace(wish, tensor_parallel=ranks)


def _shorter(case: _Case, wish: Wish, suffix: str) -> Iterator[tuple[str, Wish]]:
    """Find the longest power of two below the wanted context that works."""
    context = 1 << max(1, (case.resolved.context_length - 1).bit_length()) - 1
    while context >= _LEAST_CONTEXT:
        shorter = replace(wish, context_length=context)
        if _works(case, shorter):
            yield f"lower the context to {context:,}{suffix}", shorter
            return
        context //= 2


def _last_resorts(case: _Case) -> Iterator[tuple[str, Wish]]:
    """Wishes that give up several things at once."""
    one = replace(case.wish, concurrency=1, memory=MemoryPins())
    yield "ask for one request and leave the memory settings out", one
    yield from _shorter(case, one, " and ask for one request")
    plain = replace(one, strategy=Strategy(), prefix_cache=False)
    yield "ask for one request, without speculation and prefix cache", plain
    yield from _shorter(case, plain, " and ask for one request, without speculation and prefix cache")
    small = replace(plain, memory=MemoryPins(kv_dtype="fp8_e4m3", headroom_gib=0.5))
    yield from _shorter(case, small, ", ask for one request, with fp8_e4m3 and 0.5 GiB headroom")
    for factor in _RANKS:
        ranks = factor * case.wish.tensor_parallel
        yield from _shorter(
            case, replace(one, tensor_parallel=ranks), f", ask for one request and use {ranks} such GPUs"
        )


def _most_requests(case: _Case, wanted: int) -> int:
    """Find the largest number of requests below ``wanted`` that works, 0 where none does."""
    low, high = 0, wanted - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _attempt(case, middle).faults:
            high = middle - 1
        else:
            low = middle
    return low


def _explain(case: _Case, best: _Try) -> Plan:
    """Say why, what binds, and what other numbers of requests would give."""
    found = best.prediction
    alternatives = _alternatives(case, best)
    return Plan(
        values=tuple(_values(case, best.settings).items()),
        settings=best.settings,
        prediction=found,
        card=case.card,
        context_length=case.resolved.context_length,
        headroom_bytes=case.headroom,
        binds=_binds(case, found),
        reasons=tuple(_reasons(case, best)),
        notes=tuple(_notes(case, best)),
        alternatives=alternatives,
    )


def _alternatives(case: _Case, best: _Try) -> tuple[Alternative, ...]:
    """Try the two rungs of the ladder below the chosen number of requests and the one above."""
    if best.requests is None or case.model.state is None:
        return ()
    below = [number for number in LADDER if number < best.requests][-2:]
    above = [number for number in LADDER if number > best.requests][:1]
    if case.settings.state_slots is not None:
        free = replace(case.settings, state_slots=None)
        case = replace(case, start=replace(case.start, settings=free), tries={})
    found = []
    for number in (*below, *above):
        tried = _attempt(case, number)
        prediction = tried.prediction
        found.append(
            Alternative(
                concurrency=number,
                kv_tokens=prediction.kv_tokens,
                full_contexts=prediction.kv_tokens // case.resolved.context_length,
                memory_fraction=tried.settings.memory_fraction or 0.0,
                tightest_bytes=prediction.tightest.free if prediction.moments else 0,
                fault="; ".join(message for _, message in tried.faults),
            )
        )
    return tuple(found)


def _values(case: _Case, settings: Settings) -> dict[str, Any]:
    """List what to render, by meaning: all that was chosen and all that would follow the smallest card."""
    values: dict[str, Any] = {"context_length": settings.context_length}
    values["running_requests"] = settings.running_requests
    values["memory_fraction"] = settings.memory_fraction
    values["total_tokens"] = settings.total_tokens if settings.device == "cpu" else None
    if settings.device == "cuda":
        values["prefill_chunk"] = settings.prefill_chunk
        values["graph_max_bs_decode"] = settings.graph_max_bs_decode if settings.decode_graphs else None
    values["kv_dtype"] = case.wish.memory.kv_dtype
    values["disable_prefix_cache"] = None if settings.prefix_cache else True
    if case.model.state is not None:
        named = settings.state_strategy not in ("auto", case.wish.base.state_strategy)
        values["mamba_strategy"] = settings.state_strategy if named else None
        values["state_slots"] = settings.state_slots
        values["state_ratio"] = case.wish.memory.state_ratio
        values["state_dtype"] = case.wish.memory.state_dtype
    if settings.algorithm is not None:
        values["algorithm"] = settings.algorithm
        values["draft_model"] = case.wish.strategy.draft_model
        values["draft_steps"] = settings.draft_steps
        values["draft_topk"] = settings.draft_topk
        values["draft_tokens"] = settings.draft_tokens
    return {meaning: value for meaning, value in values.items() if value is not None}


def _binds(case: _Case, found: Prediction) -> str:
    """Name what stops more tokens."""
    if not found.moments:
        return "the number of tokens that was asked for"
    moment = found.tightest
    text = f"free memory at the moment '{moment.name}': {human(moment.free)} are left"
    if moment.name == "serving":
        chunk = f"a prefill chunk of {case.resolved.prefill_chunk:,} tokens and libraries"
        return f"{text} ({human(found.activation_bytes)} for {chunk})"
    loading, after = human(found.draft_weights_loading), human(found.draft_weights)
    return f"{text} (the draft model loads beside the pools: {loading} for a moment, {after} afterwards)"


def _reasons(case: _Case, best: _Try) -> Iterator[str]:
    """Give the reason of each value that was chosen."""
    found, wish, resolved, facts = best.prediction, case.wish, case.resolved, case.facts
    if found.moments and wish.memory.fraction is None:
        fraction = best.settings.memory_fraction or 0.0
        yield f"memory_fraction {fraction:g}: the largest that leaves {human(case.headroom)} at every moment"
    if case.model.state is not None and best.requests is not None:
        if wish.concurrency is None and wish.memory.state_slots is None:
            rungs = ", ".join(map(str, LADDER[:8]))
            full = f"a full context of {resolved.context_length:,} tokens each"
            yield f"running_requests {best.requests}: the most of {rungs}, ... that get {full}"
        slots = f"{best.requests} requests x {resolved.slots_per_request} slots"
        strategy = resolved.state_strategy if resolved.prefix_cache else "no prefix cache"
        by_ratio = resolved.prefix_cache and not best.settings.state_slots
        why = "what memory.state_ratio gives" if by_ratio else f"{slots} ({strategy})"
        yield f"state_slots {found.state_slots}: {why}, {human(case.price.slot)} each"
        if resolved.draft_tokens and facts.state_reserve_follows == "requested":
            reserve = f"SGLang {facts.version} reserves intermediate states for the requested number"
            default = facts.speculative_requests
            yield f"running_requests is written: {reserve} ({default} by default), not for the served one"
    if resolved.state_strategy == "extra_buffer":
        yield "extra_buffer: the prefix cache works with the overlapped scheduler and with speculation"
    if case.settings.device == "cuda":
        yield "prefill_chunk and graph_max_bs_decode: the host's smallest card would set them otherwise"


def _notes(case: _Case, best: _Try) -> Iterator[str]:
    """Tell what the user should know about a plan that works."""
    found, wish = best.prediction, case.wish
    if found.moments and found.tightest.free < case.headroom:
        left = f"{human(found.tightest.free)} at the moment '{found.tightest.name}'"
        yield f"the pinned fraction leaves {left}, less than the headroom of {human(case.headroom)}"
    contexts = found.kv_tokens // case.resolved.context_length
    if best.requests is not None and contexts < best.requests:
        yield f"{contexts} of {best.requests} requests can hold a full context at once"
    if wish.prefix_cache and not case.resolved.prefix_cache:
        yield f"SGLang {case.facts.version} switches the prefix cache off for {case.model.architecture}"
    if case.card.weights is None:
        yield f"weights are computed from shapes, to {case.model.weight_error:.0%}"
