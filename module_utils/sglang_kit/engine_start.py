"""Start the engine with the secrets of its unit: ``engine_start.py MODULE WORDS...``.

A program of its own, for the Python of a release: it imports nothing of this package. The engine has no
variable and no file for its keys (0.5.11 to 0.5.23), only flags, which everybody could read in
``/proc/PID/cmdline``. They are added here, to ``sys.argv`` of the running process; the module then runs
as with ``python -m``, so that the processes which it spawns find it by its name.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

API_KEY, ADMIN_API_KEY, HF_TOKEN = "api_key", "admin_api_key", "hf_token"
FLAGS = {API_KEY: "--api-key", ADMIN_API_KEY: "--admin-api-key"}
DIRECTORY = "CREDENTIALS_DIRECTORY"
TOKEN_FILE = "HF_TOKEN_PATH"  # noqa: S105 - a variable's name
"""Where huggingface_hub looks for the token: no environment has to hold it."""


def main() -> None:
    """Add the secrets and become the engine."""
    _, module, *words = sys.argv
    directory = Path(os.environ[DIRECTORY])
    keys = [(flag, directory / name) for name, flag in FLAGS.items() if (directory / name).exists()]
    if (directory / HF_TOKEN).exists():
        os.environ[TOKEN_FILE] = str(directory / HF_TOKEN)
    sys.argv = [module, *words, *(f"{flag}={place.read_text(encoding='utf-8')}" for flag, place in keys)]
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as "python -m" has it; the rooms of the kit are no modules here
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
