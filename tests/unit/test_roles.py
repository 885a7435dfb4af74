"""What a role says of its variables in one place holds in the others."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglang_kit.instance import (
    GROUPS,
    KEYS,
    MAPS,
    METHODS,
    REQUIRED,
    STATES,
    Instance,
    MemoryPins,
    Secrets,
    Strategy,
    misspelt,
)

from tests import modules

ROLES = Path(__file__).resolve().parent.parent.parent / "roles"
NAMES = sorted(place.name for place in ROLES.iterdir())


def load(role: str, *parts: str) -> dict[str, Any]:
    place = ROLES.joinpath(role, *parts)
    content: dict[str, Any] = yaml.safe_load(place.read_text(encoding="utf-8")) if place.exists() else {}
    return content or {}


def entry_points(role: str) -> dict[str, dict[str, Any]]:
    specs: dict[str, dict[str, Any]] = load(role, "meta", "argument_specs.yml")["argument_specs"]
    return specs


ENTRY_POINTS = [(role, name) for role in NAMES for name in entry_points(role)]
INSTANCES = entry_points("sglang_service")["main"]["options"]["sglang_service_instances"]
OPTIONS = INSTANCES["options"]


@pytest.mark.parametrize("role", NAMES)
def test_main_specifies_exactly_the_variables_that_have_defaults(role: str) -> None:
    assert set(entry_points(role)["main"]["options"]) == set(load(role, "defaults", "main.yml"))


@pytest.mark.parametrize(("role", "name"), ENTRY_POINTS)
def test_every_entry_point_has_its_tasks_and_known_variables(role: str, name: str) -> None:
    specified = entry_points(role)[name]
    assert (ROLES / role / "tasks" / f"{name}.yml").exists()
    assert specified["short_description"]
    assert set(specified.get("options", {})) <= set(load(role, "defaults", "main.yml"))


@pytest.mark.parametrize(("role", "name"), ENTRY_POINTS)
def test_specified_defaults_are_the_real_ones(role: str, name: str) -> None:
    defaults = load(role, "defaults", "main.yml")
    options = entry_points(role)[name].get("options", {})
    assert {key: option.get("default") for key, option in options.items()} == {
        key: defaults[key] for key in options
    }


def test_the_list_of_what_may_be_removed_lies_where_no_engine_can_write() -> None:
    """Whoever can write it has root remove any file."""
    directories = load("sglang_host", "vars", "main.yml")["__sglang_host_directories"]
    engines = tuple(one["path"] for one in directories if "owner" in one)
    options = yaml.safe_load(modules.load("sglang_units").DOCUMENTATION)["options"]
    playbooks = "".join(
        place.read_text(encoding="utf-8") for place in ROLES.parent.glob("playbooks/**/*.yml")
    )
    places = [options["manifest"]["default"], *re.findall(r"manifest: (\S+)", playbooks)]
    assert not [place for place in places if place.startswith(engines)]


@pytest.mark.parametrize("role", NAMES)
def test_variables_carry_the_roles_name(role: str) -> None:
    assert all(name.startswith(f"{role}_") for name in load(role, "defaults", "main.yml"))
    assert all(name.startswith(f"__{role}_") for name in load(role, "vars", "main.yml"))


def test_the_keys_of_an_instance_are_the_ones_that_the_kit_reads() -> None:
    assert set(OPTIONS) == {*KEYS, *MAPS, *GROUPS}
    for group, (keys, _) in GROUPS.items():
        assert set(OPTIONS[group]["options"]) == set(keys)


def test_what_must_be_said_of_an_instance() -> None:
    assert {key for key, option in OPTIONS.items() if option.get("required")} == set(REQUIRED)


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        (OPTIONS["state"], STATES),
        (OPTIONS["strategy"]["options"]["method"], METHODS),
        (OPTIONS["memory"]["options"]["state_dtype"], ("float32", "bfloat16", "float16")),
    ],
)
def test_choices_are_the_ones_that_the_kit_accepts(option: dict[str, Any], choices: tuple[str, ...]) -> None:
    assert option["choices"] == list(choices)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (OPTIONS, Instance),
        (OPTIONS["strategy"]["options"], Strategy),
        (OPTIONS["memory"]["options"], MemoryPins),
        (OPTIONS["secrets"]["options"], Secrets),
    ],
)
def test_defaults_of_an_instance_are_the_kits(options: dict[str, Any], settings: type) -> None:
    real = {field.name: field.default for field in fields(settings) if field.default is not MISSING}
    for key, option in options.items():
        default = option.get("default")
        assert (tuple(default) if isinstance(default, list) else default) == real.get(key), key


# --- variables that nothing reads ----------------------------------------------------------------

KNOWN = [name for role in NAMES for name in load(role, "defaults", "main.yml")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("sglang_service_instanses", "sglang_service_instances"),
        ("sglang_host_reserved_gpu", "sglang_host_reserved_gpus"),
        ("sglang_engine_verison", "sglang_engine_version"),
        ("sglang_hots_gpus", "sglang_host_gpus"),
    ],
)
def test_a_typing_error_is_told_with_what_was_meant(name: str, meant: str) -> None:
    assert misspelt([name], KNOWN) == [f"{name} is no variable of ours: did you mean {meant}?"]


def test_no_name_of_this_project_passes_for_a_typing_error() -> None:
    places = (ROLES.parent / folder for folder in ("inventories", "molecule", "playbooks", "roles"))
    texts = [file.read_text(encoding="utf-8") for place in places for file in place.rglob("*.yml")]
    names = re.findall(r"\bsglang_\w+", "\n".join(texts))
    assert "sglang_artifacts_dir" in names
    assert misspelt(names, KNOWN) == []


def test_names_of_ones_own_are_left_alone() -> None:
    assert (
        misspelt(["sglang_secret_chat", "sglang_instances", "sglang_service_instances_common"], KNOWN) == []
    )
