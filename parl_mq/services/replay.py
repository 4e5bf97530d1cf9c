"""A replay node: one socket around a table."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

import numpy as np

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, ConfigError, MemoryRefused, WireError
from parl_mq.net.channel import PeerId, ServerChannel
from parl_mq.net.zmq_channel import Network
from parl_mq.replay.table import Table
from parl_mq.services.backlog import Backlog
from parl_mq.services.complaints import Complaints
from parl_mq.services.hub_link import MAX_TEXT, HubLink, NodeStatus
from parl_mq.services.joining import joined, run_config
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.runtime import NodeOptions, StopSignal
from parl_mq.services.tables import limiter, make_ring_directory, remove_rings, table_settings
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import Decoder
from parl_mq.wire.messages import OpenTable, TableOpened, TableRefused, ToReplay, Welcome

TICK_S: Final = 0.1
REPLAY_STREAM: Final = 8
"""Key of the random streams of replay nodes among those of the run."""

log = logging.getLogger("parl_mq")


async def serve(options: NodeOptions, bind: str, stop: StopSignal) -> int:
    """Runs a replay node until it is told to stop.

    Args:
        options: of every node.
        bind: endpoint of the data socket.
        stop: ends it.
    """
    network = Network()
    try:
        server = network.bind(bind)
        async with joined(network, options, "replay", stop, data_endpoint=server.endpoint) as (link, welcome):
            link.status.waits("word of what the rows of the environment hold")
            config = run_config(welcome, options)
            message = await stop.wait_for(link.table_to_open())
            if message is not None:
                await _serve_table(link, server, config, welcome, message, stop)
        return EXIT_OK
    finally:
        network.close()


async def _serve_table(
    link: HubLink, server: ServerChannel, config: RunConfig, welcome: Welcome, opening: OpenTable, stop: StopSignal
) -> None:
    spec = TableSpec.from_wire(opening.columns, opening.spaces)
    try:
        table = _open(config, welcome, link.name, spec)
    except (ConfigError, MemoryRefused, ValueError, OSError) as error:
        remove_rings(config.node, welcome.run_id, link.name)
        await stop.wait_for(link.deliver(TableRefused(table=opening.table, reason=str(error)[:MAX_TEXT])))
        await stop.wait()
        return
    try:
        await stop.wait_for(
            link.deliver(TableOpened(table=opening.table, num_bytes=table.num_bytes, num_rows=table.num_rows))
        )
        log.info("table %s: %d rows, %.1f MiB", opening.table, table.num_rows, table.num_bytes / 2**20)
        desk = ReplayDesk(table, limiter(config), spec, config, welcome.run_id)
        await ReplayNode(link.status, server, desk).run(stop)
    finally:
        table.close()
        remove_rings(config.node, welcome.run_id, link.name)


def _open(config: RunConfig, welcome: Welcome, name: str, spec: TableSpec) -> Table:
    seed = np.random.SeedSequence(config.seed, spawn_key=(REPLAY_STREAM, welcome.index, welcome.incarnation))
    directory = make_ring_directory(config.node, welcome.run_id, name)
    return Table(table_settings(config), spec, directory=directory, rng=np.random.default_rng(seed))


class ReplayNode:
    """The service loop: reads what is there, lets the desk decide, sends what is due."""

    def __init__(self, status: NodeStatus, server: ServerChannel, desk: ReplayDesk) -> None:
        self._status = status
        self._server = server
        self._desk = desk
        self._backlog = Backlog(server)
        self._decode = Decoder(ToReplay)
        self._complaints = Complaints("data")

    async def run(self, stop: StopSignal) -> None:
        """Serves until the stop."""
        self._status.works("serving")
        async with asyncio.TaskGroup() as tasks:
            served = [tasks.create_task(self._serve()), tasks.create_task(self._tick())]
            await stop.wait()
            for task in served:
                task.cancel()
        self._note()

    async def _serve(self) -> None:
        while True:
            for peer, frames in await self._server.receive_many():
                self._take(peer, frames)
            await self._send_what_is_due()
            self._status.works("serving")

    async def _tick(self) -> None:
        while True:
            await self._send_what_is_due()
            self._note()
            await asyncio.sleep(TICK_S)  # the period itself

    def _take(self, peer: PeerId, frames: list[memoryview]) -> None:
        try:
            message, arrays = self._decode(frames)
            self._desk.handle(peer, message, arrays)
        except WireError as error:
            self._complaints.note(peer, error)

    async def _send_what_is_due(self) -> None:
        """Large batches leave one by one, and others get their turn in between."""
        self._send_some()
        while self._desk.has_more:
            await asyncio.sleep(0)
            self._send_some()

    def _send_some(self) -> None:
        for peer in self._backlog.send(self._desk.due(time.monotonic())):
            self._desk.forget(peer)

    def _note(self) -> None:
        self._status.counters = {
            **self._desk.counters(),
            "dropped_messages_total": self._complaints.num_dropped,
        }
        if (waiting_for := self._desk.waiting_for) is not None:
            self._status.waits(waiting_for)
