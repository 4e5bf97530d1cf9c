"""How nodes join and leave, against a hub that decides as the real one does, over the in-memory channel."""

import asyncio
from contextlib import asynccontextmanager
from itertools import islice

import pytest
from pydantic import ValidationError

from parl_mq.errors import EXIT_CONFIG, EXIT_OK, EXIT_TEMPORARY, ConfigError, PeerTimeout, Refused, exit_code_of
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services import hub_link, waiting
from parl_mq.services.hub_state import HubState
from parl_mq.services.joining import attach_message, joined, offer_spec, run_config
from parl_mq.services.run_memory import RunMemory
from parl_mq.services.runtime import NodeOptions, StoppedEarly, StopSignal, first_cause
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    PROTOCOL_VERSION,
    Attach,
    Goodbye,
    Heartbeat,
    Hello,
    HelloHeld,
    Ping,
    Pong,
    RunState,
    SayHello,
    SpecOffer,
    ToHub,
)
from tests.services.builders import OTHER_SPEC, SPEC, hello, small_config, soon, until

KEY, OTHER_KEY = "k" * 40, "o" * 40


class Hub:
    """A hub's control socket; remembers what it received."""

    def __init__(self, network, *, run_id="run"):
        self.received = []
        self.state = HubState(
            small_config(), run_id=run_id, weights_endpoint="weights", started_at=0.0, before=RunMemory()
        )
        self._server = network.bind("hub")
        self._decode = Decoder(ToHub)
        self._peers = []

    async def run(self):
        while True:
            for peer, frames in await self._server.receive_many():
                message, _ = self._decode(frames)
                self._peers.append(peer)
                self.received.append(message)
                self.send(self.state.handle(peer, message, 0.0))

    def send(self, outgoing):
        for peer, message in outgoing:
            self._server.try_send(peer, encode(message))

    def say(self, message):
        """To whoever spoke last."""
        self.send([(self._peers[-1], message)])

    def heard(self, kind):
        return [message for message in self.received if isinstance(message, kind)]


@asynccontextmanager
async def hub_in(network, **fields):
    hub = Hub(network, **fields)
    serving = asyncio.create_task(hub.run())
    try:
        yield hub
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


OPTIONS = NodeOptions("actor-0", "hub")


async def test_a_node_that_leaves_in_order_says_goodbye_with_its_counters():
    network = MemoryNetwork()
    async with hub_in(network) as hub:
        async with joined(network, OPTIONS, "actor", StopSignal()) as (link, welcome):
            assert (welcome.run_id, welcome.index) == ("run", 0)
            link.status.counters["env_steps_total"] = 5.0
        await until(lambda: hub.heard(Goodbye))
    [goodbye] = hub.heard(Goodbye)
    assert (goodbye.error, goodbye.counters["env_steps_total"]) == (None, 5.0)


async def test_a_node_that_fails_says_goodbye_with_its_error():
    network = MemoryNetwork()

    async def fail():
        async with joined(network, OPTIONS, "actor", StopSignal()):
            raise ConfigError("the cause" + "!" * 5000)

    async with hub_in(network) as hub:
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(fail())
        await until(lambda: hub.heard(Goodbye))
    assert isinstance(first_cause(raised.value), ConfigError)
    assert hub.heard(Goodbye)[0].error.startswith("the cause!")


def places(*endpoints, **keys):
    return RunState(columns=None, spaces={}, digest=None, replay_endpoints=list(endpoints), server_keys=keys)


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (places("a", "c", a=KEY, c=KEY), "a replay node has moved to c; this node ends, to be started again"),
        (places("a", "b", a=KEY, b=OTHER_KEY), "a replay node has started again with another key"),
    ],
    ids=["place", "key"],
)
async def test_a_node_ends_when_a_replay_node_that_it_uses_is_elsewhere(later, told):
    network = MemoryNetwork()
    both = places("a", "b", a=KEY, b=KEY)

    async def use(hub):
        async with joined(network, OPTIONS, "actor", StopSignal()) as (link, _):
            hub.say(both)
            assert await soon(link.replay_endpoints(2)) == ["a", "b"]
            for state in (places("a", a=KEY), both, later):  # one was away, and came back
                hub.say(state)
            await asyncio.Event().wait()

    async with hub_in(network) as hub:
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(use(hub))
    cause = first_cause(raised.value)
    assert told in str(cause)
    assert exit_code_of(cause) == EXIT_TEMPORARY


@pytest.mark.parametrize("run_id", ["../elsewhere/x", "*", ""])
async def test_a_name_of_a_run_that_could_be_a_path_or_a_pattern_is_no_message(run_id):
    with pytest.raises(ValidationError, match="run_id"):
        Attach(protocol=PROTOCOL_VERSION, run_id=run_id, role="actor", name="a", epoch=1, table="main", digest="0" * 32)


async def test_the_stop_ends_the_wait_for_a_hub_that_is_not_there():
    stop = StopSignal()

    async def join():
        async with joined(MemoryNetwork(), OPTIONS, "actor", stop):
            raise AssertionError("there is no hub")

    joining = asyncio.create_task(join())
    await asyncio.sleep(0)
    stop.set("enough")
    with pytest.raises(BaseExceptionGroup) as raised:
        await soon(joining)
    cause = first_cause(raised.value)
    assert isinstance(cause, StoppedEarly)
    assert exit_code_of(cause) == EXIT_OK


async def test_a_node_says_at_a_falling_rate_that_it_waits_for_the_hub(monkeypatch, caplog):
    moments_s = [0.01, 2.0, 100.0]
    monkeypatch.setattr(waiting, "moments", lambda: iter(moments_s))
    caplog.set_level("INFO", "parl_mq")
    stop, network = StopSignal(), MemoryNetwork()

    async def join():
        async with joined(network, OPTIONS, "actor", stop):
            pass

    joining = asyncio.create_task(join())
    await until(lambda: len(caplog.messages) == 2)
    stop.set("the test is over")
    with pytest.raises(BaseExceptionGroup):
        await soon(joining)
    assert caplog.messages[:2] == ["waiting for the hub at hub", "waiting for the hub at hub (2 s)"]


def test_lines_come_at_once_and_then_each_after_twice_the_time():
    assert list(islice(waiting.moments(), 5)) == [0.5, 3.0, 6.0, 12.0, 24.0]


async def test_a_refused_node_ends_with_the_hubs_reason_and_code():
    network = MemoryNetwork()

    async def join():
        async with joined(network, OPTIONS, "learner", StopSignal()):
            raise AssertionError("the hub took it in")

    async with hub_in(network) as hub:
        hub.state.handle(b"other", hello("actor"), 0.0)
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(join())
    cause = first_cause(raised.value)
    assert isinstance(cause, Refused)
    assert "joined as actor" in str(cause)
    assert exit_code_of(cause) == EXIT_CONFIG


async def test_a_node_with_other_columns_is_refused_after_it_has_joined():
    network = MemoryNetwork()

    async def work():
        async with joined(network, OPTIONS, "actor", StopSignal()) as (link, _):
            offer_spec(link, OTHER_SPEC)
            await asyncio.get_running_loop().create_future()

    async with hub_in(network):
        async with joined(network, NodeOptions("actor-1", "hub"), "actor", StopSignal()) as (link, _):
            offer_spec(link, SPEC)
            assert (await soon(link.table_spec())).digest == SPEC.digest
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(work())
    assert "columns obs differ" in str(first_cause(raised.value))


async def test_hello_is_said_again_when_the_hub_does_not_answer(monkeypatch):
    monkeypatch.setattr(hub_link, "REPEAT_HELLO_S", 0.01)
    network = MemoryNetwork()
    server = network.bind("hub")

    async def join():
        async with joined(network, OPTIONS, "actor", StopSignal()):
            pass

    joining = asyncio.create_task(join())
    said = []
    while len(said) < 2:
        said += [Decoder(ToHub)(frames)[0] for _, frames in await soon(server.receive_many())]
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    assert said[0] == said[1]
    assert isinstance(said[0], Hello)


async def test_a_hub_that_forgot_a_node_is_told_who_it_is_with_its_run():
    network = MemoryNetwork()
    async with hub_in(network) as hub, joined(network, OPTIONS, "actor", StopSignal()):
        await until(lambda: hub.heard(Heartbeat))
        hub.say(SayHello())
        await until(lambda: len(hub.heard(Hello)) == 2)
        first, second = hub.heard(Hello)
        assert (first.run_id, second.run_id) == (None, "run")
        assert second.epoch == first.epoch


async def test_what_must_arrive_is_said_again_to_a_hub_that_forgot_the_node_and_no_more_once_it_is_answered():
    network = MemoryNetwork()
    async with hub_in(network) as hub, joined(network, OPTIONS, "actor", StopSignal()) as (link, _):
        offer_spec(link, SPEC)
        await until(lambda: hub.heard(SpecOffer))
        hub.say(SayHello())  # no heartbeat has been answered since the offer
        await until(lambda: len(hub.heard(SpecOffer)) == 2)
        beats = len(hub.heard(Heartbeat))
        link.beat()
        await until(lambda: len(hub.heard(Heartbeat)) > beats)
        await until(lambda: not link._deliveries)
        hub.say(SayHello())
        await until(lambda: len(hub.heard(Hello)) == 3)
        link.beat()
        await until(lambda: len(hub.heard(Heartbeat)) > beats + 1)
        assert len(hub.heard(SpecOffer)) == 2


async def test_a_node_whose_hello_is_held_waits_for_longer_than_for_a_hub_that_is_silent(monkeypatch):
    monkeypatch.setattr(hub_link, "REPEAT_HELLO_S", 0.01)
    monkeypatch.setattr(hub_link, "JOIN_TIMEOUT_S", 0.2)
    network = MemoryNetwork()
    server = network.bind("hub")

    async def join():
        async with joined(network, OPTIONS, "actor", StopSignal()):
            raise AssertionError("it was never welcomed")

    joining = asyncio.create_task(join())
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() - began < 0.6:
        for peer, _ in await soon(server.receive_many()):
            server.try_send(peer, encode(HelloHeld(reason="wait")))
    assert not joining.done()
    with pytest.raises(BaseExceptionGroup) as raised:
        await soon(joining)
    assert isinstance(first_cause(raised.value), PeerTimeout)


async def test_a_node_that_is_asked_whether_it_is_there_says_so():
    network = MemoryNetwork()
    async with hub_in(network) as hub, joined(network, OPTIONS, "actor", StopSignal()):
        await until(lambda: hub.heard(Heartbeat))
        hub.say(Ping())
        await until(lambda: hub.heard(Pong))


async def test_what_the_run_settles_is_waited_for():
    network = MemoryNetwork()
    async with hub_in(network), joined(network, OPTIONS, "actor", StopSignal()) as (link, _):
        waiting = asyncio.create_task(link.table_spec())
        await asyncio.sleep(0)
        assert not waiting.done()
        offer_spec(link, SPEC)
        assert (await soon(waiting)).columns == SPEC.columns


# Settings from a hub


def welcome_with(config):
    class Welcome:
        pass

    welcome = Welcome()
    welcome.config = config
    return welcome


def sent(**sections):
    config = small_config().model_dump(mode="json", exclude={"node"})
    for name, fields in sections.items():
        config[name] = {**config[name], **fields}
    return welcome_with(config)


def test_the_runs_settings_get_this_processs_own_section():
    options = NodeOptions("a", "hub", node=small_config("node.device=cpu").node)
    config = run_config(sent(), options)
    assert config.node.device == "cpu"
    assert config.model_copy(update={"node": small_config().node}) == small_config()


@pytest.mark.parametrize(
    ("section", "fields", "told"),
    [
        ("algorithm", {"name": "os:system"}, "'os:system' is not installed on this machine"),
        ("algorithm", {"name": "unheard"}, "'unheard' is not installed"),
        ("environment", {"id": "os:system"}, "'os:system' is an import path"),
    ],
)
def test_a_hub_cannot_make_a_node_import_what_it_names(section, fields, told):
    with pytest.raises(ConfigError, match=told):
        run_config(sent(**{section: fields}), OPTIONS)


def test_a_supervised_node_imports_what_its_own_command_line_named():
    options = NodeOptions("actor-0", "hub", lifeline_fd=3)
    config = run_config(sent(environment={"id": "tests.environments:Counter-v0"}), options)
    assert config.environment.id == "tests.environments:Counter-v0"


@pytest.mark.parametrize("config", [{}, {"algorithm": None}, {"algorithm": {"name": "dqn"}}])
def test_settings_that_are_none_are_refused(config):
    with pytest.raises(ConfigError, match="settings that the hub sent"):
        run_config(welcome_with(config), OPTIONS)


def test_settings_of_another_version_are_refused():
    with pytest.raises(ConfigError, match="do not fit this version"):
        run_config(sent(replay={"from_the_future": 1}), OPTIONS)


async def test_a_node_has_the_epoch_that_the_hub_gives_it_though_its_clock_was_set_back():
    network = MemoryNetwork()
    async with hub_in(network) as hub:
        later = 2**62 - 1
        hub.state.handle(b"before", hello("actor", epoch=later), 0.0)
        hub.state.handle(b"before", Goodbye(), 0.0)
        async with joined(network, OPTIONS, "actor", StopSignal()) as (link, welcome):
            assert attach_message(link, welcome, SPEC).epoch == later + 1
            hub.say(SayHello())  # as after a restart of the hub: it says its own epoch again
            await until(lambda: len(hub.heard(Hello)) == 2)
            assert link.epoch == later + 1


async def test_a_node_whose_name_another_process_has_had_meanwhile_ends():
    network = MemoryNetwork()

    async def work():
        async with joined(network, OPTIONS, "actor", StopSignal()):
            await until(lambda: hub.heard(Heartbeat))
            welcome = hub.state.handle(hub._peers[-1], hub.heard(Hello)[0], 0.0)[0][1]
            hub.say(welcome.model_copy(update={"epoch": welcome.epoch + 1}))
            await asyncio.get_running_loop().create_future()

    async with hub_in(network) as hub:
        with pytest.raises(BaseExceptionGroup) as raised:
            await soon(work())
    assert "another process has been actor-0 meanwhile" in str(first_cause(raised.value))
    assert exit_code_of(first_cause(raised.value)) == EXIT_TEMPORARY
