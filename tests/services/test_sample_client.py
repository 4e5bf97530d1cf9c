"""The learner's and the actor's link to a replay node, over the in-memory channel; the test plays the replay node."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from parl_mq.errors import EXIT_CONFIG, ParlError, Refused, WireError, exit_code_of
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.replay.table import Table
from parl_mq.services.row_map import RowMap
from parl_mq.services.runtime import first_cause
from parl_mq.services.sample_client import ANSWER, SampleClient
from parl_mq.services.tables import make_ring_directory, table_settings
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
from tests.services.builders import SPEC, attach, fragments, small_config, soon, until

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

    def answer(self, request, *marks):
        """One reply with a batch for each mark, which stands in its keys."""
        arrays = {"keys": np.repeat(np.array(marks, np.uint64), 8)}
        self.say(reply_to(request, len(marks)), arrays)


def reply_to(request, num_batches=1):
    return SampleReply(
        request_id=request.request_id,
        num_live=40,
        total_priority=1.0,
        num_inserted=0,
        num_drawn=8,
        num_batches=num_batches,
    )


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


async def begin(replay, attached=ATTACHED):
    """The client attaches; returns its first request."""
    await replay.next(Attach)
    replay.say(attached)
    return (await replay.next(SampleRequest))[0]


def marks(batches):
    """What the batches were marked with."""
    assert all(len(batch.arrays["keys"]) == 8 for batch in batches)
    return [int(batch.arrays["keys"][0]) for batch in batches]


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


async def test_as_many_batches_are_asked_for_as_are_to_be_prefetched_in_one_message():
    async with linked(prefetch=3) as (client, replay, _):
        request = await begin(replay)
        client.ask()
        await asyncio.sleep(0)
        assert (request.request_id, request.num_batches, request.batch_size) == (0, 3, 8)
        assert replay.received == []


async def test_nothing_is_asked_before_the_replay_node_has_said_yes():
    async with linked() as (client, replay, _):
        await replay.next(Attach)
        client.ask()
        await asyncio.sleep(0)
        assert replay.received == []


async def test_batches_come_in_the_order_of_their_arrival_and_each_makes_room_for_one():
    async with linked(prefetch=3) as (client, replay, _):
        request = await begin(replay)
        replay.answer(request, 7)
        replay.answer(request, 5, 6)
        assert marks([await soon(client.next_batch()) for _ in range(2)]) == [7, 5]
        client.ask()
        following, _ = await replay.next(SampleRequest)
        assert (following.request_id, following.num_batches) == (1, 2)
        replay.answer(following, 9)
        assert marks([await soon(client.next_batch()) for _ in range(2)]) == [6, 9]


async def test_all_batches_that_are_there_are_taken_at_once():
    async with linked() as (client, replay, _):
        replay.answer(await begin(replay), 1, 2)
        await until(lambda: client._batches.full())
        assert marks(client.ready_batches()) == [1, 2]
        assert client.ready_batches() == []


async def test_priorities_ride_on_the_next_request():
    async with linked() as (client, replay, _):
        replay.answer(await begin(replay), 0, 1)
        for value in (1.0, 2.0):
            client.give_back(await soon(client.next_batch()), np.full(8, value))
        client.ask()
        following, arrays = await replay.next(SampleRequest)
        assert following.num_batches == 2
        assert arrays["keys"].tolist() == [0] * 8 + [1] * 8
        assert arrays["magnitudes"].tolist() == [1.0] * 8 + [2.0] * 8


async def test_the_last_priorities_go_alone_and_only_if_there_are_any():
    async with linked() as (client, replay, _):
        request = await begin(replay)
        client.send_last_priorities()
        replay.answer(request, 1)
        client.give_back(await soon(client.next_batch()), np.ones(8))
        client.send_last_priorities()
        _, arrays = await replay.next(UpdatePriorities)
        assert arrays["magnitudes"].tolist() == [1.0] * 8


async def test_without_a_connection_nothing_is_waited_for_and_priorities_are_kept():
    async with linked() as (client, replay, channel):
        replay.answer(await begin(replay), 1)
        batch = await soon(client.next_batch())
        channel.cut()
        client.give_back(batch, np.ones(8))
        client.ask()
        client.send_last_priorities()
        channel.revive()
        await begin(replay)
        assert (await replay.next(SampleRequest))[1]["magnitudes"].tolist() == [1.0] * 8


async def test_after_a_reconnect_what_is_unanswered_is_asked_again_and_no_answer_counts_twice():
    async with linked(prefetch=3) as (client, replay, channel):
        request = await begin(replay)
        replay.answer(request, 1)
        assert marks([await soon(client.next_batch())]) == [1]
        client.ask()
        following, _ = await replay.next(SampleRequest)
        channel.cut()
        channel.revive()
        again = await begin(replay)
        assert again == request.model_copy(update={"num_batches": 2})
        assert (await replay.next(SampleRequest))[0] == following
        replay.answer(following, 2)
        replay.answer(following, 3)
        replay.answer(again, 4, 5)
        assert marks([await soon(client.next_batch()) for _ in range(3)]) == [2, 4, 5]


async def test_nothing_is_asked_twice_while_the_replay_node_has_not_said_yes_again():
    async with linked(prefetch=1) as (client, replay, channel):
        replay.answer(await begin(replay), 1)
        batch = await soon(client.next_batch())
        channel.cut()
        channel.revive()
        await replay.next(Attach)
        client.give_back(batch, np.ones(8))
        client.ask()
        replay.say(ATTACHED)
        assert (await replay.next(SampleRequest))[0].request_id == 1
        await asyncio.sleep(0)
        assert replay.received == []


@pytest.mark.parametrize(("ring_id", "expected"), [("ring", [1.0] * 8), ("another", [])])
async def test_priorities_go_again_with_the_request_that_they_rode_on_unless_their_ring_is_gone(ring_id, expected):
    async with linked(prefetch=1) as (client, replay, channel):
        replay.answer(await begin(replay), 1)
        client.give_back(await soon(client.next_batch()), np.ones(8))
        client.ask()
        request, _ = await replay.next(SampleRequest)
        channel.cut()
        channel.revive()
        await replay.next(Attach)
        replay.say(ATTACHED.model_copy(update={"ring_id": ring_id}))
        again, arrays = await replay.next(SampleRequest)
        assert again == request
        assert [*arrays.get("magnitudes", [])] == expected


@pytest.mark.parametrize("arrays", [{"keys": np.zeros(16, np.uint64)}, {"keys": np.zeros(23, np.uint64)}, {}])
async def test_a_reply_of_another_size_than_it_says_or_was_asked_for_ends_the_learner(arrays):
    num_batches = {16: 1, 23: 2, 0: 3}[len(arrays.get("keys", ()))]

    async def hear():
        async with linked() as (client, replay, _):
            replay.say(reply_to(await begin(replay), num_batches), arrays)
            await soon(client.next_batch())

    with pytest.raises(BaseExceptionGroup) as raised:
        await hear()
    assert isinstance(first_cause(raised.value), WireError)


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
        request = await begin(replay)
        replay.say(SampleWaiting(reason="new rows"))
        await until(lambda: client.waiting_for == "new rows")
        replay.answer(request, 1)
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


class Ring:
    """The table of a replay node on this host; replies bring keys of its rows."""

    def __init__(self, tmp_path):
        self.config = small_config(f"node.ring_directory={tmp_path}", "replay.buffer_size=40")
        self.make("replay-0")

    def make(self, name):
        directory = make_ring_directory(self.config.node, "run", name)
        self.table = Table(table_settings(self.config), SPEC, directory=directory, rng=np.random.default_rng(1))
        self.attached = ATTACHED.model_copy(update={"ring_id": self.table.ring_id})
        for first in range(0, 40, 4):
            self.table.insert(fragments(4, first=first))

    def answer(self, replay, request, draw=None):
        """Says the keys of a draw; returns the draw with its rows."""
        draw = draw or self.table.draw(8)
        replay.say(reply_to(request), {"keys": draw.keys, "probabilities": draw.probabilities})
        return draw


@asynccontextmanager
async def mapped(tmp_path, prefetch=2, mode="auto"):
    """A client with a row map, not attached yet."""
    ring, network = Ring(tmp_path), MemoryNetwork()
    replay, channel = Replay(network), network.connect("replay")
    row_map = RowMap(
        ring.config.model_copy(update={"learner": ring.config.learner.model_copy(update={"mapped": mode})}), SPEC, "run"
    )
    client = SampleClient(channel, attach("learner"), batch_size=8, prefetch=prefetch, row_map=row_map)
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(replay.run()), tasks.create_task(client.run())]
        try:
            yield client, replay, channel, ring
        finally:
            for task in background:
                task.cancel()


async def test_where_the_ring_is_mapped_keys_are_asked_for_and_the_batch_has_their_rows(tmp_path):
    async with mapped(tmp_path) as (client, replay, _, ring):
        request = await begin(replay, ring.attached)
        assert not request.rows
        for _ in range(2):
            draw = ring.answer(replay, request)
            batch = await soon(client.next_batch())
            assert batch.arrays.keys() == {*draw.columns, "keys", "probabilities"}
            for name, column in draw.arrays().items():
                np.testing.assert_array_equal(batch.arrays[name], column, strict=True)
            assert batch.num_torn == 0


async def test_switched_off_rows_are_asked_for(tmp_path):
    async with mapped(tmp_path, mode="off") as (_, replay, _, ring):
        assert (await begin(replay, ring.attached)).rows


async def test_a_map_that_must_be_and_cannot_ends_the_learner_with_the_reason(tmp_path):
    async def attach_elsewhere():
        async with mapped(tmp_path, mode="on") as (client, replay, _, _):
            await replay.next(Attach)
            replay.say(ATTACHED)
            await soon(client.next_batch())

    with pytest.raises(BaseExceptionGroup) as raised:
        await attach_elsewhere()
    error = first_cause(raised.value)
    assert exit_code_of(error) == EXIT_CONFIG
    assert "learner.mapped = on" in str(error)


async def test_torn_rows_keep_their_place_at_probability_0_and_their_priorities_stay_here(tmp_path):
    async with mapped(tmp_path) as (client, replay, _, ring):
        request = await begin(replay, ring.attached)
        draw = ring.table.draw(8)
        while not (is_torn := draw.columns["obs"][:, 0] < 8).any() or is_torn.all():
            draw = ring.table.draw(8)
        for start in range(100, 108, 4):
            ring.table.insert(fragments(4, first=start))
        ring.answer(replay, request, draw)
        batch = await soon(client.next_batch())
        assert batch.num_torn == client.num_torn == is_torn.sum()
        np.testing.assert_array_equal(batch.arrays["probabilities"] == 0.0, is_torn)
        np.testing.assert_array_equal(batch.arrays["obs"][~is_torn], draw.columns["obs"][~is_torn])
        assert batch.arrays["obs"].shape == (8, 4)
        client.give_back(batch, np.arange(8.0))
        client.ask()
        _, arrays = await replay.next(SampleRequest)
        np.testing.assert_array_equal(arrays["keys"], draw.keys[~is_torn])
        np.testing.assert_array_equal(arrays["magnitudes"], np.arange(8.0)[~is_torn])


async def test_a_batch_whose_rows_have_all_gone_is_asked_for_once_more(tmp_path):
    async with mapped(tmp_path, prefetch=1) as (client, replay, _, ring):
        request = await begin(replay, ring.attached)
        old = ring.table.draw(8)
        for first in range(100, 140, 4):
            ring.table.insert(fragments(4, first=first))
        ring.answer(replay, request, old)
        again, _ = await replay.next(SampleRequest)
        assert (again.request_id, again.num_batches) == (1, 1)
        draw = ring.answer(replay, again)
        np.testing.assert_array_equal((await soon(client.next_batch())).arrays["obs"], draw.columns["obs"])
        assert client.num_torn == 8


async def test_after_a_loss_the_ring_is_let_go_and_the_new_one_mapped(tmp_path):
    async with mapped(tmp_path) as (client, replay, channel, ring):
        request = await begin(replay, ring.attached)
        channel.cut()
        await until(lambda: client._row_map.table is None)
        ring.table.close()
        ring.make("replay-again")
        channel.revive()
        assert await begin(replay, ring.attached) == request
        draw = ring.answer(replay, request)
        np.testing.assert_array_equal((await soon(client.next_batch())).arrays["obs"], draw.columns["obs"])


async def test_a_ring_that_cannot_be_mapped_after_a_loss_sends_the_same_request_for_rows(tmp_path):
    async with mapped(tmp_path) as (client, replay, channel, ring):
        request = await begin(replay, ring.attached)
        channel.cut()
        channel.revive()
        again = await begin(replay)
        assert again == request.model_copy(update={"rows": True})
        replay.answer(again, 3)
        assert marks([await soon(client.next_batch())]) == [3]


async def test_given_back_arrays_are_used_again_and_others_never(tmp_path):
    async with mapped(tmp_path) as (client, replay, _, ring):
        request = await begin(replay, ring.attached)
        ring.answer(replay, request)
        held = await soon(client.next_batch())
        kept = held.arrays["obs"].copy()
        ring.answer(replay, request)
        returned = await soon(client.next_batch())
        client.give_back(returned, np.ones(8))
        client.ask()
        following, _ = await replay.next(SampleRequest)
        for _ in range(2):
            ring.answer(replay, following)
        newest = [await soon(client.next_batch()) for _ in range(2)]
        assert [np.shares_memory(batch.arrays["obs"], returned.arrays["obs"]) for batch in newest] == [True, False]
        np.testing.assert_array_equal(held.arrays["obs"], kept)


@pytest.mark.parametrize(
    "arrays",
    [
        {"keys": np.zeros(8, np.uint64)},
        {"keys": np.zeros(7, np.uint64), "probabilities": np.ones(7)},
        {"keys": np.full(8, 2**63, np.uint64), "probabilities": np.ones(8)},
    ],
    ids=["one array", "another size", "foreign keys"],
)
async def test_a_reply_that_no_rows_can_be_read_for_ends_the_learner(tmp_path, arrays):
    async def hear():
        async with mapped(tmp_path) as (client, replay, _, ring):
            replay.say(reply_to(await begin(replay, ring.attached)), arrays)
            await soon(client.next_batch())

    with pytest.raises(BaseExceptionGroup) as raised:
        await hear()
    assert isinstance(first_cause(raised.value), WireError)
