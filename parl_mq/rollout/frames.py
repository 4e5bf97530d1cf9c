"""What a policy sees: the newest observations, stacked where the environment's settings ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parl_mq.rollout.stepper import Leaves, VectorStep

if TYPE_CHECKING:
    from parl_mq.algorithms.base import Observation


class FrameStack:
    """The last `depth` observations of M environments; at an episode's start its first one fills the stack.

    Args:
        names: the observation's columns.
        depth: >= 1. With 1, observations pass through as [M, ...] without a copy; else they are [M, depth, ...], the
            newest last, in memory of their own.
    """

    def __init__(self, names: tuple[str, ...], depth: int) -> None:
        self._keys = None if names == ("obs",) else tuple(name.removeprefix("obs/") for name in names)
        self._depth = depth
        self._stacks: Leaves = ()

    def begin(self, obs: Leaves) -> Observation:
        """What the policy sees at the start of episodes in all environments."""
        if self._depth > 1:
            self._stacks = tuple(np.repeat(leaf[:, None], self._depth, axis=1) for leaf in obs)
        return self._view(obs)

    def add(self, step: VectorStep) -> Observation:
        """What the policy sees after a step."""
        if self._depth > 1:
            self._stacks = tuple(
                np.concatenate((stack[:, 1:], leaf[:, None]), axis=1)
                for stack, leaf in zip(self._stacks, step.obs, strict=True)
            )
            for env in step.began:
                for stack in self._stacks:
                    stack[env] = stack[env, -1]
        return self._view(step.obs)

    def _view(self, obs: Leaves) -> Observation:
        leaves = obs if self._depth == 1 else self._stacks
        return leaves[0] if self._keys is None else dict(zip(self._keys, leaves, strict=True))
