"""From 0.5.15.post1 to 0.5.23 and back, with the real packages: what fails leaves the old engine serving.

The tests tell one story in file order, on a new host: half an hour on two busy cores, most of it starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_kit import lockfile

from tests.on_host import ROOT, main_pids, playbook, show

if TYPE_CHECKING:
    from testinfra.host import Host

INVENTORY = Path(__file__).parents[1] / "inventory"
URL = "http://127.0.0.1:31281"
UNIT = "sglang-tiny"
OLD, NEW = "0.5.15.post1", "0.5.23"
LOCK = ROOT / f"roles/sglang_engine/files/locks/{NEW}.txt"
# Vocabulary and weights do not match: the engine takes the arguments, and fails when it loads the weights.
WRONG = {
    "name": "tiny",
    "model": "/srv/models/tiny-gpt2",
    "port": 31281,
    "context_length": 1024,
    "concurrency": 8,
    "args": {
        "max-total-tokens": 8192,
        "disable-overlap-schedule": True,
        "json-model-override-args": '{"vocab_size": 300}',
    },
}


def served(host: Host) -> str:
    """Name the version that serves, once it has answered to a prompt."""
    ask = (
        "import json, urllib.request as r;"
        "send = lambda path, body=None: json.load(r.urlopen(r.Request("
        f"'{URL}' + path, body, {{'Content-Type': 'application/json'}}), timeout=60));"
        "b = json.dumps({'model': 'tiny-gpt2', 'prompt': 'Hello', 'max_tokens': 4}).encode();"
        "assert send('/v1/completions', b)['usage']['completion_tokens'] == 4;"
        "print(send('/server_info')['version'])"
    )
    return str(host.check_output("python3 -c %s", ask)).strip()


def deploy(*options: str, **changes: Any) -> tuple[int, str]:  # noqa: ANN401 - any value
    outcome = playbook(
        INVENTORY, "deploy.yml", "--limit=gpu_hosts", f"--extra-vars={json.dumps(changes)}", *options
    )
    return outcome.returncode, outcome.stdout


def starts(host: Host) -> int:
    """Count the starts of the engine since boot."""
    journal = host.check_output(f"journalctl --unit {UNIT} --output json --output-fields INVOCATION_ID")
    return len({json.loads(line).get("INVOCATION_ID") for line in journal.splitlines()} - {None})


def releases(host: Host) -> dict[str, str]:
    """List the releases with the moment at which they were completed."""
    listing = host.check_output("stat --format '%n %y' /opt/sglang/releases/*/sglang-release.json")
    return {Path(line.split()[0]).parent.name: line for line in listing.splitlines()}


def test_the_old_engine_serves(host: Host) -> None:
    assert served(host) == OLD


def test_a_release_that_cannot_be_imported_leaves_the_old_one_alone(host: Host, tmp_path: Path) -> None:
    """The lock lacks a package that the engine imports."""
    text = LOCK.read_text(encoding="utf-8")
    lock = tmp_path / "lock.txt"
    missing = next(pin for pin in lockfile.pins(text) if pin.name == "orjson")
    lines = text.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if line.startswith("orjson=="))
    lock.write_text("".join(lines[:first] + lines[first + 1 + len(missing.hashes) :]), encoding="utf-8")
    before, current = main_pids(host, [UNIT]), host.check_output("readlink /opt/sglang/current")
    status, told = deploy(sglang_engine_version=NEW, sglang_engine_lock=str(lock))
    assert status != 0
    assert "import: ModuleNotFoundError: No module named 'orjson'" in told
    assert main_pids(host, [UNIT]) == before
    assert host.check_output("readlink /opt/sglang/current") == current
    assert list(releases(host)) == [Path(current).name]
    assert served(host) == OLD


def test_an_engine_that_does_not_become_ready_gives_way_to_the_old_one(host: Host) -> None:
    status, told = deploy(sglang_engine_version=NEW, sglang_service_instances=[WRONG])
    assert status != 0
    assert "tiny: failed in stage" in told
    assert served(host) == OLD
    assert show(host, UNIT, "StatusText") == "ready"
    assert f"/opt/sglang/releases/{OLD}-" in host.file(f"/etc/systemd/system/{UNIT}.service").content_string


def test_the_new_engine_serves(host: Host) -> None:
    status, told = deploy(sglang_engine_version=NEW)
    assert status == 0, told
    assert served(host) == NEW
    assert len(releases(host)) == 2


def test_a_rollback_is_one_start_of_what_is_there(host: Host) -> None:
    before, there = starts(host), releases(host)
    marker = host.check_output("mktemp")
    outcome = playbook(INVENTORY, "playbooks/rollback.yml", "--limit=gpu_hosts", "--extra-vars=instance=tiny")
    assert outcome.returncode == 0, outcome.stdout
    assert served(host) == OLD
    assert starts(host) == before + 1
    assert releases(host) == there
    touched = f"find /opt/sglang/releases/ /srv/store/uv-cache -cnewer {marker} -not -name '*.pyc' -type f"
    assert host.check_output(touched) == "", "nothing was installed or downloaded"


def test_the_release_that_known_good_needs_is_not_removed(host: Host) -> None:
    status, told = deploy(sglang_engine_version=NEW, sglang_engine_keep=1)
    assert status == 0, told
    assert served(host) == NEW
    assert [name.partition("-")[0] for name in releases(host)] == [NEW], "known-good is the new one now"
