"""A host without a route gets engines from bundles, and goes back. Two minutes, root, both registries.

The first engine is a build of our own, a package of a few lines with DDTree in it; those that serve are
replays. Real packages of the shipped lock are beside them.
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
from tests.replay import build

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SHIPPED = ROOT / "roles/sglang_engine/files/locks/0.5.23.txt"
HOST = "air-gap"
VERSION = "0.5.23+ours.1"
OLD, NEW = "0.5.15.post1", "0.5.23"
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
EMPTY = {f"sglang/{name}.py": "" for name in MODULES} | {
    f"{place}/__init__.py": ""
    for place in ("sglang", "sglang/srt", "sglang/srt/entrypoints", "sglang/srt/managers")
}
# Where a build is asked for its speculative algorithms, unless its parser tells.
ALGORITHMS = {
    "sglang/srt/speculative/spec_info.py": "import enum\nclass SpeculativeAlgorithm(enum.Enum): NONE = 0\n",
    "sglang/srt/speculative/spec_registry.py": "_REGISTRY = {}\n",
}
INSTANCE = {
    "name": "tree",
    "model": "/srv/models/x",
    "gpus": [],
    "port": 31100,
    "strategy": {"method": "ddtree", "draft_model": "/srv/models/d"},
    "args": {"speculative-tree-budget": 64},
}
SERVING = {
    "name": "tiny",
    "model": "/srv/models/tiny-gpt2",
    "port": 31110,
    "args": {"max-total-tokens": 8192},
    "env": {"SGLANG_REPLAY_SPEED": "100"},
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

    def wheel(self, version: str) -> Path:
        """Return the place of the engine's wheel."""
        return self.folder / f"sglang-{version}-py3-none-any.whl"

    def play(
        self,
        *options: str,
        book: str = "tests/integration/air_gap.yml",
        version: str = VERSION,
        check: bool = True,
        **changes: Any,  # noqa: ANN401 - any value
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            "ansible_user": "root",
            "ansible_host": self.address,
            "ansible_ssh_common_args": f"-F {ROOT}/.sandbox/ssh/config",
            "sglang_host_accelerator": "none",
            "sglang_host_packages": ["python3-venv"],
            "sglang_engine_version": version,
            "sglang_engine_source": "bundle",
            "sglang_engine_bundle": str(self.folder / f"{version}.tar"),
            "sglang_engine_lock": str(self.folder / "lock.txt"),
            "sglang_engine_wheels": [str(self.wheel(version))],
            "sglang_engine_allow_untested": True,
            "sglang_service_instances": [INSTANCE if version == VERSION else SERVING],
            "sglang_artifacts_dir": str(self.folder / "artifacts"),
            **changes,
        }
        inventory = self.folder / "hosts.json"
        inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {HOST: variables}}}), encoding="utf-8")
        return run("ansible-playbook", f"--inventory={inventory}", book, *options, check=check)


def write_wheel(place: Path, files: dict[str, str]) -> None:
    """Write a wheel of these files; its name says the rest."""
    version = place.name.split("-")[1]
    metadata = f"sglang-{version}.dist-info"
    whole = {
        **files,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{metadata}/RECORD"
    with zipfile.ZipFile(place, "w") as wheel:
        for name, text in whole.items():
            wheel.writestr(name, text)
        wheel.writestr(record, "".join(f"{name},,\n" for name in [*whole, record]))


def replayed(folder: Path, version: str) -> dict[str, str]:
    """Take the replayed engine's packages from where it would be installed."""
    build.build(folder / version, version)
    packages = folder / version / "lib/packages"
    files = {
        str(path.relative_to(packages)): path.read_text(encoding="utf-8")
        for name in ("sglang", "replay")
        for path in (packages / name).rglob("*")
        if path.is_file()
    }
    return {**EMPTY, **ALGORITHMS, **files}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("controller")
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
    site = Site(folder)
    write_wheel(site.wheel(VERSION), {**EMPTY, "sglang/srt/server_args.py": SERVER_ARGS})
    yield site
    run(sys.executable, "-m", "sandbox", "remove", HOST)


def bundle(site: Site, target: str, version: str = VERSION) -> str:
    outcome = run(
        *(sys.executable, str(site.folder / "checkout/scripts/bundle.py"), version, "--python=3.11"),
        *(f"--lock={site.folder}/lock.txt", f"--wheel={site.wheel(version)}"),
        f"--output={site.folder / target}",
    )
    return outcome.stdout.split()[0]


def test_the_same_bundle_has_the_same_hash(site: Site) -> None:
    assert bundle(site, f"{VERSION}.tar") == bundle(site, "again.tar")


def test_no_room_is_said_before_anything_is_copied(site: Site) -> None:
    """A bundle needs its own size, and that of the wheels in it."""
    with (site.folder / "large.tar").open("wb") as file:
        file.truncate(5 << 30)
    site("mkdir -p /srv/small && mount -t tmpfs -o size=64m small /srv/small")
    root, large = "/srv/small/sglang", str(site.folder / "large.tar")
    outcome = site.play(check=False, sglang_host_root=root, sglang_engine_bundle=large)
    assert outcome.returncode != 0
    assert (
        f"64 MiB are free on /srv/small, and the deploy needs 22.00 GiB: 17.00 GiB in {root}/releases,"
        f" 5.00 GiB in {root}/packages"
    ) in " ".join(outcome.stdout.split())
    assert site("ls -A /srv/small") == ""


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
        "scp",
        "-qF",
        ".sandbox/ssh/config",
        str(site.folder / f"{VERSION}.tar"),
        f"root@{site.address}:/srv/one.tar",
    )
    site(
        f"rm -rf /opt/sglang/{release} /opt/sglang/uv/* /opt/sglang/uv-cache/*; tar -xf /srv/one.tar -C /srv"
    )
    site.play(sglang_engine_source="directory", sglang_engine_directory="/srv/wheels")
    assert site("readlink -e /opt/sglang/current").strip().endswith(release)


def releases(site: Site) -> list[str]:
    return site("stat --format '%n %y' /opt/sglang/releases/*/sglang-release.json").splitlines()


def served(site: Site) -> str:
    url = f"http://127.0.0.1:{SERVING['port']}/server_info"
    return site(
        f"python3 -c \"import json, urllib.request as r; print(json.load(r.urlopen({url!r}))['version'])\""
    ).strip()


def starts(site: Site) -> int:
    return int(site("journalctl --unit sglang-tiny --output cat | grep --count 'Started sglang-tiny'"))


def test_a_rollback_needs_no_route_and_no_install(site: Site) -> None:
    for version in (OLD, NEW):
        write_wheel(site.wheel(version), replayed(site.folder, version))
        bundle(site, f"{version}.tar", version)
        site.play("--limit=gpu_hosts", book="deploy.yml", version=version)
        assert served(site) == version
    before, there = starts(site), releases(site)
    mark = site("mktemp").strip()
    assert site("ip route show default") == ""
    for bundled in site.folder.glob("*.tar"):
        bundled.unlink()  # nothing is at hand that could be installed
    site.play("--limit=gpu_hosts", "--extra-vars=instance=tiny", book="playbooks/rollback.yml", version=NEW)
    assert served(site) == OLD
    assert starts(site) == before + 1
    assert releases(site) == there
    assert site(f"find /opt/sglang/ -cnewer {mark} -type f -not -name '*.pyc'") == ""
