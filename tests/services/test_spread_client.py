"""Batches from two replay nodes: real desks and tables, the in-memory channel, time as the test says."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.replay.draws import importance_weights
from parl_mq.services.sample_source import sample_source
from parl_mq.services.spread_client import SpreadClient
from parl_mq.services.tables import make_ring_directory
from parl_mq.wire.messages import RunCounts, SampleRequest, UpdatePriorities
from tests.services.builders import SPEC, attach, fragments, small_config, soon, until
from tests.services.desks import DeskNode

ROWS = 40
MAGNITUDES = np.random.default_rng(3).random(ROWS) + 0.1


class Clock:
    """Seconds that only the test moves."""

    now = 0.0

    def __call__(self):
        return self.now


class Scene:
    """A learner's client and its replay nodes; row i of the run has reward i and magnitude MAGNITUDES[i]."""

    def __init__(self, cuts, config, *, is_mapped):
        self.clock, self.network, self.config = Clock(), MemoryNetwork(), config
        self.nodes = []
        for index, (first, last) in enumerate(zip([0, *cuts], [*cuts, ROWS], strict=True)):
            name = f"replay-{index}"
            directory = make_ring_directory(config.node, "run", name) if is_mapped else None
            node = DeskNode(self.network, name, config, clock=self.clock, directory=directory)
            for start in range(first, last, 4):
                node.insert(replace(fragments(4, first=start), priorities=MAGNITUDES[start : start + 4]))
            self.nodes.append(node)
        self.channels = [self.network.connect(f"replay-{index}") for index in range(len(self.nodes))]
        self.client = sample_source(self.channels, attach("learner"), config, SPEC)
        if isinstance(self.client, SpreadClient):
            self.client._clock = self.clock

    @property
    def priorities(self):
        replay = self.config.replay
        return (MAGNITUDES + replay.eps) ** replay.alpha

    async def batch(self):
        """The next one, copied; another is asked for."""
        batch = await soon(self.client.next_batch())
        self.client.ask()
        return batch

    async def rows(self, num_batches):
        """Rewards and probabilities of many batches."""
        batches = [await self.batch() for _ in range(num_batches)]
        joined = {name: np.concatenate([each.arrays[name] for each in batches]) for name in ("reward", "probabilities")}
        return joined["reward"].astype(int), joined["probabilities"]


@asynccontextmanager
async def drawing(*cuts, tmp_path=None):
    """Rows are cut at these numbers, one node for each part."""
    place = [] if tmp_path is None else [f"node.ring_directory={tmp_path}"]
    mapped = "off" if tmp_path is None else "on"
    config = small_config(
        f"replay.nodes={len(cuts) + 1}", "replay.samples_per_insert=100000", f"learner.mapped={mapped}", *place
    )
    scene = Scene(cuts, config, is_mapped=tmp_path is not None)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in (*scene.nodes, scene.client)]
        try:
            yield scene
        finally:
            for task in running:
                task.cancel()


def chi_square_limit(degrees, p=0.001):
    """What the statistic exceeds with probability p (Wilson and Hilferty 1931)."""
    z, spread = NormalDist().inv_cdf(1 - p), 2 / (9 * degrees)
    return degrees * (1 - spread + z * spread**0.5) ** 3


@pytest.mark.parametrize("cuts", [(), (8,), (28,), (12, 24)], ids=["one node", "8 and 32", "28 and 12", "three nodes"])
async def test_however_rows_are_spread_they_are_drawn_with_the_same_probabilities_and_weights(cuts):
    async with drawing(*cuts) as scene:
        rewards, probabilities = await scene.rows(1500)
        expected = scene.priorities / scene.priorities.sum()
        np.testing.assert_allclose(probabilities, expected[rewards], rtol=1e-12)
        np.testing.assert_allclose(
            importance_weights(probabilities, 0.4), importance_weights(expected[rewards], 0.4), rtol=1e-6
        )
        counts = np.bincount(rewards, minlength=ROWS)
        statistic = float(((counts - len(rewards) * expected) ** 2 / (len(rewards) * expected)).sum())
        assert statistic < chi_square_limit(ROWS - 1)


async def test_batches_of_several_nodes_have_all_rows_of_the_run_for_n_and_know_where_each_came_from():
    async with drawing(20) as scene:
        batch = await scene.batch()
        assert batch.reply.num_live == ROWS
        assert sum(origin.stop - origin.start for origin in batch.origins) == 8
        for origin in batch.origins:
            rewards = batch.arrays["reward"][origin.start : origin.stop]
            assert ((rewards >= 20) == origin.node).all()


async def test_rows_that_are_read_from_the_rings_are_those_that_were_drawn(tmp_path):
    async with drawing(20, tmp_path=tmp_path) as scene:
        rewards, probabilities = await scene.rows(50)
        assert len(set(rewards.tolist())) > ROWS / 2
        np.testing.assert_allclose(probabilities, (scene.priorities / scene.priorities.sum())[rewards], rtol=1e-12)
        requests = [each for node in scene.nodes for each in node.received if isinstance(each, SampleRequest)]
        assert not any(request.rows for request in requests)


async def test_priorities_go_back_to_the_node_whose_rows_they_are_about():
    async with drawing(20) as scene:
        seen = set()
        while len(seen) < ROWS:
            batch = await soon(scene.client.next_batch())
            seen |= set(batch.arrays["reward"].astype(int).tolist())
            is_second = batch.arrays["reward"] >= 20
            scene.client.give_back(batch, np.where(is_second, 3.0, 2.0))
            scene.client.ask()
        scene.client.send_last_priorities()
        alpha, eps = scene.config.replay.alpha, scene.config.replay.eps
        for node, magnitude in zip(scene.nodes, (2.0, 3.0), strict=True):
            expected = 20 * (magnitude + eps) ** alpha
            await until(lambda node=node, expected=expected: abs(node.table.total_priority - expected) < 1e-9)


async def test_priorities_that_no_request_carries_go_by_themselves_soon():
    async with drawing(20) as scene:
        batch = await scene.batch()
        await until(scene.client._batches.full)  # then nothing is asked for
        scene.client.give_back(batch, np.full(8, 5.0))
        owners = {origin.node for origin in batch.origins}
        for index in owners:
            await until(lambda index=index: any(isinstance(m, UpdatePriorities) for m in scene.nodes[index].received))


async def test_a_silent_node_is_left_out_after_a_second_and_its_late_rows_are_dropped():
    async with drawing(20) as scene:
        await scene.rows(3)
        scene.nodes[1].is_silent = True
        while scene.client._draws.num_open_batches == 0 or scene.client._batches.qsize():
            await scene.batch()
        scene.clock.now += 0.9
        await asyncio.sleep(0.05)  # some ticks: nothing may come of them
        assert scene.client._batches.empty()
        scene.clock.now += 0.2
        rewards, probabilities = await scene.rows(50)
        assert rewards.max() < 20
        own = scene.priorities[:20]
        np.testing.assert_allclose(probabilities, (own / own.sum())[rewards], rtol=1e-12)
        scene.nodes[1].wake()
        await until(lambda: scene.client._draws.nodes[1].is_up)
        rewards, probabilities = await scene.rows(100)
        later = slice(8 * 10, None)  # some batches were under way
        assert rewards[later].max() >= 20
        np.testing.assert_allclose(
            probabilities[later], (scene.priorities / scene.priorities.sum())[rewards[later]], rtol=1e-12
        )


async def test_a_node_that_is_gone_is_left_out_at_once_and_is_part_of_the_draws_again_when_it_is_back():
    async with drawing(20) as scene:
        await scene.rows(3)
        scene.channels[0].cut()
        await until(lambda: not scene.client._draws.nodes[0].is_up)
        rewards, _ = await scene.rows(50)
        assert rewards[80:].min() >= 20
        scene.channels[0].revive()
        await until(lambda: scene.client._draws.nodes[0].is_up)
        rewards, _ = await scene.rows(100)
        assert rewards[80:].min() < 20


async def test_without_any_node_the_learner_says_what_it_waits_for():
    async with drawing(20) as scene:
        await scene.rows(3)
        for channel in scene.channels:
            channel.cut()
        await until(lambda: not any(node.is_up for node in scene.client._draws.nodes))
        scene.client.ready_batches()
        assert scene.client._draws.waiting_for == "the replay nodes to come back"


async def test_nodes_hear_what_the_others_have():
    async with drawing(20) as scene:
        await scene.rows(20)
        for node, other in (scene.nodes, scene.nodes[::-1]):
            await until(lambda node=node, other=other: node.limiter.elsewhere.drawn >= other.limiter.num_drawn > 0)
            assert node.limiter.elsewhere.arrived == other.limiter.counts.arrived
        assert any(isinstance(message, RunCounts | SampleRequest) for message in scene.nodes[0].received)
