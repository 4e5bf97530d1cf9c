"""Rows that replays are measured with: the shapes of known environments, filled with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """T consecutive steps from the middle of an episode.

    Attributes:
        frames: [stack + T, *obs_shape]; step t sees frames t to t + stack - 1 and comes to the next one.
        action: [T, *action_shape].
        reward: [T] float32.
        stack: frames of one observation; with 1 it has no axis for them.
    """

    frames: Array
    action: Array
    reward: npt.NDArray[np.float32]
    stack: int

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def nothing_ends(self) -> npt.NDArray[np.bool_]:
        """[T] False: terminated and truncated of every step."""
        return np.zeros(len(self), np.bool_)

    def observations(self, *, frames_last: bool = False) -> Array:
        """[1 + T, *obs_shape], with a stack [1 + T, stack, *obs_shape] or [1 + T, *obs_shape, stack]."""
        if self.stack == 1:
            return self.frames
        windows = np.lib.stride_tricks.sliding_window_view(self.frames, self.stack, axis=0)
        return np.ascontiguousarray(windows if frames_last else np.moveaxis(windows, -1, 1))


@dataclass(frozen=True, slots=True)
class Workload:
    """Shapes of rows, and how many of them a replay holds.

    Attributes:
        name: the environment that the shapes are from.
        num_rows: transitions that a full replay holds.
        obs_shape: of one frame.
        obs_dtype: of a frame.
        action_shape: () for a discrete action.
        action_dtype: of an action.
        stack: frames of one observation.
    """

    name: str
    num_rows: int
    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    stack: int = 1

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Shape of an observation, the frames in front."""
        return (self.stack, *self.obs_shape) if self.stack > 1 else self.obs_shape

    def steps(self, size: int) -> Steps:
        """`size` steps, the same ones each time."""
        rng = np.random.default_rng(size)
        return Steps(
            frames=_noise(rng, (self.stack + size, *self.obs_shape), self.obs_dtype),
            action=_noise(rng, (size, *self.action_shape), self.action_dtype),
            reward=rng.standard_normal(size, np.float32),
            stack=self.stack,
        )


HALF_CHEETAH: Final = Workload("HalfCheetah", 1_000_000, (17,), "float32", (6,), "float32")
"""gymnasium gives these observations as float64; every replay here keeps the float32 that networks take."""
ATARI: Final = Workload("Atari", 2**16, (84, 84), "uint8", (), "int64", stack=4)
"""460 MB of frames: more than any cache holds, and little enough for replays that store every stack whole."""


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    return rng.integers(0, 4 if dtype == "int64" else 256, shape, dtype)
