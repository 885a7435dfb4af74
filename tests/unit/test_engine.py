from __future__ import annotations

import pytest
from sglang_kit import engine
from sglang_kit.engine import (
    SUPPORTED,
    Build,
    UnknownVersionError,
    facts,
    read_build,
    version_key,
)
from sglang_kit.engine_flags import all_flags, check_flags, known_flags
from sglang_kit.instance import METHODS
from sglang_kit.problem import ProblemsError

from scripts import flags as generator

DUMPS = generator.read_dumps()


def options(version: str) -> set[str]:
    return {option for action in DUMPS[version].values() for option in action["opts"]}


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_flag_by_meaning_is_a_flag_of_that_version(version: str) -> None:
    assert {name for _, name in facts(version).flags} <= options(version)


@pytest.mark.parametrize(
    ("meaning", "version", "name"),
    [
        ("mamba_strategy", "0.5.11", "--mamba-scheduler-strategy"),
        ("mamba_strategy", "0.5.15.post1", "--mamba-radix-cache-strategy"),
        ("graph_max_bs_decode", "0.5.12.post1", "--cuda-graph-max-bs"),
        ("graph_max_bs_decode", "0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_renamed_flags(meaning: str, version: str, name: str) -> None:
    assert facts(version).flag(meaning) == name


def test_a_meaning_the_version_cannot_express() -> None:
    assert not facts("0.5.20").has_flag("attention_data_parallel")
    assert facts("0.5.23").has_flag("attention_data_parallel")
    with pytest.raises(KeyError):
        facts("0.5.20").flag("attention_data_parallel")


@pytest.mark.parametrize("version", SUPPORTED)
def test_strategies_are_the_parsers_choices(version: str) -> None:
    action = next(
        action
        for action in DUMPS[version].values()
        if facts(version).flag("mamba_strategy") in action["opts"]
    )
    assert set(facts(version).state_strategies) == set(action["choices"])


def test_algorithms_are_the_parsers_choices_where_it_has_any() -> None:
    action = next(a for a in DUMPS["0.5.11"].values() if "--speculative-algorithm" in a["opts"])
    assert {*facts("0.5.11").algorithms, "NEXTN"} == set(action["choices"])


@pytest.mark.parametrize("version", SUPPORTED)
def test_methods(version: str) -> None:
    found = facts(version)
    assert [found.algorithm(m) for m in METHODS if m != "ddtree"] == [
        None,
        "EAGLE",
        "EAGLE",
        "EAGLE3",
        "DFLASH",
        "NGRAM",
    ]
    with pytest.raises(ProblemsError, match=r"no speculative algorithm for 'ddtree'; use one of none, mtp"):
        found.algorithm("ddtree")


BUILD = Build(
    flags=(
        ("--model-path", "value", "text", "model_path", ""),
        ("--mamba-scheduler-strategy", "value", "text", "mamba_strategy", "auto|no_buffer"),
        ("--speculative-tree-budget", "value", "int", "speculative_tree_budget", ""),
    ),
    algorithms=("DDTREE", "EAGLE"),
)


def test_a_build_has_the_algorithms_and_flags_that_were_found_in_it() -> None:
    found = facts("0.5.23+ours.2", allow_untested=True, build=BUILD)
    assert found.basis == "0.5.23"
    assert found.algorithm("ddtree") == "DDTREE"
    with pytest.raises(ProblemsError, match="no speculative algorithm for 'ngram'"):
        found.algorithm("ngram")
    assert found.flag("mamba_strategy") == "--mamba-scheduler-strategy", "as older versions named it"
    with pytest.raises(ProblemsError, match=r"this build of SGLang 0.5.23\+ours.2 has no flag for kv dtype"):
        found.flag("kv_dtype")


def test_a_build_that_is_not_installed_yet_is_given_the_benefit_of_the_doubt() -> None:
    found = facts("0.5.23", build=Build())
    assert found.algorithm("ddtree") == "DDTREE"
    assert found.flag("mamba_strategy") == "--mamba-radix-cache-strategy"
    words = ["--speculative-tree-budget", "64", "--page-size", "x"]
    assert [problem.key for problem in check_flags("0.5.23", words, build=Build())] == ["args.--page-size"]


def test_the_flags_of_a_build_are_judged_by_what_was_found_in_it() -> None:
    assert check_flags("0.5.23", ["--speculative-tree-budget", "64"], build=BUILD) == []
    words = ["--speculative-tree-budget", "x", "--mamba-scheduler-strategy", "x", "--page-size", "1"]
    assert [str(problem) for problem in check_flags("0.5.23", words, build=BUILD)] == [
        "args.--speculative-tree-budget: 'x' is no int",
        "args.--mamba-scheduler-strategy: 'x' is not a choice; use one of auto, no_buffer",
        "args.--page-size: SGLang 0.5.23 has no flag --page-size",
    ]


def test_what_a_probe_wrote_is_read_as_a_build() -> None:
    rows = [list(row) for row in BUILD.flags or ()]
    assert read_build({"flags": rows, "algorithms": ["DDTREE", "EAGLE"]}) == BUILD
    assert read_build({}) == Build()
    assert read_build(None) is None


def test_control_facts_by_version() -> None:
    assert dict(facts("0.5.11").environment) == {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert "SGLANG_ENABLE_SPEC_V2" not in dict(facts("0.5.15.post1").environment)
    assert dict(facts("0.5.23").environment)["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"
    assert facts("0.5.20").python_first == (3, 10)
    assert facts("0.5.23").python_first == (3, 11)


def test_cache_variables_follow_the_engine_since_0_5_18() -> None:
    before = facts("0.5.15.post1").cache_environment("/var/cache/x")
    assert before["TRITON_CACHE_DIR"] == "/var/cache/x/triton"
    assert before["FLASHINFER_WORKSPACE_BASE"] == "/var/cache/x"
    assert facts("0.5.18").cache_environment("/var/cache/x") == {"SGLANG_CACHE_DIR": "/var/cache/x/sglang"}


@pytest.mark.parametrize("version", ["0.5.13", "1.0", "", "0.5.11rc1", "main", "0.5.11\n"])
def test_unknown_versions_name_the_supported_ones(version: str) -> None:
    with pytest.raises(UnknownVersionError, match=r"use one of 0\.5\.11, 0\.5\.12\.post1") as caught:
        facts(version)
    assert caught.value.problems[0].key == "engine_version"


@pytest.mark.parametrize(
    ("version", "basis"),
    [
        ("0.5.13", "0.5.12.post1"),
        ("0.5.15", "0.5.12.post1"),
        ("0.4.0", "0.5.11"),
        ("0.6.0", "0.5.23"),
        ("0.5.24.dev12+g1a2b3c", "0.5.23"),
        ("0.5.18rc1", "0.5.18"),
    ],
)
def test_untested_versions_answer_as_the_newest_before_them(version: str, basis: str) -> None:
    found = facts(version, allow_untested=True)
    assert (found.version, found.basis) == (version, basis)


def test_untested_versions_must_still_be_releases() -> None:
    with pytest.raises(UnknownVersionError):
        facts("nightly", allow_untested=True)


def test_supported_versions_are_in_order() -> None:
    assert sorted(SUPPORTED, key=version_key) == list(SUPPORTED)


def test_every_row_starts_at_the_oldest_version_and_names_known_ones_in_order() -> None:
    for name, history in {**engine._HISTORY, **engine._FLAGS}.items():  # noqa: SLF001 - the table itself
        firsts = [first for first, _ in history]
        assert firsts == sorted(firsts, key=SUPPORTED.index), name
    assert {history[0][0] for history in engine._HISTORY.values()} == {"0.5.11"}  # noqa: SLF001


@pytest.mark.parametrize("version", SUPPORTED)
def test_flag_table_agrees_with_the_dump(version: str) -> None:
    known = known_flags(version)
    assert set(known) == options(version)
    kinds = {"switch": 0, "value": None, "optional": "?", "values": "+", "any": "*"}
    for action in DUMPS[version].values():
        for option in action["opts"]:
            assert kinds[known[option].kind] == action["nargs"], option
            assert not known[option].choices or set(known[option].choices) == set(action["choices"])


def test_flag_table_is_generated_from_the_dumps() -> None:
    source = generator.TARGET.read_text()
    assert generator.render(source, generator.table(DUMPS)) == source


def test_successors_live() -> None:
    newest = known_flags(SUPPORTED[-1])
    removed = [flag for flag in all_flags().values() if flag.name not in newest]
    assert {flag.successor for flag in removed if flag.successor} <= set(newest)
    assert all(not flag.successor for flag in newest.values())


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--disable-radix-cache"],
        ["--page-size", "16", "--schedule-conservativeness=0.5"],
        ["--context-length", "8k"],
        ["--bucket-e2e-request-latency", "1", "2.5"],
        ["--chunked-prefill-size", "-1"],
        ["--hicache-io-backend", "direct"],
        ["--json-model-override-args", '{"a": 1}'],
        ["--bucket-e2e-request-latency", "1", "--page-size", "1"],
    ],
)
def test_flags_that_pass(args: list[str]) -> None:
    assert check_flags("0.5.11", args) == []


@pytest.mark.parametrize(
    ("version", "args", "message"),
    [
        (
            "0.5.23",
            ["--cuda-graph-max-bs", "8"],
            "after SGLang 0.5.18; use --cuda-graph-max-bs-decode",
        ),
        ("0.5.23", ["--torchao-config=x"], "removed after SGLang 0.5.15.post1; leave it out"),
        ("0.5.20", ["--attn-dp-size", "2"], "no --attn-dp-size: it came with 0.5.23; leave it out"),
        (
            "0.5.11",
            ["--cuda-graph-max-bs-decode", "8"],
            "it came with 0.5.15.post1; use --cuda-graph-max-bs",
        ),
        ("0.5.23", ["--tp", "2"], "--tp is an abbreviation"),
        ("0.5.23", ["--tp", "2"], "write --tp-size"),
        ("0.5.23", ["--prot", "1"], "did you mean --port?"),
        ("0.5.23", ["--qqqqqqqqqq"], "has no flag --qqqqqqqqqq"),
        ("0.5.23", ["--", "x"], "has no flag --"),
        ("0.5.23", ["--disable-radix-cache", "yes"], "'yes' is no flag"),
        (
            "0.5.23",
            ["--disable-radix-cache=yes"],
            "takes no value, got 'yes'; write --disable-radix",
        ),
        ("0.5.23", ["--page-size"], "needs a value"),
        ("0.5.23", ["--page-size", "--port", "1"], "needs a value"),
        ("0.5.23", ["--page-size", "x"], "'x' is no int"),
        ("0.5.23", ["--schedule-conservativeness", "x"], "'x' is no float"),
        ("0.5.11", ["--hicache-io-backend", "x"], "'x' is not a choice; use one of direct, kernel"),
        ("0.5.23", ["--page-size", "1", "2"], "'2' is no flag"),
        ("0.5.23", ["page-size"], "'page-size' is no flag"),
    ],
)
def test_flags_that_fail(version: str, args: list[str], message: str) -> None:
    assert message in str(ProblemsError(check_flags(version, args, where="chat")))


def test_json_values_are_read() -> None:
    name = next(flag.name for flag in all_flags().values() if flag.type == "json" and flag.kind == "value")
    version = all_flags()[name].last
    assert check_flags(version, [name, "{}"]) == []
    assert "is no json" in str(check_flags(version, [name, "{"])[0])


def test_problems_name_instance_and_flag() -> None:
    problem = check_flags("0.5.23", ["--page-size", "x"], where="chat")[0]
    assert (problem.where, problem.key) == ("chat", "args.--page-size")


def test_the_whole_set_of_problems_comes_at_once() -> None:
    assert len(check_flags("0.5.23", ["--tp", "2", "--page-size", "x", "--nonsense"])) == 3


def test_the_generator_prints_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["nonsense"]) == 2
    assert "flags.py dump" in capsys.readouterr().err
