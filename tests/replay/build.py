"""Assemble a release directory that holds the replayed engine in place of SGLang.

``python3 -m tests.replay.build DEST VERSION``, from the project: DEST looks like a virtual
environment of whatever Python the host has, ``import sglang`` gives VERSION, and
``DEST/bin/python -m sglang.launch_server ARGV`` plays a recording of VERSION.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent / "fixtures" / "recorded"
FLAGS = HERE.parent / "fixtures" / "flags"
PYTHON = Path("/usr/bin/python3")
PYTHON_MINORS = range(9, 16)

LAUNCH = '''"""The replayed engine, called as SGLang's own server is."""

import sys
from pathlib import Path

from replay.engine import launch
from sglang import __version__

if __name__ == "__main__":
    sys.exit(launch(Path(__file__).parent / "recordings" / __version__, sys.argv[1:]))
'''

SERVER_ARGS = '''"""The replayed engine's arguments, called as SGLang's own are."""

from pathlib import Path

from replay.arguments import ServerArgs, prepare_server_args
from sglang import __version__

PACKAGE = Path(__file__).parent.parent
ServerArgs.recordings = PACKAGE / "recordings" / __version__
ServerArgs.flags = PACKAGE / "flags.json"
'''


def build(destination: Path, version: str) -> None:
    """Write the directory; an older one is replaced."""
    if destination.exists():
        shutil.rmtree(destination)
    packages = destination / "lib" / "packages"
    engine = packages / "sglang"
    shutil.copytree(RECORDINGS / version, engine / "recordings" / version)
    (engine / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (engine / "launch_server.py").write_text(LAUNCH)
    (engine / "srt").mkdir()
    (engine / "srt" / "__init__.py").touch()
    (engine / "srt" / "server_args.py").write_text(SERVER_ARGS)
    shutil.copy(FLAGS / f"{version}.json", engine / "flags.json")
    (packages / "replay").mkdir()
    for name in ("__init__.py", "arguments.py", "engine.py", "recording.py"):
        shutil.copy(HERE / name, packages / "replay" / name)
    metadata = packages / f"sglang-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    # The host's Python finds its packages by its own version, which is not known here.
    for minor in PYTHON_MINORS:
        folder = destination / "lib" / f"python3.{minor}"
        folder.mkdir()
        (folder / "site-packages").symlink_to("../packages")
    (destination / "bin").mkdir()
    (destination / "bin" / "python").symlink_to(PYTHON)
    (destination / "bin" / "python3").symlink_to("python")
    (destination / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\ninclude-system-site-packages = false\n")


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2])
