"""What a draw is: its columns, importance weights, and frame stacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.replay._priorities import importance_weights as importance_weights
from parl_mq.replay.keys import Keys
from parl_mq.spec import STEP_COLUMNS, Column, TableSpec

KEYS: Final = "keys"
PROBABILITIES: Final = "probabilities"


@dataclass(frozen=True, slots=True)
class Draw:
    """B windows drawn from a table.

    Attributes:
        columns: [B, ...] by name: `obs` and `next_obs` (or `obs/KEY`, `next_obs/KEY`), or with frame stacks `frames`
            (or `frames/KEY`, see split_frames); `action`; extra columns of the window's first row; `reward`, the n-step
            sum, and `discount`, gamma^k or 0 where the window ended in termination, float32; `terminated` and
            `truncated` of the window's last step; `num_steps` int32, k.
        keys: [B] uint64.
        probabilities: [B] float64, p_i / total: the chance of each row at one draw.
        num_live: N, live rows of the table.
        total: sum of all p_i; 0 means that rows were drawn uniformly.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    keys: Keys
    probabilities: npt.NDArray[np.float64]
    num_live: int
    total: float

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that is an array, by the names of `draw_columns`."""
        return {**self.columns, KEYS: self.keys, PROBABILITIES: self.probabilities}


def draw_columns(spec: TableSpec, *, batch_size: int, frame_stack: int, n_step: int) -> list[Column]:
    """Name, shape and dtype of a draw's arrays, leading axis B included; the last two are keys and probabilities."""
    observations = [spec[name] for name in spec.observation_names]
    others = [column for column in spec.columns if column.name not in (*spec.observation_names, *STEP_COLUMNS)]
    if frame_stack == 1:
        inputs = [*observations, *(_renamed(column, "next_obs") for column in observations)]
    else:
        num_frames = frame_stack + n_step
        inputs = [_renamed(column, "frames", num_frames) for column in observations]
    figures = [
        Column("reward", (), "float32"),
        Column("discount", (), "float32"),
        Column("terminated", (), "bool"),
        Column("truncated", (), "bool"),
        Column("num_steps", (), "int32"),
        Column(KEYS, (), "uint64"),
        Column(PROBABILITIES, (), "float64"),
    ]
    return [Column(column.name, (batch_size, *column.shape), column.dtype) for column in (*inputs, *others, *figures)]


def _renamed(column: Column, group: str, *leading: int) -> Column:
    return Column(column.name.replace("obs", group, 1), (*leading, *column.shape), column.dtype)


def split_frames(
    frames: npt.NDArray[Any], num_steps: npt.NDArray[np.int32], frame_stack: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Observation and next observation of windows whose frames were stored once.

    Frame j of a window is that of the row j - (stack - 1) steps on, the first of the episode standing for those in
    front of it; frames behind the k-th step are 0 and belong to nothing.

    Args:
        frames: [B, stack + n, *shape].
        num_steps: [B], k of each window, 1 to n.
        frame_stack: frames of one observation.

    Returns:
        Two arrays [B, stack, *shape], the oldest frame first. The first is a view, the second one too where every
        window has n steps.
    """
    n_step = frames.shape[1] - frame_stack
    if (num_steps == n_step).all():
        return frames[:, :frame_stack], frames[:, n_step:]
    rows = np.arange(len(frames))[:, None]
    return frames[:, :frame_stack], frames[rows, num_steps[:, None] + np.arange(frame_stack)]
