"""Which argv and environment does an instance make?

Values come in by meaning (``engine.py`` knows the version's flag for each); a flag of the user's
``args`` is passed on as it is. Every flag is written in full: argparse would complete a prefix to
another flag.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .engine_flags import check_flags, known_flags
from .problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .engine import EngineFacts
    from .instance import Argument, Instance

MODULE = "sglang.launch_server"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
LOOPBACK = "127.0.0.1,localhost,::1"
HOME = "/var/lib/sglang/home"
"""The account's, and the units' ``StateDirectory=``: what is beside it is written by root alone."""

OWNERS = {
    "model": "model",
    "served_model_name": "served_model_name",
    "host": "host",
    "port": "port",
    "nccl_port": "nccl_port",
    "context_length": "context_length",
    "running_requests": "concurrency",
    "device": "gpus",
    "tensor_parallel": "gpus",
    "disable_prefix_cache": "prefix_cache",
    "algorithm": "strategy.method",
    "draft_model": "strategy.draft_model",
    "draft_steps": "strategy.steps",
    "draft_topk": "strategy.topk",
    "draft_tokens": "strategy.draft_tokens",
    "memory_fraction": "memory.fraction",
    "kv_dtype": "memory.kv_dtype",
    "state_slots": "memory.state_slots",
    "state_ratio": "memory.state_ratio",
    "state_dtype": "memory.state_dtype",
    "api_key": "secrets.api_key",
    "admin_api_key": "secrets.admin_api_key",
}
"""Meaning of a flag -> the key of the instance that says it."""

_VARIABLES = {
    VISIBLE_GPUS: "gpus",
    "HF_TOKEN": "secrets.hf_token",
    "HUGGING_FACE_HUB_TOKEN": "secrets.hf_token",
}
"""Variable -> the key of the instance that says it."""
_NAMED = re.compile(r"--[a-z][\w-]*|\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b|\bSGLANG_[A-Z0-9_]+\b")
"""What the engine's words may name: a flag, a field of its arguments, a variable."""


def check_arguments(instance: Instance, facts: EngineFacts) -> list[Problem]:
    """Judge ``args`` and ``env``: exact names of this version, none that a key of the instance says."""
    keys = {
        field(facts, facts.flag(meaning)): key for meaning, key in OWNERS.items() if facts.has_flag(meaning)
    }
    owned = [
        _owned(instance, f"args.{flag}", key)
        for flag in instance.args
        if (key := keys.get(field(facts, f"--{flag}")))
    ]
    owned += [
        _owned(instance, f"env.{name}", key) for name, key in _VARIABLES.items() if name in instance.env
    ]
    return [*owned, *check_flags(facts.version, user_words(instance), build=facts.build, where=instance.name)]


def field(facts: EngineFacts, flag: str) -> str:
    """Name the engine's field of a flag, which all its aliases share; the flag itself where it is unknown."""
    known = known_flags(facts.version, facts.build).get(flag)
    return known.field if known else flag


def remedy(words: str, facts: EngineFacts, pinned: Mapping[str, str]) -> str:
    """Say which keys of an instance set what the engine's words name; "" where they name nothing.

    ``pinned`` are the fields that the user has set, each with its key (``overrides.pinned``).
    """
    flags = known_flags(facts.version, facts.build)
    keys = {flag.field: f"args.{name[2:]}" for name, flag in flags.items()}
    keys.update((field(facts, facts.flag(name)), key) for name, key in OWNERS.items() if facts.has_flag(name))
    keys.update(pinned)
    found = []
    for name in _NAMED.findall(words):
        bare = name.lstrip("-").replace("-", "_")
        key = f"env.{name}" if name.isupper() else keys.get(flags[name].field if name in flags else bare)
        found += [f"`{key}`"] if key else []
    return f"change {' or '.join(dict.fromkeys(found))}" if found else ""


def _owned(instance: Instance, given: str, key: str) -> Problem:
    way = "list the GPUs there, or none for the CPU" if key == "gpus" else f"move the value to `{key}`"
    return Problem(instance.name, given, f"is said by the key `{key}`", way)


def engine_argv(
    *, instance: Instance, facts: EngineFacts, python: str, settings: Mapping[str, Argument]
) -> tuple[str, ...]:
    """Build the engine's whole command line.

    ``python`` is the interpreter of the release, ``settings`` the planned values by meaning;
    the user's ``args`` stand last, and a setting that they say is left to them.
    """
    own: dict[str, Argument] = {
        "model": instance.model,
        "served_model_name": instance.served_model_name,
        "host": instance.host,
        "port": instance.port,
    }
    if instance.nccl_port is not None:
        own["nccl_port"] = instance.nccl_port
    if instance.tensor_parallel > 1:
        own["tensor_parallel"] = instance.tensor_parallel
    words = [python, "-m", MODULE]
    said = {field(facts, f"--{flag}") for flag in instance.args}
    for meaning, value in {**own, **settings}.items():
        flag = facts.flag(meaning)
        if field(facts, flag) not in said:
            words += _flag(flag, value)
    return (*words, *user_words(instance))


def engine_environment(
    *,
    instance: Instance,
    facts: EngineFacts,
    release: str,
    cache_directory: str,
    library_path: str,
    cuda_home: str,
    path: str,
) -> dict[str, str]:
    """Build the environment of the unit; the user's ``env`` wins.

    Loopback traffic never goes through a proxy (the engine warms itself up over HTTP), nothing is
    fetched from a hub, and every kernel cache lies in ``cache_directory``. ``library_path``,
    ``cuda_home`` may be empty.
    """
    environment = {
        "PATH": f"{release}/bin:{path}",
        "HOME": HOME,
        "XDG_CACHE_HOME": cache_directory,
        **facts.cache_environment(cache_directory),
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": LOOPBACK,
        "no_proxy": LOOPBACK,
        "PYTHONUNBUFFERED": "1",
        **dict(facts.environment),
    }
    if library_path:
        environment["LD_LIBRARY_PATH"] = library_path
    if cuda_home:
        environment["CUDA_HOME"] = cuda_home
    if instance.gpus:
        # Indices are nvidia-smi's only in this order; CUDA by itself puts the fastest card first.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment[VISIBLE_GPUS] = ",".join(instance.gpus)
    return {**environment, **instance.env}


def user_words(instance: Instance) -> list[str]:
    """Write the user's ``args`` as command-line words."""
    return [word for flag, value in instance.args.items() for word in _flag(f"--{flag}", value)]


def _flag(flag: str, value: Argument) -> Iterable[str]:
    if value is False:
        return ()
    if value is True:
        return (flag,)
    if isinstance(value, tuple):
        return (flag, *value)
    text = str(value)
    return (f"{flag}={text}",) if text.startswith("-") else (flag, text)
