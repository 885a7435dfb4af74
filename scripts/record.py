#!/usr/bin/env python3
"""Record what a real SGLang prints and answers, case by case, for the tests to read again.

``scripts/record.py --python VENV/bin/python --model DIRECTORY --into tests/fixtures/recorded CASE...``
starts the engine on the CPU, provokes the named cases one after another (all of them by default), and writes
``<version>/cpu-<case>.jsonl``. Every line of a recording is one JSON object; ``at`` counts seconds from the
start of the process:

- ``{"recording": 1, "version", "case", "about", "argv", "environment", "date"}`` comes first
- ``{"at", "line"}``: one line of the engine's joined standard output and error
- ``{"at", "did"}``: what the recorder did to the engine
- ``{"at", "answer": {"method", "path", "status", "body"}}``: an HTTP answer
- ``{"at", "end": {"code"} or {"signal"}}``: how the main process ended, or ``{"hung": true}``

Paths and names of the recording machine are replaced by those of a host of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READY = r"The server is fired up and ready to roll!"
DISTRIBUTED = r"Init (torch distributed|parallel) begin"
LISTENING = r"Uvicorn running on"
BIND_FAILED = r"error while attempting to bind"

SCHEMA = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}
SAMPLING = {"max_tokens": 16, "temperature": 0}
REQUESTS: tuple[tuple[str, str, Mapping[str, Any] | None], ...] = (
    ("GET", "/health", None),
    ("GET", "/ready", None),
    ("GET", "/v1/models", None),
    ("GET", "/model_info", None),
    ("GET", "/server_info", None),
    ("POST", "/v1/completions", {"prompt": "Are you ready?", **SAMPLING}),
    (
        "POST",
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Are you ready?"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "ready", "schema": SCHEMA, "strict": True},
            },
            "max_tokens": 64,
            "temperature": 0,
        },
    ),
    ("POST", "/generate", {"text": "Are you ready?", "sampling_params": {"max_new_tokens": 8}}),
)


@dataclass
class Setting:
    """What a case may arrange before the start: the engine's arguments, environment and model."""

    scratch: Path
    model: Path
    port: int
    nccl_port: int
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    wrapper: list[str] = field(default_factory=list)
    until_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def copy_model(self) -> Path:
        """Take a copy of the model that the case may damage."""
        self.model = Path(shutil.copytree(self.model, self.scratch / "model"))
        return self.model

    def shadow(self, module: str, source: str) -> None:
        """Put a module of this name in front of the installed one."""
        folder = self.scratch / "shadow"
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(source)
        self.environment["PYTHONPATH"] = str(folder)


@dataclass
class Case:
    """One thing to provoke. ``act`` is done when a line matches ``when``; silence then ends a hang."""

    about: str
    arguments: tuple[str, ...] = ()
    prepare: Callable[[Setting], None] | None = None
    when: str = READY
    act: Callable[[Engine], None] | None = None
    silence_s: float = 150


class Engine:
    """The running engine and the recording that is being written."""

    def __init__(self, argv: list[str], environment: Mapping[str, str], port: int, head: str) -> None:
        """Start the engine in its own session, so that its processes can be ended together."""
        self.port = port
        self._entries: list[tuple[float, str]] = [(-1.0, head)]
        self._lines: queue.Queue[tuple[float, bytes] | None] = queue.Queue()
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put((self.now(), line))
        self._lines.put(None)

    def now(self) -> float:
        """Seconds since the start, to the millisecond."""
        return round(time.monotonic() - self._started, 3)

    def note(self, at: float, **entry: object) -> None:
        """Write one entry of the recording."""
        self._entries.append((at, json.dumps({"at": at, **entry}, ensure_ascii=False)))

    def entries(self) -> list[str]:
        """Return the recording in order of time: answers are noted before lines that waited meanwhile."""
        return [entry for _, entry in sorted(self._entries, key=lambda noted: noted[0])]

    def lines(self, silence_s: float) -> Iterator[str]:
        """Yield each line as it comes and record it; end at the end of output or after silence."""
        while True:
            try:
                item = self._lines.get(timeout=silence_s)
            except queue.Empty:
                return
            if item is None:
                return
            at, raw = item
            text = raw.decode(errors="backslashreplace").rstrip("\n")
            self.note(at, line=text)
            yield text

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None, key: str = "") -> None:
        """Send one request and record its answer."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=90) as reply:
                status, content = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        except OSError as error:
            status, content = 0, str(error).encode()
        try:
            answer = json.loads(content)
        except ValueError:
            answer = content.decode(errors="backslashreplace")
        self.note(self.now(), answer={"method": method, "path": path, "status": status, "body": answer})

    def ask_everything(self) -> None:
        """Record every answer that a readiness check may want."""
        for method, path, body in REQUESTS:
            self.ask(method, path, body)

    def send(self, number: signal.Signals, to: str = "main") -> None:
        """Send a signal to the main process or to a scheduler, and record it."""
        pid = self.process.pid if to == "main" else self.scheduler()
        self.note(self.now(), did=f"{number.name} to the {to} process")
        os.kill(pid, number)

    def members(self) -> list[int]:
        """List the processes of the engine's session, the main one first."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                state = (path / "stat").read_text().rpartition(")")[2].split()
                if int(state[3]) == self.process.pid and state[0] != "Z":
                    found.append(int(path.name))
        return sorted(found)

    def scheduler(self) -> int:
        """Find the scheduler by the name it gives itself, and before that by its work."""

        def cpu_ticks(pid: int) -> int:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return int(words[11]) + int(words[12])

        others = [pid for pid in self.members() if pid != self.process.pid]
        named = [
            pid
            for pid in others
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sglang::scheduler")
        ]
        return named[0] if named else max(others, key=cpu_ticks)

    def end(self) -> None:
        """Record how the main process ended and leave no process behind."""
        try:
            status = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.note(self.now(), end={"hung": True})
        else:
            self.note(self.now(), end={"signal": -status} if status < 0 else {"code": status})
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def stop(engine: Engine) -> None:
    """Ask everything, then stop as systemd does."""
    engine.ask_everything()
    engine.send(signal.SIGTERM)


def schema_only(engine: Engine) -> None:
    """Ask for a completion by JSON schema, then stop."""
    engine.ask(*REQUESTS[6])
    engine.send(signal.SIGTERM)


def ask_with_and_without_key(engine: Engine) -> None:
    """Show what an engine with a key answers to those who have none."""
    for path in ("/health", "/v1/models", "/server_info"):
        engine.ask("GET", path, None)
    engine.ask("GET", "/v1/models", None, key="sk-recorded-secret")
    engine.send(signal.SIGTERM)


def kill_scheduler(engine: Engine) -> None:
    """Do to the scheduler what the kernel's OOM killer does."""
    engine.send(signal.SIGKILL, to="scheduler")


def occupy(address: tuple[str, int], setting: Setting) -> None:
    """Hold a port without ever answering."""
    holder = setting.until_end.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(address)
    holder.listen()


class Stranger(BaseHTTPRequestHandler):
    """Another inference server that answers the engine's warm-up."""

    def do_GET(self) -> None:
        """Describe a model that is not the engine's."""
        self.reply({"model_path": "/srv/models/other", "is_generation": True, "architectures": ["Other"]})

    def do_POST(self) -> None:
        """Generate."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply({"text": "Paris", "meta_info": {}})

    def reply(self, body: Mapping[str, object]) -> None:
        """Send a JSON body."""
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep silent."""


class Refusing(Stranger):
    """A company's proxy that does not let loopback addresses through."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_error(403, "Forbidden by policy")

    def do_POST(self) -> None:
        """Refuse."""
        self.do_GET()


def serve(handler: type[BaseHTTPRequestHandler], port: int, setting: Setting) -> int:
    """Answer on a loopback port until the case ends; return the port."""
    server = setting.until_end.enter_context(ThreadingHTTPServer(("127.0.0.1", port), handler))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    setting.until_end.callback(server.shutdown)
    return int(server.server_address[1])


def be_held_by_stranger(setting: Setting) -> None:
    """Let another server answer on the HTTP port."""
    serve(Stranger, setting.port, setting)


def behind_proxy(setting: Setting) -> None:
    """Let the engine's own requests to itself go through a proxy that refuses them."""
    port = serve(Refusing, 0, setting)
    for name in ("NO_PROXY", "no_proxy"):
        setting.environment[name] = ""
    setting.environment["http_proxy"] = f"http://127.0.0.1:{port}"


def truncate_weights(setting: Setting) -> None:
    """Cut the weights off in the middle, as a broken download does."""
    weights = setting.copy_model() / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)


def truncate_weights_in_header(setting: Setting) -> None:
    """Cut the weights off inside their header."""
    os.truncate(setting.copy_model() / "model.safetensors", 100)


def without(name: str) -> Callable[[Setting], None]:
    """Remove one file of the model."""
    return lambda setting: (setting.copy_model() / name).unlink()


def with_config(**changes: object) -> Callable[[Setting], None]:
    """Change the model's config.json."""

    def prepare(setting: Setting) -> None:
        path = setting.copy_model() / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=2))

    return prepare


def small_file_system(setting: Setting, kib: int) -> Path:
    """Mount a file system that is soon full."""
    folder = setting.scratch / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], check=True)
    setting.until_end.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
    return folder


def full_disk(setting: Setting) -> None:
    """Let the temporary directory lie on a file system with little space."""
    setting.environment["TMPDIR"] = str(small_file_system(setting, 16))


def full_shared_memory(setting: Setting) -> None:
    """Let the engine, and only it, see a full /dev/shm."""
    folder = small_file_system(setting, 4)
    setting.wrapper += [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {folder} /dev/shm && exec "$@"',
        "sh",
    ]


MISSING_LIBRARY = 'import ctypes\n\nctypes.CDLL("libsglang-absent.so.1")\n'
MISSING_NAME = "from collections import AbsentName\n"

CASES: dict[str, Case] = {
    "ready-then-stopped": Case("Serves, answers, and stops when asked", act=stop),
    "schema-on-cpu": Case("A JSON schema with the default grammar backend", act=schema_only),
    "unknown-flag": Case("A flag that no version has", ("--no-such-flag", "1")),
    "removed-flag": Case(
        "--cuda-graph-max-bs: an alias until 0.5.18, ambiguous from 0.5.20",
        ("--cuda-graph-max-bs", "8"),
        act=stop,
    ),
    "unknown-algorithm": Case("DDTREE exists in no version", ("--speculative-algorithm", "DDTREE")),
    "context-too-long": Case("More context than the model was made for", ("--context-length", "99999")),
    "port-held": Case(
        "The HTTP port is held by a process that does not answer",
        prepare=lambda setting: occupy(("127.0.0.1", setting.port), setting),
        silence_s=40,
    ),
    "port-held-by-server": Case(
        "The HTTP port is held by another server, which answers the warm-up",
        prepare=be_held_by_stranger,
        silence_s=40,
    ),
    "nccl-port-held": Case(
        "The rendezvous port is held",
        prepare=lambda setting: occupy(("127.0.0.1", setting.nccl_port), setting),
    ),
    "kv-below-context": Case(
        "512 tokens of KV cache, 1,024 tokens of context",
        ("--max-total-tokens", "512", "--context-length", "1024"),
        act=stop,
    ),
    "no-memory-for-kv": Case("A memory fraction that leaves nothing", ("--mem-fraction-static", "0.0001")),
    "model-missing": Case(
        "The model's directory does not exist",
        prepare=lambda setting: setattr(setting, "model", setting.scratch / "absent"),
    ),
    "config-missing": Case("No config.json", prepare=without("config.json")),
    "tokenizer-missing": Case("No tokenizer.json", prepare=without("tokenizer.json")),
    "weights-missing": Case("No weights", prepare=without("model.safetensors")),
    "weights-truncated": Case("The weights end early", prepare=truncate_weights),
    "weights-truncated-in-header": Case(
        "The weights end in their header", prepare=truncate_weights_in_header
    ),
    "architecture-unknown": Case(
        "An architecture that SGLang does not know",
        prepare=with_config(architectures=["AbsentForCausalLM"], model_type="absent"),
    ),
    "scheduler-killed-loading": Case(
        "The scheduler is killed while it loads", when=DISTRIBUTED, act=kill_scheduler
    ),
    "scheduler-killed-serving": Case("The scheduler is killed while it serves", act=kill_scheduler),
    "main-killed": Case("The main process is killed", act=lambda engine: engine.send(signal.SIGKILL)),
    "stopped-loading": Case(
        "Stopped before it listens", when=DISTRIBUTED, act=lambda engine: engine.send(signal.SIGTERM)
    ),
    "hang-loading": Case(
        "The scheduler stops making progress while it loads",
        when=DISTRIBUTED,
        act=lambda engine: engine.send(signal.SIGSTOP, to="scheduler"),
        silence_s=30,
    ),
    "import-error": Case(
        "A package of another version lacks a name",
        prepare=lambda setting: setting.shadow("xgrammar", MISSING_NAME),
    ),
    "import-error-at-start": Case(
        "A broken package is imported by everything",
        prepare=lambda setting: setting.shadow("orjson", MISSING_NAME),
    ),
    "library-missing": Case(
        "A shared library is not installed",
        prepare=lambda setting: setting.shadow("orjson", MISSING_LIBRARY),
    ),
    "behind-proxy": Case("The warm-up goes through a proxy that refuses it", prepare=behind_proxy),
    "api-key": Case(
        "Serves with an API key", ("--api-key", "sk-recorded-secret"), act=ask_with_and_without_key
    ),
    "disk-full": Case("Little space in the temporary directory", prepare=full_disk, act=stop),
    "shared-memory-full": Case("No space in /dev/shm", prepare=full_shared_memory, act=stop),
}

BASE = (
    "--served-model-name=tiny",
    "--host=127.0.0.1",
    "--device=cpu",
    "--max-running-requests=8",
    "--disable-overlap-schedule",
    "--enable-metrics",
)
GRAMMAR = {"0.5.15.post1": ("--grammar-backend=llguidance",)}
"""Its default, xgrammar, ends the scheduler on a CPU at the first JSON schema (see ``schema-on-cpu``)."""
KEPT = ("PATH", "LANG", "LC_ALL")
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1,localhost,::1",
    "no_proxy": "127.0.0.1,localhost,::1",
    "PYTHONUNBUFFERED": "1",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
}


def record(name: str, case: Case, *, python: Path, version: str, model: Path, port: int) -> list[str]:
    """Provoke one case and return its recording."""
    with tempfile.TemporaryDirectory(prefix="record-") as scratch, contextlib.ExitStack() as until_end:
        setting = Setting(Path(scratch), model, port, port + 50, list(case.arguments), until_end=until_end)
        home, temporary = setting.scratch / "home", setting.scratch / "temporary"
        home.mkdir()
        temporary.mkdir()
        if case.prepare:
            case.prepare(setting)
        words = [str(python), "-m", "sglang.launch_server", f"--model-path={setting.model}"]
        words += [f"--port={port}", f"--nccl-port={port + 50}", *BASE, *setting.arguments]
        words += GRAMMAR.get(version, ()) if case.act is not schema_only else ()
        if not {"--max-total-tokens", "--mem-fraction-static"} & set(setting.arguments):
            words.append("--max-total-tokens=8192")
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {"HOME": str(home), "TMPDIR": str(temporary), **QUIET}
        environment |= setting.environment
        head = {
            "recording": 1,
            "version": version,
            "case": name,
            "about": case.about,
            "argv": words,
            "environment": {key: text for key, text in environment.items() if key not in KEPT},
            "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        }
        engine = Engine([*setting.wrapper, *words], environment, port, json.dumps(head, ensure_ascii=False))
        trigger = re.compile(case.when)
        acted = case.act is None
        try:
            for line in engine.lines(case.silence_s):
                if case.act and not acted and trigger.search(line):
                    acted = True
                    case.act(engine)
        finally:
            engine.end()
        replaced = {
            str(setting.scratch / "model"): "/srv/models/tiny-gpt2",
            str(setting.scratch / "absent"): "/srv/models/absent",
            str(model): "/srv/models/tiny-gpt2",
            str(python.parent.parent): f"/opt/sglang/releases/{version}",
            str(home): "/var/lib/sglang",
            str(temporary): "/run/sglang/temporary",
            scratch: "/run/sglang/scratch",
            socket.gethostname(): "gpu-host",
        }
    entries = engine.entries()
    for ours, theirs in replaced.items():
        entries = [entry.replace(ours, theirs) for entry in entries]
    return entries


def main() -> None:
    """Record the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the engine's venv")
    parser.add_argument("--model", type=Path, required=True, help="directory of the tiny model")
    parser.add_argument("--into", type=Path, required=True, help="directory of the recordings")
    parser.add_argument("--port", type=int, default=31000, help="first of 100 free ports")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    program = "from importlib.metadata import version; print(version('sglang'))"
    command = [str(options.python), "-c", program]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    folder = options.into / version
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.cases or CASES:
        entries = record(
            name,
            CASES[name],
            python=options.python,
            version=version,
            model=options.model,
            port=options.port,
        )
        (folder / f"cpu-{name}.jsonl").write_text("\n".join(entries) + "\n")
        sys.stderr.write(f"{version} {name}: {len(entries)} entries, {entries[-1]}\n")


if __name__ == "__main__":
    main()
