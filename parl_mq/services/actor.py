"""An actor: steps its environments, sends fragments under credit, pulls newer weights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, EnvironmentFault
from parl_mq.learn.threads import prepare_training_thread
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.model.weights import unpack
from parl_mq.rollout.building import build_collector
from parl_mq.rollout.collector import Collected, Collector
from parl_mq.services.faults import FaultCount
from parl_mq.services.hub_link import HubLink
from parl_mq.services.joining import attach_message, joined, offer_spec, run_config
from parl_mq.services.network import network_of
from parl_mq.services.replay_streams import ReplayStreams
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread
from parl_mq.services.weights_client import WeightsClient
from parl_mq.services.weights_exchange import most_bytes_of_weights
from parl_mq.wire.messages import EpisodesFinished

FAREWELL_S: Final = 2.0
"""Rows that are not acknowledged this long after the stop are given up, and counted as abandoned."""
ATTEMPTS_A_START: Final = 1_000_000
"""Environments may be made anew so often before the seeds of the run's next start are used up."""
EPISODES_A_MESSAGE: Final = 10_000

Build = Callable[[int], Collector]
"""Makes the environments for the n-th time, n from 0; each time they get other seeds."""

BEATS_TO_THE_LIMIT: Final = 50
"""A run with a limit of steps ends within this part of it; at the usual pace of heartbeats it may end far beyond."""

log = logging.getLogger("parl_mq")


async def serve(options: NodeOptions, stop: StopSignal) -> int:
    """Runs an actor until it is told to stop.

    Raises:
        EnvironmentFault: the environments cannot be made, or broke too often in a row.
    """
    network, work = network_of(options), WorkThread("environments")
    try:
        async with joined(network, options, "actor", stop, work=work) as (link, welcome):
            config = run_config(welcome, options)
            await work(prepare_training_thread, config.actor.threads)
            first_attempt = (welcome.incarnation - 1) * ATTEMPTS_A_START  # a resumed run must not repeat itself

            def build(number: int) -> Collector:
                return build_collector(config, welcome.index, clock=time.monotonic, attempt=first_attempt + number)

            rollout = Rollout(work, build, FaultCount(options.name, config.actor.max_environment_faults))
            await rollout.begin()
            offer_spec(link, rollout.collector.spec)
            link.status.waits("the replay node to open its table")
            endpoints = await stop.wait_for(link.replay_endpoints(config.replay.nodes))
            if endpoints is not None:
                attach = attach_message(link, welcome, rollout.collector.spec)
                channels = [network.connect(endpoint) for endpoint in endpoints]
                replays = ReplayStreams(channels, attach, index=welcome.index)
                most_bytes = most_bytes_of_weights(config, rollout.collector.spec)
                weights = WeightsClient(network.connect(welcome.weights_endpoint), most_bytes)
                await Actor(link, work, stop, rollout, replays, steps_a_beat=steps_a_beat(config)).run(weights)
            await rollout.close()
        return EXIT_OK
    finally:
        work.close()
        network.close()


class Rollout:
    """The environments with their policy, made anew when they break.

    The collector's calls run in the work thread, one at a time.

    Attributes:
        collector: the newest one.
        faults: so far.
    """

    def __init__(self, work: WorkThread, build: Build, faults: FaultCount) -> None:
        self.collector: Collector
        self.faults = faults
        self._work = work
        self._build = build
        self._num_built = 0
        self._snapshot: WeightsSnapshot | None = None

    async def begin(self) -> None:
        """Makes the environments, with the newest weights if there are any."""
        number, self._num_built = self._num_built, self._num_built + 1
        self.collector = await self._work(self._build, number)
        if self._snapshot is not None:
            await self.act_with(self._snapshot)

    async def act_with(self, snapshot: WeightsSnapshot) -> None:
        """The collector acts with these weights from now on, and so does the next one."""
        self._snapshot = snapshot
        await self._work(lambda: self.collector.load_weights(unpack(snapshot.payload), snapshot.version))

    async def collect(self, max_rows: int) -> Collected:
        """See Collector.collect."""
        return self._counted(await self._work(self.collector.collect, max_rows))

    async def drain(self) -> Collected:
        """After a fault: cuts the fragments that are open, and says what came before the fault beside them."""
        await self._work(self.collector.drain)
        return self._counted(self.collector.tally())

    async def begin_again(self, fault: EnvironmentFault, stop: StopSignal) -> None:
        """Makes the environments anew, as often as it takes; returns early at the stop.

        Raises:
            EnvironmentFault: they broke too often in a row.
        """
        await self.close()
        while True:
            wait_s = self.faults.note(fault)
            log.warning("%s; the environments are made anew in %g s", fault, wait_s)
            await stop.wait_for(asyncio.sleep(wait_s))
            if stop.is_set():
                return
            try:
                return await self.begin()
            except EnvironmentFault as again:
                fault = again

    async def close(self) -> None:
        """Closes the environments; that they fail at their end is of no consequence."""
        try:
            await self._work(self.collector.close)
        except EnvironmentFault as fault:
            log.warning("at the end: %s", fault)

    def _counted(self, collected: Collected) -> Collected:
        if len(collected.returns):
            self.faults.note_episode()
        return collected


def steps_a_beat(config: RunConfig) -> float:
    """Steps after which an actor tells its count at once, and does not wait until a heartbeat is due."""
    limit = config.stop.max_steps
    return math.inf if limit is None else limit / (BEATS_TO_THE_LIMIT * config.actor.num_actors)


class Actor:
    """The work loop."""

    def __init__(
        self,
        link: HubLink,
        work: WorkThread,
        stop: StopSignal,
        rollout: Rollout,
        replays: ReplayStreams,
        *,
        steps_a_beat: float = math.inf,
    ) -> None:
        self._link = link
        self._work = work
        self._stop = stop
        self._rollout = rollout
        self._steps_a_beat = steps_a_beat
        self._told_steps = 0
        self._replays = replays
        self._env_steps = 0
        self._acted_s = 0.0
        self._counter = 0

    async def run(self, weights: WeightsClient) -> None:
        """Collects until the stop, then sees its last rows acknowledged or gives them up."""
        self._link.status.links += [self._replays, weights]
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._replays.run()), tasks.create_task(weights.run())]
            self._link.status.waits("the learner's first weights")
            first = await self._stop.wait_for(weights.newer())
            if first is not None:
                await self._act_with(first)
                background.append(tasks.create_task(self._follow(weights)))
                await self._collect_until_stopped()
                await self._send_last_rows()
            for task in background:
                task.cancel()
        self._count()

    async def _follow(self, weights: WeightsClient) -> None:
        while True:
            await self._act_with(await weights.newer())

    async def _act_with(self, snapshot: WeightsSnapshot) -> None:
        await self._rollout.act_with(snapshot)
        self._link.status.counters.update(
            weights_generation=snapshot.version.generation,
            weights_version=snapshot.version.counter,
            weights_updates=snapshot.updates,
        )
        self._counter = snapshot.version.counter
        self._replays.changed.set()

    async def _collect_until_stopped(self) -> None:
        while not self._stop.is_set():
            if not await self._has_credit():
                continue
            began_at = time.monotonic()
            try:
                collected = await self._rollout.collect(self._replays.target.book.available_rows)
            except EnvironmentFault as fault:
                await self._recover(fault)
                continue
            self._acted_s += time.monotonic() - began_at
            self._note(collected)
            if collected.fragments is not None:
                await self._replays.target.insert(collected.fragments, self._stop)

    async def _has_credit(self) -> bool:
        """Whether the next fragment may be sent; if not, something has changed since that was found, or the stop came.

        The event is cleared when the book is looked at, so that no change in between is missed.
        """
        self._replays.changed.clear()
        target = self._replays.target
        if self._is_in_turn and target.book.available_rows >= max(self._rollout.collector.next_rows, 1):
            return True
        self._link.status.waits(target.waiting_for)
        await self._stop.wait_for(self._replays.changed.wait())
        return False

    @property
    def _is_in_turn(self) -> bool:
        """In lock step a round's rows are acknowledged at its end, and the next one has weights of its own."""
        wanted = self._replays.target.version
        return wanted is None or (self._replays.unacknowledged_rows == 0 and self._counter == wanted)

    async def _recover(self, fault: EnvironmentFault) -> None:
        """The steps before the fault are sent; the episodes under way are dropped, not learned as ended."""
        self._note(await self._rollout.drain())
        while self._rollout.collector.next_rows and not self._stop.is_set():
            if await self._has_credit():
                await self._send_cut()
        try:
            await self._rollout.begin_again(fault, self._stop)
        finally:
            self._count()

    def _note(self, collected: Collected) -> None:
        is_first = not self._env_steps and collected.num_steps
        self._env_steps += collected.num_steps
        if collected.num_steps:
            self._link.status.works("stepping")
        self._count()
        if is_first or self._env_steps - self._told_steps >= self._steps_a_beat:
            self._told_steps = self._env_steps
            self._link.beat()
        for start in range(0, len(collected.returns), EPISODES_A_MESSAGE):
            part = slice(start, start + EPISODES_A_MESSAGE)
            returns, lengths = list(collected.returns[part]), list(collected.lengths[part])
            self._link.send(EpisodesFinished(returns=returns, lengths=lengths, env_steps=self._env_steps))

    def _count(self) -> None:
        self._link.status.counters.update(
            env_steps_total=self._env_steps,
            environment_faults_total=self._rollout.faults.num_faults,
            **self._replays.counters(),
            acting_seconds_total=self._acted_s,
        )

    async def _send_cut(self) -> bool:
        """Sends fragments that are cut, as far as the credit goes; whether there were any."""
        target = self._replays.target
        available = target.book.available_rows
        fragments = self._rollout.collector.take(available) if available else None
        if fragments is not None:
            await target.insert(fragments, self._stop)
        return fragments is not None

    async def _send_last_rows(self) -> None:
        """Sends what is cut as far as turn and credit go, and waits a while for the acknowledgements."""
        await self._work(self._rollout.collector.drain)
        while self._is_in_turn and await self._send_cut():
            pass
        deadline = time.monotonic() + FAREWELL_S
        while self._replays.unacknowledged_rows and (left_s := deadline - time.monotonic()) > 0:
            self._link.status.waits("the replay node to acknowledge the last rows")
            self._replays.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._replays.changed.wait(), left_s)
        self._replays.abandon()
