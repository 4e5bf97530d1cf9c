"""The priority trees of other replay libraries, each behind the two operations that `bench tree` times."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import ConfigError

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TreeUser:
    """One filled tree.

    Attributes:
        draw: slots of a batch of uniforms in [0, 1).
        update: writes values to slots and leaves the sums fresh.
    """

    draw: Callable[[Float64s], object]
    update: Callable[[Int64s, Float64s], object]


def open_peers(names: Sequence[str]) -> dict[str, Callable[[Float64s], TreeUser]]:
    """Makers of the peers' trees, from the values to fill them with.

    Raises:
        ConfigError: a name is unknown, or its package is not installed or does not load.
    """
    return {name: _open(name) for name in names}


def _open(name: str) -> Callable[[Float64s], TreeUser]:
    if name not in _PEERS:
        raise ConfigError(f"--against {name}: unknown; there are {', '.join(_PEERS)}")
    package, make = _PEERS[name]
    try:
        module = importlib.import_module(package)
    except ImportError as exc:
        raise ConfigError(f"--against {name}: the module {package} does not load here ({exc}); install {name}") from exc
    return lambda values: make(module, values)


def _tianshou(module: Any, values: Float64s) -> TreeUser:
    tree = module.SegmentTree(len(values))
    tree[np.arange(len(values))] = values
    return TreeUser(
        draw=lambda uniforms: tree.get_prefix_sum_idx(uniforms * tree.reduce()),
        update=tree.__setitem__,
    )


def _torchrl(module: Any, values: Float64s) -> TreeUser:
    tree = module.SumSegmentTreeFp64(len(values))
    tree[np.arange(len(values))] = values
    return TreeUser(
        draw=lambda uniforms: tree.scan_lower_bound(uniforms * tree.query(0, len(values))),
        update=tree.__setitem__,
    )


def _cpprb(module: Any, values: Float64s) -> TreeUser:
    """The tree is not reachable alone: a draw takes its own uniforms, one-byte rows and importance weights along."""
    buffer = module.PrioritizedReplayBuffer(len(values), {"row": {"dtype": np.uint8}}, alpha=1.0, eps=0.0)
    buffer.add(row=np.zeros(len(values), np.uint8), priorities=values)
    return TreeUser(
        draw=lambda uniforms: buffer.sample(len(uniforms), beta=0.4),
        update=buffer.update_priorities,
    )


def _rllib(module: Any, values: Float64s) -> TreeUser:
    tree = module.SumSegmentTree(1 << (len(values) - 1).bit_length())
    for slot, value in enumerate(values.tolist()):
        tree[slot] = value

    def draw(uniforms: Float64s) -> list[int]:
        total = tree.sum()
        return [tree.find_prefixsum_idx(uniform * total) for uniform in uniforms.tolist()]

    def update(slots: Int64s, new: Float64s) -> None:
        for slot, value in zip(slots.tolist(), new.tolist(), strict=True):
            tree[slot] = value

    return TreeUser(draw=draw, update=update)


_PEERS: Final = MappingProxyType(
    {
        "tianshou": ("tianshou.data", _tianshou),
        "torchrl": ("torchrl._torchrl", _torchrl),
        "cpprb": ("cpprb", _cpprb),
        "rllib": ("ray.rllib.execution.segment_tree", _rllib),
    }
)
