"""The priority trees of other replay libraries, each behind the two operations that `bench tree` times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.bench.peers import Peer

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

CHUNK_ITEMS: Final = 65536
"""Timed at once: a millisecond at 20 ns, and more lines than an L2 cache holds."""


@dataclass(frozen=True, slots=True)
class TreeUser:
    """One filled tree.

    Attributes:
        draw: slots of a batch of uniforms in [0, 1).
        update: writes values to slots and leaves the sums fresh.
    """

    draw: Callable[[Float64s], object]
    update: Callable[[Int64s, Float64s], object]


@dataclass(frozen=True, slots=True)
class TreePeer:
    """How a peer takes part.

    Attributes:
        make: its tree, filled with values.
        most_leaves: it is left out above.
        chunk_items: draws or updates that are timed at once.
    """

    make: Callable[[Float64s], TreeUser]
    most_leaves: int = 2**23
    chunk_items: int = CHUNK_ITEMS


def _tianshou(values: Float64s) -> TreeUser:
    from tianshou.data import SegmentTree

    tree = SegmentTree(len(values))
    tree[np.arange(len(values))] = values
    return TreeUser(
        draw=lambda uniforms: tree.get_prefix_sum_idx(uniforms * tree.reduce()),
        update=tree.__setitem__,
    )


def _torchrl(values: Float64s) -> TreeUser:
    from torchrl._torchrl import SumSegmentTreeFp64

    tree = SumSegmentTreeFp64(len(values))
    tree[np.arange(len(values))] = values
    return TreeUser(
        draw=lambda uniforms: tree.scan_lower_bound(uniforms * tree.query(0, len(values))),
        update=tree.__setitem__,
    )


def _cpprb(values: Float64s) -> TreeUser:
    """The tree is not reachable alone: a draw takes its own uniforms, one-byte rows and importance weights along."""
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(len(values), {"row": {"dtype": np.uint8}}, alpha=1.0, eps=0.0)
    buffer.add(row=np.zeros(len(values), np.uint8), priorities=values)
    return TreeUser(
        draw=lambda uniforms: buffer.sample(len(uniforms), beta=0.4),
        update=buffer.update_priorities,
    )


def _rllib(values: Float64s) -> TreeUser:
    from ray.rllib.execution.segment_tree import SumSegmentTree

    tree = SumSegmentTree(1 << (len(values) - 1).bit_length())
    for slot, value in enumerate(values.tolist()):
        tree[slot] = value

    def draw(uniforms: Float64s) -> list[int]:
        total = tree.sum()
        return [tree.find_prefixsum_idx(uniform * total) for uniform in uniforms.tolist()]

    def update(slots: Int64s, new: Float64s) -> None:
        for slot, value in zip(slots.tolist(), new.tolist(), strict=True):
            tree[slot] = value

    return TreeUser(draw=draw, update=update)


PEERS: Final = MappingProxyType(
    {
        "tianshou": Peer("tianshou", "tianshou.data", TreePeer(_tianshou)),
        "torchrl": Peer("torchrl", "torchrl._torchrl", TreePeer(_torchrl)),
        "cpprb": Peer("cpprb", "cpprb", TreePeer(_cpprb)),
        "rllib": Peer("ray[rllib]", "ray.rllib.execution.segment_tree", TreePeer(_rllib, 2**20, chunk_items=4096)),
    }
)
"""A tree in plain Python takes a minute to fill 2^23 leaves, and most of a second for a full chunk."""
