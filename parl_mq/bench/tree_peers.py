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
    """The filled trees of one sampler.

    Attributes:
        draw: slots of a batch of uniforms in [0, 1).
        update: writes values to slots and leaves everything fresh that the library's own prioritized sampler keeps of
            values: its sum tree, and what else it needs to give a weight to what it draws.
        update_sums: the same to the sum tree alone; None: it cannot be reached.
    """

    draw: Callable[[Float64s], object]
    update: Callable[[Int64s, Float64s], object]
    update_sums: Callable[[Int64s, Float64s], object] | None


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
    """Its PrioritizedReplayBuffer keeps a sum tree, and the largest and the least value ever."""
    from tianshou.data import SegmentTree

    tree = SegmentTree(len(values))
    tree[np.arange(len(values))] = values
    extremes = [values.max(), values.min()]

    def update(slots: Int64s, new: Float64s) -> None:
        tree[slots] = new
        extremes[:] = max(extremes[0], new.max()), min(extremes[1], new.min())

    return TreeUser(
        draw=lambda uniforms: tree.get_prefix_sum_idx(uniforms * tree.reduce()),
        update=update,
        update_sums=tree.__setitem__,
    )


def _torchrl(values: Float64s) -> TreeUser:
    """Its PrioritizedSampler keeps a sum tree and a tree of minima."""
    from torchrl._torchrl import MinSegmentTreeFp64, SumSegmentTreeFp64

    sums, minima = SumSegmentTreeFp64(len(values)), MinSegmentTreeFp64(len(values))
    for tree in (sums, minima):
        tree[np.arange(len(values))] = values

    def update(slots: Int64s, new: Float64s) -> None:
        sums[slots] = new
        minima[slots] = new

    return TreeUser(
        draw=lambda uniforms: sums.scan_lower_bound(uniforms * sums.query(0, len(values))),
        update=update,
        update_sums=sums.__setitem__,
    )


def _cpprb(values: Float64s) -> TreeUser:
    """Its trees of sums and of minima cannot be reached alone.

    A draw takes its own uniforms, one-byte rows and importance weights along; an update the power of alpha = 1, and the
    largest value.
    """
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(len(values), {"row": {"dtype": np.uint8}}, alpha=1.0, eps=0.0)
    buffer.add(row=np.zeros(len(values), np.uint8), priorities=values)
    return TreeUser(
        draw=lambda uniforms: buffer.sample(len(uniforms), beta=0.4),
        update=buffer.update_priorities,
        update_sums=None,
    )


def _rllib(values: Float64s) -> TreeUser:
    """Its PrioritizedReplayBuffer keeps a sum tree, a tree of minima and the largest value, and takes items singly."""
    from ray.rllib.execution.segment_tree import MinSegmentTree, SumSegmentTree

    capacity = 1 << (len(values) - 1).bit_length()
    sums, minima = SumSegmentTree(capacity), MinSegmentTree(capacity)
    for slot, value in enumerate(values.tolist()):
        sums[slot] = minima[slot] = value

    def draw(uniforms: Float64s) -> list[int]:
        total = sums.sum()
        return [sums.find_prefixsum_idx(uniform * total) for uniform in uniforms.tolist()]

    def update(slots: Int64s, new: Float64s) -> None:
        for slot, value in zip(slots.tolist(), new.tolist(), strict=True):
            sums[slot] = minima[slot] = value

    def update_sums(slots: Int64s, new: Float64s) -> None:
        for slot, value in zip(slots.tolist(), new.tolist(), strict=True):
            sums[slot] = value

    return TreeUser(draw=draw, update=update, update_sums=update_sums)


PEERS: Final = MappingProxyType(
    {
        "tianshou": Peer("tianshou", "tianshou.data", TreePeer(_tianshou)),
        "torchrl": Peer("torchrl", "torchrl._torchrl", TreePeer(_torchrl)),
        "cpprb": Peer("cpprb", "cpprb", TreePeer(_cpprb)),
        "rllib": Peer("ray[rllib]", "ray.rllib.execution.segment_tree", TreePeer(_rllib, 2**20, chunk_items=4096)),
    }
)
"""A tree in plain Python takes a minute to fill 2^23 leaves, and most of a second for a full chunk."""
