"""A host without a route gets an engine: a build of our own, in a bundle. A minute, root, both registries.

The engine is a package of a few lines with DDTree in it, with real packages of the shipped lock beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import lockfile

from tests.proxy import proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SHIPPED = ROOT / "roles/sglang_engine/files/locks/0.5.23.txt"
HOST = "air-gap"
VERSION = "0.5.23+ours.1"
WHEEL = f"sglang-{VERSION}-py3-none-any.whl"
METADATA = f"sglang-{VERSION}.dist-info"
FLAGS = (
    *("model-path", "served-model-name", "host", "port", "nccl-port", "device", "speculative-tree-budget"),
    *("speculative-algorithm", "speculative-draft-model-path", "disable-radix-cache", "tp-size"),
)
SERVER_ARGS = f"""\
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        for name in {FLAGS}:
            parser.add_argument("--" + name, choices=["DDTREE"] if name.endswith("algorithm") else None)
"""
MODULES = ("launch_server", "srt/entrypoints/http_server", "srt/managers/scheduler")
INSTANCE = {
    "name": "tree",
    "model": "/srv/models/x",
    "gpus": [],
    "port": 31100,
    "strategy": {"method": "ddtree", "draft_model": "/srv/models/d"},
    "args": {"speculative-tree-budget": 64},
}


def run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    outcome = subprocess.run(
        argv, cwd=ROOT, check=False, capture_output=True, encoding="utf-8", env=environment
    )
    assert outcome.returncode == 0 or not check, outcome.stdout + outcome.stderr
    return outcome


class Site:
    """A host on a cable of its own, and the files of its controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = run(sys.executable, "-m", "sandbox", "list").stdout.split(HOST)[1].split()[2][:-3]
        self.gateway = self.address.rpartition(".")[0] + ".1"

    def __call__(self, command: str) -> str:
        return run(sys.executable, "-m", "sandbox", "exec", HOST, "--", "sh", "-c", command).stdout

    def play(self, *options: str, check: bool = True, **changes: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401 - any value
        variables = {
            "ansible_user": "root",
            "ansible_host": self.address,
            "ansible_ssh_common_args": f"-F {ROOT}/.sandbox/ssh/config",
            "sglang_host_accelerator": "none",
            "sglang_host_packages": ["python3-venv"],
            "sglang_engine_version": VERSION,
            "sglang_engine_source": "bundle",
            "sglang_engine_bundle": str(self.folder / "one.tar"),
            "sglang_engine_lock": str(self.folder / "lock.txt"),
            "sglang_engine_wheels": [str(self.folder / WHEEL)],
            "sglang_engine_allow_untested": True,
            "sglang_service_instances": [INSTANCE],
            **changes,
        }
        inventory = self.folder / "hosts.json"
        inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {HOST: variables}}}), encoding="utf-8")
        book = str(ROOT / "tests/integration/air_gap.yml")
        return run("ansible-playbook", f"--inventory={inventory}", book, *options, check=check)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("controller")
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        packages = {"sglang", "sglang/srt", "sglang/srt/entrypoints", "sglang/srt/managers"}
        files = {f"{place}/__init__.py": "" for place in packages} | {
            f"sglang/{name}.py": "" for name in MODULES
        }
        files["sglang/srt/server_args.py"] = SERVER_ARGS
        files[f"{METADATA}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n"
        files[f"{METADATA}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        record = "".join(f"{name},,\n" for name in [*files, f"{METADATA}/RECORD"])
        for name, text in {**files, f"{METADATA}/RECORD": record}.items():
            wheel.writestr(name, text)
    few = [
        pin for pin in lockfile.pins(SHIPPED.read_text(encoding="utf-8")) if pin.name in ("idna", "msgspec")
    ]
    lines = [
        f"{pin.name}=={pin.version} ; {pin.marker} \\\n    "
        + " \\\n    ".join(f"--hash=sha256:{digest}" for digest in pin.hashes)
        for pin in few
    ]
    (folder / "lock.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("module_utils", "roles", "scripts"):
        shutil.copytree(ROOT / name, folder / "checkout" / name)
    run(sys.executable, "-m", "sandbox", "up", HOST, "--netns")
    yield Site(folder)
    run(sys.executable, "-m", "sandbox", "remove", HOST)


def bundle(site: Site, name: str) -> str:
    lock, wheel, target = site.folder / "lock.txt", site.folder / WHEEL, site.folder / name
    outcome = run(
        *(
            sys.executable,
            str(site.folder / "checkout/scripts/bundle.py"),
            VERSION,
            f"--lock={lock}",
            f"--wheel={wheel}",
        ),
        *("--python=3.11", f"--output={target}"),
    )
    return outcome.stdout.split()[0]


def test_the_same_bundle_has_the_same_hash(site: Site) -> None:
    assert bundle(site, "one.tar") == bundle(site, "two.tar")


def test_missing_os_packages_are_named_where_there_is_no_way_to_get_them(site: Site) -> None:
    assert site("ip route show default") == ""
    outcome = site.play(check=False)
    assert outcome.returncode != 0
    assert "This host lacks python3-venv, and cannot get them by itself." in outcome.stdout


def test_os_packages_come_through_the_companys_proxy(site: Site) -> None:
    with proxy(site.gateway) as (url, asked):
        proxies = {"http_proxy": url, "https_proxy": url}
        outcome = site.play(check=False, sglang_host_proxy_env=proxies, sglang_engine_bundle="/nonesuch.tar")
    assert "nonesuch.tar" in outcome.stdout
    assert asked
    assert "install ok" in site("dpkg --status python3-venv")


def test_a_dry_run_predicts_the_release(site: Site) -> None:
    outcome = site.play("--check", "--diff")
    assert f"+current: {VERSION}-" in outcome.stdout
    assert "--speculative-algorithm DDTREE" in outcome.stdout
    assert site("ls /opt/sglang/releases") == ""


def test_the_engine_is_installed_without_a_route(site: Site) -> None:
    outcome = site.play()
    assert "--speculative-algorithm DDTREE" in outcome.stdout
    assert "--speculative-tree-budget 64" in outcome.stdout
    packages = site(
        "/opt/sglang/current/bin/python -c 'import sglang, idna, msgspec; print(msgspec.__file__)'"
    )
    assert packages.startswith("/opt/sglang/current/lib/")
    assert site("ls -A /opt/sglang/packages") == ""


def test_a_second_run_changes_nothing(site: Site) -> None:
    assert "changed=0" in site.play().stdout


def test_a_flag_that_this_build_lacks_is_refused_once_it_is_installed(site: Site) -> None:
    outcome = site.play(
        check=False, sglang_service_instances=[{**INSTANCE, "args": {"speculative-tree-budgets": 64}}]
    )
    assert outcome.returncode != 0
    assert "did you mean --speculative-tree-budget?" in " ".join(outcome.stdout.split())


def test_a_directory_of_wheels_makes_the_same_release(site: Site) -> None:
    release = site("readlink /opt/sglang/current").strip()
    run(
        "scp", "-qF", ".sandbox/ssh/config", str(site.folder / "one.tar"), f"root@{site.address}:/srv/one.tar"
    )
    site(
        f"rm -rf /opt/sglang/{release} /opt/sglang/uv/* /opt/sglang/uv-cache/*; tar -xf /srv/one.tar -C /srv"
    )
    site.play(sglang_engine_source="directory", sglang_engine_directory="/srv/wheels")
    assert site("readlink -e /opt/sglang/current").strip().endswith(release)
