"""The learner's hand-over of weights to the hub, and its device; the network is in memory."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from parl_mq.errors import ConfigError, SnapshotError
from parl_mq.learn.checkpoint import save
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services.learner import WeightsSource, build_learner, choose_device
from parl_mq.services.weights_exchange import announcement
from parl_mq.services.weights_store import WeightsStore
from parl_mq.spec import Space, TableSpec
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import CHUNK_BYTES, ChunkWanted, VersionGone, Weights, WeightsAnnounced, WeightsChunk
from tests.services.builders import SPEC, small_config, snapshot, soon, until


class Hub:
    """Reads what the learner sends; answers as the store does, or as the test does."""

    def __init__(self, network, *, answers=True):
        self.store = WeightsStore()
        self.received = []
        self._answers = answers
        self._server = network.bind("weights")
        self._decode = Decoder(Weights)
        self._peer = b""

    async def run(self):
        while True:
            for peer, frames in await self._server.receive_many():
                self._peer = peer
                message, arrays = self._decode(frames)
                self.received.append(message)
                for to, reply in self.store.handle(peer, message, arrays, 0.0) if self._answers else []:
                    self._server.try_send(to, reply)

    def ask(self, version, chunk):
        self._server.try_send(self._peer, encode(ChunkWanted(version=version, chunk=chunk)))


@pytest.fixture
async def made():
    """Makes a source and its hub."""
    tasks = []

    def make(**options):
        network = MemoryNetwork()
        hub, channel = Hub(network, **options), network.connect("weights")
        source = WeightsSource(channel)
        tasks.extend([asyncio.create_task(hub.run()), asyncio.create_task(source.run())])
        return source, hub, channel

    yield make
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_hand_over_ends_when_the_hub_has_the_version_whole(made):
    source, hub, _ = made()
    large = snapshot(1, 3, num_bytes=7 * CHUNK_BYTES)
    await soon(source.hand_over(large))
    assert hub.store.newest == large


async def test_a_hand_over_of_an_older_version_does_not_end_that_of_a_newer_one(made):
    source, hub, _ = made()
    source.publish(snapshot(1, 3, num_bytes=7 * CHUNK_BYTES))
    await soon(source.hand_over(snapshot(1, 4)))
    assert hub.store.newest == snapshot(1, 4)


async def test_a_fetch_ends_however_fast_versions_follow(made):
    source, hub, _ = made(answers=False)
    source.publish(snapshot(1, 0, num_bytes=3 * CHUNK_BYTES))
    await until(lambda: hub.received)
    for chunk in range(3):
        hub.ask((1, 0), chunk)
        await until(lambda chunk=chunk: WeightsChunk(version=(1, 0), chunk=chunk) in hub.received)
        for _ in range(3):
            source.publish(snapshot(1, 10 * chunk + len(hub.received), num_bytes=3 * CHUNK_BYTES))
    assert VersionGone(version=(1, 0)) not in hub.received


async def test_a_version_that_is_not_held_is_gone(made):
    source, hub, _ = made(answers=False)
    for counter in range(2):
        source.publish(snapshot(1, counter))
    await until(lambda: hub.received)
    hub.ask((1, 0), 0)
    await until(lambda: VersionGone(version=(1, 0)) in hub.received)


async def test_a_version_published_while_the_hub_is_away_is_announced_when_it_is_back(made):
    source, hub, channel = made(answers=False)
    await asyncio.sleep(0)
    channel.cut()
    source.publish(snapshot(1, 5))
    channel.revive()
    await until(lambda: [each for each in hub.received if isinstance(each, WeightsAnnounced)])
    assert hub.received[-1] == announcement(snapshot(1, 5))


def test_a_device_that_is_not_there_is_refused_with_those_that_are():
    missing = f"cuda:{torch.cuda.device_count() if torch.cuda.is_available() else 0}"
    with pytest.raises(ConfigError, match=rf"node\.device = '{missing}' is not on this machine; there is: cpu"):
        choose_device(missing)


def test_auto_says_what_it_took(caplog):
    caplog.set_level("INFO")
    device = choose_device("auto")
    assert f"training on {device}" in caplog.text


def _built(checkpoint_root):
    spec = TableSpec(SPEC.columns, {"action": Space("Discrete", (0.0,), (1.0,))})
    return build_learner(small_config("node.device=cpu"), spec, SimpleNamespace(generation=1), checkpoint_root)


def test_a_learner_does_not_begin_anew_where_all_checkpoints_are_damaged(tmp_path):
    path = save(tmp_path, _built(tmp_path).checkpoint(), keep=1)
    _built(tmp_path)
    (path / "trainer.safetensors").write_bytes(b"")
    with pytest.raises(SnapshotError, match=r"no checkpoint under .* is whole"):
        _built(tmp_path)
    assert path.is_dir()
