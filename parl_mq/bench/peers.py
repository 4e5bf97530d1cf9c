"""Other libraries to measure beside: which package each is, and how it is loaded."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from parl_mq.errors import ConfigError, UsageError

Make = TypeVar("Make")


@dataclass(frozen=True, slots=True)
class Peer(Generic[Make]):
    """A library that takes part in a benchmark.

    Attributes:
        package: what to install.
        module: what it needs at least, so that a package that does not load is told before anything is measured.
        make: what the benchmark makes of it.
    """

    package: str
    module: str
    make: Make


def open_peers(names: Sequence[str], known: Mapping[str, Peer[Make]]) -> dict[str, Make]:
    """What to make of each peer, once its module has loaded.

    Raises:
        UsageError: a name is unknown.
        ConfigError: a package is not installed, or does not load.
    """
    for name in names:
        if name not in known:
            raise UsageError(f"--against {name}: unknown; there are {', '.join(known)}")
    for name in names:
        _load(name, known[name])
    return {name: known[name].make for name in names}


def versions(names: Sequence[str], known: Mapping[str, Peer[Any]]) -> dict[str, str]:
    """The installed version of each peer, by name."""
    return {name: importlib.metadata.version(known[name].package.partition("[")[0]) for name in names}


def _load(name: str, peer: Peer[Any]) -> None:
    try:
        importlib.import_module(peer.module)
    except ImportError as exc:
        raise ConfigError(
            f"--against {name}: {peer.module} does not load here ({exc}); it comes with `pip install {peer.package}`"
        ) from exc
