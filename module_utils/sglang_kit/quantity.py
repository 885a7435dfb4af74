"""Memory is bytes inside the kit and GiB at its edge.

SGLang's own logs print GiB and call them GB (``sglang/srt/utils/common.py``: ``/ (1 << 30)``).
"""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def gib(size: float) -> float:
    """Bytes as GiB, rounded to the two decimals that SGLang's logs print."""
    return round(size / GIB, 2)


def from_gib(size: float) -> int:
    """GiB as whole bytes (truncated)."""
    return int(size * GIB)


def from_mib(size: float) -> int:
    """MiB as whole bytes (truncated); ``nvidia-smi`` prints MiB."""
    return int(size * MIB)


def human(size: float) -> str:
    """Bytes for people: MiB below one GiB, else GiB with two decimals."""
    if abs(size) < GIB:
        return f"{size / MIB:.0f} MiB"
    return f"{size / GIB:.2f} GiB"
