"""Single transitions on their way into a table, as fragments of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.replay._steps import LARGEST_FLOAT32, Limits, StepWriter
from parl_mq.replay.values import StepValues
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


class FragmentStaging:
    """Arrays of one fragment of T steps and its closing row, that are filled again and again.

    Attributes:
        columns: [T + 1, ...] by name.
        no_ends: [T] False.
        put: takes the values of all steps; see StepWriter.put_fragment.
    """

    def __init__(self, spec: TableSpec, values: StepValues, num_steps: int) -> None:
        self.columns = _rows(spec, num_steps + 1)
        self.no_ends = np.zeros(num_steps, np.bool_)
        self.put = _writer(self.columns, spec, values, is_fragment=True).put_fragment


class Staging:
    """Arrays of N transitions, in place for a table, that are filled again and again.

    Attributes:
        columns: [2 N, ...] by name; row 2 i is step i, row 2 i + 1 shows the observation after it.
        fragments: the same.
        put: takes the values of one transition, where N = 1; see StepWriter.
        put_all: takes those of all N, each with a leading axis.
    """

    def __init__(self, spec: TableSpec, values: StepValues, size: int) -> None:
        self.columns = _rows(spec, 2 * size)
        self.fragments = single_steps(self.columns)
        writer = _writer(self.columns, spec, values, is_fragment=False)
        self.put = writer.put
        self.put_all = writer.put_all

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


def _rows(spec: TableSpec, num_rows: int) -> dict[str, Array]:
    return {column.name: np.zeros((num_rows, *column.shape), column.dtype) for column in spec.columns}


def _writer(columns: dict[str, Array], spec: TableSpec, values: StepValues, *, is_fragment: bool) -> StepWriter:
    return StepWriter(
        {name: columns[name] for name in values.observation_names},
        {name: columns[name] for name in values.step_names},
        _limits(spec),
        is_fragment=is_fragment,
    )


def _limits(spec: TableSpec) -> list[Limits]:
    """What steps must keep to: a reward is finite; an action lies in its space, where the spec names one."""
    spaces = [(name, spec.spaces[name]) for name in spec.action_names if name in spec.spaces]
    return [
        Limits("reward", [-LARGEST_FLOAT32], [LARGEST_FLOAT32]),
        *(Limits(name, space.low, space.high) for name, space in spaces),
    ]
