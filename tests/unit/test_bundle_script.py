"""Which packages a bundle collects, and how they are fetched; whole bundles: ``tests/integration``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sglang_kit import lockfile

from scripts import bundle

LOCKS = sorted((Path(__file__).resolve().parents[2] / "roles/sglang_engine/files/locks").iterdir())


def test_the_packages_of_a_python() -> None:
    digest = "a" * 64
    markers = {
        "numpy==2.2.6": " ; python_full_version < '3.12'",
        "numpy==2.3.4": " ; python_full_version >= '3.12' and sys_platform == 'linux'",
        "pywin32==311": " ; sys_platform == 'win32'",
        "six==1.17.0": "",
    }
    text = "".join(f"{pin}{marker} \\\n    --hash=sha256:{digest}\n" for pin, marker in markers.items())
    assert bundle.holding(text, "3.11.2") == [
        f"{pin} --hash=sha256:{digest}" for pin in ("numpy==2.2.6", "six==1.17.0")
    ]
    assert bundle.holding(text, "3.12.3") == [
        f"{pin} --hash=sha256:{digest}" for pin in ("numpy==2.3.4", "six==1.17.0")
    ]


def test_a_package_of_which_there_is_a_wheel_is_not_asked_for() -> None:
    text = "".join(f"{pin} --hash=sha256:{'a' * 64}\n" for pin in ("sglang==0.5.23", "six==1.17.0"))
    (other,) = bundle.holding(text, "3.11.2", {"sglang"})
    assert other.startswith("six==1.17.0 ")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_python_gets_each_package_once(lock: Path) -> None:
    names = [line.partition("==")[0] for line in bundle.holding(lock.read_text(encoding="utf-8"), "3.12.3")]
    assert sorted(names) == sorted(set(names))
    assert lockfile.ENGINE in names


def test_pip_reaches_its_index_and_follows_no_other_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://packages.example/simple\nconstraint = /own.txt\n",
        encoding="utf-8",
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_CERT", "/ca.pem")
    found = {name: value for name, value in bundle.environment().items() if name.startswith("PIP_")}
    configured = {"PIP_INDEX_URL": "https://packages.example/simple", "PIP_CERT": "/ca.pem"}
    assert found.items() >= {**configured, "PIP_CONFIG_FILE": os.devnull}.items()
    assert "PIP_CONSTRAINT" not in found
