"""What the tests of the channels share: networks of each kind, and a client that its server knows."""

import asyncio
import socket
import tempfile
from contextlib import contextmanager

from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.net.zmq_channel import Network

KINDS = ["ipc", "tcp", "memory"]
PATIENCE_S = 20.0
LARGE = 64 * 1024  # frames from this size on are sent without copying


@contextmanager
def network_of(kind):
    """A network, and an endpoint to bind in it; unix sockets need paths shorter than pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        network = MemoryNetwork() if kind == "memory" else Network()
        try:
            yield network, "tcp://127.0.0.1:0" if kind == "tcp" else f"ipc://{folder}/socket"
        finally:
            network.close(linger_s=0)


def unused(endpoint):
    """The same endpoint, with a port that nobody has bound."""
    if not endpoint.startswith("tcp"):
        return endpoint
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


async def soon(awaitable):
    """Fails the test instead of hanging it."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def until(condition):
    """Asks again and again: for what happens in the transport's own thread, which tells nobody."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is nothing to wait for
            await asyncio.sleep(0.001)


async def fill(try_send):
    """Sends numbered messages until no more are taken; returns how many were.

    Once the queue is full the transport may still move messages on into the system's buffers, so it is asked until it
    has refused for a while.
    """
    taken = refusals = 0
    while refusals < 20:
        if try_send([b"%d" % taken, bytes(LARGE)]):
            taken, refusals = taken + 1, 0
            assert taken < 10_000, "the queue has no bound"
        else:
            refusals += 1
            await asyncio.sleep(0.001)
    return taken


async def link(network, endpoint, **options):
    """A server, a client, and the client's id at the server."""
    server = network.bind(endpoint, **options)
    client = network.connect(server.endpoint, **options)
    return server, client, await introduce(client, server)


async def introduce(client, server):
    await soon(client.send([b"hello"]))
    while True:
        for peer, frames in await soon(server.receive_many()):
            if as_bytes(frames) == [b"hello"]:  # random bytes of a stranger may be a message of the oldest protocol
                return peer


async def receive(channel, count):
    """The next `count` messages; more would be a mistake of the channel."""
    messages = []
    while len(messages) < count:
        messages += await soon(channel.receive_many())
    assert len(messages) == count
    return messages


def as_bytes(frames):
    return [bytes(frame) for frame in frames]
