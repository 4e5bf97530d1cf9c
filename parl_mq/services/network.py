"""A node's network, with a capture of its messages where its settings ask for one."""

from __future__ import annotations

import time

from parl_mq.errors import ConfigError
from parl_mq.net.capture import Capture
from parl_mq.net.curve import Guard
from parl_mq.net.zmq_channel import Network
from parl_mq.services.runtime import NodeOptions


def network_of(options: NodeOptions, *, guard: Guard | None = None, is_insecure: bool = False) -> Network:
    """The network of the process that these options are for.

    Args:
        options: of the node; with a join file it connects by the key in that.
        guard: of the sockets that it binds for other machines.
        is_insecure: it may bind such sockets without one.

    Raises:
        ConfigError: `node.capture_directory` is no folder, or one in which no file can be made.
    """
    join = options.join
    pair = None if join is None else join.pair
    network = Network(capture=_capture_of(options), pair=pair, guard=guard, is_insecure=is_insecure)
    if join is not None:
        network.trust({join.hub: join.server_key})
    return network


def _capture_of(options: NodeOptions) -> Capture | None:
    folder = options.node.capture_directory
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Capture(folder / f"{options.name}.capture", time.time)
    except OSError as error:
        raise ConfigError(f"node.capture_directory = {folder}: no file can be made there: {error.strerror}") from error
