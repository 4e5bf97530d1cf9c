"""What a test can do to a connection in memory."""

import pytest

from parl_mq.errors import ConfigError
from parl_mq.net.channel import LinkEvent, SendOutcome
from parl_mq.net.memory_channel import MemoryNetwork
from tests.net.links import as_bytes, introduce, link, receive, soon


async def test_cut_loses_what_was_under_way_and_revival_gives_a_new_id():
    server, client, peer = await link(MemoryNetwork(), "place")
    assert client.try_send([b"lost"])
    assert server.try_send(peer, [b"lost"]) is SendOutcome.SENT
    client.cut()
    assert not client.try_send([b"x"])
    assert server.try_send(peer, [b"x"]) is SendOutcome.GONE
    client.revive()
    assert await introduce(client, server) != peer
    events = [await soon(client.next_event()) for _ in range(3)]
    assert events == [LinkEvent.CONNECTED, LinkEvent.DISCONNECTED, LinkEvent.CONNECTED]


async def test_stall_fills_the_queues_and_revival_lets_everything_through():
    server, client, peer = await link(MemoryNetwork(), "place", queue_messages=3)
    client.stall()
    sent = [client.try_send([b"%d" % number]) for number in range(5)]
    outcomes = [server.try_send(peer, [b"%d" % number]) for number in range(5)]
    assert sent == [True] * 3 + [False] * 2
    assert outcomes == [SendOutcome.SENT] * 3 + [SendOutcome.FULL] * 2
    client.revive()
    assert [as_bytes(frames) for _, frames in await receive(server, 3)] == [[b"0"], [b"1"], [b"2"]]
    assert [as_bytes(frames) for frames in await receive(client, 3)] == [[b"0"], [b"1"], [b"2"]]
    assert server.try_send(peer, [b"3"]) is SendOutcome.SENT


async def test_stalled_client_holds_no_other_up():
    network = MemoryNetwork()
    server, stalled, _ = await link(network, "place")
    other = network.connect("place")
    stalled.stall()
    assert stalled.try_send([b"held"])
    await introduce(other, server)


async def test_frame_changed_after_it_was_handed_over_is_found_out():
    server, client, _ = await link(MemoryNetwork(), "place")
    frame = bytearray(b"content")
    assert client.try_send([frame])
    frame[0] = 0
    with pytest.raises(AssertionError, match="handed over"):
        await soon(server.receive_many())


async def test_endpoint_is_bound_once():
    network = MemoryNetwork()
    network.bind("place")
    with pytest.raises(ConfigError, match="in use"):
        network.bind("place")
