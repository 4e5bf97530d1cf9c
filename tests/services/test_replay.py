"""A replay node's service loop over the in-memory channel."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from parl_mq.net.channel import LinkEvent
from parl_mq.net.conduct import FAULTS
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.replay.table import Table
from parl_mq.services import replay, replay_desk
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.notify import WorkWatch
from parl_mq.services.replay import ReplayNode
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.runtime import StopSignal, WorkThread
from parl_mq.services.tables import limiter, table_settings
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import Attached, FromReplay, InsertFragments, InsertRefused, SampleReply, SampleRequest
from tests.services.builders import SPEC, attach, fragments, small_config, soon, until

HOSTILE = [[b""], [b"\x80\x04\x95"], [bytes(64)], [b"\xff" * 1000, b"slab"], [b"\xdd\xff\xff\xff\xff"]]


class Scene:
    def __init__(self):
        config = small_config()
        self.network = MemoryNetwork()
        self.status = NodeStatus()
        self.stop = StopSignal()
        self.table = table = Table(table_settings(config), SPEC, directory=None, rng=np.random.default_rng(1))
        desk = ReplayDesk(table, limiter(config), SPEC, config, "run")
        self.told = []  # to the hub
        link = SimpleNamespace(status=self.status, send=self.told.append, deliver=self.told.append)
        self.work = WorkThread("rows")
        self.node = ReplayNode(link, self.network.bind("replay"), desk, self.work)
        self._decode = Decoder(FromReplay)

    async def client(self, role):
        channel = self.network.connect("replay")
        await channel.send(encode(attach(role)))
        await self.hear(channel, Attached)
        return channel

    async def hear(self, channel, kind):
        while True:
            for frames in await soon(channel.receive_many()):
                message, _ = self._decode(frames)
                if isinstance(message, kind):
                    return message

    async def insert(self, channel, *sequences):
        for sequence in sequences:
            await channel.send(encode(InsertFragments(sequence=sequence, table="main"), arrays_of(fragments(4))))


@pytest.fixture
async def scene():
    made = Scene()
    made.task = asyncio.create_task(made.node.run(made.stop))
    yield made
    made.stop.set("the test is over")
    await soon(made.task)


async def test_rows_that_an_actor_sends_reach_a_learner_that_waits(scene):
    learner, actor = await scene.client("learner"), await scene.client("actor")
    await learner.send(encode(SampleRequest(request_id=5, table="main", batch_size=8)))
    await until(lambda: scene.status.waiting_for == "the actors to fill the replay: 0 of 10 rows")
    await scene.insert(actor, 0, 1, 2)
    assert (await scene.hear(learner, SampleReply)).request_id == 5
    await until(lambda: scene.status.counters["drawn_rows_total"] == 8)
    assert scene.status.counters["inserted_rows_total"] == 12


async def test_hostile_frames_are_counted_logged_once_and_serving_goes_on(scene, caplog):
    stranger = scene.network.connect("replay")
    for frames in HOSTILE * (FAULTS.burst // len(HOSTILE)):
        await stranger.send(frames)
    actor = await scene.client("actor")
    await scene.insert(actor, 0)
    await until(lambda: scene.status.counters.get("inserted_rows_total") == 4)
    assert scene.status.counters["dropped_messages_total"] == FAULTS.burst
    assert scene.status.counters["cut_connections_total"] == 0
    assert len([record for record in caplog.records if "dropped a message" in record.message]) == 1


async def test_a_peer_that_sends_too_many_hostile_frames_is_cut_and_the_others_are_served(scene, caplog):
    actor, stranger = await scene.client("actor"), scene.network.connect("replay")
    assert await soon(stranger.next_event()) is LinkEvent.CONNECTED
    for _ in range(FAULTS.burst + 1):
        await stranger.send(HOSTILE[0])
    assert await soon(stranger.next_event()) is LinkEvent.DISCONNECTED
    await scene.insert(actor, 0)
    await until(lambda: scene.status.counters.get("inserted_rows_total") == 4)
    assert scene.status.counters["cut_connections_total"] == 1
    assert len([record for record in caplog.records if "closed the connection" in record.message]) == 1


async def test_rows_of_another_dtype_are_answered_with_field_got_and_expected_and_counted(scene, caplog):
    actor = await scene.client("actor")
    rows = fragments(4)
    arrays = {**arrays_of(rows), "obs": rows.columns["obs"].astype(np.float64)}
    await actor.send(encode(InsertFragments(sequence=0, table="main"), arrays))
    refused = await scene.hear(actor, InsertRefused)
    assert refused.reason == "field obs: got float64 (5, 4), expected float32 (R, 4)"
    await until(lambda: scene.status.counters.get("dropped_messages_total") == 1)
    assert [refused.reason in record.message for record in caplog.records] == [True]


async def test_rows_far_beyond_the_credit_are_refused(scene):
    actor = await scene.client("actor")
    for sequence in range(20):  # all of them before any new credit is granted
        assert actor.try_send(encode(InsertFragments(sequence=sequence, table="main"), arrays_of(fragments(4))))
    assert "beyond its credit" in (await scene.hear(actor, InsertRefused)).reason


async def test_a_learner_that_went_away_is_forgotten_and_nothing_is_drawn_for_it_twice(scene):
    learner, actor = await scene.client("learner"), await scene.client("actor")
    for number in range(3):
        await learner.send(encode(SampleRequest(request_id=number, table="main", batch_size=8)))
    await until(lambda: scene.status.waiting_for == "the actors to fill the replay: 0 of 10 rows")
    learner.cut()
    await scene.insert(actor, 0, 1, 2)
    await until(lambda: scene.status.counters["drawn_rows_total"])
    await until(lambda: scene.node._desk._clients.keys().isdisjoint({b"peer-1"}))
    learner.revive()
    await learner.send(encode(attach("learner")))
    await learner.send(encode(SampleRequest(request_id=9, table="main", batch_size=8)))
    assert (await scene.hear(learner, SampleReply)).request_id == 9


async def test_the_hub_is_told_what_is_stored_of_each_stream_last_of_all_at_the_end(scene):
    actor = await scene.client("actor")
    await scene.insert(actor, 0, 1)
    await until(lambda: scene.status.counters.get("inserted_rows_total") == 8)
    scene.stop.set("enough")
    await soon(scene.task)
    assert scene.told[-1].accounts == [("actor-0", 1, 8)]


class HeldUp:
    """Stands for a method of a table that takes long: until the test lets it go on, which takes a loop that runs."""

    def __init__(self, method):
        self._method = method
        self._goes_on = threading.Event()
        self.has_begun = threading.Event()

    def __call__(self, *args, **kwargs):
        self.has_begun.set()
        assert self._goes_on.wait(10), "the loop stood still"
        return self._method(*args, **kwargs)

    async def passes(self):
        await until(self.has_begun.is_set)
        self._goes_on.set()


async def test_the_loop_goes_on_while_a_large_batch_is_copied(monkeypatch, scene):
    learner, actor = await scene.client("learner"), await scene.client("actor")
    await scene.insert(actor, 0, 1, 2)
    await until(lambda: scene.status.counters.get("inserted_rows_total") == 12)
    monkeypatch.setattr(replay_desk, "LOOP_BYTES", 1)
    monkeypatch.setattr(scene.table, "draw", HeldUp(scene.table.draw))
    await learner.send(encode(SampleRequest(request_id=5, table="main", batch_size=8, num_batches=2)))
    await scene.table.draw.passes()
    assert (await scene.hear(learner, SampleReply)).request_id == 5


async def test_the_loop_goes_on_while_a_large_message_is_stored(monkeypatch, scene):
    actor = await scene.client("actor")
    monkeypatch.setattr(replay, "LOOP_BYTES", 1)
    monkeypatch.setattr(scene.table, "insert", HeldUp(scene.table.insert))
    await scene.insert(actor, 0)
    await scene.table.insert.passes()
    await until(lambda: scene.status.counters.get("inserted_rows_total") == 4)


# Signs of life


async def test_a_node_that_nobody_asks_anything_lives(scene):
    await scene.insert(await scene.client("actor"), 0)
    await until(lambda: scene.status.counters.get("inserted_rows_total"))
    passing = 0.0

    def clock():
        return passing

    watch = WorkWatch(scene.status, scene.work, 60.0, clock)
    for _ in range(3):
        seen, passing = scene.status.progress, passing + 61.0
        await until(lambda seen=seen: scene.status.progress > seen)
        assert watch.is_alive()
    assert scene.status.waiting_for is None


async def test_a_node_whose_thread_hangs_while_somebody_waits_does_not_live(scene, monkeypatch):
    monkeypatch.setattr(replay, "LOOP_BYTES", 0)  # every message is taken in the thread
    learner = await scene.client("learner")
    await learner.send(encode(SampleRequest(request_id=5, table="main", batch_size=8)))
    await until(lambda: scene.status.waiting_for)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_):
        hangs.set()
        goes_on.wait(30)

    monkeypatch.setattr(scene.node._desk, "handle", hang)
    actor = scene.network.connect("replay")
    await actor.send(encode(attach("actor")))
    await asyncio.to_thread(hangs.wait, 30)
    times = iter([0.0, 0.0, 61.0])
    try:
        watch = WorkWatch(scene.status, None, 60.0, lambda: next(times))
        assert [watch.is_alive(), watch.is_alive()] == [True, False]
    finally:
        goes_on.set()
