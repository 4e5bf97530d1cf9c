"""The last one of many small messages arrives, however long the pauses between them: no wake-up is ever missed."""

import asyncio

import numpy as np
import pytest

from parl_mq.net.channel import SendOutcome
from tests.net.links import introduce, network_of

PATIENCE_S = 60.0
LONGEST_BURST = 200
LONGEST_PAUSE_S = 0.002


async def _receive(channel, number):
    """So many messages, of a client's or a server's channel."""
    received = []
    while len(received) < number:
        received += await channel.receive_many()
    return received


async def _answer(server):
    """Sends every message back."""
    while True:
        for peer, frames in await server.receive_many():
            while server.try_send(peer, [bytes(frames[0])]) is SendOutcome.FULL:  # noqa: ASYNC110 - the peer makes room
                await asyncio.sleep(0)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["ipc", "tcp"])
async def test_the_last_of_many_small_messages_with_random_pauses_arrives(kind, number):
    rng, sent = np.random.default_rng(1), 0
    with network_of(kind) as (network, endpoint):
        server = network.bind(endpoint)
        client = network.connect(server.endpoint)
        await introduce(client, server)
        answering = asyncio.create_task(_answer(server))
        while sent < number:
            burst = min(int(rng.integers(1, LONGEST_BURST)), number - sent)
            for index in range(sent, sent + burst):
                await client.send([b"%d" % index])
            answers = await asyncio.wait_for(_receive(client, burst), PATIENCE_S)
            assert [int(bytes(frames[0])) for frames in answers] == list(range(sent, sent + burst))
            sent += burst
            if rng.random() < 0.5:
                await asyncio.sleep(float(rng.random()) * LONGEST_PAUSE_S)  # the pause itself
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
