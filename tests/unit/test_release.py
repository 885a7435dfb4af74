"""Releases, built by a uv that is a script and makes what a build looks at."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import bundle, release
from sglang_kit.problem import ProblemsError
from sglang_kit.release import Build, BuildError, Release, State

if TYPE_CHECKING:
    from tests.conftest import Tools

RELEASE = Release("0.5.23", "52d6472cc10699365e4e9630b9b7f219b9c89a7b15d2d135879a1c6e7ca44055")
NAME = "0.5.23-52d6472cc106"

UV = """\
echo "$@" >> {root}/uv.calls
if [ "$1" = venv ]; then
    eval "place=\\${$#}"; mkdir -p "$place/bin" "$place/lib/python3.11/site-packages/sgl_kernel/sm90"
    touch "$place/lib/python3.11/site-packages/sgl_kernel/sm90/common_ops.abi3.so"
else
    test ! -e {root}/uv.says || . {root}/uv.says
    test ! -e {root}/break || { echo "hash mismatch"; exit 2; }
    while [ $# -gt 1 ]; do test "$1" = --python && python="$2"; shift; done
    cp {root}/python "$python"
fi
"""
LIBCUDA = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"


class Root:
    """A root directory with a uv, and what the interpreter of a built release will say."""

    def __init__(self, path: Path, tools: Tools) -> None:
        self.path = path
        self.tools = tools
        (path / "releases").mkdir(parents=True)
        (path / "uv" / "0.13.9" / "bin").mkdir(parents=True)
        uv = path / "uv/0.13.9/bin/uv"
        uv.write_text("#!/bin/sh\n" + UV.replace("{root}", str(path)), encoding="utf-8")
        uv.chmod(0o755)
        self.python("echo 0.5.23")
        self.ldd("")

    def python(self, script: str) -> None:
        python = self.path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)

    def ldd(self, text: str) -> None:
        self.tools.place("ldd", f"cat <<'END'\n{text}\nEND")

    def build(self, **changes: Any) -> None:  # noqa: ANN401 - as the fields of Build
        how = Build(
            lock_file="/locks/lock.txt",
            python="/usr/bin/python3.11",
            uv="uv==0.13.9 --hash=sha256:00",
            uv_cache="/cache",
            unit={"PATH": f"{self.path.parent}/tools:/usr/bin:/bin", "LD_LIBRARY_PATH": "/drivers"},
            **changes,
        )
        release.build(root=str(self.path), release=RELEASE, how=how)

    @property
    def there(self) -> set[str]:
        return {place.name for place in (self.path / "releases").iterdir()} - {".lock"}


@pytest.fixture
def root(tmp_path: Path, tools: Tools) -> Root:
    return Root(tmp_path / "root", tools)


def test_the_name_of_a_release() -> None:
    assert RELEASE.name == NAME
    assert release.path("/opt/sglang", RELEASE) == f"/opt/sglang/releases/{NAME}"


def test_a_build_is_complete_and_leaves_nothing_else(root: Root) -> None:
    root.build()
    assert root.there == {NAME}
    assert release.is_complete(str(root.path), RELEASE)
    marker = json.loads((root.path / "releases" / NAME / release.MARKER).read_text(encoding="utf-8"))
    assert marker == {"version": "0.5.23", "lock": RELEASE.lock, "python": "/usr/bin/python3.11"}


def test_the_account_of_the_engines_can_use_it_on_a_hardened_host(root: Root) -> None:
    before = os.umask(0o077)
    try:
        root.build()
        assert os.umask(0o077) == 0o077, "it is the host's again"
    finally:
        os.umask(before)
    built = [root.path / "releases" / NAME, *(root.path / "releases" / NAME).rglob("*")]
    assert [place for place in built if not place.stat().st_mode & 0o004] == []


def test_a_complete_release_is_not_built_again(root: Root) -> None:
    root.build()
    root.python("exit 1")
    root.build()
    assert root.there == {NAME}


@pytest.mark.parametrize(
    "marker",
    [
        None,
        "",
        "{",
        "[]",
        '{"version": "0.5.23"}',
        json.dumps({"version": "0.5.23", "lock": RELEASE.lock[:12] + "0" * 52, "python": "p"}),
    ],
)
def test_what_is_not_marked_complete_is_built_anew(root: Root, marker: str | None) -> None:
    half = root.path / "releases" / NAME
    half.mkdir()
    (half / "rest").touch()
    if marker is not None:
        (half / release.MARKER).write_text(marker, encoding="utf-8")
    assert not release.is_complete(str(root.path), RELEASE)
    root.build()
    assert release.is_complete(str(root.path), RELEASE)
    assert not (half / "rest").exists()


def test_the_rest_of_an_interrupted_build_is_removed(root: Root) -> None:
    rest = root.path / "releases" / f".building-{NAME}"
    rest.mkdir()
    (rest / "half").touch()
    root.build()
    assert root.there == {NAME}


def test_a_failing_tool_is_quoted_in_full(root: Root) -> None:
    (root.path / "break").touch()
    with pytest.raises(BuildError, match=r"uv pip sync .*/locks/lock\.txt ended with 2\nhash mismatch$"):
        root.build()
    assert root.there == set()


def test_what_a_build_does_is_told_while_it_lasts(root: Root) -> None:
    place, seen = root.path / "releases" / release.PROGRESS, root.path / "seen"
    look = f"cat {place} >> {seen}; echo >> {seen}"
    names = ("torch (1.2GiB)", "sgl-kernel (500MiB)", "numpy (16MiB)", "triton (100MiB)")
    script = [
        look,
        *(f"echo 'Downloading {name}'" for name in names),
        f"until grep -q 'and 1 more' {place}; do sleep 0.01; done",
        look,
        "echo ' Downloaded torch'",
        f"until grep -q 'fetched 1' {place}; do sleep 0.01; done",
        look,
    ]
    (root.path / "uv.says").write_text("\n".join(script), encoding="utf-8")
    root.python(f"{look}; echo 0.5.23")
    assert release.progress(str(root.path)) == ""
    root.build()
    assert seen.read_text(encoding="utf-8").splitlines() == [
        "links the packages that the cache has, and fetches the others",
        f"has fetched 0 large packages; under way: {', '.join(names[:3])} and 1 more",
        f"has fetched 1 large packages; under way: {', '.join(names[1:])}",
        "imports the engine, and looks for the libraries of its kernels",
    ]
    assert release.progress(str(root.path)) == ""
    assert root.there == {NAME}


def test_a_release_that_cannot_be_imported_does_not_get_its_name(root: Root) -> None:
    root.python(
        "echo 0.5.23; echo 'ValueError: Either a revision or a version must be specified.' >&2; exit 1"
    )
    with pytest.raises(BuildError, match="import: ValueError: Either a revision"):
        root.build()
    assert root.there == set()


def test_the_import_runs_in_the_environment_of_a_unit(root: Root) -> None:
    root.python(f'env > {root.path}/environment; echo "$@" > {root.path}/arguments; echo 0.5.23')
    root.build()
    environment = dict(
        line.split("=", 1) for line in (root.path / "environment").read_text(encoding="utf-8").splitlines()
    )
    assert environment["LD_LIBRARY_PATH"] == "/drivers"
    assert environment["HOME"] == environment["XDG_CACHE_HOME"] != str(Path.home())
    arguments = (root.path / "arguments").read_text(encoding="utf-8")
    assert "import sglang.launch_server, sglang.srt.entrypoints.http_server" in arguments


def synced(root: Root) -> str:
    """Options of the call that installed packages, from where they come on."""
    (call,) = [
        line for line in (root.path / "uv.calls").read_text(encoding="utf-8").splitlines() if "sync" in line
    ]
    return call.partition("--cache-dir /cache ")[2].partition("--python")[0].strip()


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ({}, ""),
        ({"packages": "/srv/wheels"}, "--find-links /srv/wheels"),
        ({"packages": "/srv/wheels", "index": False}, "--no-index --offline --find-links /srv/wheels"),
    ],
)
def test_where_packages_come_from(root: Root, where: dict[str, Any], options: str) -> None:
    root.build(**where)
    assert synced(root) == options


def test_a_bundle_is_unpacked_for_the_build_and_no_longer(root: Root, tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-0.5.23-py3-none-any.whl"
    wheel.touch()
    sources = {f"wheels/{wheel.name}": wheel}
    checksums = {name: bundle.digest(path) for name, path in sources.items()}
    bundle.write(tmp_path / "b.tar", bundle.Manifest("0.5.23", RELEASE.lock, ("3.11",), checksums), sources)
    root.python(f"ls {root.path}/releases/.building-packages > {tmp_path}/seen; echo 0.5.23")
    root.build(bundle=str(tmp_path / "b.tar"), index=False)
    assert (tmp_path / "seen").read_text(encoding="utf-8") == f"{wheel.name}\n"
    assert synced(root) == f"--no-index --offline --find-links {root.path}/releases/.building-packages"
    assert root.there == {NAME}


def test_a_bundle_that_cannot_be_used_leaves_nothing(root: Root, tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="cannot be unpacked"):
        root.build(bundle=str(tmp_path / "none.tar"), index=False)
    assert root.there == set()


def test_a_build_of_ones_own_is_asked_what_it_can_do(root: Root) -> None:
    assert release.found(str(root.path), RELEASE) == {}
    root.python('case "$*" in *add_cli_args*) echo \'{"algorithms": ["DDTREE"]}\';; *) echo 0.5.23;; esac')
    root.build(probe=True)
    assert release.found(str(root.path), RELEASE) == {"algorithms": ["DDTREE"]}


def test_a_build_of_ones_own_that_cannot_be_asked_does_not_get_its_name(root: Root) -> None:
    root.python("case \"$*\" in *add_cli_args*) echo 'KeyError: x' >&2; exit 1;; *) echo 0.5.23;; esac")
    with pytest.raises(BuildError, match="its flags cannot be read: KeyError: x"):
        root.build(probe=True)
    assert root.there == set()


def test_builds_wait_for_one_another(root: Root) -> None:
    with (root.path / "releases" / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=root.build)
        other.start()
        other.join(0.2)
        assert other.is_alive()
        assert root.there == set()
        fcntl.flock(lock, fcntl.LOCK_UN)
        other.join()
    assert root.there == {NAME}


def test_uv_is_installed_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: Tools) -> None:
    root = Root(tmp_path / "root", tools)
    (root.path / "uv/0.13.9").rename(tmp_path / "wheel")
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\n"
        f'if [ "$2 $3" = "-m venv" ]; then mkdir -p "$4"/bin; cp "$0" "$4"/bin/python; exit; fi\n'
        f'echo "$@" > {tmp_path}/pip; for last; do cat "$last" > {tmp_path}/requirement; done\n'
        f'cp {tmp_path}/wheel/bin/uv "$(dirname "$0")"/uv\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    root.build()
    assert root.there == {NAME}
    assert {place.name for place in (root.path / "uv").iterdir()} == {"0.13.9"}
    assert "--require-hashes --only-binary :all:" in (tmp_path / "pip").read_text(encoding="utf-8")
    assert (tmp_path / "requirement").read_text(encoding="utf-8") == "uv==0.13.9 --hash=sha256:00"


def test_switch_points_current_to_the_release(tmp_path: Path) -> None:
    (tmp_path / "current.new").symlink_to("left by an interrupted run")
    assert release.state(str(tmp_path), RELEASE) == State("", complete=False)
    release.switch(str(tmp_path), RELEASE)
    assert release.state(str(tmp_path), RELEASE) == State(NAME, complete=False)
    assert (tmp_path / "current").readlink() == Path("releases", NAME)


def test_a_state_in_words() -> None:
    assert State("", complete=False).text(RELEASE) == f"release {NAME}: absent\ncurrent: not set\n"
    assert State(NAME, complete=True).text(RELEASE) == f"release {NAME}: complete\ncurrent: {NAME}\n"


def judged(**changes: object) -> list[str]:
    given = {"version": "0.5.23", "printed": "0.5.23\n", "error": "", "missing": (), **changes}
    return [str(problem) for problem in release.judge(**given)]  # type: ignore[arg-type]


def test_a_good_release_passes_with_and_without_a_driver() -> None:
    assert judged() == []
    assert judged(missing=("libcuda.so.1",)) == []
    assert judged(missing=("libcuda.so.1",), error=f"- {LIBCUDA}\n") == []


def test_another_version_than_asked_for() -> None:
    assert judged(printed="0.5.9\n") == ["SGLang 0.5.23: lock: installs SGLang 0.5.9; give a lock of 0.5.23"]


def test_a_library_that_is_missing_beside_the_driver() -> None:
    assert judged(missing=("libcuda.so.1", "libnuma.so.1", "libnuma.so.1"), error=f"- {LIBCUDA}\n") == [
        (
            "SGLang 0.5.23: libraries: its kernels need libnuma.so.1, which this host lacks;"
            " add the package that has it to sglang_host_packages"
        )
    ]


def test_a_missing_driver_excuses_nothing_else() -> None:
    assert judged(missing=("libcuda.so.1",), error="ValueError: no\n") == [
        "SGLang 0.5.23: import: ValueError: no\nValueError: no"
    ]
    assert len(judged(error=f"- {LIBCUDA}\n")) == 1, "the driver is there, and yet it does not load"
    assert len(judged(missing=("libcuda.so.1",), printed="", error=f"- {LIBCUDA}\n")) == 1


@pytest.mark.parametrize(
    ("traceback", "error"),
    [
        (
            (
                "Traceback:\nImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\n"
                "Error details from previous import attempts:\n"
                f"- {LIBCUDA}\n- ModuleNotFoundError: No module named 'common_ops'\n"
            ),
            LIBCUDA,
        ),
        ("Traceback:\n  File x\nValueError: no\n", "ValueError: no"),
    ],
)
def test_the_first_error_is_the_cause(traceback: str, error: str) -> None:
    assert release.first_error(traceback) == error
