"""Environments that benchmarks step in; settings name them as `parl_mq.bench.environments:NAME`."""

from __future__ import annotations

import time
from typing import Any, Final

import gymnasium

AnyEnv = gymnasium.Env[Any, Any]

WAITING: Final = "parl_mq.bench.environments:waiting"


class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step waits before it is taken, as one of a robot does, or of a simulator elsewhere; resets do not.

    Args:
        env: that steps.
        wait_s: seconds >= 0.
    """

    def __init__(self, env: AnyEnv, wait_s: float) -> None:
        super().__init__(env)
        self._wait_s = wait_s

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Waits without a core, then steps."""
        time.sleep(self._wait_s)  # the waiting itself
        return self.env.step(action)


def waiting(wait_s: float = 0.02, env_id: str = "CartPole-v1") -> AnyEnv:
    """An environment whose every step waits."""
    return Waiting(gymnasium.make(env_id, disable_env_checker=True), wait_s)
