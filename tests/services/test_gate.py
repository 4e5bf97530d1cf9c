"""What passes a gate, without a service behind it."""

import pytest

from parl_mq.net.conduct import MESSAGES
from parl_mq.net.memory_channel import MemoryNetwork
from parl_mq.services.gate import COSTS, Gate
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import Heartbeat, ProbeRequest, StatusRequest, ToHub
from tests.services.builders import hello, soon


@pytest.mark.parametrize(
    "message", [hello("actor"), StatusRequest(), ProbeRequest(), Heartbeat(sequence=1, progress=1, state="x")]
)
async def test_of_messages_that_cost_much_fewer_pass(message):
    network = MemoryNetwork()
    server, client = network.bind("here"), network.connect("here")
    gate = Gate(server, ToHub, socket="control", clock=lambda: 0.0)
    await client.send(encode(message))
    [(peer, frames)] = await soon(server.receive_many())
    num_passed = 0
    while gate.admit(peer, frames) is not None:
        num_passed += 1
    assert num_passed == MESSAGES.burst // (1 + COSTS.get(type(message), 0))
    assert not client.is_connected
