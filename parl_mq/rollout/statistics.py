"""Returns and lengths of episodes, counted here and the same in every autoreset mode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parl_mq.rollout.stepper import VectorStep


class Episode(NamedTuple):
    """An episode that ended.

    Attributes:
        env: index of its environment.
        total: undiscounted sum of its rewards.
        length: its steps.
    """

    env: int
    total: float
    length: int


class EpisodeStatistics:
    """Adds up the rewards of M environments, episode by episode."""

    def __init__(self, num_envs: int) -> None:
        self._totals = np.zeros(num_envs)
        self._began_at = [0] * num_envs
        self._num_steps = 0

    def add(self, step: VectorStep) -> list[Episode]:
        """Counts a step; returns the episodes that it ended."""
        self._num_steps += 1
        self._totals += step.reward
        episodes = [Episode(env, float(self._totals[env]), self._num_steps - self._began_at[env]) for env in step.ended]
        for env in step.began:
            self._totals[env] = 0.0
            self._began_at[env] = self._num_steps
        return episodes

    @property
    def longest_running(self) -> int:
        """Steps of the longest episode that has not ended."""
        return self._num_steps - min(self._began_at)
