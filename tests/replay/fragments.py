"""Fragments for tests: numbered rows, so that every window can be told from every other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.spec import TableSpec

SPEC = TableSpec.of({"obs": ((3,), "float32"), "action": ((), "int64")})


def counter_fragment(
    first: float,
    length: int,
    *,
    num_context: int = 0,
    num_overlap: int = 0,
    starts_episode: bool = True,
    terminated: bool = False,
    truncated: bool = False,
    priorities: npt.ArrayLike | None = None,
) -> FragmentBatch:
    """One fragment whose first row, context included, shows `first`; rewards and actions follow from the row."""
    num_rows = num_context + length + num_overlap + 1
    number = first + np.arange(num_rows)
    ends = np.zeros((2, num_rows), np.bool_)
    ends[:, -2] = terminated, truncated
    columns = {
        "obs": np.repeat(number[:, None], 3, 1).astype(np.float32),
        "action": number.astype(np.int64),
        "reward": (number % 1000 + 1).astype(np.float32),
        "terminated": ends[0],
        "truncated": ends[1],
    }
    return FragmentBatch(
        columns,
        np.array([length], np.int32),
        np.array([num_context], np.int32),
        np.array([num_overlap], np.int32),
        np.array([starts_episode]),
        None if priorities is None else np.array(priorities, np.float64),
        np.zeros((1, 2), np.uint32),
    )


def joined(*fragments: FragmentBatch) -> FragmentBatch:
    """Several batches as one; their priorities are given everywhere or nowhere."""
    names = fragments[0].columns
    priorities = [one.priorities for one in fragments if one.priorities is not None]
    return FragmentBatch(
        {name: np.concatenate([one.columns[name] for one in fragments]) for name in names},
        np.concatenate([one.lengths for one in fragments]),
        np.concatenate([one.num_context for one in fragments]),
        np.concatenate([one.num_overlap for one in fragments]),
        np.concatenate([one.starts_episode for one in fragments]),
        np.concatenate(priorities) if priorities else None,
        np.concatenate([one.versions for one in fragments]),
    )
