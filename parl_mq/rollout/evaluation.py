"""Judges a policy: full greedy episodes with raw rewards and fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from parl_mq.rollout.environments import AnyVectorEnv
from parl_mq.rollout.frames import FrameStack
from parl_mq.rollout.seeds import environment_seeds
from parl_mq.rollout.statistics import Episode, EpisodeStatistics
from parl_mq.rollout.stepper import Stepper
from parl_mq.spec import TableSpec

if TYPE_CHECKING:
    from parl_mq.algorithms.base import Observation

MAX_ENVS: Final = 64
"""Environments that play at once, at most; each takes memory, and beyond this a vector step hardly gains."""


class GreedyPolicy(Protocol):
    """What is judged."""

    def act_greedily(self, obs: Observation) -> npt.NDArray[Any]:
        """[M, ...] actions without exploration, in the environment's scale."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Episodes of one evaluation, in the order of the environments that played them.

    Attributes:
        returns: [E] float64, undiscounted.
        lengths: [E] int64, steps.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]


class Evaluator:
    """Plays `num_episodes` episodes with one policy after another, in environments that are made once.

    The environments are seeded anew each time, so that equal policies get equal results. Each of them plays a share of
    the episodes that is fixed beforehand: taking the first episodes to end instead would prefer short ones.

    Args:
        make_envs: makes a vector of so many environments.
        num_episodes: E >= 1.
        seed: of the environments.
        frame_stack: observations that the policy sees at once.
        max_envs: environments at most; one plays the episodes one after another.
    """

    def __init__(
        self,
        make_envs: Callable[[int], AnyVectorEnv],
        *,
        num_episodes: int,
        seed: int,
        frame_stack: int = 1,
        max_envs: int = MAX_ENVS,
    ) -> None:
        if num_episodes < 1:
            raise ValueError(f"num_episodes must be at least 1; got {num_episodes}")
        num_envs = min(num_episodes, max_envs)
        self._stepper = Stepper(make_envs(num_envs))
        self._frames = FrameStack(self._stepper.spec.observation_names, frame_stack)
        self._seeds = environment_seeds(seed, "evaluator", 0, num_envs)
        self._shares = [num_episodes // num_envs + (env < num_episodes % num_envs) for env in range(num_envs)]
        self._num_episodes = num_episodes

    @property
    def spec(self) -> TableSpec:
        """Columns of the environment."""
        return self._stepper.spec

    @property
    def num_envs(self) -> int:
        """Environments that play at once: what the policy must be made for."""
        return self._stepper.num_envs

    def evaluate(self, policy: GreedyPolicy, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Plays all episodes; blocks until then.

        Args:
            policy: for `num_envs` environments, with its weights loaded.
            should_stop: asked before each step.

        Returns:
            The episodes, or None if it was stopped.

        Raises:
            EnvironmentFault: an environment failed; another Evaluator must be made.
        """
        statistics = EpisodeStatistics(self.num_envs)
        played: list[list[Episode]] = [[] for _ in range(self.num_envs)]
        num_left = self._num_episodes
        observation = self._frames.begin(self._stepper.reset(self._seeds))
        while num_left:
            if should_stop():
                return None
            step = self._stepper.step(policy.act_greedily(observation))
            for episode in statistics.add(step):
                if len(played[episode.env]) < self._shares[episode.env]:
                    played[episode.env].append(episode)
                    num_left -= 1
            observation = self._frames.add(step)
        episodes = list(chain.from_iterable(played))
        return Evaluation(
            np.array([episode.total for episode in episodes]), np.array([episode.length for episode in episodes])
        )

    def close(self) -> None:
        """Closes the environments."""
        self._stepper.close()
