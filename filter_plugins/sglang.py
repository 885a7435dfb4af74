"""The only filter file: each filter hands its input to one function of ``sglang_kit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Ansible's importer does not look into module_utils for filters.
_KIT = str(Path(__file__).resolve().parent.parent / "module_utils")
if _KIT not in sys.path:
    sys.path.insert(0, _KIT)

from ansible.errors import AnsibleTemplatePluginError  # noqa: E402 - after the path above
from sglang_kit import (  # noqa: E402
    benchmark,
    benchmark_page,
    breakdown,
    chart,
    difference,
    instance,
    lockfile,
    plan,
    report,
    roll,
    wish,
)
from sglang_kit.problem import ProblemsError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def sglang_plan(
    instances: object, host: Mapping[str, Any], models: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Plan the instances of one host."""
    try:
        return plan.plan_host(instances=instances, settings=plan.read_host(host), models=models)
    except ProblemsError as error:
        raise AnsibleTemplatePluginError(str(error), obj=instances) from error


def sglang_faults(instances: object, host: Mapping[str, Any], models: Mapping[str, Any] | None = None) -> str:
    """Say everything that is wrong with the instances of one host; nothing where a plan can be made."""
    try:
        plan.plan_host(instances=instances, settings=plan.read_host(host), models=models)
    except ProblemsError as error:
        return str(error)
    return ""


def sglang_misspelt(names: list[str], known: list[str]) -> list[str]:
    """Say which variables are nearly, but not quite, those that are known."""
    return instance.misspelt(names, known)


def sglang_secrets(instances: object, host: Mapping[str, Any]) -> list[dict[str, str]]:
    """Name the files of the secrets, with what they hold: for an option that is never shown."""
    try:
        return plan.secret_files(instances=instances, settings=plan.read_host(host))
    except ProblemsError as error:
        raise AnsibleTemplatePluginError(str(error), obj=instances) from error


def sglang_batches(
    plans: list[dict[str, Any]], observed: Mapping[str, Any], parallel: int = 1
) -> list[list[dict[str, Any]]]:
    """Say what must be started, restarted or stopped, in which order."""
    return roll.batches(plans, observed, parallel)


def sglang_ending(
    failed: Mapping[str, Any],
    switched: Mapping[str, Any],
    proof: Mapping[str, Any],
    untouched: list[str],
) -> str:
    """Say how a roll-out ended."""
    return roll.ending(
        failed.get("failures") or {},
        message=str(failed.get("msg", "")),
        back=switched["states"],
        stays=switched["stays"],
        proof=proof,
        untouched=untouched,
        unrecorded=switched["unrecorded"],
    )


def sglang_lock(text: str, version: str, wheels: Mapping[str, str]) -> str:
    """Return the lock that installs a version, with wheels of one's own in it."""
    try:
        return lockfile.effective(text, version=version, wheels=wheels)
    except ProblemsError as error:
        raise AnsibleTemplatePluginError(str(error)) from error


def sglang_report(plans: list[dict[str, Any]], verdicts: Mapping[str, Any] | None = None) -> list[str]:
    """Lines of a table for people: the plan alone, or the plan beside what runs."""
    return report.lines(plans, verdicts)


def sglang_memory(
    wanted: Mapping[str, Any],
    config: Mapping[str, Any],
    gpu: Mapping[str, Any],
    engine_version: str,
    draft_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Plan the memory of one instance."""
    try:
        return wish.instance_memory(
            wanted, config=config, gpu=gpu, engine_version=engine_version, draft_config=draft_config
        )
    except ProblemsError as error:
        raise AnsibleTemplatePluginError(str(error), obj=wanted) from error


def sglang_measured(plans: list[dict[str, Any]], verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what ready instances allocated."""
    return breakdown.measured(plans, verdicts)


def sglang_page(plans: list[dict[str, Any]], host: str, measured: Mapping[str, Any] | None = None) -> str:
    """Write the memory plan of a host as one HTML file."""
    return chart.page(host, plans, measured or {})


def sglang_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two states of an instance."""
    return difference.told(left, right)


def sglang_matrix(
    matrices: Mapping[str, Any],
    name: str,
    host: Mapping[str, Any],
    models: Mapping[str, Any],
    text: str = "",
) -> dict[str, Any]:
    """Plan every cell of a benchmark matrix, and say which are left to measure."""
    try:
        matrix = benchmark.read_matrix(name, matrices)
        settings = plan.read_host(host)
        return benchmark.outlook(matrix, settings=settings, models=models, text=text)
    except ProblemsError as error:
        raise AnsibleTemplatePluginError(str(error), obj=matrices) from error


def sglang_result(
    start: Mapping[str, Any], level: Mapping[str, Any], outcome: Mapping[str, Any], time: str
) -> dict[str, Any]:
    """Make the record of a benchmark's cell."""
    return benchmark.recorded(start, level, outcome, time)


def sglang_results(text: str, name: str, baseline: str) -> dict[str, Any]:
    """Show the results of a benchmark matrix, as lines and as a page."""
    found = benchmark.records(text)
    return {
        "lines": benchmark.lines(found, baseline),
        "page": benchmark_page.page(name, found, baseline),
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name the filters."""
        return {
            "sglang_batches": sglang_batches,
            "sglang_ending": sglang_ending,
            "sglang_faults": sglang_faults,
            "sglang_difference": sglang_difference,
            "sglang_lock": sglang_lock,
            "sglang_measured": sglang_measured,
            "sglang_matrix": sglang_matrix,
            "sglang_memory": sglang_memory,
            "sglang_misspelt": sglang_misspelt,
            "sglang_page": sglang_page,
            "sglang_plan": sglang_plan,
            "sglang_report": sglang_report,
            "sglang_result": sglang_result,
            "sglang_results": sglang_results,
            "sglang_secrets": sglang_secrets,
        }
