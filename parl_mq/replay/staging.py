"""Single transitions on their way into a table, as fragments of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.replay._rows import RowWriter
from parl_mq.replay.values import StepValues, Value, checked
from parl_mq.replay.windows import FoldedStep
from parl_mq.spec import TableSpec

Array = npt.NDArray[Any]


def single_steps(columns: dict[str, Array], priorities: npt.NDArray[np.float64] | None = None) -> FragmentBatch:
    """Fragments of one step each, whose columns hold two rows for each."""
    size = len(columns["reward"]) // 2
    return FragmentBatch(
        columns=columns,
        lengths=np.ones(size, np.int32),
        num_context=np.zeros(size, np.int32),
        num_overlap=np.zeros(size, np.int32),
        starts_episode=np.ones(size, np.bool_),
        priorities=priorities,
        versions=np.zeros((size, 2), np.uint32),
    )


class Staging:
    """Arrays of N transitions, in place for a table, that are filled again and again.

    Attributes:
        columns: [2 N, ...] by name; row 2 i is step i, row 2 i + 1 shows the observation after it.
        fragments: the same.
    """

    def __init__(self, spec: TableSpec, values: StepValues, size: int) -> None:
        self.columns: dict[str, Array] = {
            column.name: np.zeros((2 * size, *column.shape), column.dtype) for column in spec.columns
        }
        self.fragments = single_steps(self.columns)
        self._size = size
        self._observation = {name: self.columns[name] for name in values.observation_names}
        self._step = {name: self.columns[name] for name in values.step_names}
        self._put_observation = RowWriter(self._observation).put
        self._put_step = RowWriter(self._step).put

    def put(self, obs: tuple[Value, ...], step: tuple[Value, ...], next_obs: tuple[Value, ...]) -> None:
        """Takes the values of one transition.

        Raises:
            ValueError: one does not fit its column.
        """
        self._put_observation(obs, 0)
        self._put_step(step, 0)
        self._put_observation(next_obs, 1)

    def put_all(self, obs: tuple[Value, ...], step: tuple[Value, ...], next_obs: tuple[Value, ...]) -> None:
        """Takes the values of all N, each with a leading axis.

        Raises:
            ValueError: one does not fit its column.
        """
        for columns, values, first in (
            (self._observation, obs, 0),
            (self._step, step, 0),
            (self._observation, next_obs, 1),
        ):
            for (name, array), value in zip(columns.items(), values, strict=True):
                array[first::2] = checked(name, value, (self._size, *array.shape[1:]), array.dtype)

    def step(self, index: int) -> tuple[dict[str, Array], float, bool]:
        """Copies of the values of one step, its reward, and whether the episode ended with it."""
        row = 2 * index
        is_end = bool(self.columns["terminated"][row] or self.columns["truncated"][row])
        return (
            {name: array[row].copy() for name, array in self.columns.items()},
            float(self.columns["reward"][row]),
            is_end,
        )

    def folded(self, rows: Sequence[tuple[FoldedStep, int]]) -> tuple[dict[str, Array], npt.NDArray[np.uint8]]:
        """Columns and spans of windows that some of the transitions here complete.

        Args:
            rows: each window, and the index of the transition that ends it.
        """
        size = 2 * len(rows)
        columns = {name: np.zeros((size, *array.shape[1:]), array.dtype) for name, array in self.columns.items()}
        spans = np.ones(size, np.uint8)
        for row, (window, index) in zip(range(0, size, 2), rows, strict=True):
            spans[row] = window.span
            for name, array in columns.items():
                array[row] = window.first[name]
                array[row + 1] = self.columns[name][2 * index + 1]
            columns["reward"][row] = window.reward
            for name in ("terminated", "truncated"):
                columns[name][row] = self.columns[name][2 * index]
        return columns, spans
