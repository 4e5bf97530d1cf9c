"""A replay node: one socket around a table."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, ConfigError, MemoryRefused, RingRefused, WireError
from parl_mq.net.channel import PeerId, ServerChannel
from parl_mq.net.curve import Guard, KeyPair
from parl_mq.net.endpoints import at_host
from parl_mq.replay.table import Table
from parl_mq.services.addresses import PublicSocket
from parl_mq.services.backlog import Backlog
from parl_mq.services.gate import NOBODY, Gate
from parl_mq.services.hub_link import MAX_TEXT, HubLink, NodeStatus
from parl_mq.services.joining import joined, run_config
from parl_mq.services.network import network_of
from parl_mq.services.permits import Permits, ToldKeys
from parl_mq.services.replay_desk import COUNTS_EVERY_S, LOOP_BYTES, ReplayDesk, most_bytes_of_a_message
from parl_mq.services.rings import NODE, RUN_DIRECTORY, RUN_ID
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread
from parl_mq.services.tables import limiter, make_ring_directory, remove_rings, table_settings
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import KeysAllowed, Message, OpenTable, TableOpened, TableRefused, ToReplay, Welcome

TICK_S: Final = 0.1
ACCOUNTS_EVERY_S: Final = 0.5
LOOK_EVERY_S: Final = 1.0
REPLAY_STREAM: Final = 8
"""Key of the random streams of replay nodes among those of the run."""

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a replay node needs beside the options of every node.

    Attributes:
        bind: endpoint of the data socket.
        fresh: a ring that is found is replaced by an empty one.
        run_directory: of the run, where it lies on this machine: a ring left over belongs to it.
        public: endpoint of the data socket for other machines; None: there is none beside `bind`.
        pair: that guards the sockets for other machines; None: nothing there is encrypted.
        advertise: host by which other machines reach this one; None: the one that is bound.
        is_insecure: other machines may reach the data socket without keys.
    """

    bind: str
    public: str | None = None
    pair: KeyPair | None = None
    advertise: str | None = None
    is_insecure: bool = False
    fresh: bool = False
    run_directory: Path | None = None


async def serve(options: NodeOptions, replay: ReplayOptions, stop: StopSignal) -> int:
    """Runs a replay node until it is told to stop.

    Its ring goes when the run is done, and stays in every other case for the next process of this node, unless it is
    empty.

    Args:
        options: of every node.
        replay: of this one.
        stop: ends it.
    """
    keys = ToldKeys(time.monotonic)
    guard = None if replay.pair is None else Guard(replay.pair, keys.admit)
    network, work = network_of(options, guard=guard, is_insecure=replay.is_insecure), WorkThread("rows")
    try:
        server = network.bind(replay.bind, also=[] if replay.public is None else [replay.public])

        def take_keys(told: KeysAllowed) -> None:
            keys.take(told)
            server.cut_denied()

        async with joined(
            network,
            options,
            "replay",
            stop,
            data_endpoint=_reached_at(server.endpoint, replay),
            public=_public_socket(server, replay),
            on_keys=take_keys,
            is_ready=False,
            work=work,
        ) as (link, welcome):
            link.status.waits("word of what the rows of the environment hold")
            config = run_config(welcome, options)
            if not await _has_table_to_open(link, stop):
                options.notifier.ready(link.status.waiting_for or "")
            message = await stop.wait_for(link.table_to_open())
            if message is not None:  # even at a run's end: what the ring holds is part of the run's books
                await _serve_table(
                    link, server, work, options, replay, config, welcome, message, stop, None if guard is None else keys
                )
        return EXIT_OK
    finally:
        network.close()


async def _has_table_to_open(link: HubLink, stop: StopSignal) -> bool:
    """Whether the run has settled what rows hold: then the table opens before others may wait for this node."""
    state = await stop.wait_for(link.until(lambda state: state))
    return state is not None and state.columns is not None


def _reached_at(endpoint: str, replay: ReplayOptions) -> str:
    return at_host(endpoint, replay.advertise) if endpoint.startswith("tcp://") else endpoint


def _public_socket(server: ServerChannel, replay: ReplayOptions) -> PublicSocket | None:
    """The data socket as other machines see it; None where none can."""
    endpoint = server.endpoints[-1]
    if not endpoint.startswith("tcp://") or (replay.public is None and replay.pair is None):
        return None
    return PublicSocket(_reached_at(endpoint, replay), None if replay.pair is None else replay.pair.public)


async def _serve_table(
    link: HubLink,
    server: ServerChannel,
    work: WorkThread,
    options: NodeOptions,
    replay: ReplayOptions,
    config: RunConfig,
    welcome: Welcome,
    opening: OpenTable,
    stop: StopSignal,
    keys: ToldKeys | None,
) -> None:
    spec = TableSpec.from_wire(opening.columns, opening.spaces)
    try:
        table = await asyncio.to_thread(_open, replay, config, welcome, link.name, spec)  # gigabytes take seconds
    except (ConfigError, MemoryRefused, RingRefused, ValueError, OSError) as error:
        link.deliver(TableRefused(table=opening.table, reason=str(error)[:MAX_TEXT]))
        options.notifier.ready(f"refused to open its table: {error}")  # the hub ends the run, and this node with it
        await stop.wait()
        return
    try:
        options.notifier.ready(f"table {opening.table} is open")
        link.deliver(TableOpened(table=opening.table, num_bytes=table.num_bytes, num_rows=table.num_rows))
        log.info("table %s: %d rows, %.1f MiB", opening.table, table.num_rows, table.num_bytes / 2**20)
        if table.is_reopened:
            log.info("table %s goes on with %d live rows", opening.table, table.num_live)
        desk = ReplayDesk(table, limiter(config, table.words), spec, config, welcome.run_id)
        if table.is_reopened:
            link.deliver(desk.found_accounts())
        permits = NOBODY if keys is None else Permits(keys.grant_of, lambda: desk.names)
        tick_s = TICK_S if config.replay.nodes == 1 else COUNTS_EVERY_S
        max_bytes = most_bytes_of_a_message(config, spec)
        await ReplayNode(link, server, desk, work, permits=permits, max_bytes=max_bytes, tick_s=tick_s).run(stop)
    finally:
        is_needed = not link.run_is_done and table.counts.inserted > 0
        table.close(remove=not is_needed)
        if not is_needed:
            remove_rings(config.node, welcome.run_id, link.name)


def _open(replay: ReplayOptions, config: RunConfig, welcome: Welcome, name: str, spec: TableSpec) -> Table:
    seed = np.random.SeedSequence(config.seed, spawn_key=(REPLAY_STREAM, welcome.index, welcome.incarnation))
    run_directory = "" if replay.run_directory is None else str(replay.run_directory.absolute())
    return Table(
        table_settings(config),
        spec,
        directory=make_ring_directory(config.node, welcome.run_id, name),
        rng=np.random.default_rng(seed),
        fresh=replay.fresh,
        labels={RUN_ID: welcome.run_id, NODE: name, RUN_DIRECTORY: run_directory},
    )


class Reports(Protocol):
    """What a replay node needs of its link to the hub."""

    @property
    def status(self) -> NodeStatus: ...  # noqa: D102 - as HubLink has them

    def send(self, message: Message) -> None: ...  # noqa: D102

    def deliver(self, message: Message) -> None: ...  # noqa: D102


class ReplayNode:
    """The service loop: reads what is there, lets the desk decide, sends what is due.

    Rows that take the desk more than some milliseconds to copy are copied in a thread beside the loop, which goes on:
    the hub hears that this node lives. Others have their turn at the desk when that is done.
    """

    def __init__(
        self,
        link: Reports,
        server: ServerChannel,
        desk: ReplayDesk,
        work: WorkThread,
        *,
        permits: Permits = NOBODY,
        max_bytes: int | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self._link = link
        self._server = server
        self._desk = desk
        self._gate = Gate(server, ToReplay, socket="data", permits=permits, max_bytes=max_bytes)
        self._backlog = Backlog(server, self._gate.cut_unread)
        self._work = work
        self._turn = asyncio.Lock()  # of who has the desk, which takes one call at a time
        self._accounts_at = 0.0
        self._tick_s = tick_s
        self._look_at = 0.0

    async def run(self, stop: StopSignal) -> None:
        """Serves until the stop, and ends the work thread: nobody uses the table any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                served = [tasks.create_task(self._serve()), tasks.create_task(self._tick())]
                await stop.wait()
                for task in served:
                    task.cancel()
        finally:
            self._work.close()
        self._note()
        self._link.deliver(self._desk.accounts())

    async def _serve(self) -> None:
        while True:
            received = await self._server.receive_many()
            self._link.status.works("serving")
            async with self._turn:
                for peer, frames in received:
                    await self._take(peer, frames)
                await self._send_what_is_due()

    async def _tick(self) -> None:
        while True:
            async with self._turn:
                await self._send_what_is_due()
                self._look(time.monotonic())
                self._note()
                self._tell_accounts(time.monotonic())
            await asyncio.sleep(self._tick_s)  # the period itself

    async def _take(self, peer: PeerId, frames: list[memoryview]) -> None:
        if (admitted := self._gate.admit(peer, frames)) is None:
            return
        message, arrays = admitted
        try:
            if sum(map(len, frames)) > LOOP_BYTES:
                await self._work(self._desk.handle, peer, message, arrays)
            else:
                self._desk.handle(peer, message, arrays)
        except WireError as error:
            self._gate.refuse(peer, message, error)
        if (refused := self._desk.take_refusal()) is not None:
            self._gate.refuse(peer, message, WireError(refused))

    async def _send_what_is_due(self) -> None:
        """Large batches leave one by one, and the link to the hub gets its turn in between."""
        await self._send_some()
        while self._desk.has_more:
            await asyncio.sleep(0)
            await self._send_some()

    async def _send_some(self) -> None:
        now, due = time.monotonic(), self._desk.due
        for peer in self._backlog.send(await self._work(due, now) if self._desk.is_heavy else due(now)):
            self._desk.forget(peer)

    def _tell_accounts(self, now: float) -> None:
        """Now and then, so that little is unknown should this process be killed; the last ones are sure to arrive."""
        if now >= self._accounts_at:
            self._accounts_at = now + ACCOUNTS_EVERY_S
            self._link.send(self._desk.accounts())

    def _look(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._desk.watch.look()

    def _note(self) -> None:
        self._link.status.counters = {
            **self._desk.counters(),
            "dropped_messages_total": self._gate.num_dropped,
            "cut_connections_total": self._gate.num_cut,
        }
        if (waiting_for := self._desk.waiting_for) is None:
            self._link.status.works("serving")  # with nobody there, too: whoever comes gets the desk
        else:
            self._link.status.waits(waiting_for)
