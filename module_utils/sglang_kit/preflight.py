"""Is there anything in the way of this start? The ``ExecStartPre=`` of an instance's unit.

It runs as root, since only root sees whose sockets and which GPU processes those of others are. What is
in the way may be on its way out (an engine that was killed takes seconds to give its memory back), so it
waits a little before it refuses.
"""

from __future__ import annotations

import ipaddress
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import processes, survey
from .quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .platform_facts import Gpu, GpuProcess
    from .processes import Listener, Process

WAIT_SECONDS = 15.0
POLL_SECONDS = 1.0
EXIT_REFUSED = 1
"""Unlike refused arguments this may pass by itself: the unit's ``Restart=`` tries again."""
HELD_MIB = 512
"""Less is a monitor's or an MPS server's context, which every plan leaves room for."""
UNEXPLAINED_MIB = 2048
"""Used memory that no process accounts for: above what drivers keep for themselves."""
ANY = ("0.0.0.0", "::", "")  # noqa: S104 - compared, never bound


def main(words: Sequence[str]) -> int:
    """Run ``preflight PLAN_FILE``: status 0 lets the unit start."""
    if len(words) != 1:
        raise SystemExit("usage: preflight PLAN_FILE")
    plan = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    deadline = time.monotonic() + WAIT_SECONDS
    found = obstacles(plan)
    while found and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        found = obstacles(plan)
    if not found:
        return 0
    cause = "port-held" if all(text.startswith("port ") for text in found) else "gpu-memory-held"
    sys.stdout.write(
        f"sglang-metal: the engine was not started in stage gate: {'; '.join(found)}."
        " What to do: end what is named, or give the instance another port or GPU"
        f" [cause: {cause}, phase: gate]\n"
    )
    return EXIT_REFUSED


def obstacles(plan: Mapping[str, Any]) -> list[str]:
    """Look, and name everything that is in the way."""
    gpus, users = survey.gpus_in_use() if plan["gpus"] else ((), ())
    listening = processes.listeners()
    mine = ports(plan)
    taken = [one for one in listening if one.port in mine and blocks(one, mine[one.port])]
    owners = processes.owners([one.inode for one in taken])
    return [*held_ports(taken, owners), *held_memory(plan, gpus, users)]


def ports(plan: Mapping[str, Any]) -> dict[int, str]:
    """Ports that the engine will bind, and the address of each; the rendezvous listens on every one."""
    planned = {plan["nccl_port"]: "", plan["port"]: plan["host"]}
    return {port: address for port, address in planned.items() if port is not None}


def blocks(listener: Listener, address: str) -> bool:
    """Whether nobody else can bind the listener's port on ``address``; a name may mean any address."""
    if address in ANY or listener.address.is_unspecified:
        return True
    try:
        return listener.address == ipaddress.ip_address(address)
    except ValueError:
        return True


def held_ports(taken: Sequence[Listener], owners: Mapping[int, Process]) -> list[str]:
    """Say who listens."""
    return [
        f"port {one.port} on {one.address} is held by {owners.get(one.inode, 'a process not visible here')}"
        for one in taken
    ]


def held_memory(plan: Mapping[str, Any], gpus: Sequence[Gpu], users: Sequence[GpuProcess]) -> list[str]:
    """Say who holds memory of the instance's GPUs, apart from instances that share them by agreement.

    A MIG device is not judged: the driver names the processes of its whole GPU.
    """
    found: list[str] = []
    for gpu in (gpu for gpu in gpus if names_gpu(plan["gpus"], gpu)):
        here = [user for user in users if user.gpu == gpu.index]
        strangers = [user for user in here if not (plan["shared"] and _shares(user))]
        found += [
            f"GPU {gpu.index}: {user.memory_bytes // MIB} MiB are held by"
            f" {processes.describe(user.pid, user.command, user.unit)}"
            for user in strangers
            if user.memory_bytes >= HELD_MIB * MIB
        ]
        rest = gpu.memory_total_bytes - gpu.memory_free_bytes - sum(user.memory_bytes for user in here)
        if rest >= UNEXPLAINED_MIB * MIB and not plan["shared"]:
            found.append(f"GPU {gpu.index}: {rest // MIB} MiB are held by no process that nvidia-smi names")
    return found


def names_gpu(names: Sequence[str], gpu: Gpu) -> bool:
    """CUDA takes an index or the beginning of a UUID."""
    return any(
        name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in names
    )


def _shares(user: GpuProcess) -> bool:
    """Whether it is an instance; in a container the driver's pids tell of nobody."""
    return user.unit.startswith("sglang-") or not user.command
