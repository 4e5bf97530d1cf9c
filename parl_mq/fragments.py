"""Fragments: consecutive steps of one environment, the unit of insertion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FragmentBatch:
    """F fragments, their rows concatenated in order.

    A fragment of L steps takes `num_context + L + num_overlap + 1` rows:

    - context: rows before the first live one, for frame stacks; dead.
    - L live rows: a transition starts at each.
    - overlap: the steps that follow, so that n-step windows of the last live rows are whole; dead.
    - the closing row: the observation after the last step; its step columns are not read; dead.

    An episode's end can only stand at a fragment's last step. Only that step may be `terminated` or `truncated`.

    Attributes:
        columns: name -> [R, *shape], one entry for each column of the table's spec, C-contiguous.
        lengths: [F] int32, L of each fragment, >= 1.
        num_context: [F] int32.
        num_overlap: [F] int32.
        starts_episode: [F] bool: the first row (context included) is the first of its episode.
        priorities: [sum(lengths)] float64 magnitudes >= 0 of the live rows in order, or None for the running maximum.
        versions: [F, 2] uint32: (generation, counter) of the weights that acted at the fragment's last live step.
    """

    columns: Mapping[str, npt.NDArray[np.generic]]
    lengths: npt.NDArray[np.int32]
    num_context: npt.NDArray[np.int32]
    num_overlap: npt.NDArray[np.int32]
    starts_episode: npt.NDArray[np.bool_]
    priorities: npt.NDArray[np.float64] | None
    versions: npt.NDArray[np.uint32]

    @property
    def num_fragments(self) -> int:
        """F."""
        return len(self.lengths)

    @property
    def num_live(self) -> int:
        """Rows at which a transition starts: the rows that credit, capacity and ratios count."""
        return int(self.lengths.sum())

    @property
    def num_rows(self) -> int:
        """R: physical rows, dead ones included."""
        return int((self.lengths + self.num_context + self.num_overlap).sum()) + self.num_fragments

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns: what credit in bytes counts."""
        return sum(column.nbytes for column in self.columns.values())
