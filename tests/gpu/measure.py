"""Start SGLang servers with random weights on a GPU, one after another, and keep what each took of the card.

    python3 measure.py CASES.json OUT_DIR [--seconds 500] [--gpus 0,1]

CASES.json is a list of starts: ``case``, ``model_config`` (a path below tests/fixtures), ``argv``, and where
wanted ``draft_model_config``, ``environment``, ``free_gib`` (another process takes memory until that much is
free: a smaller card) and ``prompt`` (false: send none). Each leaves ``OUT_DIR/<case>.log``, the engine's
journal with lines of ours between: ``[free]`` and ``[gate]`` (see measured_server.py), ``[card] BYTES WHEN``
(free, as the driver counts).

Servers import at the same time and wait before they touch the card; the next one is let go when the card is
empty again. Python 3.12 with torch and nvidia-ml-py, SGLang importable; nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
AHEAD = 8  # servers that import while one is measured: importing takes ten times as long
FIRST_PORT = 31000
START_SECONDS, PREFILL_SECONDS = 240.0, 90.0
CLEAN_BYTES = 64 << 20
LEAST_SECONDS = 20  # nothing starts in less
HOLD = """
import sys, time, torch
torch.cuda.init()
spare = torch.cuda.mem_get_info()[0] - int(float(sys.argv[1]) * 2**30)
held = torch.empty(spare, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(3600)
"""


class Card:
    """The GPU that is used, as the driver counts its memory; of several the one that has least free."""

    def __init__(self, gpus: str) -> None:
        """Let all that is started from here on see these GPUs alone."""
        os.environ.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=gpus)
        pynvml.nvmlInit()
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) for gpu in gpus.split(",")]

    @property
    def free(self) -> int:
        return min(int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in self.handles)

    def wait_until_free(self, wanted: int) -> None:
        """Wait for what a killed process held."""
        while self.free < wanted - CLEAN_BYTES:
            time.sleep(0.05)


class Smaller:
    """Makes the card smaller: another process holds all but so many GiB of it, or nothing (None)."""

    def __init__(self, card: Card) -> None:
        self.card, self.whole = card, card.free
        self.budget: float | None = None
        self.holder: subprocess.Popen[str] | None = None
        self.empty = self.whole

    def to(self, budget: float | None) -> None:
        """Hold so much that ``budget`` GiB are free."""
        if budget == self.budget:
            return
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()
            self.holder = None
            self.card.wait_until_free(self.whole)
        self.budget, self.empty = budget, self.whole
        if budget is not None:
            command = [sys.executable, "-c", HOLD, str(budget)]
            self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self.holder.stdout is not None
            self.holder.stdout.readline()
            self.empty = self.card.free

    def wait_until_empty(self) -> None:
        """Wait for what a killed server held."""
        self.card.wait_until_free(self.empty)


@dataclass
class Server:
    """One start: its process, its files and where it answers."""

    case: dict[str, Any]
    process: subprocess.Popen[bytes]
    log: Path
    gate: Path
    port: int

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None or "Received sigquit" in self.text

    def note(self, text: str) -> None:
        """Put a line of ours into the log."""
        with self.log.open("a") as log:
            log.write(f"[card] {text}\n")

    def wait_for(self, mark: str, seconds: float) -> bool:
        """Wait for a line; False where the server ended or took too long."""
        until = time.monotonic() + seconds
        while mark not in self.text:
            if self.ended or time.monotonic() > until:
                return mark in self.text
            time.sleep(0.1)
        return True

    def kill(self) -> None:
        """End the whole server at once, or what is left of one that has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, body: dict[str, Any] | None = None, seconds: float = 20) -> dict[str, Any]:
        """Ask over HTTP."""
        data = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request("POST" if data else "GET", path, data, {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.load(connection.getresponse())
            return answer


def model_directory(config: str, place: Path) -> Path:
    """Make a model's directory: its configuration, and a tiny tokenizer that some models insist on."""
    shutil.copytree(HERE / "tokenizer", place)
    shutil.copy(FIXTURES / config, place / "config.json")
    return place


def launch(case: dict[str, Any], out: Path, port: int) -> Server:
    """Start a server that waits at its gate."""
    place = Path(tempfile.mkdtemp(prefix=f"{case['case']}-"))
    model = model_directory(case["model_config"], place / "model")
    draft = case.get("draft_model_config")
    words = [word.replace("/srv/models/draft", str(place / "draft")) for word in case["argv"]]
    if draft:
        model_directory(draft, place / "draft")
    gate, log = place / "go", out / f"{case['case']}.log"
    environment = {
        **os.environ,
        **case.get("environment", {}),
        "MEASURE_GATE": str(gate),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, str(HERE / "measured_server.py"), "--model-path", str(model)]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port), *words],
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    return Server(case, process, log, gate, port)


def measure(server: Server, card: Card, left: float) -> str:
    """Let a server go, follow it, give it one long prompt, and end it."""
    if not server.wait_for("[gate]", min(START_SECONDS, left)):
        return "ended before the card" if server.ended else "not at the card in time"
    empty = card.free
    server.note(f"{empty} empty")
    server.gate.touch()
    if not server.wait_for("fired up and ready", min(START_SECONDS, left)):
        return "ended" if server.ended else "not ready in time"
    server.note(f"{card.free} ready")
    info = server.ask("/server_info")
    server.log.with_suffix(".json").write_text(json.dumps(info), encoding="utf-8")
    if not server.case.get("prompt", True):
        return "ready"
    tokens = prompt_tokens(info)
    numbers = random.Random(0)  # noqa: S311 - any words will do
    prompt = [numbers.randrange(10, 1000) for _ in range(tokens)]
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    try:
        server.ask("/generate", body, PREFILL_SECONDS)
    except OSError as error:
        server.note(f"{card.free} no answer to {tokens} tokens: {error}")
        return "ready, no answer"
    server.note(f"{card.free} after {tokens} tokens")
    return "ready"


def prompt_tokens(info: dict[str, Any]) -> int:
    """Length of the longest prompt that is prefilled at once."""
    state = info["internal_states"][0]
    most = info.get("max_total_num_tokens") or state["max_total_num_tokens"]
    length = info.get("context_length") or 8192
    return int(min(info["chunked_prefill_size"], length - 16, most - 16))


def tell(line: str) -> None:
    """Say it at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure every case that fits into the time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--gpus", default="0", help="indices: one, or as many as a case has ranks")
    arguments = parser.parse_args()
    begun = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    cases = json.loads(arguments.cases.read_text(encoding="utf-8"))
    waiting = list(enumerate(cases))
    servers: list[Server] = []
    card = Card(arguments.gpus)
    smaller = Smaller(card)
    while waiting or servers:
        while waiting and len(servers) < AHEAD:
            position, case = waiting.pop(0)
            servers.append(launch(case, arguments.out, FIRST_PORT + 20 * position))
        server = servers.pop(0)
        left = arguments.seconds - (time.monotonic() - begun)
        if left < LEAST_SECONDS:
            server.kill()
            server.log.unlink()
            tell(f"{server.case['case']}: no time left")
            continue
        smaller.to(server.case.get("free_gib"))
        smaller.wait_until_empty()
        start = time.monotonic()
        result = measure(server, card, left)
        server.kill()
        took = time.monotonic() - start
        tell(f"{time.monotonic() - begun:5.0f} s  {server.case['case']}: {result} ({took:.0f} s)")
    smaller.to(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
