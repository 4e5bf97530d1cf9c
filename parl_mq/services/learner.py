"""A learner: keeps sample requests outstanding, updates, sends priorities back, publishes weights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Final

import numpy as np
import torch

from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, ConfigError, GroupBroken, ParlError, SnapshotError
from parl_mq.learn import checkpoint as checkpoints
from parl_mq.learn.devices import choose_device, memory_named
from parl_mq.learn.group import LearnerGroup, MeetingPoint, Place
from parl_mq.learn.learner import DrawnRows, Learner, LearnerStep, parallel
from parl_mq.learn.threads import prepare_training_thread
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.net.channel import ClientChannel, Frame, LinkEvent
from parl_mq.net.zmq_channel import Network
from parl_mq.replay.draws import split_frames
from parl_mq.services.hub_link import HubLink
from parl_mq.services.hung_work import LongWork, end_if_it_hangs
from parl_mq.services.joining import attach_message, joined, run_config
from parl_mq.services.network import network_of
from parl_mq.services.rendezvous import Rendezvous, own_address
from parl_mq.services.run_directory import MEMORY
from parl_mq.services.run_memory import RunMemory
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread, first_cause
from parl_mq.services.sample_client import Batch
from parl_mq.services.sample_source import SampleSource, sample_source
from parl_mq.services.weights_exchange import announcement, chunk_frames
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import ChunkWanted, GroupFormed, Weights, WeightsWanted, Welcome

HAND_OVER_S: Final = 2.0
"""Time that the hub gets to fetch the last version at the end."""
FIGURES_EVERY_S: Final = 1.0
MAX_IN_VAIN: Final = 10
"""Groups in a row that do not begin, and do not end by the hub's word. Of a learner that fails again and again more
restarts are counted than this one's own fault would cause."""
COMPILE_S: Final = 600.0
"""So long after a group's first update torch.compile may be at work, which says nothing meanwhile: some programs are
compiled in later updates, and for batches of another size anew."""
SAVE_S: Final = 600.0
"""So long a disk may take to read or write a checkpoint: a network's may stall for minutes."""
OF_GROUP: Final = ("updates_total", "skipped_updates_total")
"""Figures that are the same for all learners of a group."""
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
            check_run_directory(directory, welcome.run_id, options.hub)
            link.status.waits("word of what the rows of the environment hold")
            spec = await stop.wait_for(link.table_spec())
            if spec is not None:
                device = choose_device("cpu" if config.deterministic else config.node.device, welcome.host_index)
                await work(prepare_on, device, config.node.threads or 1)
                learner = await work(build_learner, config, spec, device, directory / CHECKPOINTS, welcome.run_id)
                source = WeightsSource(network.connect(welcome.weights_endpoint))
                node = LearnerNode(link, work, stop, learner, config, directory / CHECKPOINTS, device)
                with meeting_point(config, options.hub) as point:
                    store = None if point is None else point.address
                    rendezvous = Rendezvous(link, stop, device=str(device), host=own_address(options.hub), store=store)
                    await node.run(rendezvous, source, network, welcome, spec)
        return EXIT_OK
    finally:
        work.close()
        network.close()


def prepare_on(device: torch.device, num_threads: int) -> None:
    """Makes the calling thread the one that trains on `device`.

    Raises:
        MemoryRefused: it has no memory left even for that.
    """
    with memory_named(device):
        prepare_training_thread(num_threads, device)


def check_run_directory(directory: Path, run_id: str, hub: str) -> None:
    """Refuses the directory of another run, whose checkpoints this learner would take for its own, and remove.

    Raises:
        ConfigError: it is another run's, or none's though that of the run must be on this machine.
    """
    memory = directory / MEMORY
    found = RunMemory.read(memory).run_id if memory.is_file() else ""
    if found != run_id and (found or hub.startswith("ipc://")):
        whose = f"of run {found}" if found else "no run's directory"
        raise ConfigError(f"--run-dir {directory} is {whose}, and this learner is in run {run_id}; name that run's")


@contextlib.contextmanager
def meeting_point(config: RunConfig, hub: str) -> Iterator[MeetingPoint | None]:
    """Where groups meet that this learner gets rank 0 of; None where a learner is always alone."""
    if config.learner.num_learners == 1:
        yield None
        return
    point = MeetingPoint(own_address(hub))
    try:
        yield point
    finally:
        point.close()


def build_learner(
    config: RunConfig, spec: TableSpec, device: torch.device, checkpoint_root: Path, run_id: str
) -> Learner:
    """The trainer on its device, as its newest whole checkpoint left it; to be called in the work thread.

    Raises:
        SnapshotError: the newest whole checkpoint is of another run, algorithm or network, or there are only damaged
            ones.
        ConfigError: there are to be several learners, and the algorithm cannot share its batches.
    """
    seed = int(np.random.SeedSequence(config.seed, spawn_key=(LEARNER_STREAM, 0)).generate_state(1)[0])
    policy_spec = spec.stacked(config.environment.frame_stack)
    with memory_named(device):
        trainer = load_algorithm(config.algorithm.name).make_trainer(config.algorithm, policy_spec, seed, device)
    if config.learner.num_learners > 1:
        parallel(trainer)
    settings = config.learner
    if config.deterministic:  # each round's last batch says so
        settings = settings.model_copy(update={"publish_every_updates": NEVER})
    learner = Learner(
        trainer,
        spec,
        settings,
        beta=config.replay.beta,
        clock=time.monotonic,
        device=device,
        run_id=run_id,
    )
    found = checkpoints.find_newest(checkpoint_root)
    for damage in found.damaged:
        log.warning("skipped a damaged checkpoint: %s", damage)
    if found.checkpoint is None and found.damaged:
        raise SnapshotError(f"no checkpoint under {checkpoint_root} is whole; start a new run in another directory")
    if found.checkpoint is not None:
        if (other := found.checkpoint.values.get("run_id", run_id)) != run_id:
            raise SnapshotError(f"{found.path} is of run {other}, and this learner is in run {run_id}; name that run's")
        with memory_named(device):
            learner.resume(found.checkpoint)
        log.info("going on from %s, after %d updates", found.path, learner.num_updates)
    return learner


CHECKPOINTS: Final = "checkpoints"
NEVER: Final = 2**62
LEARNER_STREAM: Final = 7
"""Key of the stream that the networks' first weights come from; the same for every rank."""


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
    """The work loop: batch, update, priorities back, weights out; one group of learners after the other.

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
        device: torch.device | None = None,
    ) -> None:
        self._link = link
        self._device = device or torch.device("cpu")
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
        self._group: LearnerGroup | None = None
        self._told_reason = ""
        self._has_joined = self._has_broken = False
        self._num_in_vain = 0
        self._long_work = LongWork(work.gets_on)
        self._compiles_until: float | None = None
        self._samples: SampleSource | None = None

    async def run(
        self, rendezvous: Rendezvous, source: WeightsSource, network: Network, welcome: Welcome, spec: TableSpec
    ) -> None:
        """Trains until the stop, in each group from version (g, 0) on; ends with a last version and a checkpoint."""
        async with asyncio.TaskGroup() as tasks:
            watching = end_if_it_hangs(
                self._work, self._long_work, self._outlasts_abort_s, self._config.node.busy_limit_s
            )
            background = [tasks.create_task(source.run()), tasks.create_task(watching)]
            self._link.status.links.append(source)
            reason = ""
            while (formed := await self._next_group(rendezvous, reason)) is not None:
                try:
                    async with self._in_group(formed, rendezvous):
                        await self._begin(source)
                        if self._samples is None and (samples := await self._attach(network, welcome, spec)):
                            background.append(tasks.create_task(samples.run()))
                            self._samples = samples
                        if self._samples is not None:
                            self._samples.ask()  # for what was taken as the last group ended, and not learned from
                            await self._train(self._samples, source)
                except* GroupBroken as broken:
                    reason = self._told_reason or str(first_cause(broken))  # the hub knows who it was
                    self._has_broken = True
                    await self._note_broken(reason)
            await self._finish(source, rendezvous)
            for task in background:
                task.cancel()

    async def _note_broken(self, reason: str) -> None:
        """Ends a learner whose groups do not begin, one after the other: it may be its own machine that fails.

        Raises:
            ParlError: that is so. What it has learned is saved before.
        """
        self._num_in_vain = 0 if self._has_joined or self._told_reason else self._num_in_vain + 1
        if self._num_in_vain >= MAX_IN_VAIN:
            await self._trying_to_save(self._keep_state)
            raise ParlError(
                f"{self._num_in_vain} groups of learners in a row broke before they began, the last one because "
                f"{reason}; look whether this machine reaches the others, and for errors of theirs"
            )

    def _outlasts_abort_s(self) -> float:
        return 0.0 if self._group is None else self._group.outlasts_abort_s

    async def _next_group(self, rendezvous: Rendezvous, reason: str) -> GroupFormed | None:
        """The group that this learner is in next; None at the stop, unless it was formed before."""
        for name in ("learner_group", *OF_GROUP):  # of the group that is over
            self._link.status.counters.pop(name, None)
        ready = rendezvous.next_group(updates=self._learner.num_updates, reason=reason)
        return await self._stop.wait_for(ready) or rendezvous.take_formed()  # which the hub counts on at the end

    @contextlib.asynccontextmanager
    async def _in_group(self, formed: GroupFormed, rendezvous: Rendezvous) -> AsyncIterator[None]:
        """Learns with a group for the duration of the block, which the group's end cuts off.

        Raises:
            GroupBroken: the group is over, though not at the stop; in an exception group.
        """
        self._told_reason, self._has_joined, self._has_broken = "", False, False
        self._compiles_until = None
        group = self._group = LearnerGroup(
            _place(formed), host=rendezvous.host, device=self._device, gets_on=self._work.gets_on
        )
        if group.size > 1:  # the hub answers where it knows better
            self._link.status.counters["learner_group"] = formed.generation
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch(group, rendezvous))
                await self._work(group.meet)
                await self._work(self._join, group)
                self._has_joined = True
                yield
                watching.cancel()
        finally:
            group.abort()
            await self._work(group.close)

    def _join(self, group: LearnerGroup) -> None:
        with memory_named(self._device):
            self._learner.join(group, group.place.generation)

    async def _watch(self, group: LearnerGroup, rendezvous: Rendezvous) -> None:
        """Ends a group whose end the hub tells, and at the stop: the others may have stopped in front of an update."""
        reason = await self._stop.wait_for(rendezvous.ended(group.place.generation))
        self._told_reason = reason or ""
        if group.size > 1:
            group.abort()
        if reason is not None:
            raise GroupBroken(reason)

    async def _begin(self, source: WeightsSource) -> None:
        """Tells of the group, and of its first version."""
        counters, num_updates = self._link.status.counters, self._learner.num_updates
        if self._is_first:
            counters["updates_total"] = num_updates
            source.publish(await self._work(self._learner.publish))
        if self._group is not None and self._group.size > 1:
            log.info("rank %d of %d: going on after %d updates", self._group.rank, self._group.size, num_updates)

    async def _attach(self, network: Network, welcome: Welcome, spec: TableSpec) -> SampleSource | None:
        """A client of the replay nodes, once they have a table; None at the stop."""
        self._link.status.waits("the replay node to open its table")
        endpoints = await self._stop.wait_for(self._link.replay_endpoints(self._config.replay.nodes))
        if endpoints is None:
            return None
        channels = [network.connect(endpoint) for endpoint in endpoints]
        samples = sample_source(channels, attach_message(self._link, welcome, spec), self._config, spec)
        self._link.status.links.append(samples)
        return samples

    @property
    def _is_first(self) -> bool:
        """Whether this learner speaks for its group."""
        return self._group is None or self._group.rank == 0

    def _leads(self, rendezvous: Rendezvous) -> bool:
        """Whether the state that it holds is the run's last one: where its group ended before the stop, others go on.

        Of a group that has not begun it is the state that all were about to begin with.
        """
        if self._group is None or rendezvous.has_ended(self._group.place.generation):
            return False
        return self._group.rank == (0 if self._has_joined else self._group.place.source)

    async def _train(self, samples: SampleSource, source: WeightsSource) -> None:
        """Keeps the work thread supplied: while it learns from some batches, the next ones already wait for it.

        It goes from one to the other by itself. Two changes of threads between any two updates would cost a third of
        the time on idle cores, and far more on busy ones.
        """
        under_way: asyncio.Queue[_UnderWay | None] = asyncio.Queue(MAX_UNDER_WAY + 1)
        room = asyncio.Semaphore(1 if self._config.deterministic else MAX_UNDER_WAY)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collect(samples, source, under_way, room))
            while await room.acquire() and (batches := await self._next_batches(samples)):
                if not self._config.deterministic:
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
            for batch, step in zip(group.batches, await group.steps, strict=False):  # fewer steps at the limit
                samples.give_back(batch, step.magnitudes)
                if step.published is not None:
                    source.publish(step.published)
                if step.is_checkpoint_due:
                    await self._trying_to_save(self._save_checkpoint)
            if self._config.deterministic:
                samples.ask()  # with the priorities of this batch
            room.release()
            self._note(samples)

    def _learn(self, batches: list[Batch]) -> list[LearnerStep]:
        """An update for each batch, up to the stop or the limit: one more would wait for those who stopped there."""
        depth = self._config.environment.frame_stack
        with self._idle.interrupted(batches[0].reply.held_s):
            return [self._learned(batch, depth) for batch in batches if self._may_learn]

    @property
    def _has_reached_limit(self) -> bool:
        limit = self._config.stop.max_updates
        return limit is not None and self._learner.num_updates >= limit

    @property
    def _may_learn(self) -> bool:
        return not self._has_reached_limit and not self._stop.is_set()

    def _learned(self, batch: Batch, depth: int) -> LearnerStep:
        self._work.gets_on()
        with memory_named(self._device), self._long_work.lasting(self._compiling_until()):
            step = self._learner.learn(drawn_rows(batch, depth))
        return replace(step, published=self._learner.publish()) if batch.reply.ends_round else step

    def _compiling_until(self) -> float:
        """COMPILE_S after the group's first update began."""
        if not self._config.learner.compile:
            return -inf
        if self._compiles_until is None:
            self._compiles_until = time.monotonic() + COMPILE_S
        return self._compiles_until

    async def _next_batches(self, samples: SampleSource) -> list[Batch]:
        """The batches that are there, at least one; none at the stop."""
        if self._has_reached_limit:
            self._link.status.waits("the end of the run: all updates are made")
            await self._stop.wait()
        if self._stop.is_set():
            return []
        if batches := samples.ready_batches():
            return batches
        self._is_waiting = True
        self._link.status.waits(lambda: samples.waiting_for)
        first = await self._stop.wait_for(samples.next_batch())
        self._is_waiting = False
        return [] if first is None else [first, *samples.ready_batches()]

    async def _finish(self, source: WeightsSource, rendezvous: Rendezvous) -> None:
        """The checkpoint comes first: the hub may be gone, and is then waited for in vain."""
        self._link.status.works("finishing")
        leads = self._leads(rendezvous)
        if self._samples is not None:
            self._samples.send_last_priorities()
        if self._samples is None or not leads:
            if leads or self._is_left(rendezvous):
                await self._keep_state()
            return
        self._link.status.counters["updates_total"] = self._learner.num_updates
        last = await self._work(self._learner.publish)
        await self._save_checkpoint()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(source.hand_over(last), HAND_OVER_S)

    def _is_left(self, rendezvous: Rendezvous) -> bool:
        """Whether its group ended before the stop: it may be the only one that has the state of that."""
        return self._group is not None and (self._has_broken or rendezvous.has_ended(self._group.place.generation))

    async def _trying_to_save(self, save: Callable[[], Awaitable[None]]) -> None:
        """A disk that is full now need not be so next time; older checkpoints are as before."""
        try:
            await save()
        except SnapshotError as error:
            self._num_unsaved += 1
            log.error("no checkpoint was written, the next one may be: %s", error)

    async def _keep_state(self) -> None:
        """Saves what it has learned, unless there is a checkpoint that is as far."""
        await self._work(self._write_checkpoint, if_newest=True)

    async def _save_checkpoint(self) -> None:
        await self._work(self._write_checkpoint)

    def _write_checkpoint(self, *, if_newest: bool = False) -> None:
        began_at = time.monotonic()
        with self._idle.interrupted(), self._long_work.lasting(began_at + SAVE_S):
            keep = self._config.learner.keep_checkpoints
            if not if_newest or self._learner.num_updates > self._num_saved():
                checkpoints.save(self._checkpoint_root, self._learner.checkpoint(), keep=keep)
            self._checkpoint_s += time.monotonic() - began_at

    def _num_saved(self) -> int:
        """Updates in the newest checkpoint that there is; 0 without one."""
        found = checkpoints.find_newest(self._checkpoint_root).checkpoint
        return 0 if found is None else found.updates

    def _note(self, samples: SampleSource) -> None:
        self._link.status.works("updating")
        if self._is_waiting:  # for the next batches already, while these were learned from
            self._link.status.waits(lambda: samples.waiting_for)
        counters = self._link.status.counters
        counters["torn_rows_total"] = samples.num_torn
        counters["failed_checkpoints_total"] = self._num_unsaved
        if self._is_first:
            counters["updates_total"] = self._learner.num_updates
        if (now := time.monotonic()) - self._figures_at >= FIGURES_EVERY_S:
            counters.update(self._own_figures())
            counters.update(self._shares_of_time(now - self._figures_at))
            counters["learner_wait_seconds_total"] = self._idle.waited_s
            counters["learner_limiter_wait_seconds_total"] = self._idle.limited_s
            counters["learner_checkpoint_seconds_total"] = self._checkpoint_s
            self._figures_at = now

    def _own_figures(self) -> dict[str, float]:
        """An update of several learners counts once: rank 0 tells of it."""
        figures = self._learner.take_figures()
        of_group = () if self._is_first else OF_GROUP
        return {name: value for name, value in figures.items() if name not in of_group}

    def _shares_of_time(self, passed_s: float) -> dict[str, float]:
        waited_s, limited_s = self._idle.take()
        shares = {"learner_wait_fraction": waited_s, "learner_limiter_wait_fraction": limited_s}
        if self._group is not None and self._group.size > 1:
            shares["learner_group_wait_fraction"] = self._group.take_waited_s()
        return {name: min(1.0, seconds / passed_s) for name, seconds in shares.items()}


def _place(formed: GroupFormed) -> Place:
    return Place(
        generation=formed.generation,
        rank=formed.rank,
        names=tuple(formed.names),
        source=formed.source,
        backend=formed.backend,
        store=formed.store,
    )


def drawn_rows(batch: Batch, frame_stack: int) -> DrawnRows:
    """The batch as the learner's pure half takes it, frames that were sent once as stacks."""
    columns = dict(batch.arrays)
    for name in [name for name in columns if name.partition("/")[0] == "frames"]:
        obs, next_obs = split_frames(columns.pop(name), columns["num_steps"], frame_stack)
        key = name.removeprefix("frames")
        columns[f"obs{key}"], columns[f"next_obs{key}"] = obs, next_obs
    return DrawnRows(columns, columns["probabilities"], batch.reply.num_live)
