"""The hub's service over the in-memory channel: what reaches its two sockets, and what it writes."""

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from parl_mq.errors import EXIT_INTERNAL, EXIT_OK, DiskError
from parl_mq.net.channel import LinkEvent
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services import hub
from parl_mq.services.hub import WEIGHTS_QUEUE, Hub, HubOptions
from parl_mq.services.keyring import Keyring
from parl_mq.services.run_directory import METRICS_ADDRESS, RunDirectory
from parl_mq.services.runtime import StopSignal
from parl_mq.services.weights_client import WeightsClient
from parl_mq.services.weights_exchange import announcement, chunk_frames
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    CHUNK_BYTES,
    EvaluationFinished,
    FromHub,
    Goodbye,
    Heartbeat,
    HeartbeatSeen,
    HelloHeld,
    KeysAllowed,
    RunStatus,
    StatusRequest,
    StopRequest,
    Weights,
    WeightsChunk,
    WeightsWanted,
    Welcome,
)
from tests.services.builders import SPEC, hello, small_config, snapshot, soon, spec_offer, until

CONTROL, WEIGHTS = "ipc://hub", "ipc://hub.weights"
BAD = [b"", b"\xff" * 100, bytes(1000), b"\x81\xa4kind\xa5hello"]


class Scene:
    """A hub at work, and ends that speak with it."""

    def __init__(self, tmp_path, **options):
        self.network = MemoryNetwork()
        self.directory = RunDirectory.create(tmp_path / "run", small_config())
        self.stop = StopSignal()
        options = HubOptions(small_config(), self.directory.path, time.monotonic(), **options)
        self.hub = Hub(self.network, CONTROL, options, self.stop)
        self._decode = Decoder(FromHub)

    async def node(self, role):
        """A node that has joined."""
        channel = self.network.connect(CONTROL)
        await channel.send(encode(hello(role)))
        await self.hear(channel, Welcome)
        return channel

    async def hear(self, channel, kind):
        """The next message of this kind."""
        while True:
            for frames in await soon(channel.receive_many()):
                message, _ = self._decode(frames)
                if isinstance(message, kind):
                    return message

    def rows(self, kind):
        lines = (self.directory.path / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]


@pytest.fixture
async def scene(tmp_path):
    made = Scene(tmp_path)
    made.task = asyncio.create_task(made.hub.run())
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_bad_bytes_on_either_socket_are_counted_and_the_hub_serves_on(scene, caplog):
    node = await scene.node("actor")
    stranger, weights = scene.network.connect(CONTROL), scene.network.connect(WEIGHTS)
    for frame in BAD:
        await stranger.send([frame])
        await weights.send([frame])
        await weights.send(encode(WeightsChunk(version=(1, 0), chunk=0)))
    await node.send(encode(Heartbeat(sequence=7, progress=1, state="stepping")))
    assert (await scene.hear(node, HeartbeatSeen)).sequence == 7
    await end(scene)
    assert scene.rows("figures")[-1]["dropped_messages_total"] == 2 * len(BAD)
    assert len([record for record in caplog.records if "dropped" in record.message]) == 2


async def test_a_message_that_a_role_may_not_send_is_dropped(scene):
    actor = await scene.node("actor")
    await actor.send(encode(StopRequest(reason="because")))
    await actor.send(encode(Heartbeat(sequence=7, progress=1, state="stepping")))
    await scene.hear(actor, HeartbeatSeen)
    await end(scene)
    assert scene.directory.read_summary()["stop_reason"] == "the test is over"
    assert scene.rows("figures")[-1]["dropped_messages_total"] == 1


async def test_weights_go_through_the_hub_and_their_evaluation_is_recorded(scene):
    evaluator = await scene.node("evaluator")
    learner = scene.network.connect(WEIGHTS)
    version = snapshot(1, 4, updates=50)
    await learner.send(encode(announcement(version)))
    client = WeightsClient(scene.network.connect(WEIGHTS))
    fetching = asyncio.create_task(client.run())
    [wanted] = await heard(learner)
    await learner.send(chunk_frames(wanted, [version]))
    assert await heard(learner) == [WeightsWanted(newer_than=(1, 4))]
    assert await soon(client.newer(keep=True)) == version
    report = EvaluationFinished(version=(1, 4), updates=50, returns=[1.0, 3.0], lengths=[1, 3], duration_s=0.5)
    await evaluator.send(encode(report))
    await evaluator.send(encode(Heartbeat(sequence=1, progress=1, state="waiting")))
    await scene.hear(evaluator, HeartbeatSeen)
    await end(scene)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    [row] = scene.rows("evaluation")
    assert (row["mean_return"], row["returns"], row["version"]) == (2.0, [1.0, 3.0], [1, 4])
    assert scene.directory.read_summary()["eval_return"] == 2.0
    assert (scene.directory.checkpoints / "best").is_dir()


@pytest.mark.parametrize(("error_code", "code"), [(None, EXIT_OK), (EXIT_INTERNAL, EXIT_INTERNAL)])
async def test_the_supervisor_ends_the_run_and_a_failure_is_kept(scene, error_code, code):
    supervisor = await scene.node("supervisor")
    await supervisor.send(encode(StopRequest(reason="the cause", interrupted=True, error_code=error_code)))
    assert await soon(scene.task) == code
    summary = scene.directory.read_summary()
    assert (summary["stop_reason"], summary["error"]) == ("the cause", "the cause" if error_code else None)


async def test_the_address_of_the_metrics_goes_with_the_run_and_nobody_is_told_that_it_is_ready_before(
    tmp_path, monkeypatch
):
    config = small_config("node.metrics_port=0")
    directory, told = RunDirectory.create(tmp_path / "run", config), []
    notifier = SimpleNamespace(ready=lambda _: told.append("ready"), beat=lambda _: None)
    monkeypatch.setattr(hub, "make_sinks", lambda *_: told.append("sinks") or [])
    stop, network = StopSignal(), MemoryNetwork()
    running = asyncio.create_task(
        Hub(network, CONTROL, HubOptions(config, directory.path, time.monotonic()), stop, notifier).run()
    )
    await until(lambda: (directory.path / METRICS_ADDRESS).exists())
    assert told == ["sinks", "ready"]
    stop.set("enough")
    assert await soon(running) == EXIT_OK
    assert not (directory.path / METRICS_ADDRESS).exists()


async def test_the_address_that_a_killed_hub_left_is_forgotten(tmp_path):
    made = Scene(tmp_path)
    made.directory.write_metrics_address("http://127.0.0.1:1/metrics")
    running = asyncio.create_task(made.hub.run())
    await until(lambda: not (made.directory.path / METRICS_ADDRESS).exists())
    made.stop.set("enough")
    await soon(running)


async def test_a_replay_node_that_had_to_wait_for_its_name_is_told_the_keys_too(tmp_path):
    made = Scene(tmp_path, keyring=Keyring.open_or_make(tmp_path / "keys"))
    running = asyncio.create_task(made.hub.run())
    first = await made.node("replay")
    second = made.network.connect(CONTROL)
    await second.send(encode(hello("replay", epoch=2)))
    await made.hear(second, HelloHeld)
    first.close()
    await made.hear(second, KeysAllowed)
    made.stop.set("enough")
    await soon(running)


async def test_why_a_node_failed_stands_in_the_log(scene, caplog):
    actor = await scene.node("actor")
    await actor.send(encode(Goodbye(error="joint 7 broke")))
    await end(scene)
    assert "joint 7 broke" in caplog.text


async def test_an_end_leaves_metrics_a_summary_and_what_the_next_start_must_know(scene):
    actor = await scene.node("actor")
    counters = {"env_steps_total": 12.0, "environment_faults_total": 1.0}
    await actor.send(encode(Goodbye(counters=counters)))
    await end(scene)
    assert scene.rows("figures")[-1]["env_steps_total"] == 12
    assert scene.directory.read_summary()["env_steps"] == 12
    memory = scene.directory.read_memory()
    assert [(node["hello"]["name"], node["starts"], node["has_left"]) for node in memory.nodes] == [
        ("actor-0", 1, True)
    ]
    assert memory.env_steps == 12


@pytest.fixture
def full_disk(scene, monkeypatch):
    """No room for a summary until there is."""
    write, rooms = scene.hub._directory.write_summary, []

    def write_summary(summary):
        if not rooms:
            raise DiskError("summary.json cannot be written: No space left on device")
        write(summary)

    monkeypatch.setattr(hub, "METRICS_EVERY_S", 0.01)
    monkeypatch.setattr(scene.hub._directory, "write_summary", write_summary)
    return rooms


async def test_a_hub_on_its_own_waits_at_the_end_for_room_on_the_disk(scene, full_disk, caplog):
    ending = asyncio.create_task(end(scene))
    await until(lambda: "the hub stays until it can say so" in caplog.text)
    assert not ending.done()
    full_disk.append("there is room")
    await ending
    assert scene.directory.read_summary()["stop_reason"] == "the test is over"


@pytest.mark.parametrize("why", ["it has a supervisor", "it is told to stop"])
async def test_a_hub_that_others_wait_for_says_at_the_end_that_the_disk_is_full(scene, full_disk, why):
    if why == "it has a supervisor":
        scene.hub._is_supervised = True
    else:
        scene.stop.set("the service manager")
    with pytest.raises(DiskError, match="No space left"):
        await end(scene)


async def test_a_hub_that_starts_again_has_the_same_run_spec_and_counters(tmp_path):
    network, started_at = MemoryNetwork(), time.monotonic()
    directory = RunDirectory.create(tmp_path / "run", small_config())
    welcomes, actor = [], network.connect(CONTROL)
    for _ in range(2):
        hub = Hub(network, CONTROL, HubOptions(small_config(), directory.path, started_at), StopSignal())
        serving = asyncio.create_task(hub.run())
        await actor.send(encode(hello("actor")))
        await actor.send(encode(spec_offer()))
        await actor.send(encode(Heartbeat(sequence=1, progress=1, state="stepping", counters={"env_steps_total": 7.0})))
        found = []
        while not any(isinstance(message, HeartbeatSeen) for message in found):
            found += [Decoder(FromHub)(frames)[0] for frames in await soon(actor.receive_many())]
        welcomes += [message for message in found if isinstance(message, Welcome)]
        serving.cancel()  # as a kill: nothing is written any more
        await asyncio.gather(serving, return_exceptions=True)
        hub._control.close()
        hub._weights.close()
    first, second = welcomes
    assert (first.run_id, first.index, first.incarnation) == (second.run_id, second.index, second.incarnation)
    memory = directory.read_memory()
    assert memory.spec["digest"] == SPEC.digest
    assert memory.run_id == first.run_id


async def test_anybody_may_ask_for_the_status_and_changes_nothing(scene):
    await scene.node("actor")
    stranger = scene.network.connect(CONTROL)
    await stranger.send(encode(StatusRequest()))
    status = await scene.hear(stranger, RunStatus)
    assert [(node.name, node.health) for node in status.nodes] == [("actor-0", "healthy")]
    assert (status.phase, status.env_id) == ("starting", "CartPole-v1")


async def heard(channel):
    """The next messages of the weights plane."""
    return [Decoder(Weights)(frames)[0] for frames in await soon(channel.receive_many())]


async def end(scene):
    """The run ends, after what was sent has been read; nodes that do not answer are not waited for."""
    supervisor = await scene.node("supervisor")
    lost = [f"{role}-0" for role in ("actor", "evaluator", "learner", "replay")]
    await supervisor.send(encode(StopRequest(reason="the test is over", interrupted=True, lost=lost)))
    assert await soon(scene.task) == EXIT_OK


async def test_a_peer_that_asks_for_weights_and_reads_none_is_cut_and_the_others_are_served(scene, caplog):
    learner, deaf = (scene.network.connect(WEIGHTS, queue_messages=WEIGHTS_QUEUE) for _ in range(2))
    version = snapshot(1, 4, num_bytes=CHUNK_BYTES)
    await learner.send(encode(announcement(version)))
    [wanted] = await heard(learner)
    await learner.send(chunk_frames(wanted, [version]))
    await heard(learner)
    assert await soon(deaf.next_event()) is LinkEvent.CONNECTED
    for _ in range(2 * WEIGHTS_QUEUE + 1):
        await soon(deaf.send(encode(wanted)))
    assert await soon(deaf.next_event()) is LinkEvent.DISCONNECTED
    assert "it does not read what it asks for" in caplog.text
    assert scene.hub._backlog._waiting == {}
    other = scene.network.connect(WEIGHTS)
    await other.send(encode(wanted))
    assert await heard(other) == [WeightsChunk(version=(1, 4), chunk=0)]
