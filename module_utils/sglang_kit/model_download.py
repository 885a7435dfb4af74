"""What does a model's repository on a hub hold, and its files, please.

A program of its own, for the Python of a release, which brings huggingface_hub: it imports nothing of this
package. On its standard input it reads ``{"endpoint", "token", "repository", "revision", "place", "files"}``.
With no ``files`` (sizes by name) it answers with the ``commit`` of the revision and all of its ``files``:
``name``, ``size``, ``sha256`` and git's ``blob``, one of which is None. Else it fetches those into ``place``.
Where that fails it answers with an ``error`` and the ``status`` of HTTP, if there was one.

A file is written under another name until it is whole, and goes on where it was cut off. The library's own
``snapshot_download`` begins such a file anew in another process (1.33:
``file_download.py:_download_to_tmp_and_move``).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PARTIAL = ".partial"
AT_ONCE = 4
UNREACHABLE = "unreachable"
_NO_WAY = {"TransportError", "ConnectionError"}  # of httpx, and of requests or Python


def main() -> int:
    """Answer one request, on what was standard output: the library may print."""
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        answer.write(json.dumps(respond(request)) + "\n")
    return 0


def respond(request: dict[str, Any]) -> dict[str, Any]:
    """List, or fetch."""
    hub = importlib.import_module("huggingface_hub")
    try:
        return fetch(hub, request) if request["files"] else listing(hub, request)
    except Exception as error:  # noqa: BLE001 - whatever the library raises is its answer
        status = getattr(getattr(error, "response", None), "status_code", None)
        if _NO_WAY & {kind.__name__ for kind in type(error).__mro__}:
            status = UNREACHABLE
        return {"error": f"{type(error).__name__}: {error}", "status": status}


def listing(hub: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - the library
    """Name the commit of a revision, and its files."""
    api = hub.HfApi(endpoint=request["endpoint"] or None, token=request["token"] or False)
    found = api.model_info(request["repository"], revision=request["revision"], files_metadata=True)
    files = [
        {
            "name": file.rfilename,
            "size": file.size,
            "sha256": file.lfs.sha256 if file.lfs else None,
            "blob": None if file.lfs else file.blob_id,
        }
        for file in found.siblings
    ]
    return {"commit": found.sha, "files": files}


def fetch(hub: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - the library
    """Fetch files, several at once; those that are whole already stay."""
    download = importlib.import_module("huggingface_hub.file_download")
    utilities = importlib.import_module("huggingface_hub.utils")
    headers = utilities.build_hf_headers(token=request["token"] or False)

    def one(name: str, size: int) -> None:
        target = Path(request["place"], name)
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + PARTIAL)
        url = hub.hf_hub_url(
            request["repository"], name, revision=request["revision"], endpoint=request["endpoint"] or None
        )
        with partial.open("ab") as file:
            if file.tell() < size or not size:
                download.http_get(url, file, resume_size=file.tell(), headers=headers)
        partial.replace(target)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(one, *file) for file in request["files"].items()]:
            done.result()
    return {"commit": request["revision"], "files": []}


if __name__ == "__main__":
    sys.exit(main())
