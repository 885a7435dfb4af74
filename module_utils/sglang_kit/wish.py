"""What would one instance allocate, for playbooks that bring their own inventory?

The same planning as of whole hosts (``plan.py``), on a host that holds nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import cards
from .plan import HostSettings, plan_host
from .problem import Collector, Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULTS = {"name": "instance", "model": "/model", "port": 30000, "gpus": [0]}
_DRAFT = "/draft"


def instance_memory(
    wish: Mapping[str, Any],
    *,
    config: Mapping[str, Any],
    gpu: Mapping[str, Any],
    engine_version: str,
    draft_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Plan the memory of one instance: the value of ``memory`` in the plan of a host.

    ``wish`` has the keys of an instance, of which none is required; ``config`` and ``draft_config`` are the
    contents of the models' ``config.json``, ``gpu`` describes its GPUs as an item of ``sglang_host_gpus``.
    Raises ``ProblemsError`` with every fault and the nearest settings that work.
    """
    if not isinstance(wish, dict):
        raise ProblemsError([Problem("instance", "wish", f"{wish!r:.60} is not a mapping of keys to values")])
    given = {**_DEFAULTS, **wish}
    gpus = given["gpus"] if isinstance(given["gpus"], (list, tuple)) else ()
    found = Collector()
    card = cards.entry(gpu, given["name"], "gpu", found) if gpus else {}
    models = {str(given["model"]): config}
    strategy = given.get("strategy") or {}
    if isinstance(strategy, dict):
        if draft_config is not None:
            given["strategy"] = {"draft_model": _DRAFT, **strategy}
            models[str(given["strategy"]["draft_model"])] = draft_config
        elif strategy.get("draft_model"):
            message = "needs the draft model's config.json, too"
            found.add(given["name"], "strategy.draft_model", message, "give draft_config")
    found.check()
    settings = HostSettings(
        name="host",
        engine_version=str(engine_version),
        release="/",
        accelerator="nvidia" if gpus else "none",
        gpus=({**card, "count": len(gpus)},) if gpus else (),
    )
    if gpus:
        given["gpus"] = list(range(len(gpus)))  # which ones they are decides about nothing
    (plan,) = plan_host(instances=[{**given, "state": "started"}], settings=settings, models=models)
    memory: dict[str, Any] | None = plan["memory"]
    if memory is None:
        raise ProblemsError([Problem(given["name"], "memory", need) for need in plan["memory_needs"]])
    return memory
