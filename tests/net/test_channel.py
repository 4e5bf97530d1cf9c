"""The contract of the channels, on every implementation and both event loops."""

import asyncio
import gc
import time
import zlib

import numpy as np
import pytest

from parl_mq.errors import ChannelClosed
from parl_mq.net import zmq_socket
from parl_mq.net.channel import LinkEvent, SendOutcome
from tests.net.links import KINDS, LARGE, as_bytes, fill, introduce, link, network_of, receive, soon, until, unused

IDLE_S = 1.0


@pytest.fixture(params=KINDS)
def place(request):
    with network_of(request.param) as place:
        yield place


with_fixed_queues = pytest.mark.parametrize("place", ["ipc", "memory"], indirect=True)
"""Over tcp the system's own buffers grow for a while, and a full peer may turn out not to be full."""


def random_messages(rng, count):
    """One or two frames each, empty ones and large ones among them."""
    sizes = [0, 1, 33, 1000, LARGE - 1, LARGE, 3 * LARGE]
    return [[rng.bytes(rng.choice(sizes)) for _ in range(rng.integers(1, 3))] for _ in range(count)]


# Messages


async def test_messages_to_the_server_arrive_whole_and_in_order(place):
    server, client, peer = await link(*place)
    sent = random_messages(np.random.default_rng(1), 300)
    sending = asyncio.create_task(send_all(client, sent))
    received = await receive(server, len(sent))
    assert [as_bytes(frames) for _, frames in received] == sent
    assert {sender for sender, _ in received} == {peer}
    await sending


async def send_all(client, messages):
    for frames in messages:
        await soon(client.send(frames))


async def test_messages_to_the_client_arrive_whole_and_in_order(place):
    server, client, peer = await link(*place)
    sent = random_messages(np.random.default_rng(2), 300)
    assert all(server.try_send(peer, frames) is SendOutcome.SENT for frames in sent)
    assert [as_bytes(frames) for frames in await receive(client, len(sent))] == sent


async def test_each_peer_gets_its_own_messages(place):
    server, first, first_peer = await link(*place)
    second = place[0].connect(server.endpoint)
    second_peer = await introduce(second, server)
    assert first_peer != second_peer
    server.try_send(first_peer, [b"for the first"])
    server.try_send(second_peer, [b"for the second"])
    assert [as_bytes(frames) for frames in await receive(second, 1)] == [[b"for the second"]]
    assert [as_bytes(frames) for frames in await receive(first, 1)] == [[b"for the first"]]


async def test_one_call_returns_64_messages_at_most(place):
    server, client, _ = await link(*place)
    await send_all(client, [[b"x"]] * 500)
    calls = []
    while sum(calls) < 500:
        calls.append(len(await soon(server.receive_many())))
    assert max(calls) <= 64


async def test_every_kind_of_bytes_can_be_sent(place):
    server, client, _ = await link(*place)
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    for frame in (b"bytes", bytearray(b"array"), memoryview(b"view"), array.data):
        await soon(client.send([frame]))
    received = [as_bytes(frames) for _, frames in await receive(server, 4)]
    assert received == [[b"bytes"], [b"array"], [b"view"], [array.tobytes()]]


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([], ValueError),
        ([b"a", b"b", b"c"], ValueError),
        ([b"a", "text"], TypeError),
        ([b"a", None], TypeError),
        ([b"a", memoryview(b"abcdef")[::2]], TypeError),
        ([b"a", bytes(1001)], ValueError),
    ],
    ids=["none", "three", "text", "nothing", "strided", "over the limit"],
)
async def test_what_cannot_be_sent_is_refused_before_any_of_it_is_sent(place, frames, error):
    server, client, peer = await link(*place, max_message_bytes=1000)
    with pytest.raises(error):
        client.try_send(frames)
    with pytest.raises(error):
        await client.send(frames)
    with pytest.raises(error):
        server.try_send(peer, frames)
    await soon(client.send([b"next", bytes(1000)]))
    server.try_send(peer, [b"next"])
    assert [as_bytes(frames)[0] for _, frames in await receive(server, 1)] == [b"next"]
    assert [as_bytes(frames) for frames in await receive(client, 1)] == [[b"next"]]


async def test_large_frames_arrive_unchanged_though_their_sender_has_forgotten_them(place):
    server, client, peer = await link(*place)
    rng = np.random.default_rng(3)
    checksums = []
    for size in rng.integers(LARGE, 20 * LARGE, 40):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        checksums.append(zlib.crc32(block))
        await soon(client.send([b"header", block.data]))
        assert server.try_send(peer, [b"header", block.data]) is SendOutcome.SENT
        del block
    gc.collect()
    assert [zlib.crc32(frames[1]) for _, frames in await receive(server, 40)] == checksums
    assert [zlib.crc32(frames[1]) for frames in await receive(client, 40)] == checksums


@pytest.mark.parametrize("size", [10, 10 * LARGE])
async def test_received_frame_outlives_its_channel(place, size):
    server, client, _ = await link(*place)
    content = np.random.default_rng(4).bytes(size)
    await soon(client.send([content]))
    [(_, [frame])] = await receive(server, 1)
    place[0].close(linger_s=0)
    gc.collect()
    assert bytes(frame) == content


# Queues


async def test_client_without_a_peer_sends_nothing_and_waits_for_one(place):
    network, endpoint = place[0], unused(place[1])
    client = network.connect(endpoint)
    assert not client.try_send([b"lost"])
    sending = asyncio.create_task(client.send([b"kept"]))
    server = network.bind(endpoint)
    assert [as_bytes(frames) for _, frames in await receive(server, 1)] == [[b"kept"]]
    await sending


@with_fixed_queues
async def test_full_peer_is_told_apart_and_nothing_is_lost_when_it_reads_again(place):
    server, client, peer = await link(*place, queue_messages=4)
    taken = await fill(lambda frames: server.try_send(peer, frames) is SendOutcome.SENT)
    assert server.try_send(peer, [b"one too many"]) is SendOutcome.FULL
    received = [int(bytes(frames[0])) for frames in await receive(client, taken)]
    assert received == list(range(taken))
    await until(lambda: server.try_send(peer, [b"again"]) is SendOutcome.SENT)
    assert [as_bytes(frames) for frames in await receive(client, 1)] == [[b"again"]]


async def test_full_peer_holds_nobody_else_up(place):
    server, _, full = await link(*place, queue_messages=4)
    other = place[0].connect(server.endpoint)
    peer = await introduce(other, server)
    await fill(lambda frames: server.try_send(full, frames) is SendOutcome.SENT)
    assert server.try_send(peer, [b"through"]) is SendOutcome.SENT
    assert [as_bytes(frames) for frames in await receive(other, 1)] == [[b"through"]]


async def test_unknown_peer_is_gone(place):
    server, _, _ = await link(*place)
    assert server.try_send(b"nobody", [b"x"]) is SendOutcome.GONE


async def test_peer_that_has_closed_is_gone(place):
    server, client, peer = await link(*place)
    client.close()
    await until(lambda: server.try_send(peer, [b"x"]) is SendOutcome.GONE)


@with_fixed_queues
async def test_senders_wait_while_the_server_is_full_and_go_on_in_their_order(place):
    server, client, _ = await link(*place, queue_messages=4)
    taken = await fill(client.try_send)
    sending = [asyncio.create_task(client.send([b"%d" % (taken + number)])) for number in range(5)]
    await asyncio.sleep(0)
    assert not client.try_send([b"overtaking"])
    received = [int(bytes(frames[0])) for _, frames in await receive(server, taken + 5)]
    assert received == list(range(taken + 5))
    await asyncio.gather(*sending)


@with_fixed_queues
async def test_cancelled_sender_sends_nothing_and_lets_the_next_one_through(place):
    server, client, _ = await link(*place, queue_messages=4)
    taken = await fill(client.try_send)
    cancelled = asyncio.create_task(client.send([b"cancelled"]))
    kept = asyncio.create_task(client.send([b"%d" % taken]))
    await asyncio.sleep(0)
    cancelled.cancel()
    received = [int(bytes(frames[0])) for _, frames in await receive(server, taken + 1)]
    assert received == list(range(taken + 1))
    await kept


async def test_messages_sent_before_closing_arrive(place):
    server, client, _ = await link(*place)
    sent = random_messages(np.random.default_rng(5), 50)
    for frames in sent:
        assert client.try_send(frames)
    client.close(linger_s=10)
    assert [as_bytes(frames) for _, frames in await receive(server, len(sent))] == sent


# Turns


async def test_flood_of_messages_leaves_other_tasks_their_turn(place):
    server, client, _ = await link(*place, queue_messages=10_000)
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for number in range(5000):
        assert client.try_send([b"%d" % number])
    waiting = asyncio.create_task(other())
    calls = received = 0
    while received < 5000:
        received += len(await server.receive_many())  # in this very task: another one would be a turn
        calls += 1
    waiting.cancel()
    assert turns >= calls // 2


# Closing and cancelling


@with_fixed_queues
async def test_closing_ends_every_wait_of_a_client(place):
    _, client, _ = await link(*place, queue_messages=4)
    assert await soon(client.next_event()) is LinkEvent.CONNECTED
    await fill(client.try_send)
    waits = [client.receive_many(), client.next_event(), client.send([bytes(LARGE)]), client.send([b"x"])]
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.sleep(0)
    client.close(linger_s=0)
    outcomes = await soon(asyncio.gather(*tasks, return_exceptions=True))
    assert [type(outcome) for outcome in outcomes] == [ChannelClosed] * 4


async def test_closing_ends_the_wait_of_a_server(place):
    server, _, _ = await link(*place)
    waiting = asyncio.create_task(server.receive_many())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close(linger_s=0)
    with pytest.raises(ChannelClosed):
        await soon(waiting)


async def test_closed_channel_says_so_to_everybody(place):
    server, client, peer = await link(*place)
    assert await soon(client.next_event()) is LinkEvent.CONNECTED
    for channel in (client, server):
        channel.close(linger_s=0)
        channel.close(linger_s=0)
    for attempt in (client.receive_many, client.next_event, server.receive_many, lambda: client.send([b"x"])):
        with pytest.raises(ChannelClosed):
            await soon(attempt())
    with pytest.raises(ChannelClosed):
        client.try_send([b"x"])
    with pytest.raises(ChannelClosed):
        server.try_send(peer, [b"x"])


async def test_cancelled_receive_loses_nothing(place):
    server, client, _ = await link(*place)
    rng = np.random.default_rng(6)

    async def send_with_pauses():
        for number in range(1000):
            await client.send([b"%d" % number])
            for _ in range(rng.integers(0, 5)):
                await asyncio.sleep(0)

    sending = asyncio.create_task(send_with_pauses())
    received, cancelled = [], 0
    async with asyncio.timeout(60):
        while len(received) < 1000:
            receiving = asyncio.create_task(server.receive_many())
            for _ in range(rng.integers(0, 20)):
                await asyncio.sleep(0)
            receiving.cancel()
            try:
                received += [int(bytes(frames[0])) for _, frames in await receiving]
            except asyncio.CancelledError:
                cancelled += 1
    assert received == list(range(1000))
    assert cancelled
    await sending


# The connection


async def test_events_tell_of_a_connection_its_end_and_its_return(place):
    network, endpoint = place
    server, client, peer = await link(network, endpoint)
    bound = server.endpoint
    assert await soon(client.next_event()) is LinkEvent.CONNECTED
    server.close(linger_s=0)
    assert await soon(client.next_event()) is LinkEvent.DISCONNECTED
    await until(lambda: not client.try_send([b"lost"]))
    server = network.bind(bound)
    assert await soon(client.next_event()) is LinkEvent.CONNECTED
    assert await introduce(client, server) != peer
    assert server.try_send(peer, [b"x"]) is SendOutcome.GONE


async def test_events_that_nobody_takes_do_not_stop_the_messages(place):
    network, endpoint = place
    server = network.bind(endpoint)
    bound = server.endpoint
    client = network.connect(bound)
    for _ in range(3):
        await until(lambda: client.try_send([b"hello"]))
        await receive(server, 1)
        server.close(linger_s=0)
        await until(lambda: not client.try_send([b"lost"]))
        server = network.bind(bound)
    await introduce(client, server)
    events = [await soon(client.next_event()) for _ in range(7)]
    assert events == [LinkEvent.CONNECTED, *[LinkEvent.DISCONNECTED, LinkEvent.CONNECTED] * 3]


# Signs that must not be lost


@pytest.fixture
def no_net(monkeypatch):
    """Without the second look that would hide a lost sign."""
    monkeypatch.setattr(zmq_socket, "LOOK_AGAIN_S", 1e6)


async def soak(place, count):
    """Numbered messages with pauses; the server answers each batch, so that both ends send while they wait."""
    server, client, peer = await link(*place)
    rng = np.random.default_rng(7)
    received = answered = 0

    async def send():
        while sent := min(int(rng.integers(1, 400)), count - send.number):
            for _ in range(sent):
                await client.send([b"%d" % send.number])
                send.number += 1
            await asyncio.sleep(rng.random() * 0.001 if rng.random() < 0.3 else 0)

    send.number = 0

    async def listen():
        nonlocal answered
        while answered < count:
            for [number] in await client.receive_many():
                answered = int(bytes(number)) + 1

    tasks = [asyncio.create_task(send()), asyncio.create_task(listen())]
    while received < count:
        numbers = [int(bytes(number)) for _, [number] in await soon(server.receive_many())]
        assert numbers == list(range(received, received + len(numbers)))
        received += len(numbers)
        assert server.try_send(peer, [b"%d" % numbers[-1]]) is SendOutcome.SENT
    await soon(asyncio.gather(*tasks))
    assert answered == count


@pytest.mark.usefixtures("no_net")
async def test_last_of_10_000_messages_arrives(place):
    await soak(place, 10_000)


@pytest.mark.usefixtures("no_net")
@pytest.mark.parametrize("place", ["tcp"], indirect=True)
async def test_last_of_100_000_messages_arrives(place):
    await soak(place, 100_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_net")
async def test_last_of_a_million_messages_arrives(place):
    await soak(place, 1_000_000)


@pytest.mark.usefixtures("no_net")
async def test_ping_pong_never_waits_for_a_lost_sign(place):
    server, client, peer = await link(*place)

    async def answer():
        for number in range(2000):
            assert [as_bytes(frames) for _, frames in await receive(server, 1)] == [[b"%d" % number]]
            assert server.try_send(peer, [b"%d" % number]) is SendOutcome.SENT

    answering = asyncio.create_task(answer())
    for number in range(2000):
        await soon(client.send([b"%d" % number]))
        assert [as_bytes(frames) for frames in await receive(client, 1)] == [[b"%d" % number]]
    await answering


async def test_idle_channels_use_less_than_a_fiftieth_of_a_core(place):
    """Measured at less than a thousandth; the limit is asserted with threefold slack."""
    server, client, _ = await link(*place)
    waiting = [asyncio.create_task(wait()) for wait in (server.receive_many, client.receive_many)]
    await asyncio.sleep(0.05)
    before = time.process_time()
    await asyncio.sleep(IDLE_S)  # the measurement itself
    assert time.process_time() - before < 3 * 0.02 * IDLE_S
    for task in waiting:
        task.cancel()
