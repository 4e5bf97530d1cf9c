"""Keys: who is let in, what both ends are told, and that a connection can be closed under its owner."""

import asyncio
import logging
import os
import socket
import tempfile

import pytest
import zmq

from parl_mq.errors import ConfigError
from parl_mq.net import zmq_socket
from parl_mq.net.channel import LinkEvent
from parl_mq.net.curve import Guard, KeyPair, Routes, Verdict, check_key, fingerprint, new_key_pair
from parl_mq.net.zmq_channel import Network
from parl_mq.net.zmq_socket import HUNG_UP_TIMES, Monitor
from tests.net.links import as_bytes, introduce, receive, soon, until

TCP = "tcp://127.0.0.1:0"


class Door:
    """A server's network, and which keys it lets in."""

    def __init__(self):
        self.pair, self.welcome, self.later = new_key_pair(), set(), set()
        self.network = Network(guard=Guard(self.pair, self.admit))

    def admit(self, key):
        if key in self.later:
            return Verdict.LATER
        return Verdict.WELCOME if key in self.welcome else Verdict.DENIED

    def client(self, endpoint, *, pair=None, server=None):
        """The network of another process, and a channel of it."""
        pair = pair or new_key_pair()
        network = Network(pair=pair)
        network.trust({endpoint: server or self.pair.public})
        return network, network.connect(endpoint), pair


@pytest.fixture
def door():
    made = Door()
    networks = [made.network]
    client = made.client

    def kept(*args, **options):
        network, channel, pair = client(*args, **options)
        networks.append(network)
        return network, channel, pair

    made.client = kept
    yield made
    for network in networks:
        network.close(linger_s=0)


def invited(door):
    pair = new_key_pair()
    door.welcome.add(pair.public)
    return pair


# Key pairs


def test_a_pair_proves_itself_and_never_shows_its_secret():
    pair = new_key_pair()
    assert pair.secret not in repr(pair)
    with pytest.raises(ConfigError, match="does not belong") as told:
        KeyPair(pair.public, new_key_pair().secret)
    assert pair.secret not in str(told.value)


@pytest.mark.parametrize("text", ["", "x" * 39, "x" * 41, "é" * 40, " " * 40, "~" * 40])
def test_what_is_no_key_is_refused_without_being_shown(text):
    with pytest.raises(ConfigError, match="Z85") as told:
        check_key(text)
    assert not text.strip() or text not in str(told.value)


def test_fingerprints_are_short_and_differ():
    one, other = new_key_pair().public, new_key_pair().public
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)
    assert len(fingerprint(one)) == 19


# Letting in


async def test_a_welcome_key_connects_and_is_the_senders_identity(door):
    server = door.network.bind(TCP)
    _, client, pair = door.client(server.endpoint, pair=invited(door))
    peer = await introduce(client, server)
    assert server.key_of(peer) == pair.public
    server.try_send(peer, [b"answer"])
    assert as_bytes((await receive(client, 1))[0]) == [b"answer"]


async def test_an_unknown_key_is_refused_at_both_ends_and_not_tried_again(door, caplog):
    server = door.network.bind(TCP)
    _, client, pair = door.client(server.endpoint)
    assert await soon(client.next_event()) is LinkEvent.REFUSED
    [told] = [record.message for record in caplog.records]
    assert "127.0.0.1" in told
    assert pair.public in told
    assert not client.try_send([b"x"])


async def test_a_key_that_may_become_known_tries_again_by_itself(door):
    server = door.network.bind(TCP)
    pair = new_key_pair()
    door.later.add(pair.public)
    _, client, _ = door.client(server.endpoint, pair=pair)
    await asyncio.sleep(0.2)
    door.welcome.add(pair.public)
    door.later.clear()
    await introduce(client, server)


async def test_a_server_that_does_not_know_the_keys_yet_is_no_refusal_however_long_that_lasts(door, monkeypatch):
    monkeypatch.setattr(zmq_socket, "HANDSHAKE_MS", 200)
    monkeypatch.setattr(zmq_socket, "HUNG_UP_WITHIN_S", 0.1)
    ends, note = [], Monitor._note_hung_up
    monkeypatch.setattr(Monitor, "_note_hung_up", lambda monitor: (ends.append(monitor), note(monitor)))
    server = door.network.bind(TCP)
    pair = new_key_pair()
    door.later.add(pair.public)
    _, client, _ = door.client(server.endpoint, pair=pair)
    await until(lambda: len(ends) > HUNG_UP_TIMES)
    door.welcome.add(pair.public)
    door.later.clear()
    await introduce(client, server)


async def test_a_client_without_a_key_is_refused_at_both_ends(door, caplog):
    server = door.network.bind(TCP)
    network = Network()
    client = network.connect(server.endpoint)
    assert await soon(client.next_event()) is LinkEvent.REFUSED
    await until(lambda: any("give it a join file" in record.message for record in caplog.records))
    network.close(linger_s=0)


async def test_a_server_that_has_another_key_than_the_expected_one_is_a_refusal(door, caplog):
    server = door.network.bind(TCP)
    _, client, _ = door.client(server.endpoint, pair=invited(door), server=new_key_pair().public)
    assert await soon(client.next_event()) is LinkEvent.REFUSED
    await until(lambda: any("expects another server key" in record.message for record in caplog.records))


async def test_a_client_with_keys_connects_over_tcp_to_no_server_whose_key_it_does_not_know(door):
    network = Network(pair=new_key_pair())
    with pytest.raises(ConfigError, match="the key of the server at"):
        network.connect("tcp://127.0.0.1:5000")
    network.close()


async def test_a_plain_server_is_a_refusal_to_a_client_with_keys(door):
    plain = Network()
    server = plain.bind(TCP)
    _, client, _ = door.client(server.endpoint)
    assert await soon(client.next_event()) is LinkEvent.REFUSED
    plain.close()


# One channel at two addresses


async def test_a_private_address_of_the_same_channel_asks_for_no_key(door):
    with tempfile.TemporaryDirectory(prefix="pmq-", dir="/tmp") as folder:
        await _joined_both_ways(door, f"ipc://{folder}/socket")


async def _joined_both_ways(door, private):
    server = door.network.bind(private, also=[TCP])
    assert server.endpoint == private
    local = Network()
    near = local.connect(private)
    _, far, pair = door.client(server.endpoints[1], pair=invited(door))
    routes = [await introduce(near, server), await introduce(far, server)]
    assert [server.key_of(route) for route in routes] == [None, pair.public]
    local.close(linger_s=0)


async def test_a_guarded_channel_may_be_bound_for_other_machines(door):
    server = door.network.bind("tcp://0.0.0.0:0")
    _, client, _ = door.client(f"tcp://127.0.0.1:{server.endpoint.rpartition(':')[2]}", pair=invited(door))
    await introduce(client, server)


async def test_without_keys_others_are_let_in_only_on_demand_and_that_is_said_each_time(caplog):
    network = Network(is_insecure=True)
    network.bind("tcp://0.0.0.0:0")
    network.close()
    assert ["--insecure" in record.message for record in caplog.records] == [True]


# Cutting


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_connection_that_is_cut_breaks_and_the_others_do_not(door, is_guarded):
    network = door.network if is_guarded else Network()
    server = network.bind(TCP)
    clients = []
    for _ in range(2):
        other = door.client(server.endpoint, pair=invited(door))[0] if is_guarded else network
        clients.append(other.connect(server.endpoint))
    routes = [await introduce(client, server) for client in clients]
    for client in clients:
        assert await soon(client.next_event()) is LinkEvent.CONNECTED
    server.cut(routes[0])
    assert await soon(clients[0].next_event()) is LinkEvent.DISCONNECTED
    assert await soon(clients[0].next_event()) is LinkEvent.CONNECTED
    await soon(clients[1].send([b"still here"]))
    assert [peer for peer, _ in await receive(server, 1)] == [routes[1]]
    server.cut(routes[0])  # it is gone: nothing happens
    server.cut(b"nobody")
    if not is_guarded:
        network.close(linger_s=0)


class Ended:
    """A message whose connection has ended, and whose number another file has now."""

    def __init__(self, fd):
        self._fd = fd

    def get(self, what):
        return self._fd if what is zmq.SRCFD else "key"


def test_a_number_that_is_no_connections_any_more_is_not_touched(tmp_path):
    routes = Routes(lambda key: Verdict.WELCOME)
    with (tmp_path / "file").open("wb") as file:
        assert routes.takes(b"one", Ended(file.fileno()))
        assert not routes.cut(b"one")
        file.write(b"still open")
    one, other = socket.socketpair()
    assert routes.takes(b"two", Ended(one.fileno()))
    one.close()
    assert not routes.cut(b"two")
    assert routes.key_of(b"two") == ""
    other.close()


async def test_a_key_that_is_not_welcome_any_more_loses_its_connection_and_gets_none(door):
    server = door.network.bind(TCP)
    _, client, pair = door.client(server.endpoint, pair=invited(door))
    await introduce(client, server)
    assert await soon(client.next_event()) is LinkEvent.CONNECTED
    assert server.cut_denied() == []
    door.welcome.clear()
    assert server.cut_denied() == [pair.public]
    assert await soon(client.next_event()) is LinkEvent.DISCONNECTED
    assert await soon(client.next_event()) is LinkEvent.REFUSED


async def test_connections_that_have_said_nothing_are_closed_with_those_of_a_key_and_the_welcome_come_back(door):
    server, other = door.network.bind(TCP), door.network.bind(TCP)
    _, silent, pair = door.client(server.endpoint, pair=invited(door))
    _, welcome, _ = door.client(server.endpoint, pair=invited(door))
    _, speaker, _ = door.client(server.endpoint, pair=invited(door))
    _, elsewhere, _ = door.client(other.endpoint, pair=invited(door))
    await introduce(speaker, server)
    for client in (silent, welcome, speaker, elsewhere):
        assert await soon(client.next_event()) is LinkEvent.CONNECTED
    before = set(os.listdir("/proc/self/fd"))
    door.welcome.discard(pair.public)
    assert server.cut_denied() == []
    assert [await soon(silent.next_event()) for _ in range(2)] == [LinkEvent.DISCONNECTED, LinkEvent.REFUSED]
    assert [await soon(welcome.next_event()) for _ in range(2)] == [LinkEvent.DISCONNECTED, LinkEvent.CONNECTED]
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # that of the one who came back
    await introduce(speaker, server)
    await introduce(elsewhere, other)
    for client in (speaker, elsewhere):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.next_event(), 0.05)


async def test_a_message_of_a_key_that_is_not_welcome_any_more_is_not_read(door):
    server = door.network.bind(TCP)
    _, revoked, _ = door.client(server.endpoint, pair=invited(door))
    await introduce(revoked, server)
    assert await soon(revoked.next_event()) is LinkEvent.CONNECTED
    door.welcome.clear()
    _, other, _ = door.client(server.endpoint, pair=invited(door))
    await soon(revoked.send([b"too late"]))
    reading = asyncio.create_task(server.receive_many())
    assert await soon(revoked.next_event()) is LinkEvent.DISCONNECTED
    await soon(other.send([b"in time"]))
    assert [as_bytes(frames) for _, frames in await soon(reading)] == [[b"in time"]]


async def test_a_routing_id_of_ones_own_choice_gives_nobodys_identity(door):
    """A second connection under the routing id of a first one, with another key, is not taken for it."""
    server = door.network.bind(TCP)
    with zmq.Context() as context:
        sockets = []
        for message in (b"first", b"second"):
            pair, raw = invited(door), context.socket(zmq.DEALER)
            raw.linger = 0
            raw.routing_id = b"chosen"
            raw.curve_publickey, raw.curve_secretkey = pair.public.encode(), pair.secret.encode()
            raw.curve_serverkey = door.pair.public.encode()
            raw.connect(server.endpoint)
            raw.send(message)
            sockets.append((pair, raw))
            if message == b"first":
                [(peer, _)] = await receive(server, 1)
        assert server.key_of(peer) == sockets[0][0].public
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.receive_many(), 0.3)
        for _, raw in sockets:
            raw.close()


async def test_noise_and_silence_at_a_guarded_port_disturb_nobody(door, caplog):
    caplog.set_level(logging.ERROR)
    server = door.network.bind(TCP)
    _, client, _ = door.client(server.endpoint, pair=invited(door))
    await introduce(client, server)
    port = int(server.endpoint.rpartition(":")[2])
    silent = socket.create_connection(("127.0.0.1", port))  # it speaks slower than any handshake may take
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE", b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(noise)
    await introduce(client, server)
    silent.close()
    assert caplog.records == []
