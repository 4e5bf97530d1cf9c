"""An actor's streams to several replay nodes: real desks, the in-memory channel."""

import asyncio
from contextlib import asynccontextmanager

from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services.replay_streams import ReplayStreams
from parl_mq.services.runtime import StopSignal
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import SayHello
from tests.services.builders import attach, fragments, small_config, until
from tests.services.desks import DeskNode

ROWS = 4


class Scene:
    """An actor's streams and the replay nodes, by index."""

    def __init__(self, index, num_nodes):
        config = small_config(f"replay.nodes={num_nodes}", "replay.buffer_size=400", "replay.error_band=400")
        network, names = MemoryNetwork(), [f"replay-{number}" for number in range(num_nodes)]
        self.nodes = [DeskNode(network, name, config, clock=lambda: 0.0) for name in names]
        self.channels = [network.connect(name) for name in names]
        self.streams = ReplayStreams(self.channels, attach(), index=index)
        self.stop = StopSignal()

    async def insert(self):
        await self.streams.target.insert(fragments(ROWS), self.stop)

    async def are_up(self, expected):
        by_index = {id(stream): stream for stream in self.streams._streams}
        await until(lambda: sum(stream.is_up for stream in by_index.values()) == expected)

    @property
    def live(self):
        return [node.table.num_live for node in self.nodes]

    def count(self, name):
        return self.streams.counters()[f"{name}_rows_total"]


@asynccontextmanager
async def sending(index=0, num_nodes=2):
    scene = Scene(index, num_nodes)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in (*scene.nodes, scene.streams)]
        await scene.are_up(num_nodes)
        try:
            yield scene
        finally:
            for task in running:
                task.cancel()


async def test_rows_go_to_the_home_node():
    async with sending(index=4, num_nodes=3) as scene:
        await scene.insert()
        await until(lambda: scene.count("acknowledged") == ROWS)
        assert scene.live == [0, ROWS, 0]


async def test_while_the_home_node_is_away_the_next_one_that_is_up_gets_new_rows():
    async with sending(index=1, num_nodes=3) as scene:
        for number in (1, 2):
            scene.channels[number].cut()
        await scene.are_up(1)
        await scene.insert()
        await until(lambda: scene.live == [ROWS, 0, 0])
        scene.channels[1].revive()
        await scene.are_up(2)
        await scene.insert()
        await until(lambda: scene.live == [ROWS, ROWS, 0])


async def test_what_is_not_acknowledged_goes_to_the_node_that_it_was_sent_to_and_no_other():
    async with sending() as scene:
        scene.nodes[0].is_silent = True
        await scene.insert()
        scene.channels[0].cut()
        await scene.are_up(1)
        await scene.insert()
        await until(lambda: scene.count("acknowledged") == ROWS)
        assert (scene.streams.unacknowledged_rows, scene.live) == (ROWS, [0, ROWS])
        scene.nodes[0].wake()
        scene.channels[0].revive()
        await until(lambda: scene.streams.unacknowledged_rows == 0)
        assert scene.live == [ROWS, ROWS]
        assert (scene.count("sent"), scene.count("acknowledged")) == (2 * ROWS, 2 * ROWS)


async def test_without_any_node_rows_wait_in_the_home_nodes_book():
    async with sending() as scene:
        for channel in scene.channels:
            channel.cut()
        await scene.are_up(0)
        await scene.insert()
        assert (scene.streams.unacknowledged_rows, scene.live) == (ROWS, [0, 0])
        scene.channels[0].revive()
        await until(lambda: scene.live == [ROWS, 0])


async def test_rows_that_are_given_up_are_counted_over_all_nodes():
    async with sending() as scene:
        for node in scene.nodes:
            node.is_silent = True
        await scene.insert()
        scene.channels[0].cut()
        await scene.are_up(1)
        await scene.insert()
        scene.streams.abandon()
        assert (scene.count("abandoned"), scene.streams.unacknowledged_rows) == (2 * ROWS, 0)


async def test_a_node_that_does_not_know_the_actor_any_more_gets_nothing_new_until_it_does():
    async with sending(index=0) as scene:
        home = scene.nodes[0]
        home.is_silent = True
        [peer] = home.desk._clients
        home.server.try_send(peer, encode(SayHello()))
        await scene.are_up(1)
        await scene.insert()
        await until(lambda: scene.count("acknowledged") == ROWS)
        assert scene.live == [0, ROWS]
        home.wake()
        await scene.are_up(2)
