"""Which secrets does an instance have, and how do they reach the engine without being seen?

On the host each one is a file of its own, 0600 root, which systemd hands to the unit as a credential
(``LoadCredential=``, systemd.exec(5)); ``engine_start.py`` puts it into the engine's arguments inside the
process. A plan names the files and never holds a value.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine_start import ADMIN_API_KEY, API_KEY, DIRECTORY, HF_TOKEN

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "credentials"
"""Below the configuration directory; whatever lies in it is never shown."""
ARGUMENT: dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "default": [],
    "no_log": False,  # of each one, the content is
    "options": {
        "path": {"type": "path", "required": True},
        "content": {"type": "str", "required": True, "no_log": True},
    },
}
"""How a module takes the secrets of a host, as the filter ``sglang_secrets`` names them."""
MASK = "***"
ROUNDS = 100_000
"""A plan holds a hash of each secret: guessing must stay slow for who can read one."""


@dataclass(frozen=True)
class Credentials:
    """Values by name, as one process has them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What a client of the instance sends; the admin key opens only what the engine marks so."""
        return {"Authorization": f"Bearer {self.values[API_KEY]}"} if API_KEY in self.values else {}

    def masked(self, text: str) -> str:
        """Replace every value, wherever it stands; of two that begin alike, the longer one first."""
        for value in sorted(self.values.values(), key=len, reverse=True):
            text = text.replace(value, MASK)
        return text


def of_unit() -> Credentials:
    """Read what systemd handed to the unit of this process; what a drop-in adds is none of ours."""
    directory = os.environ.get(DIRECTORY)
    known = (Path(directory, name) for name in (API_KEY, ADMIN_API_KEY, HF_TOKEN)) if directory else ()
    return Credentials({place.name: place.read_text(encoding="utf-8") for place in known if place.exists()})


def of_plan(plan: Mapping[str, Any]) -> Credentials:
    """Read the files that a plan names, those that are still there; for root, on the host."""
    files = {name: Path(path) for name, path in plan.get("secrets", {}).items()}
    return Credentials(
        {name: place.read_text(encoding="utf-8") for name, place in files.items() if place.exists()}
    )


def file_of(config_directory: str, instance: str, name: str) -> str:
    """Where a secret lies on the host."""
    return f"{config_directory}/{FOLDER}/{instance}.{name}"


def shown(path: str, content: str | None, instead: str) -> str:
    """Give what a diff may show of a file; of a secret, ``instead``."""
    if content is None:
        return ""
    return instead if Path(path).parent.name == FOLDER else content


@lru_cache(maxsize=4096)
def mark(value: str, salt: str) -> str:
    """Tell whether a secret has changed, without telling it: 16 hexadecimal digits."""
    return hashlib.pbkdf2_hmac("sha256", value.encode(), salt.encode(), ROUNDS, 8).hex()
