"""Run ``engine_check`` as on a host with an RTX PRO 6000 Blackwell (SM120), with a release's Python.

Without a GPU the real resolver refuses every hybrid model with extra_buffer, which is right there and no
answer here. What is replaced are private interfaces of 0.5.15.post1 and 0.5.23: for tests, and nothing else.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "module_utils" / "sglang_kit" / "engine_check.py"
MEMORY_MIB = 97887
FUNCTIONS = {
    "is_cuda": True,
    "is_sm90_supported": False,
    "is_sm100_supported": False,
    "is_sm120_supported": True,
    "is_blackwell_supported": True,
    "is_hopper_with_cuda_12_3": False,
    "is_flashinfer_available": True,
    "get_device_sm": 120,
    "get_device_memory_capacity": MEMORY_MIB,
}
PLATFORM = {
    "is_cuda": True,
    "is_sm120": True,
    "is_blackwell": True,
    "is_sm90": False,
    "is_sm100": False,
    "is_hopper_with_cuda_12_3": False,
    "has_flashinfer": True,
    "device_sm": 120,
    "device_capability": (12, 0),
}


def replace(*names: str) -> None:
    """Replace functions where the resolver looks for them: kernels must not believe in the card."""
    for place, module in list(sys.modules.items()):
        if place == "sglang.srt.server_args" or place.startswith("sglang.srt.arg_groups."):
            for name in vars(module).keys() & set(names):
                setattr(module, name, lambda *_args, _name=name, **_kwargs: FUNCTIONS[_name])


def main() -> int:
    """Replace, then check."""
    spec = importlib.util.spec_from_file_location("engine_check", CHECK)
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    import_module("sglang.srt.server_args")
    import_module("sglang.srt.arg_groups.overrides")
    context = import_module("sglang.srt.runtime_context")
    with ExitStack() as stack:
        if hasattr(context, "override_platform"):
            stack.enter_context(context.override_platform(**PLATFORM))
            import_module("sglang.srt.arg_groups.memory_hook")
        replace("get_device_memory_capacity", *FUNCTIONS if not hasattr(context, "override_platform") else ())
        status: int = check.main()
    return status


if __name__ == "__main__":
    sys.exit(main())
