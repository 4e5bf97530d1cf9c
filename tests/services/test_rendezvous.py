"""The learner's half of how groups come about, with a hub that is a list."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from parl_mq.services import rendezvous as module
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.rendezvous import Rendezvous, own_address
from parl_mq.services.runtime import StopSignal
from parl_mq.wire.messages import GroupEnded, GroupFormed, GroupWaiting, LearnerReady
from tests.services.builders import soon, until


@pytest.fixture
def link():
    sent = []
    return SimpleNamespace(send=sent.append, sent=sent, status=NodeStatus(), on_group=None)


@pytest.fixture
async def stop():
    return StopSignal()


@pytest.fixture
def rendezvous(link, stop):
    return Rendezvous(link, stop, device="cpu", store=("127.0.0.1", 5000))


def _formed(generation, rank=0):
    return GroupFormed(generation=generation, rank=rank, names=["learner-0", "learner-1"])


async def test_a_learner_says_again_that_it_is_ready_until_it_is_in_a_group(link, rendezvous, monkeypatch):
    monkeypatch.setattr(module, "REPEAT_S", 0.001)
    waiting = asyncio.create_task(rendezvous.next_group(updates=7))
    await until(lambda: len(link.sent) >= 3)
    assert set(map(LearnerReady.model_dump_json, link.sent)) == {
        LearnerReady(generation=0, updates=7, device="cpu", store=("127.0.0.1", 5000)).model_dump_json()
    }
    link.on_group(_formed(1))
    assert await soon(waiting) == _formed(1)


async def test_a_group_of_which_it_hears_twice_is_one(link, rendezvous):
    waiting = asyncio.create_task(rendezvous.next_group(updates=0))
    await until(lambda: link.sent)
    link.on_group(_formed(1))
    link.on_group(_formed(1))
    await soon(waiting)
    again = asyncio.create_task(rendezvous.next_group(updates=3))
    await until(lambda: len(link.sent) == 2)
    assert link.sent[1].generation == 1  # the group that is over with this
    link.on_group(_formed(1))
    link.on_group(_formed(2))
    assert (await soon(again)).generation == 2


async def test_who_is_missing_is_what_it_waits_for_and_the_reason_is_told_once(link, rendezvous, caplog):
    waiting = asyncio.create_task(rendezvous.next_group(updates=0, reason="learner-1 stopped"))
    await until(lambda: link.sent)
    assert caplog.text == ""
    for _ in range(2):
        link.on_group(GroupWaiting(reason="the group to be complete; missing: learner-1"))
    assert link.status.waiting_for == "the group to be complete; missing: learner-1"
    assert caplog.text.count("the group of learners is over: learner-1 stopped") == 1
    waiting.cancel()


async def test_only_the_end_of_the_group_asked_about_counts(link, rendezvous):
    waiting = asyncio.create_task(rendezvous.ended(2))
    await asyncio.sleep(0)
    link.on_group(GroupEnded(generation=1, reason="old"))
    await asyncio.sleep(0)
    assert not waiting.done()
    link.on_group(GroupEnded(generation=2, reason="learner-0 has left"))
    assert await soon(waiting) == "learner-0 has left"


async def test_what_it_reports_is_the_last_group_that_it_was_in(link, rendezvous):
    """Not one that ended before it heard of it: for the hub, it would have left the one that was formed since."""
    link.on_group(_formed(1))
    link.on_group(GroupEnded(generation=1, reason="learner-0 has given no sign of life for 11 s"))
    waiting = asyncio.create_task(rendezvous.next_group(updates=0))
    await until(lambda: link.sent)
    assert [each.generation for each in link.sent] == [0]
    assert not waiting.done()
    link.on_group(_formed(2))
    link.on_group(_formed(3))
    assert (await soon(waiting)).generation == 3
    asyncio.create_task(rendezvous.next_group(updates=0)).cancel()


async def test_a_group_is_over_with_the_word_of_a_newer_one_and_with_that_of_having_no_place(link, rendezvous):
    link.on_group(_formed(1))
    assert rendezvous.take_formed() == _formed(1)
    assert not rendezvous.has_ended(1)
    link.on_group(_formed(2))
    assert rendezvous.has_ended(1)
    assert await soon(rendezvous.ended(1)) == "another group has been formed"
    assert rendezvous.take_formed() == _formed(2)
    assert not rendezvous.has_ended(2)
    link.on_group(GroupWaiting(reason="a place in the group"))
    assert rendezvous.has_ended(2)


async def test_no_group_that_the_stop_ends_has_ended_before(link, rendezvous, stop):
    link.on_group(_formed(1))
    rendezvous.take_formed()
    stop.set("enough")
    link.on_group(GroupEnded(generation=1, reason="learner-1 has left"))
    assert not rendezvous.has_ended(1)


def test_on_one_host_learners_meet_at_the_loopback_address():
    assert own_address("ipc:///run/hub") == "127.0.0.1"
    assert own_address("tcp://127.0.0.1:7000") == "127.0.0.1"
    assert own_address("tcp://localhost:7000") in ("127.0.0.1", "::1")


def test_elsewhere_at_the_address_that_leads_to_the_hub(monkeypatch):
    asked = []

    class Route(socket.socket):
        def connect(self, address):
            asked.append(address)

        def getsockname(self):
            return ("192.0.2.7", 4000)

    monkeypatch.setattr(socket, "socket", Route)
    assert own_address("tcp://192.0.2.1:7000") == "192.0.2.7"
    assert asked == [("192.0.2.1", 7000)]
