"""The learner's and the actor's link to a replay node, over the in-memory channel; the test plays the replay node."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from parl_mq.errors import EXIT_CONFIG, ParlError, Refused, exit_code_of
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services.runtime import first_cause
from parl_mq.services.sample_client import ANSWER, SampleClient
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    Attach,
    Attached,
    AttachRefused,
    SampleRefused,
    SampleReply,
    SampleRequest,
    SampleWaiting,
    SayHello,
    ToReplay,
    UpdatePriorities,
    UpdateRefused,
)
from tests.services.builders import attach, soon, until

ATTACHED = Attached(ring_id="ring", last_sequence=None, counted_rows=0, counted_bytes=0, credit_rows=0, credit_bytes=0)


class Replay:
    """A replay node whose every message the test sends."""

    def __init__(self, network):
        self.received = []
        self._server = network.bind("replay")
        self._decode = Decoder(ToReplay)
        self._peer = b""

    async def run(self):
        while True:
            for peer, frames in await self._server.receive_many():
                self._peer = peer
                self.received.append(self._decode(frames))

    async def next(self, kind):
        """The next message, which must be of this kind, and its arrays."""
        await until(lambda: self.received)
        message, arrays = self.received.pop(0)
        assert isinstance(message, kind)
        return message, arrays

    def say(self, message, arrays=None):
        self._server.try_send(self._peer, encode(message, arrays or {}))

    def answer(self, request):
        arrays = {"keys": np.full(8, request.request_id, np.uint64)}
        reply = SampleReply(request_id=request.request_id, num_live=10, total_priority=1.0, num_inserted=0, num_drawn=8)
        self.say(reply, arrays)


@asynccontextmanager
async def linked(prefetch=2):
    """A client that is not attached yet, and its replay node."""
    network = MemoryNetwork()
    replay = Replay(network)
    channel = network.connect("replay")
    client = SampleClient(channel, attach("learner"), batch_size=8, prefetch=prefetch)
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(replay.run()), tasks.create_task(client.run())]
        try:
            yield client, replay, channel
        finally:
            for task in background:
                task.cancel()


async def begin(replay, prefetch=2):
    """The client attaches; returns its first requests."""
    await replay.next(Attach)
    replay.say(ATTACHED)
    return [(await replay.next(SampleRequest))[0] for _ in range(prefetch)]


async def end_after(message):
    """What the client ends with when it hears this message."""

    async def hear():
        async with linked() as (client, replay, _):
            await replay.next(Attach)
            replay.say(message)
            await soon(client.next_batch())

    with pytest.raises(BaseExceptionGroup) as raised:
        await hear()
    return first_cause(raised.value)


async def test_as_many_requests_are_outstanding_as_are_to_be_prefetched():
    async with linked(prefetch=3) as (client, replay, _):
        requests = await begin(replay, 3)
        client.ask()
        await asyncio.sleep(0)
        assert [request.request_id for request in requests] == [0, 1, 2]
        assert replay.received == []


async def test_nothing_is_asked_before_the_replay_node_has_said_yes():
    async with linked() as (client, replay, _):
        await replay.next(Attach)
        client.ask()
        await asyncio.sleep(0)
        assert replay.received == []


async def test_batches_come_in_the_order_of_their_arrival_and_each_makes_room_for_one_request():
    async with linked() as (client, replay, _):
        first, second = await begin(replay)
        replay.answer(second)
        replay.answer(first)
        batches = [await soon(client.next_batch()), await soon(client.next_batch())]
        assert [batch.reply.request_id for batch in batches] == [1, 0]
        client.ask()
        assert [(await replay.next(SampleRequest))[0].request_id for _ in range(2)] == [2, 3]


async def test_all_batches_that_are_there_are_taken_at_once():
    async with linked() as (client, replay, _):
        for request in await begin(replay):
            replay.answer(request)
        await until(lambda: client._batches.full())
        assert len(client.ready_batches()) == 2
        assert client.ready_batches() == []


async def test_priorities_ride_on_the_next_request():
    async with linked() as (client, replay, _):
        for request in await begin(replay):
            replay.answer(request)
        for value in (1.0, 2.0):
            client.give_back(await soon(client.next_batch()), np.full(8, value))
        client.ask()
        _, arrays = await replay.next(SampleRequest)
        assert arrays["keys"].tolist() == [0] * 8 + [1] * 8
        assert arrays["magnitudes"].tolist() == [1.0] * 8 + [2.0] * 8
        assert (await replay.next(SampleRequest))[1] == {}


async def test_the_last_priorities_go_alone_and_only_if_there_are_any():
    async with linked() as (client, replay, _):
        first, _ = await begin(replay)
        client.send_last_priorities()
        replay.answer(first)
        client.give_back(await soon(client.next_batch()), np.ones(8))
        client.send_last_priorities()
        _, arrays = await replay.next(UpdatePriorities)
        assert arrays["magnitudes"].tolist() == [1.0] * 8


async def test_without_a_connection_nothing_is_waited_for_and_priorities_are_kept():
    async with linked() as (client, replay, channel):
        first, _ = await begin(replay)
        replay.answer(first)
        batch = await soon(client.next_batch())
        channel.cut()
        client.give_back(batch, np.ones(8))
        client.ask()
        client.send_last_priorities()
        channel.revive()
        await begin(replay, prefetch=2)
        client.send_last_priorities()
        assert (await replay.next(UpdatePriorities))[1]["magnitudes"].tolist() == [1.0] * 8


async def test_after_a_reconnect_what_is_unanswered_is_asked_again_and_no_answer_counts_twice():
    async with linked() as (client, replay, channel):
        first, second = await begin(replay)
        channel.cut()
        channel.revive()
        assert await begin(replay) == [first, second]
        replay.answer(first)
        replay.answer(first)
        replay.answer(second)
        batches = [await soon(client.next_batch()), await soon(client.next_batch())]
        assert [batch.reply.request_id for batch in batches] == [0, 1]


async def test_it_attaches_again_when_it_is_asked_to():
    async with linked() as (_, replay, _):
        await begin(replay)
        replay.say(SayHello())
        assert (await replay.next(Attach))[0] == attach("learner")


async def test_it_knows_what_is_waited_for():
    async with linked() as (client, replay, _):
        await begin(replay)
        replay.say(SampleWaiting(reason="new rows"))
        await until(lambda: client.waiting_for == "new rows")


async def test_a_batch_ends_what_was_waited_for():
    async with linked() as (client, replay, _):
        (first, *_) = await begin(replay)
        replay.say(SampleWaiting(reason="new rows"))
        await until(lambda: client.waiting_for == "new rows")
        replay.answer(first)
        await client.next_batch()
        assert client.waiting_for == ANSWER


@pytest.mark.parametrize(
    "refusal", [SampleRefused(request_id=0, reason="too many"), UpdateRefused(reason="nan is no priority")]
)
async def test_a_refusal_ends_the_learner_with_the_reason(refusal):
    error = await end_after(refusal)
    assert isinstance(error, ParlError)
    assert refusal.reason in str(error)


async def test_a_client_that_may_not_attach_ends_with_the_code_it_was_given():
    error = await end_after(AttachRefused(reason="other columns", exit_code=EXIT_CONFIG))
    assert isinstance(error, Refused)
    assert exit_code_of(error) == EXIT_CONFIG
    assert "other columns" in str(error)
