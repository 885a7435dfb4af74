"""Do the instances of a host fit together: GPUs, ports, start order?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from .instance import UNKNOWN_PORT

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from .instance import Instance
    from .problem import Collector

PORTS = range(1024, 65_536)
NCCL_OFFSET = -10_000
"""Distance of a planned rendezvous port from the instance's own: ports from 32768 up are handed out to
outgoing connections (net.ipv4.ip_local_port_range), and one of those may hold it at the start."""


@dataclass(frozen=True)
class Reserved:
    """What belongs to other services of the host: GPU indices or UUIDs, and ports."""

    gpus: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


def plan_ports(instances: Sequence[Instance], reserved: Reserved, found: Collector) -> tuple[Instance, ...]:
    """Give every instance a rendezvous port and note each port that is wanted twice.

    SGLang binds ``tcp://HOST:nccl_port`` even with one rank; left to itself it picks a random free
    port some 20 s before it binds it (``sglang/srt/entrypoints/engine.py`` 0.5.11), a race.
    """
    owners: dict[int, str] = dict.fromkeys(reserved.ports, "a reserved port of this host")
    claims = [(instance, "port", instance.port) for instance in instances]
    claims += [(instance, "nccl_port", instance.nccl_port or UNKNOWN_PORT) for instance in instances]
    wanted = {port for _, _, port in claims}
    for instance, key, port in claims:
        if port in owners:
            free = _free_port(port + 1, wanted | set(owners))
            remedy = f"{free} is free in this inventory" if free else ""
            found.add(instance.name, key, f"{port} is also {owners[port]}", remedy)
        elif port != UNKNOWN_PORT:
            owners[port] = f"{key} of {instance.name}"
    return tuple(_with_nccl_port(instance, owners, found) for instance in instances)


def _with_nccl_port(instance: Instance, owners: dict[int, str], found: Collector) -> Instance:
    if instance.nccl_port is not None:
        return instance
    port = _free_port(instance.port + NCCL_OFFSET, owners)
    if port is None:
        limits = f"{PORTS.start} to {PORTS.stop - 1}"
        found.add(instance.name, "nccl_port", f"none is free from {limits}", "reserve fewer ports")
        return instance
    owners[port] = f"nccl_port of {instance.name}"
    return replace(instance, nccl_port=port)


def _free_port(near: int, taken: Container[int]) -> int | None:
    """Find the first free port from ``near`` upwards, then from the lowest unprivileged one."""
    candidates = chain(range(max(near, PORTS.start), PORTS.stop), PORTS)
    return next((port for port in candidates if port not in taken), None)


def check_gpus(
    instances: Sequence[Instance], *, count: int | None, reserved: Reserved, found: Collector
) -> None:
    """Note every GPU that is not there, not ours, or wanted twice without ``shared``.

    ``count`` is the number of GPUs of the host, ``None`` where that is not known.
    """
    _check_gpu_names(instances, reserved, found)
    owners: dict[str, Instance] = {}
    for instance in instances:
        for gpu in instance.gpus:
            if gpu in reserved.gpus:
                free = _free_gpus(instances, count, reserved)
                found.add(instance.name, "gpus", f"GPU {gpu} is reserved for another service", free)
            if count is not None and gpu.isdigit() and int(gpu) >= count:
                free = _free_gpus(instances, count, reserved)
                found.add(instance.name, "gpus", f"GPU {gpu} is not among this host's {count}", free)
            other = owners.setdefault(gpu, instance)
            if other is not instance and not (other.shared and instance.shared):
                found.add(
                    instance.name,
                    "gpus",
                    f"GPU {gpu} is also wanted by {other.name}",
                    "set `shared: true` on both, or " + _free_gpus(instances, count, reserved),
                )


def _check_gpu_names(instances: Sequence[Instance], reserved: Reserved, found: Collector) -> None:
    """Note UUIDs beside indices: both may name one GPU, and nobody could tell that it has two owners."""
    owners = [("host", "sglang_host_reserved_gpus", reserved.gpus)]
    owners += [(instance.name, "gpus", instance.gpus) for instance in instances]
    indices = sorted({gpu for _, _, gpus in owners for gpu in gpus if gpu.isdigit()}, key=int)
    for where, key, gpus in owners:
        named = [gpu for gpu in gpus if not gpu.isdigit()]
        if named and indices:
            message = f"{', '.join(named)} may be the same GPU as {', '.join(indices)}"
            found.add(where, key, message, "name the GPUs of a host all by index or all by UUID")


def _free_gpus(instances: Sequence[Instance], count: int | None, reserved: Reserved) -> str:
    used = {gpu for instance in instances for gpu in instance.gpus} | set(reserved.gpus)
    free = [str(gpu) for gpu in range(count or 0) if str(gpu) not in used]
    return f"free GPUs are {', '.join(free)}" if free else "use another GPU"


def start_after(instances: Sequence[Instance]) -> dict[str, tuple[str, ...]]:
    """Order the starts on shared GPUs: instance name -> units that must be up before it.

    ``mem_fraction_static`` is a fraction of what is free when the engine starts
    (``_profile_available_bytes``), so two engines on one GPU must not size their pools together.
    """
    order: dict[str, tuple[str, ...]] = {}
    for position, instance in enumerate(instances):
        gpus = set(instance.gpus)
        order[instance.name] = tuple(
            other.unit for other in instances[:position] if gpus.intersection(other.gpus)
        )
    return order
