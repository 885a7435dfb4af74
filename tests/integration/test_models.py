"""Models come to two real hosts, from a hub on this machine and from one another. A minute, root, PyPI.

The library is the one of the newest shipped lock, and once the one of the oldest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import lockfile

from sandbox import tiny_model
from tests.hub import REPOSITORY, TOKEN, Hub, publish, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SANDBOX = ROOT / ".sandbox"
LOCKS = ROOT / "roles/sglang_engine/files/locks"
HOSTS = {"models1": 2283, "models2": 2284}
PLACE = "/opt/sglang/models/tiny"
CHUNK = 10 << 20
"""The library writes so much at once; what has arrived of the next is lost with the connection."""
CUT, SIZE = CHUNK * 5 // 2, CHUNK * 4


def run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "UV_SYSTEM_CERTS": "1"}
    outcome = subprocess.run(
        argv, cwd=ROOT, check=False, capture_output=True, encoding="utf-8", env=environment
    )
    assert outcome.returncode == 0 or not check, outcome.stdout + outcome.stderr
    return outcome


def sandbox(*words: str) -> str:
    return run(sys.executable, "-m", "sandbox", *words).stdout


def on(host: str, command: str) -> str:
    return sandbox("exec", host, "--", "sh", "-c", command)


def install(host: str, release: str, lock: Path) -> None:
    """Give a host a release that holds nothing but the library."""
    pins = [f"{pin.name}=={pin.version}" for pin in lockfile.pins(lock.read_text(encoding="utf-8"))]
    place = SANDBOX / "store/hosts" / host / release
    site = place / "lib/python3.11/site-packages"
    constraints = SANDBOX / "store/hosts" / host / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    wanted = next(pin for pin in pins if pin.startswith("huggingface-hub=="))
    run(
        *(str(BIN / "uv"), "pip", "install", "--quiet", "--python-version=3.11", f"--target={site}"),
        *(f"--cache-dir={SANDBOX}/store/uv-cache", f"--constraint={constraints}", wanted),
    )
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to("/usr/bin/python3")
    (place / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    for host, port in HOSTS.items():
        sandbox("up", host, f"--ssh-port={port}", "--suite=bookworm")
        install(host, "release", LOCKS / "0.5.23.txt")
    yield
    sandbox("remove", *HOSTS)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    place = tmp_path_factory.mktemp("repository")
    tiny_model.write(place)
    (place / "extra.bin").write_bytes(bytes(SIZE))
    (place / "original").mkdir()
    (place / "original/x.pth").write_bytes(b"x")
    publish(place)
    with serving(place) as hub:
        yield hub


class Site:
    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder = folder
        self.hub = hub

    def play(self, *options: str, check: bool = True, **changes: Any) -> str:  # noqa: ANN401 - any value
        download = {
            "path": PLACE,
            "repository": REPOSITORY,
            "copy_from": "models1",
            "exclude": ["original/*"],
        }
        variables = {
            "ansible_user": "root",
            "ansible_ssh_common_args": f"-F {SANDBOX}/ssh/config",
            "sglang_model_downloads": [{**download, **changes.pop("download", {})}],
            "sglang_model_endpoint": self.hub.url,
            "sglang_model_token": TOKEN,
            "sglang_host_user": "root",
            "__sglang_service_plans": [
                {"name": "tiny", "state": "started", "model": PLACE, "draft_model": None}
            ],
            "__sglang_engine_release": "/opt/sglang/release",
            "__sglang_host_download_environment": {},
            **changes,
        }
        reached = {host: {"ansible_host": "127.0.0.1", "ansible_port": port} for host, port in HOSTS.items()}
        inventory = self.folder / "hosts.json"
        inventory.write_text(
            json.dumps({"gpu_hosts": {"hosts": reached, "vars": variables}}), encoding="utf-8"
        )
        argv = [str(BIN / "ansible-playbook"), f"--inventory={inventory}", "-vvv", *options]
        outcome = run(*argv, str(ROOT / "tests/integration/models.yml"), check=check)
        assert (outcome.returncode == 0) == check
        assert TOKEN not in outcome.stdout + outcome.stderr
        return outcome.stdout


@pytest.fixture
def site(hosts: None, hub: Hub, tmp_path: Path) -> Site:
    del hosts
    return Site(tmp_path, hub)


def test_a_dry_run_predicts_the_downloads(site: Site) -> None:
    told = site.play("--check", "--diff")
    assert told.count(f"+{PLACE}: {REPOSITORY} at main") == 2
    assert site.hub.asked == []


def test_no_room_is_said_before_anything_is_fetched(site: Site) -> None:
    on("models1", "mkdir -p /srv/small && mount -t tmpfs -o size=64m small /srv/small")
    told = site.play("--limit=models1", check=False, download={"path": "/srv/small/tiny"})
    assert "64 MiB are free there" in told
    assert on("models1", "find /srv/small -name 'model*'") == ""


def test_a_wrong_token_is_said_and_not_shown(site: Site) -> None:
    told = site.play("--limit=models1", check=False, sglang_model_token="wrong-secret")  # noqa: S106 - the point
    assert "401" in told
    assert "give the token of an account that may read it in sglang_model_token" in told
    assert "wrong-secret" not in told


def test_a_download_that_breaks_off_leaves_no_model(site: Site) -> None:
    site.hub.cut = CUT
    site.play("--limit=models1", check=False)
    site.hub.cut = 0
    folder, _, name = PLACE.rpartition("/")
    assert on("models1", f"find {folder} -maxdepth 1 -name '{name}*'") == ""


def test_the_next_run_goes_on_where_it_ended_and_the_second_host_copies(site: Site) -> None:
    site.hub.asked.clear()
    told = site.play()
    assert "changed=1" in told
    ranges = [asked for name, asked in site.hub.asked if name == "extra.bin"]
    assert ranges == [f"bytes={2 * CHUNK}-"], "one download for both hosts"
    sums = [on(host, f"cd {PLACE} && sha256sum * && stat -c '%U %a' *") for host in HOSTS]
    assert sums[0] == sums[1]
    assert "model.safetensors" in sums[0]
    assert "x.pth" not in sums[0]
    assert (
        on(
            "models1",
            "systemctl list-units --plain --no-legend 'sglang-model-share*'; ls /run/sglang-model-share",
        )
        == ""
    )


def test_a_second_run_changes_nothing_and_asks_nobody(site: Site) -> None:
    site.hub.asked.clear()
    told = site.play()
    assert told.count("changed=0") == 2
    assert site.hub.asked == []


def test_a_file_that_is_lost_is_brought_again(site: Site) -> None:
    on("models2", f"truncate -s 1000 {PLACE}/model.safetensors")
    site.play()
    assert on("models1", f"sha256sum {PLACE}/*") == on("models2", f"sha256sum {PLACE}/*")


def test_the_library_of_the_oldest_lock_does_the_same(site: Site) -> None:
    install("models2", "old", LOCKS / "0.5.11.txt")
    download = {"path": f"{PLACE}-old", "copy_from": ""}
    old: dict[str, Any] = {"__sglang_engine_release": "/opt/sglang/old", "__sglang_service_plans": []}
    site.hub.cut = CUT
    site.play("--limit=models2", check=False, download=download, **old)
    site.hub.cut = 0
    site.play("--limit=models2", download=download, **old)
    assert on("models2", f"cd {PLACE} && sha256sum *") == on("models2", f"cd {PLACE}-old && sha256sum *")
