"""Serve the same model on the same part of a card, tuned by hand and as planned, under the same load.

    python3 compare.py OUT_DIR [--seconds 360] [--gpu 0]

A process holds the rest of the card, so that as much is free as on a card of 96 GB. First what the kit plans,
then the flags that people had tuned by hand (the row ``q36_mtp_hand_graphs`` of the measured starts) for the
same model, context and method. 16 clients ask one request after another; weights are random, so drafts are
hardly ever accepted, in both alike. Every client has had one answer before the clock starts. The first load
is the one that the hand-tuned row was measured under. The second has short prompts and long answers: reading
a prompt takes both the same time. Writes both journals, and OUT_DIR/comparison.json: anew after each load, so
that what was measured is there when the machine goes away.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "module_utils")]

from sglang_kit.plan import plan_host, read_host  # noqa: E402 - found by the line above

from tests.gpu.measure import FIXTURES, Card, Server, Smaller, launch, tell  # noqa: E402

CLIENTS = 16
FIRST_PORT = 32000
HAND_TUNED, HAND_SECONDS = "q36_mtp_hand_graphs", 120.0
START_SECONDS = 280.0
MODEL = "configs/qwen36-27b.json"
FREE_GIB, CARD_MIB = 93.57, 143_771


@dataclass(frozen=True)
class Shape:
    """What every request of a load is: tokens in and out."""

    prompt: int
    answer: int


SHAPES = (Shape(1024, 256), Shape(256, 512))
SECOND_SECONDS = 60.0


@dataclass
class Load:
    """What clients saw: the seconds of each answered request, and everything that went wrong."""

    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def hand_tuned() -> dict[str, Any]:
    """Take the flags of the measured row."""
    rows = json.loads((FIXTURES / "measured" / "h200-sglang-0.5.11.json").read_text(encoding="utf-8"))["rows"]
    argv = list(next(row["argv"] for row in rows if row["case"] == HAND_TUNED))
    place = argv.index("--port")
    return {
        "case": "hand",
        "model_config": MODEL,
        "argv": [*argv[:place], *argv[place + 2 :], "--sampling-backend", "pytorch"],
    }


def planned() -> dict[str, Any]:
    """Let the kit plan for as many requests as there are clients."""
    arguments = {
        "load-format": "dummy",
        "skip-tokenizer-init": True,
        "skip-server-warmup": True,
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "disable-piecewise-cuda-graph": True,
    }
    instance = {
        "name": "planned",
        "model": "/srv/models/chat",
        "gpus": ["0"],
        "port": 30001,
        "context_length": 8192,
        "concurrency": CLIENTS,
        "strategy": {"method": "mtp", "steps": 3},
        "args": arguments,
    }
    host = {
        "name": "here",
        "release": "/opt/release",
        "engine_version": "0.5.11",
        "accelerator": "nvidia",
        "gpus": [
            {"memory_mib": CARD_MIB, "free_gib": FREE_GIB, "compute_capability": "9.0", "name": "a part"}
        ],
        "gpu_count": 1,
    }
    config = json.loads((FIXTURES / MODEL).read_text(encoding="utf-8"))
    (plan,) = plan_host(instances=[instance], settings=read_host(host), models={"/srv/models/chat": config})
    argv, words = plan["argv"], []
    position = argv.index("sglang.launch_server") + 1
    while position < len(argv):
        if argv[position] in {"--model-path", "--port", "--nccl-port", "--served-model-name", "--host"}:
            position += 2
            continue
        words.append(argv[position])
        position += 1
    return {"case": "planned", "model_config": MODEL, "argv": words, "memory": plan["memory"]}


def client(server: Server, shape: Shape, number: int, until: float, load: Load) -> None:
    """Ask one request after another, one at least."""
    numbers = random.Random(f"{number} {until}")  # noqa: S311 - any words will do
    sampling = {"max_new_tokens": shape.answer, "ignore_eos": True, "temperature": 0}
    while not load.faults:
        prompt = [numbers.randrange(10, 100_000) for _ in range(shape.prompt)]
        begun = time.monotonic()
        try:
            server.ask("/generate", {"input_ids": prompt, "sampling_params": sampling}, 120)
        except (OSError, http.client.HTTPException, ValueError) as error:
            load.faults.append(f"{time.monotonic() - begun:.1f} s: {error!r}")
            return
        load.seconds.append(time.monotonic() - begun)
        if time.monotonic() > until:
            return


def clients(server: Server, shape: Shape, seconds: float, card: Card) -> tuple[Load, float, int]:
    """Let all clients ask for so long: what they saw, how long it took, and the least bytes free."""
    load, begun, least = Load(), time.monotonic(), card.free
    threads = [
        threading.Thread(target=client, args=(server, shape, number, begun + seconds, load))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        least = min(least, card.free)
        time.sleep(0.2)
    return load, time.monotonic() - begun, least


def under_load(server: Server, shape: Shape, seconds: float, card: Card) -> dict[str, Any]:
    """Tell what came of one load."""
    before = len(server.text)
    load, elapsed, least = clients(server, shape, seconds, card)
    lines = re.findall(
        r"Decode batch.*?#running-req: (\d+).*?gen throughput \(token/s\): ([\d.]+)", server.text[before:]
    )
    decode = [(int(running), float(rate)) for running, rate in lines]
    waits = sorted(load.seconds)
    told = {
        "prompt_tokens": shape.prompt,
        "answer_tokens": shape.answer,
        "load_seconds": round(elapsed, 1),
    }
    if not decode or not waits:
        return {**told, "answered": len(waits), "faults": load.faults}
    most = max(running for running, _ in decode)
    full = [rate for running, rate in decode if running == most]
    return {
        **told,
        "running_requests": most,
        "decode_lines_with_all_of_them": round(len(full) / len(decode), 3),
        "answered": len(waits),
        "output_tokens_per_second": round(len(waits) * shape.answer / elapsed, 1),
        "decode_tokens_per_second_median": round(statistics.median(full), 1),
        "request_seconds_p50": round(waits[len(waits) // 2], 2),
        "request_seconds_p99": round(waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2),
        "free_gib_least": round(least / 2**30, 2),
        "faults": load.faults,
    }


def serve(case: dict[str, Any], server: Server, card: Card, seconds: float) -> Iterator[dict[str, Any]]:
    """Start, load, and tell what came of it so far: when it is ready, and after each load."""
    if not server.wait_for("[gate]", START_SECONDS):
        yield {"case": case["case"], "fault": "did not come to the card", "end": server.text[-2000:]}
        return
    server.gate.touch()
    begun = time.monotonic()
    if not server.wait_for("fired up and ready", START_SECONDS):
        yield {"case": case["case"], "fault": "did not start", "end": server.text[-2000:]}
        return
    ready_seconds, free = time.monotonic() - begun, card.free
    (tokens,) = re.findall(r"max_total_num_tokens=(\d+)", server.text)[:1]
    warm, _, _ = clients(server, SHAPES[0], 0, card)
    loads: list[dict[str, Any]] = []
    told = {
        "case": case["case"],
        "argv": case["argv"],
        "memory": case.get("memory"),
        "ready_seconds": round(ready_seconds, 1),
        "kv_tokens": int(tokens),
        "free_gib_ready": round(free / 2**30, 2),
        "faults_before": warm.faults,
        "loads": loads,
    }
    yield told
    for shape, time_of_it in zip(SHAPES, (seconds, SECOND_SECONDS), strict=True):
        loads.append(under_load(server, shape, time_of_it, card))
        yield told


def main() -> int:
    """Serve both, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=360, help="the first load of what is planned")
    parser.add_argument("--gpu", default="0", help="its index")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    card = Card(arguments.gpu)
    smaller = Smaller(card)
    smaller.to(FREE_GIB)
    found: list[dict[str, Any]] = []
    # The longer one first: it is what a machine that goes away early must not take along.
    cases = [(planned(), arguments.seconds), (hand_tuned(), HAND_SECONDS)]
    servers = [launch(case, arguments.out, FIRST_PORT + 20 * n) for n, (case, _) in enumerate(cases)]
    for server, (case, seconds) in zip(servers, cases, strict=True):
        smaller.wait_until_empty()
        found.append({})
        for so_far in serve(case, server, card, seconds):
            found[-1] = so_far
            text = json.dumps(found, indent=1)
            (arguments.out / "comparison.json").write_text(f"{text}\n", encoding="utf-8")
        server.kill()
        tell(json.dumps(found[-1], indent=1))
    smaller.to(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
