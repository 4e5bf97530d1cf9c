"""What only a real transport can get wrong: addresses, limits, strangers, and exits."""

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from parl_mq.errors import ConfigError
from parl_mq.net import zmq_socket
from parl_mq.net.channel import LinkEvent
from parl_mq.net.zmq_channel import BIND_PAUSES_S, Network
from tests.net.links import LARGE, as_bytes, fill, introduce, link, network_of, receive, soon, until


@pytest.fixture(params=["ipc", "tcp"])
def place(request):
    with network_of(request.param) as place:
        yield place


@pytest.fixture
def tcp():
    with network_of("tcp") as (network, _):
        yield network


@pytest.fixture
def ipc():
    with network_of("ipc") as place:
        yield place


@pytest.fixture
def raw():
    """Makes sockets that know nothing of the channels."""
    with zmq.Context() as context, ExitStack() as stack:
        yield lambda kind: stack.enter_context(context.socket(kind))


# Addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.2"])
async def test_port_0_takes_a_free_port_of_any_loopback_address(tcp, host):
    server = tcp.bind(f"tcp://{host}:0")
    assert int(server.endpoint.rpartition(":")[2]) > 0
    await introduce(tcp.connect(server.endpoint), server)


@pytest.mark.parametrize(
    "endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://192.0.2.1:0", "tcp://[::]:0", "tcp://eth0:0"]
)
async def test_other_than_loopback_is_not_bound_without_keys(tcp, endpoint):
    with pytest.raises(ConfigError, match=r"without keys anyone there could take part"):
        tcp.bind(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:5000",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://:5000",
        "tcp://127.0.0.1:70000",
        "tcp://127.0.0.1:five",
        "tcp://h:-1",
        "ipc://",
        "inproc://x",
        "udp://127.0.0.1:1",
    ],
)
async def test_what_is_no_endpoint_is_refused_by_name(tcp, endpoint):
    for attempt in (tcp.bind, tcp.connect):
        with pytest.raises(ConfigError, match=r"must be ipc://PATH or tcp://HOST:PORT"):
            attempt(endpoint)


async def test_path_of_107_bytes_is_bound_and_of_108_is_refused_with_the_limit(ipc):
    network, endpoint = ipc
    longest = endpoint + "x" * (107 - len(endpoint.removeprefix("ipc://")))
    await introduce(network.connect(longest), network.bind(longest))
    for attempt in (network.bind, network.connect):
        with pytest.raises(ConfigError, match=r"108 bytes, the system allows 107.*runtime_directory"):
            attempt(longest + "x")


async def test_folder_that_is_not_there_is_named(ipc):
    network, endpoint = ipc
    with pytest.raises(ConfigError, match="nowhere/socket"):
        network.bind(endpoint.replace("/socket", "/nowhere/socket"))


async def test_failed_attempts_do_not_hold_up_the_end(tcp):
    for endpoint in ("tcp://no such host:1", "tcp://a b:1"):
        with pytest.raises(ConfigError):
            tcp.connect(endpoint)
    tcp.close()


# Addresses in use


class Sleeper:
    """Counts pauses instead of sleeping, and lets something happen in one of them."""

    def __init__(self, happen=lambda: None, at=-1):
        self.pauses = []
        self._happen, self._at = happen, at

    def __call__(self, pause_s):
        self.pauses.append(pause_s)
        if len(self.pauses) == self._at:
            self._happen()


async def test_address_in_use_is_tried_again_and_then_named(place):
    network, endpoint = place
    holder = network.bind(endpoint)
    sleeper = Sleeper()
    second = Network(sleep=sleeper)
    with pytest.raises(ConfigError, match=r"in use for 3 s") as caught:
        second.bind(holder.endpoint)
    assert holder.endpoint in str(caught.value)
    assert sleeper.pauses == list(BIND_PAUSES_S)
    second.close()
    await introduce(network.connect(holder.endpoint), holder)


async def test_address_that_becomes_free_is_bound(place):
    _, endpoint = place
    holder = socket.socket(socket.AF_UNIX if endpoint.startswith("ipc") else socket.AF_INET)
    address = endpoint.removeprefix("ipc://") if endpoint.startswith("ipc") else ("127.0.0.1", 0)
    holder.bind(address)
    holder.listen()
    if not endpoint.startswith("ipc"):
        endpoint = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
    sleeper = Sleeper(holder.close, at=3)
    second = Network(sleep=sleeper)
    server = second.bind(endpoint)
    assert len(sleeper.pauses) == 3
    await introduce(second.connect(endpoint), server)
    second.close(linger_s=0)


async def test_path_that_a_dead_process_left_behind_is_taken(ipc):
    network, endpoint = ipc
    left = socket.socket(socket.AF_UNIX)
    left.bind(endpoint.removeprefix("ipc://"))
    left.close()
    await introduce(network.connect(endpoint), network.bind(endpoint))


async def test_file_that_is_no_socket_is_not_removed(ipc):
    network, endpoint = ipc
    path = Path(endpoint.removeprefix("ipc://"))
    path.write_text("precious")  # noqa: ASYNC240 - nothing else runs
    with pytest.raises(ConfigError, match="no socket"):
        network.bind(endpoint)
    assert path.read_text() == "precious"  # noqa: ASYNC240


# Strangers


async def test_peer_that_sends_too_large_a_frame_is_cut_and_the_others_are_not(place):
    network, endpoint = place
    server = network.bind(endpoint, 1000)
    good, bad = network.connect(server.endpoint), network.connect(server.endpoint)
    await introduce(good, server)
    await introduce(bad, server)
    assert await soon(bad.next_event()) is LinkEvent.CONNECTED
    await soon(bad.send([bytes(1001)]))
    assert await soon(bad.next_event()) is LinkEvent.DISCONNECTED
    await soon(good.send([bytes(1000)]))
    assert [len(frames[0]) for _, frames in await receive(server, 1)] == [1000]


async def test_of_a_message_with_many_frames_few_are_kept(tcp, raw):
    server = tcp.bind("tcp://127.0.0.1:0")
    stranger = raw(zmq.DEALER)
    stranger.connect(server.endpoint)
    stranger.send_multipart([b"x"] * 10_000)
    stranger.send_multipart([b"next"])
    (_, many), (_, following) = await receive(server, 2)
    assert 2 < len(many) <= 8
    assert as_bytes(following) == [b"next"]


async def test_noise_on_the_port_does_not_disturb_the_others(tcp):
    server = tcp.bind("tcp://127.0.0.1:0")
    client = tcp.connect(server.endpoint)
    await introduce(client, server)
    port = int(server.endpoint.rpartition(":")[2])
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(100), b"\xff" + bytes(8) + b"\x7f", b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(noise)
    await introduce(client, server)


async def test_server_of_another_mechanism_is_a_refusal(tcp, raw):
    guarded = raw(zmq.ROUTER)
    guarded.curve_server = True
    guarded.curve_secretkey = zmq.curve_keypair()[1]
    port = guarded.bind_to_random_port("tcp://127.0.0.1")
    client = tcp.connect(f"tcp://127.0.0.1:{port}")
    assert await soon(client.next_event()) is LinkEvent.REFUSED
    assert not client.try_send([b"x"])


# Exits


async def test_end_with_a_peer_that_reads_nothing_takes_no_longer_than_it_may(ipc):
    network, endpoint = ipc
    server = network.bind(endpoint, queue_messages=1)
    sender = Network()
    client = sender.connect(server.endpoint, queue_messages=1)
    await fill(client.try_send)
    before = time.monotonic()
    sender.close(linger_s=0.2)
    assert 0.1 < time.monotonic() - before < 5


async def test_end_with_an_absent_peer_is_immediate(tcp):
    client = tcp.connect("tcp://127.0.0.1:1")
    assert not client.try_send([b"x"])
    before = time.monotonic()
    tcp.close(linger_s=30)
    assert time.monotonic() - before < 5


async def test_closing_the_network_twice_does_nothing(tcp):
    tcp.bind("tcp://127.0.0.1:0")
    tcp.close()
    tcp.close()


# Signs


@pytest.fixture
def no_net(monkeypatch):
    """Without the second look that would hide a lost sign."""
    monkeypatch.setattr(zmq_socket, "LOOK_AGAIN_S", 1e6)


def let_the_transport_work():
    """Time for the transport's thread alone: the loop must not see the sign yet."""
    time.sleep(0.05)


def begin(coroutine):
    """Runs a coroutine up to its first wait and drops it, as if its task had been cancelled there."""
    coroutine.send(None)
    coroutine.close()


@pytest.mark.usefixtures("no_net")
async def test_sign_of_a_message_that_a_send_has_taken_is_passed_on(tcp):
    server, client, peer = await link(tcp, "tcp://127.0.0.1:0")
    waiting = asyncio.create_task(client.receive_many())
    await asyncio.sleep(0)
    server.try_send(peer, [b"heard"])
    let_the_transport_work()
    assert client.try_send([b"x"])
    assert as_bytes((await soon(waiting))[0]) == [b"heard"]


@pytest.mark.usefixtures("no_net")
async def test_sign_of_room_that_a_receive_has_taken_is_passed_on(ipc, raw):
    network, endpoint = ipc
    reader = raw(zmq.ROUTER)
    reader.rcvhwm = 4
    reader.bind(endpoint)
    client = network.connect(endpoint, queue_messages=4)
    await soon(client.send([b"hello"]))
    taken = await fill(client.try_send)
    waiting = asyncio.create_task(client.send([b"last"]))
    await asyncio.sleep(0)
    for _ in range(taken + 1):
        reader.recv_multipart()
    let_the_transport_work()
    begin(client.receive_many())
    await soon(waiting)
    assert reader.recv_multipart()[1:] == [b"last"]


async def test_waiting_sender_is_not_overtaken_though_there_is_room(ipc, raw):
    network, endpoint = ipc
    reader = raw(zmq.ROUTER)
    reader.rcvhwm = 4
    reader.bind(endpoint)
    client = network.connect(endpoint, queue_messages=4)
    await soon(client.send([b"hello"]))
    taken = await fill(client.try_send)
    waiting = asyncio.create_task(client.send([b"first"]))
    await asyncio.sleep(0)
    for _ in range(taken + 1):
        reader.recv_multipart()
    let_the_transport_work()
    assert not client.try_send([b"overtaking"])
    await soon(waiting)
    assert client.try_send([b"second"])
    assert [reader.recv_multipart()[1:] for _ in range(2)] == [[b"first"], [b"second"]]


async def test_lost_sign_is_made_good_by_the_second_look(tcp, monkeypatch):
    monkeypatch.setattr(zmq_socket, "LOOK_AGAIN_S", 0.05)
    server, client, _ = await link(tcp, "tcp://127.0.0.1:0")
    waiting = asyncio.create_task(server.receive_many())
    await asyncio.sleep(0)
    asyncio.get_running_loop().remove_reader(server._socket._fd)
    await soon(client.send([b"unheard"]))
    assert as_bytes((await soon(waiting))[0][1]) == [b"unheard"]


@pytest.mark.slow
async def test_peer_that_falls_silent_is_disconnected_within_ten_seconds(tcp):
    """A relay between the two stops: the connection stays, as when a cable is pulled."""
    server = tcp.bind("tcp://127.0.0.1:0")
    port = int(server.endpoint.rpartition(":")[2])
    is_up = True

    async def relay(reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(carry(reader, inner_writer))
            tasks.create_task(carry(inner_reader, writer))

    async def carry(reader, writer):
        while part := await reader.read(65_536):
            if is_up:
                writer.write(part)
        writer.close()

    middle = await asyncio.start_server(relay, "127.0.0.1", 0)
    client = tcp.connect(f"tcp://127.0.0.1:{middle.sockets[0].getsockname()[1]}")
    peer = await introduce(client, server)
    assert await soon(client.next_event()) is LinkEvent.CONNECTED
    is_up = False
    before = time.monotonic()
    assert await soon(client.next_event()) is LinkEvent.DISCONNECTED
    assert time.monotonic() - before < 10
    await until(lambda: server.try_send(peer, [bytes(LARGE)]).value == "gone")
    middle.close()
