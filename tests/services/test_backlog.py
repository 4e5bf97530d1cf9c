"""Replies that wait for room, over the in-memory channel."""

from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services.backlog import Backlog
from tests.services.builders import soon


async def connected(queue_messages=2):
    network = MemoryNetwork()
    server = network.bind("here")
    client = network.connect("here", queue_messages=queue_messages)
    await client.send([b"hello"])
    [(peer, _)] = await soon(server.receive_many())
    return client, Backlog(server, server.cut, max_waiting=5), peer


def numbered(peer, numbers):
    return [(peer, [b"%d" % number]) for number in numbers]


async def read(client):
    return [int(bytes(frames[0])) for frames in await soon(client.receive_many())]


async def test_replies_leave_in_order_as_room_comes():
    client, backlog, peer = await connected()
    assert backlog.send(numbered(peer, range(3))) == []
    assert backlog.send(numbered(peer, range(3, 5))) == []
    received = []
    while len(received) < 5:
        received += await read(client)
        backlog.flush()
    assert received == [0, 1, 2, 3, 4]


async def test_a_peer_with_a_full_queue_does_not_hold_up_another():
    network = MemoryNetwork()
    server = network.bind("here")
    clients = [network.connect("here", queue_messages=1) for _ in range(2)]
    for client in clients:
        await client.send([b"hello"])
    full, free = [peer for peer, _ in await soon(server.receive_many())]
    Backlog(server, server.cut).send([*numbered(full, [0, 1, 2]), *numbered(free, [9])])
    assert await read(clients[1]) == [9]


async def test_what_belongs_to_a_peer_that_is_gone_is_dropped_and_the_peer_named():
    client, backlog, peer = await connected()
    backlog.send(numbered(peer, range(5)))
    client.cut()
    assert backlog.flush() == [peer]
    client.revive()
    assert backlog.flush() == []


async def test_a_peer_that_reads_nothing_is_cut_and_takes_no_more_memory():
    client, backlog, peer = await connected()
    assert backlog.send(numbered(peer, range(7))) == []
    assert backlog.send(numbered(peer, [7])) == [peer]
    assert not client.is_connected
    assert backlog.flush() == []


async def test_a_peer_that_never_was_is_gone():
    _, backlog, _ = await connected()
    assert backlog.send(numbered(b"stranger", [1])) == [b"stranger"]
