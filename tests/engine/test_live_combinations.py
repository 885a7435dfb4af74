"""Forbidden combinations, through everything that stands before an installation, with real engines.

Each is an instance definition, who refuses it (the plan; the engine's parser or resolver in its own words;
the judgement of a silent override), and its nearest allowed neighbour, which passes all of them.
``SGLANG_TEST_VENVS`` names a folder that holds a virtual environment per version (``<folder>/0.5.23``).
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sglang_kit import overrides, plan
from sglang_kit.problem import ProblemsError

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "configs"
VENVS = os.environ.get("SGLANG_TEST_VENVS")
TESTED = ("0.5.15.post1", "0.5.23")
INSTALLED = [v for v in TESTED if VENVS and (Path(VENVS) / v / "bin" / "python").exists()]

pytestmark = pytest.mark.skipif(not INSTALLED, reason="SGLANG_TEST_VENVS names no installed release")

HYBRID, DENSE, DFLASH, EAGLE3 = "qwen36-27b", "llama-3.1-8b", "dflash-qwen36-27b", "eagle3-llama-3.1-8b"
PLAN, RESOLVER, OVERRIDE = "the plan", "resolve", "an override"
STRATEGY, OVERLAP = "mamba-radix-cache-strategy", "disable-overlap-schedule"
CARD = {"memory_mib": 97887, "compute_capability": "12.0"}


@dataclass(frozen=True)
class Case:
    """``refused`` differs from ``allowed`` in as little as possible; keys named in the first win."""

    who: str
    words: str
    refused: dict[str, Any]
    allowed: dict[str, Any]
    model: str = HYBRID
    versions: tuple[str, ...] = TESTED


def mtp(**more: object) -> dict[str, Any]:
    return {"strategy": {"method": "mtp", "steps": 3, "topk": 1, "draft_tokens": 4, **more}}


def args(**flags: object) -> dict[str, Any]:
    return {"args": {name.replace("_", "-"): value for name, value in flags.items()}}


def dflash(directory: str = DFLASH, **more: object) -> dict[str, Any]:
    return {"strategy": {"method": "dflash", "draft_model": directory, **more}}


def eagle(method: str = "eagle3", context: int = 2048, **more: object) -> dict[str, Any]:
    """Give a definition with an EAGLE3 head, which was trained with a context of 2048 tokens."""
    strategy = {"method": method, "draft_model": EAGLE3, "steps": 3, "topk": 1, "draft_tokens": 4}
    return {"strategy": strategy, "context_length": context, **more}


NO_BUFFER = {STRATEGY: "no_buffer"}
EXTRA = {STRATEGY: "extra_buffer"}
CASES = {
    # hybrid models
    "the strategy's old name": Case(
        PLAN,
        "--mamba-scheduler-strategy",
        {"args": {"mamba-scheduler-strategy": "extra_buffer"}},
        {"args": EXTRA},
        versions=("0.5.23",),
    ),
    "no_buffer with the overlapped scheduler": Case(
        PLAN,
        "no_buffer does not go with the overlapped scheduler",
        {"args": NO_BUFFER},
        {"args": {**NO_BUFFER, OVERLAP: True}},
    ),
    "no_buffer with large pages": Case(
        PLAN,
        "no_buffer needs page size 1",
        {"args": {**NO_BUFFER, OVERLAP: True, "page-size": 16}},
        {"args": {**NO_BUFFER, OVERLAP: True, "page-size": 1}},
    ),
    "no_buffer with trtllm_mha": Case(
        PLAN,
        "would stop with AssertionError: no_buffer only supports page_size=1.",
        {"args": {**NO_BUFFER, OVERLAP: True, "attention-backend": "trtllm_mha"}},
        {"args": {**NO_BUFFER, OVERLAP: True, "attention-backend": "flashinfer"}},
    ),
    "speculation with no_buffer": Case(
        PLAN,
        "no_buffer",
        {**mtp(), "args": NO_BUFFER},
        {**mtp(), "args": EXTRA},
    ),
    "extra_buffer without the prefix cache": Case(
        PLAN,
        "exists for the prefix cache, which is off",
        {"args": EXTRA, "prefix_cache": False},
        {"prefix_cache": False},
    ),
    "extra_buffer with pages that do not divide the track interval": Case(
        PLAN,
        "is no multiple of the page size 48",
        {"args": {**EXTRA, "page-size": 48}},
        {"args": {**EXTRA, "page-size": 64}},
    ),
    "extra_buffer_lazy with speculation": Case(
        PLAN,
        "AssertionError: extra_buffer_lazy unsupported with spec.",
        {**mtp(), "args": {STRATEGY: "extra_buffer_lazy"}},
        {**mtp(), "args": EXTRA},
        versions=("0.5.15.post1",),
    ),
    "mixed chunks with extra_buffer": Case(
        PLAN,
        "mixed chunks with extra_buffer lose accuracy",
        {"args": {**EXTRA, "enable-mixed-chunk": True}},
        {"args": EXTRA},
    ),
    "a prefill chunk that is no multiple of the page": Case(
        PLAN,
        "100 is no multiple of the page size 64",
        args(page_size=64, chunked_prefill_size=100),
        args(page_size=64, chunked_prefill_size=128),
    ),
    # speculative decoding
    "DDTREE": Case(
        PLAN,
        "no speculative algorithm for 'ddtree'",
        dflash() | {"strategy": {"method": "ddtree", "draft_model": DFLASH}},
        dflash(),
    ),
    "more draft tokens than the track interval": Case(
        PLAN,
        "are more than the state's track interval",
        {**mtp(steps=39, draft_tokens=40), "args": {"mamba-track-interval": 32}},
        {**mtp(steps=31, draft_tokens=32), "args": {"mamba-track-interval": 32}},
    ),
    "a page that the attention backend does not have": Case(
        OVERRIDE,
        "page_size: asked 1, the engine makes it 64",
        {"args": {"attention-backend": "trtllm_mha", "page-size": 1}},
        {"args": {"attention-backend": "trtllm_mha", "page-size": 64}},
        model=DENSE,
        versions=("0.5.23",),
    ),
    "dflash with a tree": Case(PLAN, "dflash drafts one block", dflash(topk=4), dflash()),
    "dflash with blocks and tokens that differ": Case(
        RESOLVER,
        "speculative_num_draft_tokens=16, speculative_dflash_block_size=8",
        {**dflash(draft_tokens=16), **args(speculative_dflash_block_size=8)},
        {**dflash(draft_tokens=8), **args(speculative_dflash_block_size=8)},
    ),
    "dflash with a window below its block": Case(
        RESOLVER,
        "--speculative-draft-window-size must be >=",
        {**dflash(), **args(speculative_draft_window_size=4)},
        {**dflash(), **args(speculative_draft_window_size=64)},
    ),
    "dflash without its draft model": Case(
        PLAN, "is missing: dflash speculates with a draft model", {"strategy": {"method": "dflash"}}, dflash()
    ),
    "eagle with an eagle3 head": Case(
        PLAN,
        "the draft model is made for eagle3",
        eagle("eagle"),
        eagle(),
        model=DENSE,
    ),
    "a context that is longer than the draft's": Case(
        PLAN, "is longer than the draft model's 2048", eagle(context=2049), eagle(), model=DENSE
    ),
    "mtp without prediction layers": Case(
        PLAN, "has no prediction layers of its own", mtp(), {}, model=DENSE
    ),
    "mixed chunks with speculation": Case(
        OVERRIDE,
        "enable_mixed_chunk: asked True, the engine makes it False",
        eagle(**args(enable_mixed_chunk=True)),
        eagle(),
        model=DENSE,
        versions=("0.5.15.post1",),
    ),
    # any model
    "a strategy for another kind of model": Case(
        PLAN, "needs a hybrid model", {"args": EXTRA}, {}, model=DENSE
    ),
    "an abbreviated flag": Case(PLAN, "is an abbreviation", args(tensor_parallel=1), {}),
    "a removed flag": Case(
        PLAN,
        "--cuda-graph-max-bs was removed",
        args(cuda_graph_max_bs=8),
        args(cuda_graph_max_bs_decode=8),
        versions=("0.5.23",),
    ),
    "a fraction above 1": Case(
        PLAN, "memory.fraction", {"memory": {"fraction": 1.5}}, {"memory": {"fraction": 0.8}}
    ),
    "a context that is longer than the model's": Case(
        PLAN, "is longer than the model's", {"context_length": 1_000_000}, {"context_length": 262_144}
    ),
    "a colon in the served name": Case(
        RESOLVER,
        "served_model_name cannot contain a colon",
        {"served_model_name": "a:b"},
        {"served_model_name": "a-b"},
    ),
    "an algorithm that is misspelt": Case(
        PLAN, "is said by the key", args(speculative_algorithm="EAGEL"), mtp()
    ),
    "a cache type of an older version": Case(
        PLAN,
        "the layout of fp4_e2m1 is not understood",
        {"memory": {"kv_dtype": "fp4_e2m1"}},
        {"memory": {"kv_dtype": "fp8_e4m3"}},
        versions=("0.5.23",),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """Who refused, or "" if nobody did, and everything that was said."""

    who: str = ""
    words: str = ""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home") / "models"
    place.mkdir()
    for name in (HYBRID, DENSE, DFLASH, EAGLE3):
        (place / name).mkdir()
        (place / name / "config.json").write_bytes((FIXTURES / f"{name}.json").read_bytes())
    return place


def definition(name: str, model: str, keys: dict[str, Any], models: Path) -> dict[str, Any]:
    strategy = dict(keys.get("strategy", {}))
    if "draft_model" in strategy:
        strategy["draft_model"] = str(models / strategy["draft_model"])
    common = {"name": name, "model": str(models / model), "gpus": [0], "port": 30000, "concurrency": 2}
    return {**common, "context_length": 8192, **keys, "strategy": strategy}


def planned(instance: dict[str, Any], version: str, models: Path) -> dict[str, Any]:
    configs = {
        str(place): json.loads((place / "config.json").read_text(encoding="utf-8"))
        for place in models.iterdir()
    }
    host = {
        "name": "metal",
        "engine_version": version,
        "release": str(Path(str(VENVS)) / version),
        "accelerator": "nvidia",
        "gpus": [CARD],
        "gpu_count": 1,
    }
    (one,) = plan.plan_host(instances=[instance], settings=plan.read_host(host), models=configs)
    return one


def environment_below(models: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(models.parent), "HF_HUB_OFFLINE": "1"}


@contextmanager
def noting(found: dict[str, Outcome], title: str) -> Iterator[None]:
    """Note what the plan refuses."""
    try:
        yield
    except ProblemsError as error:
        found[title] = Outcome(PLAN, str(error))


@pytest.fixture(scope="module", params=INSTALLED)
def outcomes(request: pytest.FixtureRequest, models: Path) -> tuple[str, dict[str, Outcome]]:
    """Send every definition through plan, engine and judgement; one process of the engine answers for all."""
    version: str = request.param
    found: dict[str, Outcome] = {}
    plans: dict[str, dict[str, Any]] = {}
    wanted = {
        f"{title}: {kind}": (case.model, keys)
        for title, case in CASES.items()
        if version in case.versions
        for kind, keys in (("refused", case.refused), ("allowed", case.allowed))
    }
    for number, (title, (model, keys)) in enumerate(wanted.items()):
        with noting(found, title):
            plans[title] = planned(definition(f"case-{number}", model, keys, models), version, models)
    environment = environment_below(models)
    asked = {title: {"argv": one["argv"][3:], "environment": environment} for title, one in plans.items()}
    done = subprocess.run(
        [plans[next(iter(plans))]["argv"][0], Path(__file__).with_name("other_card.py")],
        input=json.dumps(asked),
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        judgement = overrides.judge(plans[answer["name"]], answer)
        who = (answer["phase"] if answer["phase"] != "ok" else OVERRIDE) if judgement.refused else ""
        found[answer["name"]] = Outcome(who, "\n".join(map(str, judgement.refused)))
    return version, found


@pytest.mark.parametrize("title", CASES)
def test_it_is_refused_and_its_neighbour_is_not(title: str, outcomes: tuple[str, dict[str, Outcome]]) -> None:
    version, found = outcomes
    case = CASES[title]
    if version not in case.versions:
        assert f"{title}: refused" not in found
        return
    refused = found[f"{title}: refused"]
    assert (refused.who, case.words in refused.words) == (case.who, True), refused
    assert found[f"{title}: allowed"] == Outcome()


@pytest.mark.parametrize("version", INSTALLED)
def test_a_gpu_less_host_refuses_a_hybrid_model_in_the_engines_words(version: str, models: Path) -> None:
    """It would not serve it either: the state snapshots of extra_buffer want a GPU."""
    check = Path(__file__).resolve().parents[2] / "module_utils" / "sglang_kit" / "engine_check.py"
    one = planned(definition("hybrid", HYBRID, {"args": EXTRA}, models), version, models)
    environment = environment_below(models)
    done = subprocess.run(
        [one["argv"][0], check],
        input=json.dumps({"hybrid": {"argv": one["argv"][3:], "environment": environment}}),
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    answer = json.loads(done.stdout)
    assert answer["phase"] == "resolve"
    assert "extra_buffer" in answer["message"]


@pytest.mark.parametrize("version", INSTALLED)
def test_the_plan_says_the_strategy_by_its_new_name(version: str, models: Path) -> None:
    one = planned(definition("hybrid", HYBRID, mtp(), models), version, models)
    assert "--mamba-scheduler-strategy" not in one["argv"]
    assert one["argv"][one["argv"].index("--mamba-radix-cache-strategy") + 1].startswith("extra_buffer")
