"""Runs a module of ``library/`` in this process, as Ansible runs it on a host."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from ansible import module_utils
from ansible.module_utils.testing import patch_module_args

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parent.parent


def run(
    name: str, arguments: Mapping[str, object], capsys: pytest.CaptureFixture[str], *, check: bool = False
) -> dict[str, Any]:
    """Return what the module answers; ``capsys`` is the test's."""
    with (
        mock.patch.object(
            module_utils, "__path__", [*module_utils.__path__, str(REPOSITORY / "module_utils")]
        ),
        patch_module_args({**arguments, "_ansible_check_mode": check}),
        pytest.raises(SystemExit),
    ):
        runpy.run_path(str(REPOSITORY / "library" / f"{name}.py"), run_name="__main__")
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result
