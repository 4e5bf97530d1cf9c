"""How a node other than the hub comes into a run and leaves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from pydantic import ValidationError

from parl_mq.algorithms.registry import algorithm_names, is_installed
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError
from parl_mq.net.zmq_channel import Network
from parl_mq.services.addresses import PublicSocket
from parl_mq.services.hub_link import HubLink
from parl_mq.services.notify import WorkWatch, give_signs_of_life
from parl_mq.services.runtime import NodeOptions, StoppedEarly, StopSignal, WorkThread, first_cause
from parl_mq.services.waiting import told_while_waiting
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import MAIN_TABLE, PROTOCOL_VERSION, Attach, KeysAllowed, Role, SpecOffer, Welcome

CONTROL_MESSAGE_BYTES: Final = 4 * 1024 * 1024


@asynccontextmanager
async def joined(
    network: Network,
    options: NodeOptions,
    role: Role,
    stop: StopSignal,
    *,
    data_endpoint: str | None = None,
    work: WorkThread | None = None,
    is_ready: bool = True,
    public: PublicSocket | None = None,
    on_keys: Callable[[KeysAllowed], None] | None = None,
) -> AsyncIterator[tuple[HubLink, Welcome]]:
    """Joins the run for the duration of the block; says Goodbye at its end, and why if that is an error.

    Args:
        network: of this process.
        options: of every node.
        role: of this one.
        stop: ends it.
        data_endpoint: of a node that others attach to.
        work: its work thread, in which it may hang.
        is_ready: once it has joined; a node that has more to do first tells the service manager itself.
        public: the socket that others attach to, as other machines see it.
        on_keys: called with the keys that the node is to let in.

    Raises:
        Refused: the hub refused this node.
        PeerTimeout: the hub did not answer.
        StoppedEarly: the stop came before the hub's answer.
    """
    channel = network.connect(options.hub, CONTROL_MESSAGE_BYTES)
    link = HubLink(
        channel,
        role=role,
        name=options.name,
        stop=stop,
        data_endpoint=data_endpoint,
        public=public,
        run_id=None if options.join is None else options.join.run_id,
    )
    link.on_servers, link.on_keys = network.trust, on_keys
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(link.run())]
        try:
            async with told_while_waiting(f"the hub at {options.hub}"):
                welcome = await stop.wait_for(link.join())
            if welcome is None:
                raise StoppedEarly(f"{options.name} ends: {stop.reason}")
            if options.join is not None:
                network.trust({welcome.weights_endpoint: options.join.server_key})
            background.append(tasks.create_task(_give_signs_of_life(options, link, work)))
            if is_ready:
                options.notifier.ready(f"in run {welcome.run_id}")
            yield link, welcome
            await link.leave()
        except Exception as error:  # the node ends with it; the hub need not wait for it
            await link.leave(str(first_cause(error)))
            raise
        finally:
            for task in background:
                task.cancel()


async def _give_signs_of_life(options: NodeOptions, link: HubLink, work: WorkThread | None) -> None:
    watch = WorkWatch(link.status, work, options.node.busy_limit_s, time.monotonic)
    await give_signs_of_life(options.notifier, watch)


def run_config(welcome: Welcome, options: NodeOptions) -> RunConfig:
    """The run's settings as the hub sent them, with this process's own section.

    Raises:
        ConfigError: they name code that this machine has not installed and nobody here has asked for, or are no
            settings of this version.
    """
    if not options.is_supervised:
        _check_installed(welcome.config)
    try:
        return RunConfig.model_validate({**welcome.config, "node": options.node})
    except ValidationError as error:
        raise ConfigError(f"the settings that the hub sent do not fit this version: {error}") from error


def _check_installed(config: dict[str, Any]) -> None:
    """A hub must not make this process import whatever it names: an import path comes from the command line alone."""
    try:
        algorithm, environment = str(config["algorithm"]["name"]), str(config["environment"]["id"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the settings that the hub sent lack {error}") from error
    if not is_installed(algorithm):
        raise ConfigError(
            f"this run's algorithm {algorithm!r} is not installed on this machine; install the package that has it "
            f"(it has {', '.join(algorithm_names())})"
        )
    if ":" in environment:
        raise ConfigError(
            f"this run's environment {environment!r} is an import path, which a hub may not name; install a package "
            "whose entry point names the environment on every machine"
        )


def offer_spec(link: HubLink, spec: TableSpec) -> None:
    """Tells the hub the table's columns; the first offer of a run settles them."""
    columns, spaces = spec.to_wire()
    link.deliver(SpecOffer(columns=columns, spaces=spaces, digest=spec.digest))


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
