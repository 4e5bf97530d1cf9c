"""How a node other than the hub comes into a run and leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.net.zmq_channel import Network
from parl_mq.services.hub_link import HubLink
from parl_mq.services.runtime import NodeOptions, StopSignal
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import MAIN_TABLE, PROTOCOL_VERSION, Attach, Role, SpecOffer, Welcome

CONTROL_MESSAGE_BYTES: Final = 4 * 1024 * 1024


@asynccontextmanager
async def joined(
    network: Network, options: NodeOptions, role: Role, stop: StopSignal, *, data_endpoint: str | None = None
) -> AsyncIterator[tuple[HubLink, Welcome]]:
    """Joins the run for the duration of the block; says Goodbye at its end.

    Raises:
        Refused: the hub refused this node.
        PeerTimeout: the hub did not answer.
    """
    channel = network.connect(options.hub, CONTROL_MESSAGE_BYTES)
    link = HubLink(channel, role=role, name=options.name, stop=stop, data_endpoint=data_endpoint)
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(link.run())
        try:
            yield link, await link.join()
            link.say_goodbye()
        finally:
            beating.cancel()


def run_config(welcome: Welcome, node: NodeConfig) -> RunConfig:
    """The run's settings as the hub sent them, with this process's own section."""
    return RunConfig.model_validate({**welcome.config, "node": node})


async def offer_spec(link: HubLink, spec: TableSpec) -> None:
    """Tells the hub the table's columns; the first offer of a run settles them."""
    columns, spaces = spec.to_wire()
    await link.deliver(SpecOffer(columns=columns, spaces=spaces, digest=spec.digest))


def attach_message(link: HubLink, welcome: Welcome, spec: TableSpec) -> Attach:
    """What this node says to a replay node before anything else."""
    return Attach(
        protocol=PROTOCOL_VERSION,
        run_id=welcome.run_id,
        role=link.role,
        name=link.name,
        epoch=link.epoch,
        table=MAIN_TABLE,
        digest=spec.digest,
    )
