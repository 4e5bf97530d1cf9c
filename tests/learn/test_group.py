"""Groups over real gloo connections, each learner in a thread of its own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from parl_mq.errors import GroupBroken
from parl_mq.learn import group as module
from parl_mq.learn.group import LearnerGroup, MeetingPoint, Place
from tests.algorithms.groups import together

PATIENCE_S = 20.0


def _met(place: Place, host: str = "127.0.0.1") -> LearnerGroup:
    group = LearnerGroup(place, host=host)
    group.meet()
    return group


@pytest.fixture(scope="module")
def point() -> Iterator[MeetingPoint]:
    made = MeetingPoint("127.0.0.1")
    yield made
    made.close()


def _soon(is_so: Callable[[], bool]) -> bool:
    """Waits until that is so, or PATIENCE_S are over."""
    until = time.monotonic() + PATIENCE_S
    while not (done := is_so()) and time.monotonic() < until:
        time.sleep(0.001)
    return done


_GENERATIONS = iter(range(1, 1000))


@contextlib.contextmanager
def _group(point: MeetingPoint, size: int = 2, source: int = 0) -> Iterator[list[LearnerGroup]]:
    generation, names = next(_GENERATIONS), tuple(f"learner-{rank}" for rank in range(size))
    places = [Place(generation, rank, names, source, store=point.address) for rank in range(size)]
    groups = together([lambda place=place: _met(place, point.address[0]) for place in places])
    try:
        yield groups
    finally:
        for each in groups:
            each.close()


@pytest.mark.parametrize("size", [2, 3])
def test_all_have_the_same_sum_to_the_bit(point: MeetingPoint, size: int) -> None:
    vectors = [torch.randn(10_001, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]
    expected = torch.stack(vectors).double().sum(0).float()
    with _group(point, size) as groups:
        together([lambda g=g, v=v: g.sum(v) for g, v in zip(groups, vectors, strict=True)])
        assert all(each.take_waited_s() > 0 for each in groups)
        assert groups[0].take_waited_s() == 0
    for vector in vectors:
        assert torch.equal(vector, vectors[0])
        torch.testing.assert_close(vector, expected)


@pytest.mark.parametrize("source", [0, 1])
def test_all_have_the_bytes_of_the_source(point: MeetingPoint, source: int) -> None:
    payloads = [b"of rank 0", b"of rank 1, and longer"]
    with _group(point, source=source) as groups:
        got = together([lambda g=g, p=p: g.broadcast(p) for g, p in zip(groups, payloads, strict=True)])
    assert got == [payloads[source]] * 2


def test_a_group_of_one_needs_no_store_and_changes_nothing() -> None:
    group = _met(Place(1, 0, ("learner-0",)))
    vector = torch.ones(3)
    group.sum(vector)
    assert vector.tolist() == [1, 1, 1]
    assert group.broadcast(b"own") == b"own"
    group.close()


def test_abort_ends_a_sum_that_waits_for_one_who_hangs_and_names_it(point: MeetingPoint) -> None:
    with _group(point) as groups, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(groups[0].sum, torch.ones(10))
        assert not waiting.done()
        groups[0].abort()
        with pytest.raises(GroupBroken, match="learner-1 stopped in the midst of an update"):
            waiting.result(PATIENCE_S)
        with pytest.raises(GroupBroken, match="has ended"):
            groups[0].sum(torch.ones(10))


def test_one_who_goes_ends_the_sums_of_the_others(point: MeetingPoint) -> None:
    with _group(point) as groups, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(groups[0].sum, torch.ones(10))
        groups[1].close()
        with pytest.raises(GroupBroken, match="learner-1 stopped"):
            waiting.result(PATIENCE_S)


def test_a_new_group_of_the_same_learners_works_after_one_was_aborted(point: MeetingPoint) -> None:
    for _ in range(2):
        with _group(point) as groups:
            vectors = [torch.ones(2), torch.ones(2)]
            together([lambda g=g, v=v: g.sum(v) for g, v in zip(groups, vectors, strict=True)])
            assert vectors[0].tolist() == [2, 2]
            groups[0].abort()


def test_sums_end_at_whatever_moment_the_group_is_aborted(point: MeetingPoint) -> None:
    """An operation that begins while its connection breaks may never end by itself."""
    chance = random.Random(1)
    for _ in range(12):
        with _group(point) as groups, ThreadPoolExecutor(2) as threads:
            summing = [threads.submit(_sum_for_ever, group) for group in groups]
            time.sleep(chance.uniform(0.0, 0.02))  # the moment
            for group in groups:
                group.abort()
            for each in summing:
                assert isinstance(each.exception(PATIENCE_S), GroupBroken)


def _sum_for_ever(group: LearnerGroup) -> None:
    while True:
        group.sum(torch.ones(5_000))


def test_an_operation_that_does_not_end_is_left_to_itself(point: MeetingPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN", timedelta(milliseconds=10))
    with _group(point) as groups, ThreadPoolExecutor(1) as threads:
        sockets, groups[0]._sockets = groups[0]._sockets, []
        waiting = threads.submit(groups[0].sum, torch.ones(10))
        assert not waiting.done()
        groups[0].abort()
        with pytest.raises(GroupBroken, match="learner-1 stopped"):
            waiting.result(PATIENCE_S)
        groups[0].close()
        groups[0]._sockets = sockets


def test_one_who_does_not_come_breaks_the_group_by_its_name(
    point: MeetingPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 1.0)
    place = Place(next(_GENERATIONS), 0, ("learner-0", "learner-1"), store=point.address)
    with pytest.raises(GroupBroken, match="learner-1 did not meet"):
        _met(place)


def test_an_abort_ends_the_wait_for_one_who_does_not_come(point: MeetingPoint) -> None:
    group = LearnerGroup(Place(next(_GENERATIONS), 0, ("learner-0", "learner-1"), store=point.address))
    with ThreadPoolExecutor(1) as threads:
        meeting = threads.submit(group.meet)
        began_at = time.monotonic()
        group.abort()
        with pytest.raises(GroupBroken, match=r"learner-1 did not meet: the group was aborted|has ended"):
            meeting.result(PATIENCE_S)
    assert time.monotonic() - began_at < module.CONNECT_S / 3


def test_an_abort_ends_the_wait_for_a_store_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()[:2]
    group = LearnerGroup(Place(next(_GENERATIONS), 1, ("learner-0", "learner-1"), store=address))
    with ThreadPoolExecutor(1) as threads:
        meeting = threads.submit(group.meet)
        began_at = time.monotonic()
        group.abort()
        with pytest.raises(GroupBroken):
            meeting.result(PATIENCE_S)
    assert time.monotonic() - began_at < module.CONNECT_S / 3


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_learners_meet_at_an_ipv6_address() -> None:
    try:
        point = MeetingPoint("::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback address")
    with contextlib.closing(point), _group(point) as groups:
        vectors = [torch.ones(2), torch.ones(2)]
        together([lambda g=g, v=v: g.sum(v) for g, v in zip(groups, vectors, strict=True)])
        assert vectors[0].tolist() == [2, 2]


def test_on_gpus_an_abort_is_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation of NCCL is waited for on the device, and an abort lets it end there like any other."""
    group = LearnerGroup(Place(1, 0, ("learner-0", "learner-1"), backend="nccl"))
    processes = SimpleNamespace(
        allreduce=lambda vectors: SimpleNamespace(wait=lambda: None), abort=lambda: ended.append("operations")
    )
    ended: list[str] = []
    monkeypatch.setattr(group, "_processes", processes)
    stream = SimpleNamespace(record_event=lambda: SimpleNamespace(query=lambda: during_the_sum.pop()() is None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    during_the_sum = [group.abort, lambda: "not yet", lambda: None]
    group.sum(torch.ones(1))
    with pytest.raises(GroupBroken, match="learner-1 stopped in the midst of an update"):
        group.sum(torch.ones(1))
    assert ended == ["operations"]


def test_on_gpus_an_abort_ends_the_wait_for_one_who_does_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    was_aborted = threading.Event()

    def connects(device: torch.device) -> None:
        assert was_aborted.wait(PATIENCE_S)
        raise RuntimeError("NCCL communicator was aborted on rank 0.")

    processes = SimpleNamespace(eager_connect_single_device=connects, abort=was_aborted.set)
    monkeypatch.setattr(module, "_nccl", lambda store, place: processes)
    monkeypatch.setattr(module, "set_up_nccl", lambda host: None)
    point = MeetingPoint("127.0.0.1")
    names = ("learner-0", "learner-1")
    groups = [LearnerGroup(Place(1, rank, names, backend="nccl", store=point.address)) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        meeting = [threads.submit(each.meet) for each in groups]
        are_known = _soon(lambda: all(each._processes is not None for each in groups))
        groups[0].abort()
        broken = [each.exception(PATIENCE_S) for each in meeting]
    assert are_known
    assert {type(each) for each in broken} == {GroupBroken}
    point.close()


def test_nccl_is_to_give_up_by_itself_and_to_take_the_network_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*module.NCCL_SETTINGS, "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    module.set_up_nccl("127.0.0.1")
    assert {name: os.environ[name] for name in (*module.NCCL_SETTINGS, "NCCL_SOCKET_IFNAME")} == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # as somebody has said
        "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
        "TORCH_NCCL_NONBLOCKING_TIMEOUT": "15",
        "NCCL_SOCKET_IFNAME": "=lo",
    }
    module.set_up_nccl("192.0.2.255")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("NCCL error: unhandled cuda error: Failed to CUDA malloc: out of memory"),
    ],
)
def test_what_fails_of_its_own_device_is_not_the_others_fault(error: RuntimeError) -> None:
    def fails(vectors: list[torch.Tensor]) -> None:
        raise error

    group = LearnerGroup(Place(1, 0, ("learner-0", "learner-1")))
    group._processes = SimpleNamespace(allreduce=fails)  # type: ignore[assignment] # no more of it is used
    with pytest.raises(type(error)) as raised:
        group.sum(torch.ones(1))
    assert raised.value is error


def test_who_waits_for_another_says_that_it_gets_on(point: MeetingPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN", timedelta(milliseconds=10))
    told: list[None] = []
    with _group(point) as groups, ThreadPoolExecutor(1) as threads:
        groups[0]._gets_on = lambda: told.append(None)
        waiting = threads.submit(groups[0].sum, torch.ones(10))
        has_told = _soon(lambda: len(told) >= 3)
        groups[1].sum(torch.ones(10))
        waiting.result(PATIENCE_S)
    assert has_told


def test_an_operation_that_outlasts_the_abort_of_its_group_is_noticed() -> None:
    now, seen = 100.0, []

    def takes_long(vectors: list[torch.Tensor]) -> None:
        nonlocal now
        for each in (lambda: None, group.abort, lambda: None):
            each()
            now += 7.0
            seen.append(group.outlasts_abort_s)
        raise RuntimeError("aborted at last")

    group = LearnerGroup(Place(1, 0, ("learner-0", "learner-1")), clock=lambda: now)
    group._processes = SimpleNamespace(allreduce=takes_long)  # type: ignore[assignment] # no more of it is used
    with pytest.raises(GroupBroken, match="aborted at last"):
        group.sum(torch.ones(1))
    assert seen == [0.0, 7.0, 14.0]
    assert group.outlasts_abort_s == 0.0


def test_no_other_address_than_the_one_asked_for_is_listened_at(point: MeetingPoint) -> None:
    import psutil

    with _group(point):
        listening = {
            each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN
        }
    assert listening == {"127.0.0.1"}


def test_waiting_for_the_others_does_not_keep_other_threads_from_running(point: MeetingPoint) -> None:
    with _group(point) as groups, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(groups[0].sum, torch.ones(10))
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        assert ran.wait(PATIENCE_S)
        groups[1].sum(torch.ones(10))
        waiting.result(PATIENCE_S)
