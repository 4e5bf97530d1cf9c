"""Parallel actors and learners for deep reinforcement learning, over ZeroMQ.

Importing this package loads neither torch nor zmq; each public name loads its module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from parl_mq.api import Result as Result
    from parl_mq.api import train as train
    from parl_mq.config import RunConfig as RunConfig
    from parl_mq.config import load_config as load_config
    from parl_mq.replay.buffer import PrioritizedReplay as PrioritizedReplay
    from parl_mq.replay.buffer import UniformReplay as UniformReplay
    from parl_mq.spec import TableSpec as TableSpec
    from parl_mq.spec import spec_of as spec_of

__version__ = "0.1.0"

_HOMES: Final = {
    "PrioritizedReplay": "parl_mq.replay.buffer",
    "Result": "parl_mq.api",
    "RunConfig": "parl_mq.config",
    "TableSpec": "parl_mq.spec",
    "UniformReplay": "parl_mq.replay.buffer",
    "load_config": "parl_mq.config",
    "spec_of": "parl_mq.spec",
    "train": "parl_mq.api",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parl_mq' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
