from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit.roll import batches, ending, go_back, place

if TYPE_CHECKING:
    from collections.abc import Mapping

NEW, OLD = "f" * 16, "0" * 16


def plan(name: str, port: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any entry
    place = {"name": name, "port": port, "nccl_port": None, "gpus": [], "shared": False}
    return {
        **place,
        "unit": f"{name}.service",
        "after": [],
        "state": "started",
        "fingerprint": NEW,
        **changes,
    }


def runs(held: dict[str, Any] | None) -> dict[str, Any]:
    """Show an instance that runs an older plan, or does not run."""
    if held is None:
        return {"active": "inactive", "fingerprint": None, "holds": None}
    return {"active": "active", "fingerprint": OLD, "holds": held}


def order(
    plans: list[dict[str, Any]], held: Mapping[str, dict[str, Any] | None], parallel: int = 1
) -> list[list[str]]:
    found = batches(plans, {name: runs(one) for name, one in held.items()}, parallel)
    return [[step["name"] for step in batch] for batch in found]


def test_nothing_to_do() -> None:
    seen = {"a": {"active": "active", "fingerprint": NEW, "holds": plan("a", 1)}}
    assert batches([plan("a", 1)], seen) == []
    assert batches([], {}) == []


def test_a_step_says_what_is_done_and_why() -> None:
    assert batches([plan("a", 1)], {}) == [
        [{"name": "a", "action": "start", "reason": "is inactive", "group": ["a"], "runs": {}}]
    ]


def test_a_step_says_where_its_instance_answers_now() -> None:
    held = plan("a", 1, drain=["/bin/lb"])
    ((step,),) = batches([plan("a", 2)], {"a": runs(held)})
    assert (step["action"], step["runs"]) == ("restart", held)


def test_without_a_move_the_order_is_the_inventorys() -> None:
    plans = [plan("b", 1), plan("a", 2), plan("c", 3)]
    assert order(plans, {one["name"]: one for one in plans}) == [["b"], ["a"], ["c"]]


def sharers(*fingerprints: str, **states: str) -> list[dict[str, Any]]:
    """Three instances that share a GPU, in the order in which they start."""
    names = ("a", "b", "c")
    return [
        plan(name, at, gpus=["1"], shared=True, after=[f"{one}.service" for one in names[:at]])
        | {"fingerprint": mark, "state": states.get(name, "started")}
        for at, (name, mark) in enumerate(zip(names, fingerprints))
    ]


@pytest.mark.parametrize(
    ("fingerprints", "expected"),
    [
        ((OLD, OLD, OLD), []),
        ((NEW, OLD, OLD), [["a", "b", "c"]]),
        ((OLD, NEW, OLD), [["b", "c"]]),
        ((OLD, OLD, NEW), [["c"]]),
        ((NEW, OLD, NEW), [["a", "b", "c"]]),
    ],
)
def test_sharers_of_a_gpu_start_again_with_who_starts_before_them(
    fingerprints: tuple[str, ...], expected: list[list[str]]
) -> None:
    plans = sharers(*fingerprints)
    found = batches(plans, {one["name"]: runs(one) for one in plans})
    assert [[step["name"] for step in batch] for batch in found] == expected
    for batch in found:
        assert {tuple(step["group"]) for step in batch} == {tuple(step["name"] for step in batch)}
        assert {step["action"] for step in batch} == {"restart"}


def test_a_sharer_is_told_why_it_starts_again() -> None:
    plans = sharers(OLD, NEW, OLD)
    ((_, last),) = batches(plans, {one["name"]: runs(one) for one in plans})
    assert (last["name"], last["reason"]) == ("c", "shares a GPU with b, which starts before it")


def test_a_sharer_that_shall_stop_is_not_started() -> None:
    plans = sharers(NEW, OLD, OLD, b="stopped")
    seen = {one["name"]: runs(one) for one in plans} | {"b": runs(None)}
    assert [[step["name"] for step in batch] for batch in batches(plans, seen)] == [["a", "c"]]


def test_stops_come_first_and_together() -> None:
    plans = [plan("a", 1), plan("b", 2, state="stopped"), plan("c", 3), plan("d", 4, state="stopped")]
    assert order(plans, {one["name"]: one for one in plans}) == [["b", "d"], ["a"], ["c"]]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ({"port": 2}, {"port": 2}),
        ({"nccl_port": 7}, {"nccl_port": 7}),
        ({"port": 7}, {"nccl_port": 7}),
        ({"gpus": ["0", "1"]}, {"gpus": ["1"]}),
        ({"gpus": ["1"], "shared": True}, {"gpus": ["1"]}),
    ],
)
def test_who_leaves_something_comes_before_who_takes_it(was: dict[str, Any], becomes: dict[str, Any]) -> None:
    plans = [plan("takes", 1) | becomes, plan("leaves", 3)]
    assert order(plans, {"takes": plan("takes", 1), "leaves": plan("leaves", 5) | was}) == [
        ["leaves"],
        ["takes"],
    ]


def test_a_gpu_that_both_share_does_not_move() -> None:
    sharing = {"gpus": ["0"], "shared": True}
    plans = [plan("a", 1, **sharing), plan("b", 2, **sharing)]
    assert order(plans, {"a": plan("a", 1), "b": plan("b", 2, **sharing)}) == [["a"], ["b"]]


def test_a_circle_is_one_group_and_comes_before_who_waits_for_it() -> None:
    plans = [plan("waits", 3), plan("a", 2), plan("b", 1), plan("c", 9)]
    held = {"waits": plan("waits", 8), "a": plan("a", 1), "b": plan("b", 2, nccl_port=3), "c": None}
    assert order(plans, held) == [["a", "b"], ["waits"], ["c"]]
    found = batches(plans, {name: runs(one) for name, one in held.items()})
    assert [step["group"] for step in found[0]] == [["a", "b"], ["a", "b"]]


def test_several_at_once_but_never_both_ends_of_a_move() -> None:
    plans = [plan("a", 1), plan("b", 2), plan("takes", 3), plan("leaves", 4), plan("e", 5)]
    held = {**{one["name"]: one for one in plans}, "leaves": plan("leaves", 3)}
    assert order(plans, held, parallel=2) == [["a", "b"], ["leaves"], ["takes", "e"]]
    assert order(plans, held, parallel=9) == [["a", "b", "leaves"], ["takes", "e"]]


PORTS = st.permutations(range(6))


@given(was=PORTS, becomes=PORTS, idle=st.sets(st.integers(0, 5)), parallel=st.integers(1, 4))
def test_no_port_is_taken_before_it_is_left(
    was: list[int], becomes: list[int], idle: set[int], parallel: int
) -> None:
    plans = [plan(str(number), port) for number, port in enumerate(becomes)]
    held = {
        str(number): None if number in idle else plan(str(number), port) for number, port in enumerate(was)
    }
    found = batches(plans, {name: runs(one) for name, one in held.items()}, parallel)
    place = {step["name"]: at for at, batch in enumerate(found) for step in batch}
    group = {step["name"]: step["group"] for batch in found for step in batch}
    assert sorted(place) == [str(number) for number in range(6)]
    assert sum(map(len, found)) == 6
    for batch in found:
        assert len(batch) <= parallel or {step["name"] for step in batch} == set(batch[0]["group"])
    for taker in plans:
        for name, old in held.items():
            if old and name != taker["name"] and old["port"] == taker["port"]:
                assert place[name] < place[taker["name"]] or name in group[taker["name"]]


def test_who_goes_back_takes_its_group_along() -> None:
    steps = [
        {"name": "a", "group": ["a", "b"]},
        {"name": "b", "group": ["a", "b"]},
        {"name": "c", "group": ["c"]},
    ]
    assert go_back(steps, ["b"]) == ["a", "b"]
    assert go_back(steps, ["c"]) == ["c"]


FAILURE = {
    "state": "failed",
    "phase": "weights",
    "sentence": "model-00001.safetensors is cut off",
    "remedy": "copy it again",
    "saved": "artifacts/failures/ct200/chat/1",
}
SERVES = {"instances": {"chat": {"state": "ready"}}}


def said(**changes: Any) -> list[str]:  # noqa: ANN401 - any argument
    given = {"message": "", "back": {}, "stays": {}, "proof": {}, "untouched": [], **changes}
    return ending(given.pop("failures", {"chat": FAILURE}), **given).splitlines()


def test_the_end_tells_cause_and_what_runs_now() -> None:
    assert said(back={"chat": "s1"}, proof=SERVES, untouched=["coder", "long"]) == [
        "The roll-out ends here.",
        "chat: failed in stage weights: model-00001.safetensors is cut off",
        "  what to do: copy it again",
        "  evidence: artifacts/failures/ct200/chat/1",
        "chat is back on its last good state s1 and serves",
        "not touched: coder, long",
    ]


def test_the_end_of_a_first_start() -> None:
    lines = said(
        failures={"chat": {**FAILURE, "remedy": ""}}, stays={"chat": "no state of it was ever ready"}
    )
    assert lines[-1] == "chat was not set back: no state of it was ever ready"
    assert "what to do" not in " ".join(lines)


def test_the_end_of_what_did_not_even_start() -> None:
    assert said(failures={}, message="No space left on device", back={"chat": "s1"}, proof=SERVES)[1:] == [
        "No space left on device",
        "chat is back on its last good state s1 and serves",
    ]


def test_a_last_good_state_that_is_good_no_more() -> None:
    again = {**FAILURE, "sentence": "out of memory"}
    assert said(back={"chat": "s1"}, proof={"failures": {"chat": again}})[-1] == (
        "chat was set back to its last good state s1, which does not become ready any more:"
        " failed in stage weights: out of memory"
    )
    assert said(back={"chat": "s1"}, proof={"msg": "no route"})[-1] == (
        "chat was set back to its last good state s1; not proven: no route"
    )


def test_what_an_instance_holds() -> None:
    held = place({**plan("a", 1), "unit": "sglang-a.service", "host": "::1"})
    assert held == {
        "name": "a",
        "unit": "sglang-a.service",
        "host": "::1",
        "port": 1,
        "nccl_port": None,
        "gpus": [],
        "shared": False,
        "drain": None,
        "undrain": None,
    }
    assert place(None) is None
