"""An actor's work loop: scripted environments, a real replay desk and weights store, the in-memory channel."""

import asyncio
import math
from collections import deque
from contextlib import asynccontextmanager

import numpy as np
import pytest

from parl_mq.errors import EnvironmentFault
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.replay.table import Table
from parl_mq.rollout.collector import Collected
from parl_mq.services import actor as actor_module
from parl_mq.services.actor import BEATS_TO_THE_LIMIT, Actor, Rollout, steps_a_beat
from parl_mq.services.faults import FaultCount
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.replay_streams import CREDIT, ReplayStreams
from parl_mq.services.runtime import StopSignal, WorkThread, first_cause
from parl_mq.services.tables import limiter, table_settings
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import Credit, InsertRefused, SampleRequest, ToReplay
from tests.services.builders import SPEC, attach, fragments, small_config, soon, until

ROWS = 4  # of each fragment
LOCK_STEP = ("deterministic=true", "stop.max_updates=100", "actor.num_envs=4", "actor.num_actors=2")


class FakeCollector:
    """Brings one fragment a call, an episode with each; breaks where its script says so.

    Args:
        script: what each call does: `rows`, `fault`, or an exception. After its end: `rows`.
        left: fragments that a fault leaves uncut.
    """

    spec = SPEC

    def __init__(self, script=(), *, ends_episodes=True, left=0):
        self.versions = []
        self.is_closed = False
        self.num_collected = 0
        self._script = deque(script)
        self._ends_episodes = ends_episodes
        self._left = left
        self._queued = 0

    @property
    def next_rows(self):
        return ROWS if self._queued else 0

    def load_weights(self, weights, version):
        assert not self.is_closed
        self.versions.append(version)

    def collect(self, max_rows):
        assert self.versions, "no weights"
        assert max_rows >= max(self.next_rows, 1)
        if self._script and self._script.popleft() == "fault":
            raise EnvironmentFault("Scripted-v0: step raised KeyError: joint 7")
        if not self._queued:
            self._queued += 1
            self.num_collected += 1
        returns = [1.0] if self._ends_episodes else []
        return Collected(self.take(max_rows), returns, [ROWS] * len(returns), ROWS)

    def tally(self):
        return Collected(None, [], [], 0)

    def drain(self):
        self._queued, self._left = self._queued + self._left, 0

    def take(self, max_rows):
        if not self._queued or max_rows < ROWS:
            return None
        self._queued -= 1
        return fragments(ROWS)

    def close(self):
        self.is_closed = True


class FakeLink:
    """The hub's link as an actor uses it."""

    def __init__(self):
        self.status = NodeStatus()
        self.sent = []
        self.told_steps = []

    def send(self, message):
        self.sent.append(message)

    def beat(self):
        self.told_steps.append(self.status.counters["env_steps_total"])


class FakeWeights:
    """Versions that a test hands out."""

    num_reconnects = 0

    def __init__(self, monkeypatch):
        monkeypatch.setattr(actor_module, "unpack", lambda payload: payload)
        self._versions = asyncio.Queue()

    def give(self, generation, counter):
        class Snapshot:
            version = WeightsVersion(generation, counter)
            payload = b""
            updates = 0

        self._versions.put_nowait(Snapshot)

    async def newer(self):
        return await self._versions.get()

    async def run(self):
        await asyncio.get_running_loop().create_future()


class Replay:
    """A real desk on an in-memory channel.

    Attributes:
        is_silent: it reads and stores without a word.
        is_deaf: it reads and stores nothing.
        num_left: messages that it sends before it is held up.
    """

    def __init__(self, network, settings=()):
        self.is_silent = False
        self.is_deaf = False
        self.num_left = math.inf
        config = small_config(*settings)
        self.table = Table(table_settings(config), SPEC, directory=None, rng=np.random.default_rng(1))
        self.desk = ReplayDesk(self.table, limiter(config), SPEC, config, "run")
        self.server = network.bind("replay")
        self.last_peer = b""
        self.desk.handle(b"learner", attach("learner"), {})

    async def run(self):
        decode = Decoder(ToReplay)
        while True:
            for peer, frames in await self.server.receive_many():
                self.last_peer = peer
                if not self.is_deaf:
                    self.desk.handle(peer, *decode(frames))
            self.send()

    def send(self):
        replies = self.desk.due(0.0)
        for peer, frames in [] if self.is_silent else replies:
            if self.num_left > 0:
                self.num_left -= 1
                self.server.try_send(peer, frames)

    def draw(self, times=1):
        for number in range(times):
            self.desk.handle(b"learner", SampleRequest(request_id=number, table="main", batch_size=8), {})
        self.send()


class Scene:
    """An actor at work."""

    def __init__(self, monkeypatch, collectors, max_faults=3, steps_a_beat=math.inf, settings=()):
        self.network = MemoryNetwork()
        self.replay = Replay(self.network, settings)
        self.channel = self.network.connect("replay")
        self.weights = FakeWeights(monkeypatch)
        self.stop = StopSignal()
        self.link = FakeLink()
        self.work = WorkThread("environments")
        self.collectors = collectors
        self.rollout = Rollout(self.work, self._build, FaultCount("actor-0", max_faults))
        self.replays = ReplayStreams([self.channel], attach())
        self.actor = Actor(self.link, self.work, self.stop, self.rollout, self.replays, steps_a_beat=steps_a_beat)

    async def begin(self):
        await self.rollout.begin()
        await self.actor.run(self.weights)

    def counter(self, name):
        return self.link.status.counters.get(f"{name}_total", 0)

    def _build(self, number):
        made = self.collectors[number]
        if isinstance(made, Exception):
            raise made
        return made


@asynccontextmanager
async def acting(monkeypatch, *collectors, **options):
    """The actor's task and its scene; at the end of the block the actor must have ended, or is ended."""
    scene = Scene(monkeypatch, collectors or [FakeCollector()], **options)
    serving, acting = asyncio.create_task(scene.replay.run()), asyncio.create_task(scene.begin())
    try:
        yield scene, acting
    finally:
        for task in (acting, serving):
            task.cancel()
        await asyncio.gather(acting, serving, return_exceptions=True)
        scene.work.close()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    """Environments are made anew at once."""
    monkeypatch.setattr("parl_mq.services.faults.FIRST_WAIT_S", 0.0)


async def blocked(scene):
    await until(
        lambda: (scene.link.status.waiting_for or "").startswith(("the learner to draw", "the learner's first draw"))
    )


@pytest.mark.parametrize(("steps_a_beat", "every"), [(math.inf, None), (1.0, ROWS), (2.5 * ROWS, 3 * ROWS)])
async def test_steps_towards_a_limit_are_told_without_waiting_for_a_heartbeat(monkeypatch, steps_a_beat, every):
    async with acting(monkeypatch, steps_a_beat=steps_a_beat) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        steps = scene.counter("env_steps")
        further = [] if every is None else range(ROWS + every, steps + 1, every)
        assert scene.link.told_steps == [ROWS, *further]
        assert steps > 4 * ROWS


def test_actors_share_the_steps_between_two_tellings():
    assert steps_a_beat(small_config()) == math.inf
    config = small_config("stop.max_steps=50_000", "actor.num_actors=4")
    assert 4 * steps_a_beat(config) == 50_000 / BEATS_TO_THE_LIMIT


async def test_nothing_is_stepped_before_there_are_weights(monkeypatch):
    collector = FakeCollector()
    async with acting(monkeypatch, collector) as (scene, task):
        await until(lambda: scene.link.status.waiting_for == "the learner's first weights")
        scene.stop.set("enough")
        await soon(task)
    assert collector.num_collected == 0


async def test_it_steps_as_far_as_its_credit_and_goes_on_when_rows_are_drawn(monkeypatch):
    async with acting(monkeypatch) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        stored = scene.replay.table.num_live
        assert stored == scene.counter("env_steps") == 24
        scene.replay.draw(times=4)
        await until(lambda: scene.replay.table.num_live > stored)


async def test_credit_that_comes_between_the_look_and_the_wait_is_not_missed(monkeypatch):
    async with acting(monkeypatch) as (scene, _):
        wait_for, before = scene.stop.wait_for, []

        def credit_comes_first(awaitable):
            if not before and scene.replay.table.num_live == 24:
                before.append(scene.link.status.waiting_for)
                scene.replays.target.handle(Credit(last_sequence=5, credit_rows=32, credit_bytes=10**9), {})
            return wait_for(awaitable)

        monkeypatch.setattr(scene.stop, "wait_for", credit_comes_first)
        scene.weights.give(1, 0)
        await until(lambda: scene.replay.table.num_live == 32)
        assert len(before) == 1


async def test_newer_weights_are_acted_with(monkeypatch):
    collector = FakeCollector()
    async with acting(monkeypatch, collector) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        scene.weights.give(1, 5)
        await until(lambda: collector.versions == [(1, 0), (1, 5)])
        await until(lambda: scene.link.status.counters["weights_version"] == 5)


@pytest.mark.parametrize("num_told", [1, 2])
async def test_in_lock_step_a_round_has_one_message_whether_credit_follows_attached_soon_or_late(monkeypatch, num_told):
    collector = FakeCollector()
    async with acting(monkeypatch, collector, settings=LOCK_STEP) as (scene, _):
        scene.replay.send()  # what the learner of the desk is told
        scene.replay.num_left = num_told
        scene.weights.give(1, 0)
        await until(lambda: scene.link.status.waiting_for == CREDIT and collector.num_collected)
        assert collector.num_collected == 1


async def test_in_lock_step_a_stop_brings_no_second_message_into_a_round(monkeypatch):
    monkeypatch.setattr(actor_module, "FAREWELL_S", 0.05)
    async with acting(monkeypatch, FakeCollector(left=1), settings=LOCK_STEP) as (scene, task):
        scene.weights.give(1, 0)
        await until(lambda: scene.link.status.waiting_for == CREDIT)
        scene.stop.set("enough")
        await soon(task)
        assert (scene.counter("sent_rows"), scene.counter("abandoned_rows")) == (ROWS, ROWS)


async def test_a_stop_while_it_waits_for_credit_ends_it_at_once_with_its_books_even(monkeypatch):
    async with acting(monkeypatch) as (scene, task):
        scene.weights.give(1, 0)
        await blocked(scene)
        scene.stop.set("enough")
        await soon(task)
        assert (scene.counter("sent_rows"), scene.counter("acknowledged_rows")) == (24, 24)
        assert scene.counter("abandoned_rows") == 0


async def test_rows_that_nobody_acknowledges_are_given_up_and_counted(monkeypatch):
    monkeypatch.setattr(actor_module, "FAREWELL_S", 0.05)
    async with acting(monkeypatch) as (scene, task):
        scene.weights.give(1, 0)
        await blocked(scene)
        scene.replay.is_deaf = True
        scene.replays.target.book.grant(10_000, 10**9)
        scene.replays.changed.set()
        await until(lambda: scene.counter("sent_rows") > 24)
        scene.stop.set("enough")
        await soon(task)
    assert scene.counter("acknowledged_rows") == 24
    assert scene.counter("sent_rows") == 24 + scene.counter("abandoned_rows")


async def test_after_a_lost_connection_every_row_is_stored_once(monkeypatch):
    async with acting(monkeypatch) as (scene, task):
        scene.weights.give(1, 0)
        for _ in range(20):
            await until(lambda: scene.link.status.state == "stepping" or scene.link.status.waiting_for)
            scene.replay.is_silent = True
            scene.replay.draw(times=2)
            await asyncio.sleep(0)
            scene.channel.cut()
            scene.replay.is_silent = False
            scene.channel.revive()
            scene.replay.draw(times=2)
            stored = scene.replay.table.counts.inserted
            await until(lambda stored=stored: scene.replay.table.counts.inserted > stored)
        scene.stop.set("enough")
        await soon(task)
        counts = scene.replay.table.counts
    assert counts.inserted == scene.counter("sent_rows") == scene.counter("acknowledged_rows")


async def test_a_refused_insert_ends_the_actor_with_the_reason(monkeypatch):
    async with acting(monkeypatch) as (scene, task):
        scene.weights.give(1, 0)
        await blocked(scene)
        scene.replay.server.try_send(scene.replay.last_peer, encode(InsertRefused(sequence=0, reason="joint 7")))
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(task)
    assert "refused rows of this actor: joint 7" in str(first_cause(raised.value))


async def test_broken_environments_are_made_anew_with_the_newest_weights_and_counted(monkeypatch):
    broken, fresh = FakeCollector(["rows", "fault"], left=1), FakeCollector()
    async with acting(monkeypatch, broken, fresh) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        assert broken.is_closed
        assert fresh.versions == [(1, 0)]
        assert scene.counter("environment_faults") == 1
        assert scene.replay.table.num_live == 2 * ROWS + ROWS * fresh.num_collected


async def test_rows_from_before_a_fault_wait_for_credit(monkeypatch):
    broken, fresh = FakeCollector([*["rows"] * 6, "fault"], left=3), FakeCollector()
    async with acting(monkeypatch, broken, fresh) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        scene.replay.draw(times=4)
        await until(lambda: fresh.num_collected or scene.replay.table.counts.inserted >= 24 + 2 * ROWS)
        scene.replay.draw(times=4)
        await until(lambda: fresh.num_collected)
        assert scene.replay.table.counts.inserted >= 24 + 3 * ROWS


async def test_faults_in_a_row_end_the_actor_and_name_it(monkeypatch):
    collectors = [FakeCollector(["fault"]) for _ in range(3)]
    async with acting(monkeypatch, *collectors) as (scene, task):
        scene.weights.give(1, 0)
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(task)
    cause = first_cause(raised.value)
    assert isinstance(cause, EnvironmentFault)
    assert "actor-0: its environments broke 3 times in a row" in str(cause)
    assert "Scripted-v0: step raised KeyError: joint 7" in str(cause)
    assert scene.counter("environment_faults") == 3


async def test_environments_that_cannot_be_made_anew_count_as_broken(monkeypatch):
    missing = EnvironmentFault("Scripted-v0: the simulator does not answer")
    fresh = FakeCollector()
    async with acting(monkeypatch, FakeCollector(["fault"]), missing, fresh) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        assert scene.counter("environment_faults") == 2
        assert fresh.num_collected > 0


async def test_an_episode_between_faults_keeps_the_actor_alive(monkeypatch):
    collectors = [*[FakeCollector(["rows", "fault"]) for _ in range(5)], FakeCollector()]
    async with acting(monkeypatch, *collectors) as (scene, _):
        scene.weights.give(1, 0)
        await blocked(scene)
        assert scene.counter("environment_faults") == 5


async def test_a_stop_while_environments_are_waited_for_ends_the_actor(monkeypatch):
    monkeypatch.setattr("parl_mq.services.faults.FIRST_WAIT_S", 1000.0)
    monkeypatch.setattr("parl_mq.services.faults.LONGEST_WAIT_S", 1000.0)
    async with acting(monkeypatch, FakeCollector(["fault"])) as (scene, task):
        scene.weights.give(1, 0)
        await until(lambda: scene.rollout.faults.num_faults)
        scene.stop.set("enough")
        await soon(task)


async def test_returns_go_to_the_hub_in_messages_that_it_takes(monkeypatch):
    monkeypatch.setattr(actor_module, "EPISODES_A_MESSAGE", 2)
    async with acting(monkeypatch) as (scene, _):
        scene.actor._note(Collected(None, [1.0, 2.0, 3.0, 4.0, 5.0], [1] * 5, 5))
        assert [message.returns for message in scene.link.sent] == [[1.0, 2.0], [3.0, 4.0], [5.0]]
