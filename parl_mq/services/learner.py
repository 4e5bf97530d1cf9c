"""A learner: keeps sample requests outstanding, updates, sends priorities back, publishes weights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, ConfigError, SnapshotError
from parl_mq.learn import checkpoint as checkpoints
from parl_mq.learn.learner import DrawnRows, Learner, LearnerStep
from parl_mq.learn.threads import prepare_training_thread
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.net.channel import ClientChannel, Frame, LinkEvent
from parl_mq.net.zmq_channel import Network
from parl_mq.replay.draws import split_frames
from parl_mq.services.hub_link import HubLink
from parl_mq.services.joining import attach_message, joined, run_config
from parl_mq.services.network import network_of
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread
from parl_mq.services.sample_client import Batch
from parl_mq.services.sample_source import SampleSource, sample_source
from parl_mq.services.weights_exchange import announcement, chunk_frames
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import ChunkWanted, Weights, WeightsWanted, Welcome

HAND_OVER_S: Final = 2.0
"""Time that the hub gets to fetch the last version at the end."""
FIGURES_EVERY_S: Final = 1.0
MAX_UNDER_WAY: Final = 2
"""Groups of batches in the work thread: it learns from one, and the other waits behind it."""

log = logging.getLogger("parl_mq")


async def serve(options: NodeOptions, directory: Path, stop: StopSignal) -> int:
    """Runs a learner until it is told to stop.

    Args:
        options: of every node.
        directory: run directory, where the checkpoints go.
        stop: ends it.
    """
    network, work = network_of(options), WorkThread("training")
    try:
        async with joined(network, options, "learner", stop, work=work) as (link, welcome):
            config = run_config(welcome, options)
            link.status.waits("word of what the rows of the environment hold")
            spec = await stop.wait_for(link.table_spec())
            if spec is not None:
                await work(prepare_training_thread, config.node.threads or 1)
                learner = await work(build_learner, config, spec, welcome, directory / CHECKPOINTS)
                source = WeightsSource(network.connect(welcome.weights_endpoint))
                node = LearnerNode(link, work, stop, learner, config, directory / CHECKPOINTS)
                await node.run(source, network, welcome, spec)
        return EXIT_OK
    finally:
        work.close()
        network.close()


def build_learner(config: RunConfig, spec: TableSpec, welcome: Welcome, checkpoint_root: Path) -> Learner:
    """The trainer on its device, as its newest whole checkpoint left it; to be called in the work thread.

    Raises:
        SnapshotError: the newest whole checkpoint is of another algorithm or network, or there are only damaged ones.
    """
    device = choose_device(config.node.device)
    seed = int(np.random.SeedSequence(config.seed, spawn_key=(LEARNER_STREAM, 0)).generate_state(1)[0])
    policy_spec = spec.stacked(config.environment.frame_stack)
    trainer = load_algorithm(config.algorithm.name).make_trainer(config.algorithm, policy_spec, seed, device)
    learner = Learner(
        trainer,
        spec,
        config.learner,
        beta=config.replay.beta,
        generation=welcome.generation,
        clock=time.monotonic,
    )
    found = checkpoints.find_newest(checkpoint_root)
    for damage in found.damaged:
        log.warning("skipped a damaged checkpoint: %s", damage)
    if found.checkpoint is None and found.damaged:
        raise SnapshotError(f"no checkpoint under {checkpoint_root} is whole; start a new run in another directory")
    if found.checkpoint is not None:
        learner.resume(found.checkpoint)
        log.info("going on from %s, after %d updates", found.path, learner.num_updates)
    return learner


CHECKPOINTS: Final = "checkpoints"
LEARNER_STREAM: Final = 7
"""Key of the stream that the networks' first weights come from; the same for every rank."""


def choose_device(wanted: str) -> torch.device:
    """The device that `node.device` asks for; `auto` says what it took.

    Raises:
        ConfigError: it is not there.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        device = torch.device("cuda:0" if num_gpus else "cpu")
        log.info("node.device = auto: training on %s", device)
        return device
    if wanted == "cpu":
        return torch.device("cpu")
    index = int(wanted.partition(":")[2] or 0)
    if index >= num_gpus:
        there = ", ".join(["cpu", *(f"cuda:{number}" for number in range(num_gpus))])
        raise ConfigError(f"node.device = {wanted!r} is not on this machine; there is: {there}")
    return torch.device("cuda", index)


class WeightsSource:
    """Announces the newest version to the hub and serves its chunks.

    The version that the hub is fetching is held beside the newest one: however fast versions come, each fetch ends.
    """

    def __init__(self, channel: ClientChannel) -> None:
        self._channel = channel
        self._decode = Decoder(Weights)
        self._newest: WeightsSnapshot | None = None
        self._under_way: WeightsSnapshot | None = None
        self._has_arrived = asyncio.Event()
        self._num_connects = 0

    @property
    def num_reconnects(self) -> int:
        """Times that the connection came back."""
        return max(0, self._num_connects - 1)

    def publish(self, snapshot: WeightsSnapshot) -> None:
        """Holds `snapshot` and announces it; while the hub is away, that is done when it is back."""
        self._newest = snapshot
        self._has_arrived.clear()
        self._channel.try_send(encode(announcement(snapshot)))

    async def run(self) -> None:
        """Serves chunks, and announces again after each reconnect, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve())
            tasks.create_task(self._watch_link())

    async def hand_over(self, snapshot: WeightsSnapshot) -> None:
        """Publishes a version and waits until the hub has it whole."""
        self.publish(snapshot)
        await self._has_arrived.wait()

    async def _serve(self) -> None:
        while True:
            for frames in await self._channel.receive_many():
                message, _ = self._decode(frames)
                match message:
                    case ChunkWanted():
                        await self._channel.send(self._chunk(message))
                    case WeightsWanted() if self._newest is not None and message.newer_than == self._newest.version:
                        self._has_arrived.set()

    def _chunk(self, wanted: ChunkWanted) -> list[Frame]:
        if self._newest is not None and wanted.version == self._newest.version:
            self._under_way = self._newest
        return chunk_frames(wanted, [] if self._under_way is None else [self._under_way])

    async def _watch_link(self) -> None:
        while True:
            if await self._channel.next_event() is LinkEvent.CONNECTED:
                self._num_connects += 1
                if self._newest is not None:
                    await self._channel.send(encode(announcement(self._newest)))


class IdleTime:
    """For how long the work thread had nothing to do, and how much of that the limiter is the reason of.

    The work thread writes it; who reads it beside may be off by one wait.

    Attributes:
        waited_s: seconds of all waits that ended in work.
        limited_s: those due to the limiter.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begins now, in seconds of `clock`."""
        self._clock = clock
        self._since = clock()
        self.waited_s = 0.0
        self.limited_s = 0.0
        self._taken = 0.0, 0.0

    @contextlib.contextmanager
    def interrupted(self, held_s: float = 0.0) -> Iterator[None]:
        """There is work for the duration of the block; the limiter held it back for `held_s` before it could begin."""
        waited_s = self._clock() - self._since
        self.waited_s += waited_s
        self.limited_s += min(waited_s, held_s)
        try:
            yield
        finally:
            self._since = self._clock()

    def take(self) -> tuple[float, float]:
        """Seconds since the last call that ended in work: all, and those due to the limiter."""
        (waited_s, limited_s), self._taken = self._taken, (self.waited_s, self.limited_s)
        return self.waited_s - waited_s, self.limited_s - limited_s


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """Batches in the work thread, and what will come of them."""

    batches: list[Batch]
    steps: asyncio.Task[list[LearnerStep]]


class LearnerNode:
    """The work loop: batch, update, priorities back, weights out.

    The learner's calls run in the work thread, one at a time; all else runs in the loop's thread.
    """

    def __init__(
        self,
        link: HubLink,
        work: WorkThread,
        stop: StopSignal,
        learner: Learner,
        config: RunConfig,
        checkpoint_root: Path,
    ) -> None:
        self._link = link
        self._work = work
        self._stop = stop
        self._learner = learner
        self._config = config
        self._checkpoint_root = checkpoint_root
        self._is_waiting = False
        self._idle = IdleTime(time.monotonic)
        self._figures_at = time.monotonic()
        self._checkpoint_s = 0.0
        self._num_unsaved = 0

    async def run(self, source: WeightsSource, network: Network, welcome: Welcome, spec: TableSpec) -> None:
        """Publishes version (g, 0), then trains until the stop; ends with a last version and a checkpoint."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(source.run())]
            self._link.status.counters["updates_total"] = self._learner.num_updates
            source.publish(await self._work(self._learner.publish))
            self._link.status.waits("the replay node to open its table")
            endpoints = await self._stop.wait_for(self._link.replay_endpoints(self._config.replay.nodes))
            if endpoints is not None:
                attach = attach_message(self._link, welcome, spec)
                channels = [network.connect(endpoint) for endpoint in endpoints]
                samples = sample_source(channels, attach, self._config, spec)
                self._link.status.links += [source, samples]
                background.append(tasks.create_task(samples.run()))
                await self._train(samples, source)
                await self._finish(samples, source)
            for task in background:
                task.cancel()

    async def _train(self, samples: SampleSource, source: WeightsSource) -> None:
        """Keeps the work thread supplied: while it learns from some batches, the next ones already wait for it.

        It goes from one to the other by itself. Two changes of threads between any two updates would cost a third of
        the time on idle cores, and far more on busy ones.
        """
        under_way: asyncio.Queue[_UnderWay | None] = asyncio.Queue(MAX_UNDER_WAY + 1)
        room = asyncio.Semaphore(MAX_UNDER_WAY)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collect(samples, source, under_way, room))
            while await room.acquire() and (batches := await self._next_batches(samples)):
                samples.ask()  # before the updates, so that the next batches come in meanwhile
                under_way.put_nowait(_UnderWay(batches, tasks.create_task(self._work(self._learn, batches))))
            under_way.put_nowait(None)

    async def _collect(
        self,
        samples: SampleSource,
        source: WeightsSource,
        under_way: asyncio.Queue[_UnderWay | None],
        room: asyncio.Semaphore,
    ) -> None:
        """Hands on what the updates lead to, in their order, until there are no more."""
        while (group := await under_way.get()) is not None:
            for batch, step in zip(group.batches, await group.steps, strict=True):
                samples.give_back(batch, step.magnitudes)
                if step.published is not None:
                    source.publish(step.published)
                if step.is_checkpoint_due:
                    await self._try_to_save()
            room.release()
            self._note(samples)

    def _learn(self, batches: list[Batch]) -> list[LearnerStep]:
        depth = self._config.environment.frame_stack
        with self._idle.interrupted(batches[0].reply.held_s):
            return [self._learner.learn(drawn_rows(batch, depth)) for batch in batches]

    async def _next_batches(self, samples: SampleSource) -> list[Batch]:
        """The batches that are there, at least one; none at the stop."""
        if self._stop.is_set():
            return []
        if batches := samples.ready_batches():
            return batches
        self._is_waiting = True
        self._link.status.waits(lambda: samples.waiting_for)
        first = await self._stop.wait_for(samples.next_batch())
        self._is_waiting = False
        return [] if first is None else [first, *samples.ready_batches()]

    async def _finish(self, samples: SampleSource, source: WeightsSource) -> None:
        """The checkpoint comes first: the hub may be gone, and is then waited for in vain."""
        self._link.status.works("finishing")
        samples.send_last_priorities()
        last = await self._work(self._learner.publish)
        await self._save_checkpoint()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(source.hand_over(last), HAND_OVER_S)

    async def _try_to_save(self) -> None:
        """A disk that is full now need not be so next time; older checkpoints are as before."""
        try:
            await self._save_checkpoint()
        except SnapshotError as error:
            self._num_unsaved += 1
            log.error("no checkpoint was written, the next one may be: %s", error)

    async def _save_checkpoint(self) -> None:
        await self._work(self._write_checkpoint)

    def _write_checkpoint(self) -> None:
        with self._idle.interrupted():
            keep, began_at = self._config.learner.keep_checkpoints, time.monotonic()
            checkpoints.save(self._checkpoint_root, self._learner.checkpoint(), keep=keep)
            self._checkpoint_s += time.monotonic() - began_at

    def _note(self, samples: SampleSource) -> None:
        self._link.status.works("updating")
        if self._is_waiting:  # for the next batches already, while these were learned from
            self._link.status.waits(lambda: samples.waiting_for)
        counters = self._link.status.counters
        counters["updates_total"] = self._learner.num_updates
        counters["torn_rows_total"] = samples.num_torn
        counters["failed_checkpoints_total"] = self._num_unsaved
        if (now := time.monotonic()) - self._figures_at >= FIGURES_EVERY_S:
            counters.update(self._learner.take_figures())
            waited_s, limited_s = self._idle.take()
            counters["learner_wait_fraction"] = min(1.0, waited_s / (now - self._figures_at))
            counters["learner_limiter_wait_fraction"] = min(1.0, limited_s / (now - self._figures_at))
            counters["learner_wait_seconds_total"] = self._idle.waited_s
            counters["learner_limiter_wait_seconds_total"] = self._idle.limited_s
            counters["learner_checkpoint_seconds_total"] = self._checkpoint_s
            self._figures_at = now


def drawn_rows(batch: Batch, frame_stack: int) -> DrawnRows:
    """The batch as the learner's pure half takes it, frames that were sent once as stacks."""
    columns = dict(batch.arrays)
    for name in [name for name in columns if name.partition("/")[0] == "frames"]:
        obs, next_obs = split_frames(columns.pop(name), columns["num_steps"], frame_stack)
        key = name.removeprefix("frames")
        columns[f"obs{key}"], columns[f"next_obs{key}"] = obs, next_obs
    return DrawnRows(columns, columns["probabilities"], batch.reply.num_live)
