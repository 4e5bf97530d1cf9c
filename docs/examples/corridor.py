"""An environment of one's own: a corridor that must be walked to its right end.

Importing this module registers `Corridor-v0`, so that settings may name it `corridor:Corridor-v0`. The function
`make_corridor` is the other way: settings name it `corridor:make_corridor`, and nothing is registered.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = npt.NDArray[np.float32]


class Corridor(gymnasium.Env[Observation, np.int64]):
    """Start somewhere in the left half; every step costs 0.1, the right end pays 1 and terminates the episode.

    The observation is the position, as one number in [0, 1]. Actions: 0 goes left, 1 goes right.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # as gymnasium declares it

    def __init__(self, length: int = 8) -> None:
        if length < 2:
            raise ValueError(f"length is {length}: a corridor has two cells at least")
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._last = length - 1
        self._position = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Takes all its randomness from `self.np_random`, which `seed` sets: a run repeats its starts."""
        super().reset(seed=seed)
        self._position = int(self.np_random.integers(self._last // 2 + 1))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One cell to the left or to the right; the walls stop it."""
        self._position = min(max(self._position + (1 if action == 1 else -1), 0), self._last)
        has_arrived = self._position == self._last
        return self._observation(), 1.0 if has_arrived else -0.1, has_arrived, False, {}

    def _observation(self) -> Observation:
        return np.array([self._position / self._last], np.float32)


def make_corridor(length: int = 8, limit: int = 40) -> gymnasium.Env[Observation, np.int64]:
    """A corridor with a time limit; `environment.kwargs` become the arguments."""
    return gymnasium.wrappers.TimeLimit(Corridor(length), limit)


gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=40)
