"""A node's network, with a capture of its messages where its settings ask for one."""

from __future__ import annotations

import time

from parl_mq.errors import ConfigError
from parl_mq.net.capture import Capture
from parl_mq.net.zmq_channel import Network
from parl_mq.services.runtime import NodeOptions


def network_of(options: NodeOptions) -> Network:
    """The network of the process that these options are for.

    Raises:
        ConfigError: `node.capture_directory` is no folder, or one in which no file can be made.
    """
    folder = options.node.capture_directory
    if folder is None:
        return Network()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Network(capture=Capture(folder / f"{options.name}.capture", time.time))
    except OSError as error:
        raise ConfigError(f"node.capture_directory = {folder}: no file can be made there: {error.strerror}") from error
