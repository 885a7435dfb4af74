from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit.host import NCCL_OFFSET, PORTS, Reserved, check_gpus, plan_ports, start_after
from sglang_kit.instance import UNKNOWN_PORT, Instance
from sglang_kit.problem import Collector, Problem

NOTHING = Reserved()


def instance(
    name: str = "chat",
    port: int = 30000,
    *,
    nccl_port: int | None = None,
    gpus: tuple[str, ...] = (),
    shared: bool = False,
) -> Instance:
    return Instance(
        name=name,
        model="/srv/models/qwen",
        served_model_name="qwen",
        port=port,
        nccl_port=nccl_port,
        gpus=gpus,
        shared=shared,
    )


def ports_of(*instances: Instance, reserved: Reserved = NOTHING) -> list[int | None]:
    found = Collector()
    planned = plan_ports(instances, reserved, found)
    found.check()
    return [one.nccl_port for one in planned]


def port_problems(*instances: Instance, reserved: Reserved = NOTHING) -> list[Problem]:
    found = Collector()
    plan_ports(instances, reserved, found)
    return found.problems


def gpu_problems(*instances: Instance, count: int | None = 8, reserved: Reserved = NOTHING) -> list[Problem]:
    found = Collector()
    check_gpus(instances, count=count, reserved=reserved, found=found)
    return found.problems


def test_each_instance_gets_a_rendezvous_port_beside_its_own() -> None:
    assert ports_of(instance(), instance("coder", 30001)) == [20000, 20001]


def test_a_rendezvous_port_that_is_said_stays() -> None:
    assert ports_of(instance(nccl_port=5000)) == [5000]


def test_nothing_but_the_rendezvous_port_is_planned() -> None:
    (planned,) = plan_ports([instance(gpus=("3",))], NOTHING, Collector())
    assert planned == instance(gpus=("3",), nccl_port=20000)


@pytest.mark.parametrize(
    ("others", "reserved", "port"),
    [
        ((), (20000, 20001), 20002),
        ((instance("coder", 20000),), (), 20001),
        ((instance("coder", 31000, nccl_port=20000),), (), 20001),
    ],
)
def test_a_planned_port_keeps_off_what_is_taken(
    others: tuple[Instance, ...], reserved: tuple[int, ...], port: int
) -> None:
    assert ports_of(instance(), *others, reserved=Reserved(ports=reserved))[0] == port


@pytest.mark.parametrize("port", [2000, PORTS.start - NCCL_OFFSET - 1])
def test_below_the_lowest_port_the_search_begins_at_the_lowest(port: int) -> None:
    assert ports_of(instance(port=port)) == [PORTS.start]


def test_the_search_wraps_past_ports_at_the_end_that_are_taken() -> None:
    above = (port for port in range(20000, PORTS.stop) if port != 30000)
    assert ports_of(instance(), reserved=Reserved(ports=(1024, *above))) == [1025]


def test_a_port_twice() -> None:
    assert port_problems(instance(), instance("coder"), instance("third", 30001)) == [
        Problem("coder", "port", "30000 is also port of chat", "30002 is free in this inventory")
    ]


def test_a_port_of_another_service() -> None:
    reserved = Reserved(ports=(30000, 30001))
    assert port_problems(instance(), reserved=reserved) == [
        Problem(
            "chat", "port", "30000 is also a reserved port of this host", "30002 is free in this inventory"
        )
    ]


def test_a_rendezvous_port_that_is_a_port() -> None:
    assert port_problems(instance(nccl_port=30000)) == [
        Problem("chat", "nccl_port", "30000 is also port of chat", "30001 is free in this inventory")
    ]
    assert port_problems(instance(nccl_port=30001), instance("coder", 30001)) == [
        Problem("chat", "nccl_port", "30001 is also port of coder", "30002 is free in this inventory")
    ]


def test_every_clash_is_told() -> None:
    crowd = [instance(name) for name in "abc"]
    assert [problem.where for problem in port_problems(*crowd)] == ["b", "c"]


def test_ports_that_could_not_be_read_clash_with_nothing() -> None:
    assert port_problems(instance(port=UNKNOWN_PORT), instance("coder", UNKNOWN_PORT)) == []


def test_500_instances_find_a_place() -> None:
    crowd = [instance(f"i{number}", 2000 + number) for number in range(500)]
    nccl_ports = ports_of(*crowd, reserved=Reserved(ports=(12_100,)))
    taken = [*(one.port for one in crowd), *nccl_ports, 12_100]
    assert len(set(taken)) == 1001


def test_ports_run_out() -> None:
    reserved = Reserved(ports=tuple(port for port in PORTS if port != 30000))
    assert port_problems(instance(), reserved=reserved) == [
        Problem("chat", "nccl_port", "none is free from 1024 to 65535", "reserve fewer ports")
    ]
    assert port_problems(instance(port=2000, nccl_port=30000), reserved=reserved) == [
        Problem("chat", "port", "2000 is also a reserved port of this host")
    ]


@given(
    ports=st.lists(st.integers(PORTS.start, PORTS.stop - 1), unique=True, max_size=20),
    reserved=st.sets(st.integers(PORTS.start, PORTS.stop - 1), max_size=20),
)
def test_planned_ports_never_clash(ports: list[int], reserved: set[int]) -> None:
    free = [port for port in ports if port not in reserved]
    crowd = [instance(f"i{port}", port) for port in free]
    planned = ports_of(*crowd, reserved=Reserved(ports=tuple(reserved)))
    assert len({*free, *planned, *reserved}) == 2 * len(free) + len(reserved)
    assert all(port in PORTS for port in planned if port is not None)


def test_gpus_that_are_there_and_ours() -> None:
    assert gpu_problems(instance(gpus=("0", "7")), instance("coder", gpus=("1",))) == []


def test_a_gpu_that_is_not_there() -> None:
    assert gpu_problems(instance(gpus=("0", "2")), count=2) == [
        Problem("chat", "gpus", "GPU 2 is not among this host's 2", "free GPUs are 1")
    ]


def test_an_unknown_number_of_gpus_refuses_none() -> None:
    assert gpu_problems(instance(gpus=("99",)), count=None) == []


def test_a_gpu_of_another_service() -> None:
    assert gpu_problems(instance(gpus=("0", "1")), count=4, reserved=Reserved(gpus=("0",))) == [
        Problem("chat", "gpus", "GPU 0 is reserved for another service", "free GPUs are 2, 3")
    ]


def test_a_gpu_wanted_twice() -> None:
    pair = instance(gpus=("0",)), instance("coder", gpus=("0",))
    assert gpu_problems(*pair, count=3) == [
        Problem(
            "coder",
            "gpus",
            "GPU 0 is also wanted by chat",
            "set `shared: true` on both, or free GPUs are 1, 2",
        )
    ]
    assert gpu_problems(*pair, count=1)[0].remedy == "set `shared: true` on both, or use another GPU"


@pytest.mark.parametrize(
    ("shared", "refused"),
    [
        ("SS", ""),
        ("Ss", "b"),
        ("sS", "b"),
        ("SSS", ""),
        ("SSs", "c"),
        ("SsS", "b"),
        ("sSS", "bc"),
    ],
)
def test_a_gpu_is_shared_by_those_only_who_all_say_so(shared: str, refused: str) -> None:
    crowd = [instance(name, gpus=("0", "1"), shared=letter == "S") for name, letter in zip("abc", shared)]
    named = [problem.where for problem in gpu_problems(*crowd)]
    assert named == [name for name in refused for _ in ("0", "1")]


def test_uuids_by_themselves_are_compared_like_indices() -> None:
    pair = instance(gpus=("GPU-1", "GPU-2")), instance("coder", gpus=("GPU-2",))
    assert [problem.message for problem in gpu_problems(*pair)] == ["GPU GPU-2 is also wanted by chat"]


def test_a_uuid_beside_an_index_may_be_the_same_gpu() -> None:
    remedy = "name the GPUs of a host all by index or all by UUID"
    pair = instance(gpus=("10", "2", "0")), instance("coder", gpus=("GPU-1", "MIG-2"))
    assert gpu_problems(*pair, count=None) == [
        Problem("coder", "gpus", "GPU-1, MIG-2 may be the same GPU as 0, 2, 10", remedy)
    ]
    assert gpu_problems(instance(gpus=("GPU-1",)), reserved=Reserved(gpus=("0",))) == [
        Problem("chat", "gpus", "GPU-1 may be the same GPU as 0", remedy)
    ]
    assert gpu_problems(instance(gpus=("1",)), reserved=Reserved(gpus=("GPU-1",))) == [
        Problem("host", "sglang_host_reserved_gpus", "GPU-1 may be the same GPU as 1", remedy)
    ]


def test_on_a_shared_gpu_the_later_instance_waits_for_the_earlier_ones() -> None:
    chat = instance(gpus=("0", "1"), shared=True)
    coder = instance("coder", gpus=("2",))
    embed = instance("embed", gpus=("1",), shared=True)
    rank = instance("rank", gpus=("1", "2"), shared=True)
    assert start_after([chat, coder, embed, rank]) == {
        "chat": (),
        "coder": (),
        "embed": ("sglang-chat.service",),
        "rank": ("sglang-chat.service", "sglang-coder.service", "sglang-embed.service"),
    }


def test_without_gpus_nobody_waits() -> None:
    assert start_after([instance(), instance("coder")]) == {"chat": (), "coder": ()}
