"""The actor's half of the weights plane, against the hub's store over the in-memory channel."""

import asyncio

import pytest

from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services.weights_client import WeightsClient
from parl_mq.services.weights_exchange import announcement, chunk_frames
from parl_mq.services.weights_store import WeightsStore
from parl_mq.wire.codec import Decoder
from parl_mq.wire.messages import CHUNK_BYTES, ChunkWanted, Weights, WeightsWanted
from tests.services.builders import snapshot, soon, until


class Hub:
    """Serves a store; a test hands versions to it as a learner would, and can damage what leaves."""

    def __init__(self, network):
        self.store = WeightsStore()
        self.asked = []
        self.num_to_damage = 0
        self._server = network.bind("weights")
        self._decode = Decoder(Weights)

    async def run(self):
        while True:
            for peer, frames in await self._server.receive_many():
                message, arrays = self._decode(frames)
                self.asked.append(message)
                self._send(self.store.handle(peer, message, arrays, 0.0))

    def receive(self, version):
        """A learner hands this version over."""
        replies = self.store.handle(b"learner", announcement(version), {}, 0.0)
        while replies:
            peer, frames = replies.pop(0)
            if peer != b"learner":
                self._send([(peer, frames)])
                continue
            message, _ = self._decode([memoryview(frame) for frame in frames])
            if isinstance(message, ChunkWanted):
                chunk = [memoryview(frame) for frame in chunk_frames(message, [version])]
                replies += self.store.handle(peer, *self._decode(chunk), 0.0)

    def _send(self, replies):
        for peer, frames in replies:
            if len(frames) == 2 and self.num_to_damage:
                self.num_to_damage -= 1
                frames = [frames[0], bytes(len(frames[1]))]
            self._server.try_send(peer, frames)


@pytest.fixture
async def hub_and_client():
    network = MemoryNetwork()
    hub, channel = Hub(network), network.connect("weights")
    client = WeightsClient(channel)
    tasks = [asyncio.create_task(hub.run()), asyncio.create_task(client.run())]
    yield hub, client, channel
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_newest_version_is_pulled_and_those_between_are_skipped(hub_and_client):
    hub, client, _ = hub_and_client
    for counter in range(3):
        hub.receive(snapshot(1, counter))
    assert await soon(client.newer()) == snapshot(1, 2)


async def test_the_same_version_is_never_given_twice(hub_and_client):
    hub, client, _ = hub_and_client
    hub.receive(snapshot(1, 0))
    await soon(client.newer())
    waiting = asyncio.create_task(client.newer())
    await until(lambda: hub.asked[-1] == WeightsWanted(newer_than=(1, 0)))
    assert not waiting.done()
    hub.receive(snapshot(1, 1))
    assert await soon(waiting) == snapshot(1, 1)


async def test_a_large_version_comes_in_chunks(hub_and_client):
    hub, client, _ = hub_and_client
    large = snapshot(1, 0, num_bytes=6 * CHUNK_BYTES + 1)
    hub.receive(large)
    assert await soon(client.newer()) == large
    assert sorted(asked.chunk for asked in hub.asked if isinstance(asked, ChunkWanted)) == list(range(7))


async def test_a_damaged_version_is_fetched_again(hub_and_client, caplog):
    hub, client, _ = hub_and_client
    hub.num_to_damage = 1
    hub.receive(snapshot(1, 0))
    assert await soon(client.newer()) == snapshot(1, 0)
    assert "digest" in caplog.text


@pytest.mark.parametrize("while_", ["waiting", "fetching"])
async def test_after_a_reconnect_it_asks_again(hub_and_client, while_):
    hub, client, channel = hub_and_client
    version = snapshot(1, 0, num_bytes=8 * CHUNK_BYTES)
    waiting = asyncio.create_task(client.newer())
    await until(lambda: hub.asked)
    if while_ == "fetching":
        hub.receive(version)
        await until(lambda: any(isinstance(asked, ChunkWanted) for asked in hub.asked))
    channel.cut()
    channel.revive()
    if while_ == "waiting":
        await until(lambda: len(hub.asked) == 2)
        hub.receive(version)
    assert await soon(waiting) == version


async def test_a_version_that_is_larger_than_the_runs_network_is_passed_over(hub_and_client, caplog):
    hub, client, _ = hub_and_client
    client._max_bytes = 200
    hub.receive(snapshot(1, 0, num_bytes=300))
    waiting = asyncio.create_task(client.newer(min_updates=0))
    await until(lambda: hub.asked[-1:] == [WeightsWanted(newer_than=(1, 0))])
    assert "300 bytes, at most 200" in caplog.text
    hub.receive(snapshot(1, 1, num_bytes=200))
    assert await soon(waiting) == snapshot(1, 1, num_bytes=200)


async def test_a_version_gone_meanwhile_gives_way_to_the_newest(hub_and_client):
    hub, client, channel = hub_and_client
    waiting = asyncio.create_task(client.newer())
    await until(lambda: hub.asked)
    channel.stall()
    hub.receive(snapshot(1, 0))
    hub.store = WeightsStore()  # another hub, which never had the version that was announced
    hub.receive(snapshot(1, 1))
    channel.revive()
    assert await soon(waiting) == snapshot(1, 1)
