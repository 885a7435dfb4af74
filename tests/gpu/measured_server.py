"""SGLang's server, with each of its looks at the card's free memory on the record, in bytes.

    python measured_server.py --model-path DIR ...

SGLang prints free memory to 10 MiB; its sizing works with bytes. What is added to the log are lines of
``[free] BYTES FUNCTION RANK``: the function of the engine that looked, and on which rank. Before the engine's
first touch of the card it says ``[gate]`` and waits for the file that MEASURE_GATE names, so that many
servers can import at the same time and still meet an empty card, one after another.

The scheduler is a spawned process: it runs this file again as ``__mp_main__``, which is why the patches stand
at the top.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

GATE = Path(os.environ["MEASURE_GATE"])
OWN_LOOK = "get_available_gpu_memory"
_look, _choose = torch.cuda.mem_get_info, torch.cuda.set_device


def look(*arguments: object) -> tuple[int, int]:
    """Look at the card as torch does, and say who asked."""
    free, total = _look(*arguments)
    caller: Any = sys._getframe(1)  # noqa: SLF001 - the caller's name is what is wanted
    while caller.f_code.co_name == OWN_LOOK:
        caller = caller.f_back
    sys.stderr.write(f"[free] {free} {caller.f_code.co_name} {torch.cuda.current_device()}\n")
    return free, total


def choose(*arguments: object) -> None:
    """Wait for the turn, then choose the device."""
    torch.cuda.set_device = _choose
    sys.stderr.write("[gate]\n")
    while not GATE.exists():
        time.sleep(0.02)
    _choose(*arguments)


torch.cuda.mem_get_info, torch.cuda.set_device = look, choose

if __name__ == "__main__":
    from sglang.launch_server import run_server  # type: ignore[import-not-found,unused-ignore]
    from sglang.srt.server_args import prepare_server_args  # type: ignore[import-not-found,unused-ignore]
    from sglang.srt.utils import kill_process_tree  # type: ignore[import-not-found,unused-ignore]

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
