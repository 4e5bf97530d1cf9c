"""The learner's hand-over of weights to the hub, and its work loop; the network is in memory."""

import asyncio
import contextlib
import logging
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parl_mq.errors import ConfigError, GroupBroken, MemoryRefused, ParlError, SnapshotError
from parl_mq.learn.checkpoint import Checkpoint, save
from parl_mq.learn.group import CONNECT_S, MeetingPoint
from parl_mq.learn.learner import LearnerStep
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services import learner as module
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.hung_work import LongWork
from parl_mq.services.learner import (
    COMPILE_S,
    MAX_IN_VAIN,
    SAVE_S,
    IdleTime,
    LearnerNode,
    WeightsSource,
    build_learner,
    check_run_directory,
)
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.run_memory import RunMemory
from parl_mq.services.runtime import StopSignal, WorkThread, first_cause
from parl_mq.services.sample_client import Batch
from parl_mq.services.weights_exchange import announcement
from parl_mq.services.weights_store import WeightsStore
from parl_mq.spec import Space, TableSpec
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    CHUNK_BYTES,
    ChunkWanted,
    GroupFormed,
    SampleReply,
    VersionGone,
    Weights,
    WeightsAnnounced,
    WeightsChunk,
)
from tests.services.builders import PATIENCE_S, SPEC, small_config, snapshot, soon, until


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


log = logging.getLogger("parl_mq")


def _built(checkpoint_root, run_id="run"):
    spec = TableSpec(SPEC.columns, {"action": Space("Discrete", (0.0,), (1.0,))})
    return build_learner(small_config("node.device=cpu"), spec, torch.device("cpu"), checkpoint_root, run_id)


def test_a_learner_goes_on_from_no_checkpoint_of_another_run(tmp_path):
    path = save(tmp_path, _built(tmp_path).checkpoint(), keep=1)
    _built(tmp_path)
    with pytest.raises(SnapshotError, match=rf"{path} is of run run, and this learner is in run other"):
        _built(tmp_path, "other")


@pytest.mark.parametrize(
    ("found", "hub", "refusal"),
    [
        ("run", "ipc://hub", None),
        ("run", "tcp://192.0.2.1:7000", None),
        (None, "tcp://192.0.2.1:7000", None),
        (None, "ipc://hub", "is no run's directory"),
        ("other", "ipc://hub", "is of run other"),
        ("other", "tcp://192.0.2.1:7000", "is of run other"),
    ],
)
def test_a_learner_s_directory_is_that_of_its_run(tmp_path, found, hub, refusal):
    if found is not None:
        RunDirectory(tmp_path).write_memory(RunMemory(run_id=found))
    expected = contextlib.nullcontext()
    if refusal is not None:
        expected = pytest.raises(ConfigError, match=rf"--run-dir {tmp_path} {refusal}, and this learner is in run run")
    with expected:
        check_run_directory(tmp_path, "run", hub)


def test_a_learner_does_not_begin_anew_where_all_checkpoints_are_damaged(tmp_path):
    path = save(tmp_path, _built(tmp_path).checkpoint(), keep=1)
    _built(tmp_path)
    (path / "trainer.safetensors").write_bytes(b"")
    with pytest.raises(SnapshotError, match=r"no checkpoint under .* is whole"):
        _built(tmp_path)
    assert path.is_dir()


class Samples:
    """Batches as a replay node would send them: the test says when, and sees what is asked for and given back."""

    def __init__(self):
        self.waiting_for = "the replay node"
        self.num_torn = 0
        self.log = []
        self._arrived = asyncio.Queue()

    def arrive(self, *numbers, held_s=0.0):
        for number in numbers:
            reply = SampleReply(
                request_id=number, num_live=8, total_priority=1, num_inserted=0, num_drawn=8, held_s=held_s
            )
            self._arrived.put_nowait(Batch(reply, {"probabilities": np.ones(8)}))

    async def next_batch(self):
        return await self._arrived.get()

    def ready_batches(self):
        return [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]

    def ask(self):
        self.log.append("ask")

    def give_back(self, batch, magnitudes):
        self.log.append(batch.reply.request_id)
        assert magnitudes[0] == batch.reply.num_live


class Trainer:
    """A learner that takes as long as the test wants."""

    def __init__(self):
        self.num_updates = 0
        self.may_go_on = threading.Semaphore(0)
        self.has_learnt = threading.Semaphore(0)
        self.fails_at = None
        self.has_begun = False

    def learn(self, rows):
        self.has_begun = True
        assert self.may_go_on.acquire(timeout=20.0)
        self.num_updates += 1
        self.has_learnt.release()
        if self.num_updates == self.fails_at:
            raise ParlError("the loss was not finite")
        return LearnerStep(np.full(8, float(rows.num_live)), False, None, False)

    def take_figures(self):
        return {}


@pytest.fixture
def status():
    return NodeStatus()


@pytest.fixture
async def training(tmp_path, status):
    work, stop = WorkThread("training"), StopSignal()
    samples, trainer = Samples(), Trainer()
    node = LearnerNode(SimpleNamespace(status=status), work, stop, trainer, small_config(), tmp_path)
    task = asyncio.create_task(node._train(samples, source=None))
    yield samples, trainer, stop, task
    stop.set("the test is over")
    trainer.may_go_on.release(100)
    await asyncio.gather(task, return_exceptions=True)
    work.close()


async def test_the_next_batches_are_asked_for_before_the_updates_and_priorities_go_back_after_them(training):
    samples, trainer, _, _ = training
    samples.arrive(0, 1)
    await until(lambda: samples.log == ["ask"])
    trainer.may_go_on.release(2)
    await until(lambda: samples.log == ["ask", 0, 1])


async def test_the_work_thread_goes_to_the_next_batches_by_itself(training):
    samples, trainer, _, _ = training
    samples.arrive(0)
    await until(lambda: samples.log == ["ask"])
    samples.arrive(1)
    await until(lambda: samples.log == ["ask", "ask"])
    await asyncio.sleep(0)  # the second group's task has its first turn
    trainer.may_go_on.release(2)
    for _ in range(2):  # the loop has no part in it: it stands still meanwhile
        assert trainer.has_learnt.acquire(timeout=PATIENCE_S)
    assert samples.log == ["ask", "ask"]


async def test_a_learner_that_has_learnt_from_all_there_is_says_that_it_waits(training, status):
    samples, trainer, _, _ = training
    samples.arrive(0)
    await until(lambda: samples.log == ["ask"])  # and it goes on to the next ones, which are not there
    trainer.may_go_on.release()
    await until(lambda: samples.log == ["ask", 0] and status.progress == 1)
    assert status.waiting_for == "the replay node"
    samples.arrive(1)
    trainer.may_go_on.release()
    await until(lambda: status.progress == 2)


async def test_batches_beyond_two_groups_stay_where_they_are_counted_as_prefetched(training):
    samples, trainer, _, _ = training
    for number in range(3):
        samples.arrive(number)
        await until(lambda number=number: samples.log == ["ask"] * min(number + 1, 2))
    for _ in range(10):
        await asyncio.sleep(0)
    assert samples.log == ["ask", "ask"]
    trainer.may_go_on.release()
    await until(lambda: samples.log == ["ask", "ask", 0, "ask"])


async def test_at_the_stop_the_update_under_way_is_finished_and_given_back(training):
    samples, trainer, stop, task = training
    samples.arrive(0, 1)
    await until(lambda: samples.log == ["ask"])
    samples.arrive(2)
    await until(lambda: samples.log == ["ask", "ask"])
    await until(lambda: trainer.has_begun)
    stop.set("enough")
    trainer.may_go_on.release(3)
    await soon(task)
    assert samples.log == ["ask", "ask", 0]
    assert trainer.num_updates == 1


async def test_a_stop_ends_the_wait_for_a_batch(training):
    _, _, stop, task = training
    await asyncio.sleep(0)
    stop.set("enough")
    await soon(task)


async def test_an_update_that_fails_ends_the_training_with_its_error(training):
    samples, trainer, _, task = training
    trainer.fails_at = 1
    samples.arrive(0)
    await until(lambda: samples.log == ["ask"])
    samples.arrive(1)
    trainer.may_go_on.release(2)
    with pytest.raises(BaseExceptionGroup) as raised:
        await soon(task)
    assert isinstance(first_cause(raised.value), ParlError)


def test_idle_time_is_what_lies_between_works_and_the_limiter_has_its_part_of_it():
    now = 0.0
    idle = IdleTime(lambda: now)
    for start, end, held_s in ((2.0, 3.0, 0.5), (3.0, 4.0, 0.5), (10.0, 11.0, 100.0)):
        now = start
        with idle.interrupted(held_s):
            now = end
    assert idle.take() == (2.0 + 0.0 + 6.0, 0.5 + 0.0 + 6.0)
    assert idle.take() == (0.0, 0.0)


async def test_batches_that_a_group_had_taken_when_it_broke_are_asked_for_again(node):
    node.rendezvous.formed.put_nowait(_formed(1))
    await until(lambda: node.samples.log == ["ask"])
    node.samples.arrive(0)
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    node.rendezvous.formed.put_nowait(_formed(2))
    await until(lambda: node.source.published == [1, 2])
    await until(lambda: node.samples.log.count("ask") >= 2)


async def test_groups_that_break_again_and_again_without_an_update_end_the_learner(node):
    def fails(group, generation):
        raise GroupBroken("learner-1 stopped while it took up the common state: No route to host")

    node.trainer.join = fails
    for generation in range(1, MAX_IN_VAIN + 2):
        node.rendezvous.formed.put_nowait(_formed(generation))
    with pytest.raises(BaseExceptionGroup) as raised:
        await soon(node.task)
    assert isinstance(first_cause(raised.value), ParlError)
    assert f"{MAX_IN_VAIN} groups of learners in a row broke" in str(first_cause(raised.value))
    assert "No route to host" in str(first_cause(raised.value))
    assert node.rendezvous.formed.qsize() == 1


async def test_what_was_learned_is_saved_before_groups_that_do_not_begin_end_the_learner(node):
    node.rendezvous.formed.put_nowait(_formed(1))
    node.samples.arrive(0)
    await until(lambda: node.trainer.num_updates == 1)
    node.trainer.join = lambda group, generation: _raising(GroupBroken("learner-1 stopped"))(None)
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    for generation in range(2, MAX_IN_VAIN + 2):
        node.rendezvous.formed.put_nowait(_formed(generation))
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        await soon(node.task)
    assert [path.name for path in node.root.iterdir()] == ["updates-000000000001"]


async def test_a_group_that_begins_and_breaks_in_its_first_update_is_another_s_fault(node):
    node.trainer.learn = _raising(GroupBroken("learner-1 stopped in the midst of an update"))
    for generation in range(1, 2 * MAX_IN_VAIN):
        node.rendezvous.formed.put_nowait(_formed(generation))
        node.samples.arrive(generation)
        await until(lambda generation=generation: len(node.rendezvous.asked) == generation + 1)
    assert not node.task.done()


async def test_a_group_with_an_update_or_that_the_hub_ends_is_not_in_vain(node):
    for generation in range(1, 2 * MAX_IN_VAIN):
        node.rendezvous.formed.put_nowait(_formed(generation))
        if generation % 2:
            node.samples.arrive(generation)
            await until(lambda generation=generation: node.trainer.num_updates == (generation + 1) // 2)
        node.rendezvous.is_over.put_nowait("learner-1 has left")
        await until(lambda generation=generation: len(node.rendezvous.asked) == generation + 1)
    assert not node.task.done()


@pytest.fixture
def timed(training_node, monkeypatch):
    """A node whose clock is the test's; what is called takes 100 s, and the loop looks at it after that."""
    made = SimpleNamespace(node=training_node[0], trainer=training_node[1], now=0.0, seen=[])

    def takes_long(result):
        made.now += 100.0
        made.node._long_work.tell()
        made.seen.append(made.node._work.busy_s)
        return result

    made.takes_long = takes_long
    made.node._work._clock = lambda: made.now
    monkeypatch.setattr(made.node, "_long_work", LongWork(made.node._work.gets_on, lambda: made.now))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.mark.parametrize("compiles", [True, False])
def test_each_batch_and_the_time_of_compiling_count_as_work_that_gets_on(timed, monkeypatch, compiles):
    monkeypatch.setattr(timed.node, "_config", small_config(f"learner.compile={str(compiles).lower()}"))
    batch = Batch(SimpleNamespace(held_s=0.0, ends_round=False, num_live=8), {"probabilities": np.ones(8)})
    timed.trainer.learn = lambda rows: timed.takes_long(LearnerStep(np.ones(8), False, None, False))
    timed.node._learn([batch] * 7)
    in_time = int(COMPILE_S / 100.0) - 1 if compiles else 0
    assert timed.seen == [0.0] * in_time + [100.0] * (7 - in_time)


async def test_a_group_s_programs_may_be_compiled_anew(node, monkeypatch):
    monkeypatch.setattr(node.made, "_config", small_config("learner.compile=true"))
    monkeypatch.setattr(module, "COMPILE_S", 0.0)
    seen = []
    for generation in (1, 2):
        node.rendezvous.formed.put_nowait(_formed(generation))
        node.samples.arrive(generation)
        await until(lambda generation=generation: node.trainer.num_updates == generation)
        seen.append(node.made._compiles_until)
        node.rendezvous.is_over.put_nowait("learner-1 has left")
        await until(lambda generation=generation: len(node.rendezvous.asked) == generation + 1)
    assert seen[0] < seen[1]


@pytest.mark.parametrize("if_newest", [False, True])
def test_a_checkpoint_that_takes_long_is_work_that_gets_on(timed, monkeypatch, if_newest):
    monkeypatch.setattr(module.checkpoints, "save", lambda *_, **__: timed.takes_long(None))
    monkeypatch.setattr(module.checkpoints, "find_newest", lambda _: timed.takes_long(SimpleNamespace(checkpoint=None)))
    timed.trainer.checkpoint, timed.trainer.num_updates = lambda: None, 1
    timed.node._write_checkpoint(if_newest=if_newest)
    assert timed.seen == [0.0] * (1 + if_newest)
    assert timed.now < SAVE_S


def test_memory_that_ends_before_the_first_update_is_named_too(training_node, monkeypatch, tmp_path):
    node, trainer = training_node
    trainer.join = lambda group, generation: _raising(torch.OutOfMemoryError("CUDA out of memory"))(None)
    with pytest.raises(MemoryRefused):
        node._join(SimpleNamespace(place=SimpleNamespace(generation=1)))
    monkeypatch.setattr(module, "prepare_training_thread", lambda *_: _raising(RuntimeError("out of memory"))(None))
    with pytest.raises(MemoryRefused):
        module.prepare_on(torch.device("cpu"), 1)
    save(tmp_path, _built(tmp_path).checkpoint(), keep=1)
    monkeypatch.setattr(module.Learner, "resume", lambda *_: _raising(RuntimeError("CUDA out of memory"))(None))
    with pytest.raises(MemoryRefused):
        _built(tmp_path)


def test_a_device_whose_memory_ends_is_named_with_those_that_there_are(training_node):
    node, trainer = training_node
    trainer.learn = _raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."))
    batch = Batch(SimpleNamespace(held_s=0.0, ends_round=False, num_live=8), {"probabilities": np.ones(8)})
    with pytest.raises(MemoryRefused, match=r"memory of cpu is not enough: CUDA out of memory; .*another one of: cpu"):
        node._learn([batch])


def _raising(error):
    def learn(rows):
        raise error

    return learn


@pytest.fixture
def training_node(tmp_path):
    work, trainer = WorkThread("training"), Trainer()
    yield (
        LearnerNode(SimpleNamespace(status=NodeStatus()), work, StopSignal(), trainer, small_config(), tmp_path),
        trainer,
    )
    work.close()


def test_several_learners_want_a_trainer_that_can_share_its_batches(tmp_path, monkeypatch):
    lone = SimpleNamespace(make_trainer=lambda *arguments: SimpleNamespace(num_updates=0))
    monkeypatch.setattr(module, "load_algorithm", lambda name: lone)
    spec = TableSpec(SPEC.columns, {"action": Space("Discrete", (0.0,), (1.0,))})
    config = small_config("learner.num_learners=2")
    with pytest.raises(ConfigError, match="cannot learn with others: it has no method `join`"):
        build_learner(config, spec, torch.device("cpu"), tmp_path, "run")


class Rendezvous:
    """A hub that forms and ends groups as the test says."""

    def __init__(self):
        self.host = "127.0.0.1"
        self.asked = []
        self.formed = asyncio.Queue()
        self.is_over = asyncio.Queue()
        self.last_over = 0

    async def next_group(self, *, updates, reason):
        self.asked.append((updates, reason))
        return await self.formed.get()

    async def ended(self, generation):
        reason = await self.is_over.get()
        self.last_over = generation
        return reason

    def has_ended(self, generation):
        return generation <= self.last_over

    def take_formed(self):
        return None if self.formed.empty() else self.formed.get_nowait()


class Shared(Trainer):
    """A learner whose updates are made at once, and which says what it is told."""

    def __init__(self):
        super().__init__()
        self.joined = []
        self.num_published = 0

    def join(self, group, generation):
        self.joined.append((group.rank, group.size, generation))

    def learn(self, rows):
        self.num_updates += 1
        return LearnerStep(np.full(8, float(rows.num_live)), False, None, False)

    def publish(self):
        self.num_published += 1
        return snapshot(self.joined[-1][2], self.num_published)

    def checkpoint(self):
        return Checkpoint(self.num_updates, b"weights")


class Source:
    """Where weights go."""

    def __init__(self):
        self.published = []

    async def run(self):
        await asyncio.Event().wait()

    def publish(self, version):
        self.published.append(version.version.generation)

    async def hand_over(self, version):
        self.published.append(version.version.generation)


@pytest.fixture
async def node(tmp_path):
    """A whole work loop between a rendezvous and a source of batches that are the test's."""
    work, stop, trainer, rendezvous, source = WorkThread("training"), StopSignal(), Shared(), Rendezvous(), Source()
    samples = Samples()
    samples.run = source.run
    samples.send_last_priorities = lambda: None
    link = SimpleNamespace(status=NodeStatus())
    made = LearnerNode(link, work, stop, trainer, small_config(), tmp_path)

    async def attach(*_):
        return samples

    made._attach = attach
    task = asyncio.create_task(made.run(rendezvous, source, None, None, None))
    yield SimpleNamespace(
        trainer=trainer, rendezvous=rendezvous, source=source, samples=samples, stop=stop, task=task, link=link,
        root=tmp_path, made=made,
    )  # fmt: skip
    stop.set("the test is over")
    await asyncio.gather(task, return_exceptions=True)
    work.close()


def _formed(generation, rank=0, names=("learner-0",)):
    return GroupFormed(generation=generation, rank=rank, names=list(names))


async def test_each_group_begins_with_a_version_of_its_generation_and_goes_on_with_the_batches(node):
    node.rendezvous.formed.put_nowait(_formed(1))
    node.samples.arrive(0)
    await until(lambda: node.trainer.num_updates == 1)
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    await until(lambda: len(node.rendezvous.asked) == 2)
    assert node.rendezvous.asked == [(0, ""), (1, "learner-1 has left")]
    node.rendezvous.formed.put_nowait(_formed(2))
    node.samples.arrive(1)
    await until(lambda: node.trainer.num_updates == 2)
    assert node.trainer.joined == [(0, 1, 1), (0, 1, 2)]
    assert node.source.published == [1, 2]


async def test_only_rank_0_tells_of_updates_publishes_and_leaves_a_checkpoint(node):
    node.rendezvous.formed.put_nowait(_formed(1, rank=1, names=("learner-0", "learner-1")))
    node.samples.arrive(0)
    await until(lambda: node.trainer.num_updates == 1)
    await until(lambda: node.link.status.counters.get("learner_group") == 1)
    node.stop.set("enough")
    await soon(node.task)
    assert node.source.published == []
    assert "updates_total" not in node.link.status.counters
    assert list(node.root.iterdir()) == []


async def test_who_was_first_in_a_group_tells_of_no_updates_as_one_of_the_others(node):
    node.rendezvous.formed.put_nowait(_formed(1))
    node.samples.arrive(0)
    await until(lambda: node.link.status.counters.get("updates_total") == 1)
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    node.rendezvous.formed.put_nowait(_formed(2, rank=1, names=("learner-0", "learner-1")))
    await until(lambda: node.link.status.counters.get("learner_group") == 2)
    assert "updates_total" not in node.link.status.counters
    assert "skipped_updates_total" not in node.link.status.counters


async def test_who_waits_for_a_place_tells_of_no_updates_and_leaves_what_others_have_saved(node):
    node.rendezvous.formed.put_nowait(_formed(1))
    node.samples.arrive(0)
    await until(lambda: node.link.status.counters.get("updates_total") == 1)
    node.rendezvous.is_over.put_nowait("learner-0 has given no sign of life for 11 s")
    await until(lambda: len(node.rendezvous.asked) == 2)
    assert node.link.status.counters.keys().isdisjoint({"updates_total", "skipped_updates_total"})
    save(node.root, Checkpoint(2000, b"of the group at work"), keep=3)
    node.stop.set("enough")
    await soon(node.task)
    assert [path.name for path in node.root.iterdir()] == ["updates-000000002000"]
    assert node.source.published == [1]
    assert "updates_total" not in node.link.status.counters


@pytest.mark.parametrize("hub_says_so", [True, False])
async def test_who_is_left_at_the_stop_of_a_group_that_is_over_keeps_what_was_learned(node, hub_says_so):
    save(node.root, Checkpoint(1, b"before"), keep=3)
    node.rendezvous.formed.put_nowait(_formed(1, rank=1, names=("learner-0", "learner-1")))
    node.samples.arrive(0, 1)
    await until(lambda: node.trainer.num_updates == 2)
    if hub_says_so:
        node.rendezvous.is_over.put_nowait("learner-0 has left")
    else:
        node.trainer.learn = _raising(GroupBroken("learner-0 stopped in the midst of an update"))
        node.samples.arrive(2)
    await until(lambda: len(node.rendezvous.asked) == 2)
    node.stop.set("signal SIGTERM")
    await soon(node.task)
    assert sorted(path.name for path in node.root.iterdir()) == ["updates-000000000001", "updates-000000000002"]
    assert node.source.published == []
    assert "updates_total" not in node.link.status.counters


@pytest.mark.parametrize(("source", "saved"), [(0, []), (1, ["updates-000000000000"])])
async def test_of_a_group_that_has_not_begun_at_the_stop_the_state_is_kept_that_it_was_to_begin_with(
    node, source, saved
):
    node.rendezvous.formed.put_nowait(_formed(1))
    await until(lambda: node.made._samples is not None)
    node.trainer.join = lambda group, generation: group.broadcast(b"")
    names, point = ("learner-0", "learner-1"), MeetingPoint("127.0.0.1")
    second = _formed(2, rank=1, names=names).model_copy(update={"store": point.address, "source": source})
    node.rendezvous.formed.put_nowait(second)
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    await until(lambda: node.link.status.counters.get("learner_group") == 2)
    node.stop.set("enough")
    await soon(node.task)
    assert [path.name for path in node.root.iterdir()] == saved
    point.close()


async def test_a_group_that_was_formed_before_the_stop_is_joined_so_that_its_first_keeps_what_was_learned(node):
    node.rendezvous.formed.put_nowait(_formed(1))
    await until(lambda: node.made._samples is not None)
    waiting = asyncio.Event()

    async def next_group(*, updates, reason):
        waiting.set()
        await asyncio.Event().wait()

    node.rendezvous.next_group = next_group
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    await soon(waiting.wait())
    node.rendezvous.formed.put_nowait(_formed(2))
    node.stop.set("enough")
    await soon(node.task)
    assert node.trainer.joined[-1] == (0, 1, 2)
    assert [path.name for path in node.root.iterdir()] == ["updates-000000000000"]


async def test_no_learner_goes_beyond_the_limit_of_updates_however_many_batches_it_has(node, monkeypatch):
    monkeypatch.setattr(node.made, "_config", small_config("stop.max_updates=3"))
    node.samples.arrive(*range(5))
    node.rendezvous.formed.put_nowait(_formed(1))
    await until(lambda: node.link.status.counters.get("updates_total") == 3)
    assert node.samples.log == ["ask", "ask", 0, 1, 2]


async def test_a_stop_ends_the_wait_for_learners_that_do_not_come(node):
    names = ("learner-0", "learner-1")
    point = MeetingPoint("127.0.0.1")
    node.rendezvous.formed.put_nowait(_formed(1, names=names).model_copy(update={"store": point.address}))
    await until(lambda: node.rendezvous.asked)
    await asyncio.sleep(0.05)  # it has begun to wait in the work thread
    began_at = time.monotonic()
    node.stop.set("enough")
    await soon(node.task)
    assert time.monotonic() - began_at < CONNECT_S / 3
    point.close()


async def test_the_end_of_a_group_that_has_not_met_leads_to_the_next_one(node):
    names = ("learner-0", "learner-1")
    point = MeetingPoint("127.0.0.1")
    node.rendezvous.formed.put_nowait(_formed(1, names=names).model_copy(update={"store": point.address}))
    node.rendezvous.is_over.put_nowait("learner-1 has left")
    node.rendezvous.formed.put_nowait(_formed(2))
    await until(lambda: node.source.published == [2])
    assert node.rendezvous.asked == [(0, ""), (0, "learner-1 has left")]
    point.close()


async def test_a_stop_without_a_group_ends_the_node(node):
    node.stop.set("enough")
    await soon(node.task)
    assert node.source.published == []


async def test_at_the_stop_a_group_that_breaks_ends_no_node_with_an_error(node):
    def stops_and_breaks(rows):
        node.stop.set("enough")
        raise GroupBroken("learner-1 stopped")

    node.trainer.learn = stops_and_breaks
    node.rendezvous.formed.put_nowait(_formed(1))
    node.samples.arrive(0)
    await soon(node.task)
    assert node.source.published == [1, 1]  # the last one is whole
    assert [path.name for path in node.root.iterdir()] == ["updates-000000000000"]
