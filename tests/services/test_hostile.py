"""Ten thousand hostile messages against each port, from strangers and from peers that are let in, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import msgpack
import numpy as np
import psutil
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.errors import WireError
from parl_mq.net.conduct import Pace
from parl_mq.net.curve import Guard, new_key_pair
from parl_mq.net.zmq_channel import Network
from parl_mq.replay.table import Table
from parl_mq.services import gate
from parl_mq.services.hub import Hub, HubOptions
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.keyring import Grant, Keyring
from parl_mq.services.permits import Permits
from parl_mq.services.replay import ReplayNode
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal, WorkThread
from parl_mq.services.tables import limiter, table_settings
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    ChunkWanted,
    FromHub,
    FromReplay,
    StatusRequest,
    ToHub,
    ToReplay,
    Weights,
)
from tests.services.builders import SPEC, attach, hello, small_config, soon
from tests.services.hostile import corpus

SIZE = 10_000
SERVED_S = 3.0  # a second is asked for
MORE_MEMORY = 64 * 2**20
TCP = "tcp://127.0.0.1:0"
UNIONS = {"control": FromHub, "weights": Weights, "data": FromReplay}


class Ports:
    """A hub and a replay node at work in this process, and the peers of both."""

    def __init__(self, tmp_path, *, is_guarded):
        self.keyring = Keyring.open_or_make(tmp_path / "keys") if is_guarded else None
        self.own = new_key_pair()
        self.hostile = new_key_pair()
        for name, pair in (("actor-0", self.own), ("actor-1", self.hostile)):
            if self.keyring is not None:
                self.keyring.allow(Grant(name=name, role="actor", public=pair.public))
        self.stop = StopSignal()
        self.network = Network(guard=None if self.keyring is None else Guard(self.keyring.pair, self.keyring.admit))
        config = small_config()
        directory = RunDirectory.create(tmp_path / "run", config)
        options = HubOptions(config, directory.path, time.monotonic(), keyring=self.keyring)
        self.hub = Hub(self.network, TCP, options, self.stop)
        table = Table(table_settings(config), SPEC, directory=None, rng=np.random.default_rng(1))
        link = SimpleNamespace(status=NodeStatus(), send=lambda message: None, deliver=lambda message: None)
        desk = ReplayDesk(table, limiter(config), SPEC, config, "run")
        permits = gate.NOBODY if self.keyring is None else Permits(self.keyring.grant_of)
        data = self.network.bind(TCP)
        self.replay = ReplayNode(link, data, desk, WorkThread("rows"), permits=permits, max_bytes=2**24)
        self.endpoints = {
            "control": self.hub._control.endpoint,
            "weights": self.hub._weights.endpoint,
            "data": data.endpoint,
        }
        self.client_network = Network(pair=None if self.keyring is None else self.own)
        if self.keyring is not None:
            self.client_network.trust(dict.fromkeys(self.endpoints.values(), self.keyring.pair.public))

    async def serve(self):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.hub.run())
            tasks.create_task(self.replay.run(self.stop))

    def raw(self, context, port):
        """A socket of the hostile peer, which keeps to no rule of the channels."""
        raw = context.socket(zmq.DEALER)
        raw.linger, raw.immediate = 0, 1
        if self.keyring is not None:
            raw.curve_publickey, raw.curve_secretkey = self.hostile.public.encode(), self.hostile.secret.encode()
            raw.curve_serverkey = self.keyring.pair.public.encode()
        raw.connect(self.endpoints[port])
        return raw

    async def is_served(self, port):
        """Whether a normal client is answered; how long it took, s."""
        question = {
            "control": StatusRequest(),
            "weights": ChunkWanted(version=(1, 0), chunk=0),
            "data": attach("actor", "actor-0"),
        }[port]
        channel = self.client_network.connect(self.endpoints[port])
        before = time.monotonic()
        await soon(channel.send(encode(question)))
        for frames in await soon(channel.receive_many()):
            Decoder(UNIONS[port])(frames)
        channel.close(0)
        return time.monotonic() - before


async def send_all(raw, messages):
    for frames in messages:
        async with asyncio.timeout(20):
            while True:
                try:
                    raw.send_multipart(frames, zmq.NOBLOCK)
                    break
                except zmq.Again:
                    await asyncio.sleep(0.001)


async def heard(raw):
    """The hostile peer is answered too, so all that it had sent before has been read."""
    async with asyncio.timeout(20):
        while not raw.poll(0):  # noqa: ASYNC110 - a plain socket tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_guarded", [False, True], ids=["stranger", "authenticated"])
@pytest.mark.parametrize("port", ["control", "weights", "data"])
async def test_a_node_lives_through_a_corpus_of_hostile_messages(tmp_path, monkeypatch, caplog, port, is_guarded):
    monkeypatch.setattr(gate, "FAULTS", Pace(per_s=1e9, burst=1e9))  # lest the first ones be the only ones
    monkeypatch.setattr(gate, "MESSAGES", Pace(per_s=1e9, burst=1e9))
    ports, marker = Ports(tmp_path, is_guarded=is_guarded), tmp_path / "went-off"
    serving = asyncio.create_task(ports.serve())
    first = await ports.is_served(port)
    process = psutil.Process()
    with zmq.Context() as context:
        raw = ports.raw(context, port)
        if is_guarded:  # it is let in whole
            joined = attach("actor", "actor-1") if port == "data" else hello("actor", "actor-1")
            await send_all(raw, [encode(joined)] if port != "weights" else [])
        await send_all(raw, corpus(7, SIZE // 10, marker))
        before = process.memory_info().rss
        await send_all(raw, corpus(8, SIZE - SIZE // 10, marker))
        assert await ports.is_served(port) < max(SERVED_S, 3 * first)
        serving_gates = {"control": ports.hub._control_gate, "weights": ports.hub._weights_gate}
        the_gate = serving_gates.get(port, ports.replay._gate)
        async with asyncio.timeout(60):
            while the_gate.num_dropped < SIZE // 2:  # noqa: ASYNC110 - the node's loop counts
                await asyncio.sleep(0.01)
        assert await ports.is_served(port) < max(SERVED_S, 3 * first)
        assert process.memory_info().rss - before < MORE_MEMORY
        raw.close()
    assert not marker.exists()
    assert not serving.done()
    assert len([record for record in caplog.records if "dropped a message" in record.message]) < 40
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    ports.client_network.close(linger_s=0)
    ports.network.close(linger_s=0)


async def test_a_hostile_peer_is_cut_each_time_and_the_others_are_served(tmp_path):
    ports = Ports(tmp_path, is_guarded=True)
    serving = asyncio.create_task(ports.serve())
    with zmq.Context() as context:
        raw = ports.raw(context, "data")
        async with asyncio.timeout(20):
            while ports.replay._gate.num_cut < 2:
                try:
                    raw.send(b"\xff", zmq.NOBLOCK)
                except zmq.Again:  # cut, and not connected again yet
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0)
        assert await ports.is_served("data") < SERVED_S
        raw.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    ports.client_network.close(linger_s=0)
    ports.network.close(linger_s=0)


# Without a socket: anything at all is a message or a WireError

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_KINDS = ["hello", "insert", "sample", "weights_announced", "weights_chunk", "heartbeat", "attach", "update_priorities"]


@settings(max_examples=300, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from(["kind", "sequence", "table", "name", "role", "epoch", "arrays", "version", "chunk", "x"]),
        _values,
    ),
    kind=st.sampled_from(_KINDS),
    slab=st.none() | st.binary(max_size=64),
)
def test_any_map_is_a_message_or_a_wire_error(fields, kind, slab):
    header = msgpack.packb({**fields, "kind": kind})
    for union in (ToHub, ToReplay, Weights):
        with contextlib.suppress(WireError):
            Decoder(union)([header] if slab is None else [header, slab])
