"""Which files are this kit on a host?

Ansible ships the package inside a module's payload (a zip); the host keeps it under a directory
named by its content, so that a new kit never changes the files of a running launcher.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pkgutil
import shlex

from .fileset import File

PACKAGE = __name__.rpartition(".")[0]
_FOR_PEOPLE = ("why",)
_COMMAND = '#!/bin/sh\nexec /usr/bin/python3 -IB {kit} {verb} "$@"\n'
_MAIN = "import sys\n\nfrom sglang_kit.cli import main\n\nsys.exit(main())\n"


def sources() -> dict[str, str]:
    """Read every room of this package: file name -> source text, from a directory or from a zip."""
    package = importlib.util.find_spec(PACKAGE)
    places = list(package.submodule_search_locations or ()) if package else []
    names = sorted(room.name for room in pkgutil.iter_modules(places))
    texts = {"__init__.py": ""}
    for name in names:
        room = importlib.util.find_spec(f"{PACKAGE}.{name}")
        loader = room.loader if room else None
        texts[f"{name}.py"] = loader.get_source(room.name)  # type: ignore[union-attr]
    return texts


def texts() -> dict[str, str]:
    """Lay the kit out as a directory that Python runs: name below it -> text."""
    return {"__main__.py": _MAIN, **{f"sglang_kit/{name}": text for name, text in sources().items()}}


def files(root: str, directory: str = "/usr/local/bin") -> tuple[File, ...]:
    """Lay the kit out below ``root``: ``kits/<hash>/`` and the link ``kit`` that points to it.

    What people type lies in ``directory``.
    """
    named = sorted(texts().items())
    digest = hashlib.sha256(repr(named).encode()).hexdigest()[:12]
    placed = [File(f"{root}/kits/{digest}/{name}", text) for name, text in named]
    kit = shlex.quote(f"{root}/kit")
    commands = [
        File(f"{directory}/sglang-{verb}", _COMMAND.format(kit=kit, verb=verb), mode=0o755)
        for verb in _FOR_PEOPLE
    ]
    return (*placed, *commands, File(f"{root}/kit", target=f"kits/{digest}"))
