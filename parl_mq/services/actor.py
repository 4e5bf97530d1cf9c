"""An actor: steps its environments, sends fragments under credit, pulls newer weights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any, Final

import numpy.typing as npt

from parl_mq.errors import EXIT_OK, ParlError
from parl_mq.fragments import FragmentBatch
from parl_mq.learn.threads import prepare_training_thread
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.model.weights import unpack
from parl_mq.net.channel import Frame
from parl_mq.net.credit import SenderBook
from parl_mq.net.zmq_channel import Network
from parl_mq.rollout.building import build_collector
from parl_mq.rollout.collector import Collected, Collector
from parl_mq.services.hub_link import HubLink
from parl_mq.services.joining import attach_message, joined, offer_spec, run_config
from parl_mq.services.replay_link import ReplayLink
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread
from parl_mq.services.weights_client import WeightsClient
from parl_mq.wire.codec import encode
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import (
    MAIN_TABLE,
    Attached,
    Credit,
    EpisodesFinished,
    InsertFragments,
    InsertRefused,
    Message,
)

FAREWELL_S: Final = 2.0
"""Rows that are not acknowledged this long after the stop are given up, and counted as abandoned."""

log = logging.getLogger("parl_mq")


async def serve(options: NodeOptions, stop: StopSignal) -> int:
    """Runs an actor until it is told to stop."""
    network, work = Network(), WorkThread("environments")
    try:
        async with joined(network, options, "actor", stop) as (link, welcome):
            config = run_config(welcome, options)
            await work(prepare_training_thread, config.actor.threads)
            attempt = welcome.incarnation - 1  # a resumed run must not repeat what its environments have shown
            build = partial(build_collector, config, welcome.index, clock=time.monotonic, attempt=attempt)
            collector = await work(build)
            await offer_spec(link, collector.spec)
            link.status.waits("an open table")
            replays = await stop.wait_for(link.replay_endpoints())
            if replays is not None:
                actor = Actor(link, work, stop, collector)
                channel = network.connect(replays[welcome.index % len(replays)])
                replay = ReplayLink(channel, attach_message(link, welcome, collector.spec), actor.handle)
                await actor.run(replay, WeightsClient(network.connect(welcome.weights_endpoint)))
            await work(collector.close)
        return EXIT_OK
    finally:
        work.close()
        network.close()


class Actor:
    """The work loop, and the books that it shares with the data link.

    The collector's calls run in the work thread, one at a time; all else runs in the loop's thread.
    """

    def __init__(self, link: HubLink, work: WorkThread, stop: StopSignal, collector: Collector) -> None:
        self._link = link
        self._work = work
        self._stop = stop
        self._collector = collector
        self._book = SenderBook()
        self._book_changed = asyncio.Event()
        self._waiting_for = "the replay node"
        self._env_steps = 0

    async def run(self, replay: ReplayLink, weights: WeightsClient) -> None:
        """Collects until the stop, then sees its last rows acknowledged or gives them up."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(replay.run()), tasks.create_task(weights.run())]
            self._link.status.waits("the first weights")
            first = await self._stop.wait_for(weights.newer())
            if first is not None:
                await self._act_with(first)
                background.append(tasks.create_task(self._follow(weights)))
                await self._collect_until_stopped(replay)
                await self._send_last_rows(replay)
            for task in background:
                task.cancel()
        self._count()

    def handle(self, message: Message, arrays: dict[str, npt.NDArray[Any]]) -> list[list[Frame]]:
        """Takes one message of the replay node and returns what must be sent again."""
        del arrays
        again: list[list[Frame]] = []
        match message:
            case Attached():
                again = self._book.reattach(
                    message.last_sequence, counted_rows=message.counted_rows, counted_bytes=message.counted_bytes
                )
                self._book.grant(message.credit_rows, message.credit_bytes)
            case Credit():
                self._book.acknowledge(message.last_sequence)
                self._book.grant(message.credit_rows, message.credit_bytes)
                self._waiting_for = message.waiting_for or "the replay node"
            case InsertRefused():
                raise ParlError(f"the replay node refused rows of this actor: {message.reason}")
            case _:
                log.warning("an actor has no use for a message of kind %s", type(message).__name__)
        self._book_changed.set()
        return again

    async def _follow(self, weights: WeightsClient) -> None:
        while True:
            await self._act_with(await weights.newer())

    async def _act_with(self, snapshot: WeightsSnapshot) -> None:
        def load() -> None:
            self._collector.load_weights(unpack(snapshot.payload), snapshot.version)

        await self._work(load)
        self._link.status.counters["weights_version"] = snapshot.version.counter

    async def _collect_until_stopped(self, replay: ReplayLink) -> None:
        while not self._stop.is_set():
            if self._book.available_rows < max(self._collector.next_rows, 1):
                self._link.status.waits(self._waiting_for)
                await self._stop.wait_for(self._next_credit())
                continue
            collected = await self._work(self._collector.collect, self._book.available_rows)
            self._note(collected)
            if collected.fragments is not None:
                await self._insert(replay, collected.fragments)

    async def _next_credit(self) -> None:
        self._book_changed.clear()
        await self._book_changed.wait()

    def _note(self, collected: Collected) -> None:
        is_first = not self._env_steps and collected.num_steps
        self._env_steps += collected.num_steps
        if collected.num_steps:
            self._link.status.works("stepping")
        self._count()
        if is_first:
            self._link.beat()
        if len(collected.returns):
            self._link.send(
                EpisodesFinished(
                    returns=list(collected.returns), lengths=list(collected.lengths), env_steps=self._env_steps
                )
            )

    def _count(self) -> None:
        self._link.status.counters.update(
            env_steps_total=self._env_steps,
            sent_rows_total=self._book.sent_rows,
            acknowledged_rows_total=self._book.acknowledged_rows,
            abandoned_rows_total=self._book.abandoned_rows,
        )

    async def _insert(self, replay: ReplayLink, fragments: FragmentBatch) -> None:
        message = InsertFragments(sequence=self._book.next_sequence, table=MAIN_TABLE)
        frames = encode(message, arrays_of(fragments))
        self._book.add(frames, rows=fragments.num_live, num_bytes=fragments.num_bytes)
        await self._stop.wait_for(replay.channel.send(frames))

    async def _send_last_rows(self, replay: ReplayLink) -> None:
        """Sends what is cut as far as the credit goes, and waits a while for the acknowledgements."""
        await self._work(self._collector.drain)
        deadline = time.monotonic() + FAREWELL_S
        while self._book.available_rows and (fragments := self._collector.take(self._book.available_rows)) is not None:
            await self._insert(replay, fragments)
        while self._book.unacknowledged_rows and (left_s := deadline - time.monotonic()) > 0:
            self._link.status.waits("the last acknowledgements")
            self._book_changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._book_changed.wait(), left_s)
        self._book.abandon()
