"""Runs the modules of library/ as Ansible would, in this process."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible import module_utils
from ansible.module_utils.testing import patch_module_args

if TYPE_CHECKING:
    from types import ModuleType

REPOSITORY = Path(__file__).resolve().parent.parent


def load(name: str) -> ModuleType:
    """Import a module of library/; it finds the kit where Ansible puts it."""
    path = list(module_utils.__path__)
    module_utils.__path__ = [*path, str(REPOSITORY / "module_utils")]
    try:
        spec = importlib.util.spec_from_file_location(name, REPOSITORY / "library" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        module_utils.__path__ = path
    return module


def load_action(name: str) -> ModuleType:
    """Import an action plugin under a name that no module has."""
    spec = importlib.util.spec_from_file_location(
        f"action_{name}", REPOSITORY / "action_plugins" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    module: ModuleType, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], *, check: bool = False
) -> dict[str, Any]:
    """Call a module's main and return what it answers."""
    with (
        patch_module_args({**arguments, "_ansible_check_mode": check, "_ansible_diff": True}),
        pytest.raises(SystemExit),
    ):
        module.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def documented(module: ModuleType) -> dict[str, Any]:
    """Reduce the documented options to what an argument specification says."""

    def spec(options: dict[str, Any]) -> dict[str, Any]:
        return {
            name: {
                key: spec(value) if key == "options" else value
                for key, value in option.items()
                if key != "description"
            }
            for name, option in options.items()
        }

    options: dict[str, Any] = yaml.safe_load(module.DOCUMENTATION)["options"]
    return spec(options)
