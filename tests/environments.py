"""Small environments whose every step is known beforehand; the ids `tests.environments:NAME` are registered here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

End = Literal["term", "trunc"]
MODES = tuple(AutoresetMode)


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Episodes of given lengths and ends, one after another; the last one repeats.

    The observation is [steps since the reset + 1000 * episode + offset], episodes counted from 0. The step from t to
    t + 1 pays t + 1.

    Args:
        script: (length, end) of each episode.
        offset: added to observations, to tell environments apart.
        reuses_memory: observations are one array that each reset and step overwrites.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self, script: Sequence[tuple[int, End]], *, offset: float = 0, reuses_memory: bool = False) -> None:
        self._script: Iterator[tuple[int, End]] = iter([*script, *repeat(script[-1], 1000)])
        self._episode = -1
        self._step = 0
        self._offset = offset
        self._memory = np.zeros(1, np.float32)
        self._reuses_memory = reuses_memory

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length, self._end = next(self._script)
        self._episode += 1
        self._step = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_end = self._step == self._length
        return self._obs(), float(self._step), is_end and self._end == "term", is_end and self._end == "trunc", {}

    def _obs(self) -> Any:
        value = self._step + 1000 * self._episode + self._offset
        if not self._reuses_memory:
            return np.array([value], np.float32)
        self._memory[0] = value
        return self._memory


class CounterEnv(ScriptedEnv):
    """Every episode has L steps and the same end."""

    def __init__(self, length: int = 5, end: End = "term", **kwargs: Any) -> None:
        super().__init__([(length, end)], **kwargs)


class ConstEnv(gymnasium.Env[Any, Any]):
    """Observation [0.], one action or a Box of them that all do the same, reward 1 at each of L steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int = 10, end: End = "term", *, is_box: bool = False) -> None:
        self._length = length
        self._end = end
        self.action_space: spaces.Space[Any] = spaces.Box(-2, 6, (1,), np.float32) if is_box else spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_end = self._step == self._length
        return np.zeros(1, np.float32), 1.0, is_end and self._end == "term", is_end and self._end == "trunc", {}


class RandomStartEnv(CounterEnv):
    """The observation is a number drawn at the reset, and a sample of the action space."""

    observation_space = spaces.Box(0, 10, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._start = np.array([self.np_random.random(), self.action_space.sample()], np.float32)
        return self._start, {}

    def _obs(self) -> Any:
        return getattr(self, "_start", None)


class DictEnv(CounterEnv):
    """The counter as a nested observation: {"a": [2], "b": ([], [2, 2])} of int16 and float32."""

    observation_space = spaces.Dict(
        {
            "a": spaces.Box(-1000, 30_000, (2,), np.int16),
            "b": spaces.Tuple((spaces.Discrete(30_000), spaces.Box(-np.inf, np.inf, (2, 2), np.float32))),
        }
    )

    def _obs(self) -> Any:
        value = super()._obs()[0]
        a = np.array([value, -self._step], np.int16)
        return {"a": a, "b": (int(value), np.full((2, 2), value, np.float32))}


class EchoEnv(CounterEnv):
    """Shows the action that it received last; actions are from the Box [-2, 6] x [0, 0.25]."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([6, 0.25], np.float32))

    def __init__(self, length: int = 5, end: End = "trunc") -> None:
        super().__init__(length, end)
        self._action = np.zeros(2, np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._action = action.copy()
        return super().step(action)

    def _obs(self) -> Any:
        return self._action.copy()


class BrokenEnv(CounterEnv):
    """Breaks at its third step, in the way that it is told."""

    def __init__(self, fault: str) -> None:
        super().__init__(100)
        self._fault = fault

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = super().step(action)
        if self._step == 3:
            match self._fault:
                case "raises":
                    raise KeyError("joint 7")
                case "exits":
                    os._exit(0)
                case "shape":
                    obs = np.zeros(2, np.float32)
                case "nan observation":
                    obs = np.array([np.nan], np.float32)
                case "infinite reward":
                    reward = float("inf")
        return obs, reward, terminated, truncated, infos


class BusyEnv(CounterEnv):
    """One step of each process lets nothing else of the process run for a while.

    Args:
        seconds: that it takes.
        at: which step of all environments it is, from 1.
    """

    num_steps = 0

    def __init__(self, seconds: float, at: int) -> None:
        super().__init__(20)
        self._seconds = seconds
        self._at = at

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        BusyEnv.num_steps += 1
        if BusyEnv.num_steps == self._at:
            ctypes.PyDLL(None).usleep(round(self._seconds * 1e6))  # which keeps the interpreter's lock
        return super().step(action)


class UnsupportedEnv(CounterEnv):
    """An observation of text."""

    observation_space = spaces.Text(5)


class TwoActionsEnv(CounterEnv):
    """An action made of two parts."""

    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))


class MissingPackageEnv(CounterEnv):
    """Cannot be made, for want of a package."""

    def __init__(self) -> None:
        raise gymnasium.error.DependencyNotInstalled("physics is not installed")


class CarelessEnv(gymnasium.Env[Any, Any]):
    """What is written in a first hour: one thing is missing.

    Args:
        fault: `action_space` or `observation_space` is missing, `close` counts on a reset before, `broken close`
            raises always; anything else is the reward of each step.
    """

    def __init__(self, fault: Any = 1.0) -> None:
        self._fault = fault
        if fault != "observation_space":
            self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        if fault != "action_space":
            self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._window = "open"
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0 if isinstance(self._fault, str) else self._fault, False, False, {}

    def close(self) -> None:
        if self._fault == "close":
            del self._window
        if self._fault == "broken close":
            raise KeyError("window")


def vector_of(envs: Sequence[gymnasium.Env[Any, Any]], mode: AutoresetMode, *, copy: bool = True) -> VectorEnv:
    """A synchronous vector of these environments."""
    return SyncVectorEnv([lambda env=env: env for env in envs], copy=copy, autoreset_mode=mode)  # type: ignore[misc]


def _register() -> None:
    environments = (CounterEnv, ConstEnv, RandomStartEnv, DictEnv, EchoEnv, BrokenEnv, BusyEnv, UnsupportedEnv)
    for env in (*environments, TwoActionsEnv, CarelessEnv):
        gymnasium.register(f"{env.__name__.removesuffix('Env')}-v0", entry_point=env)
    gymnasium.register("MissingPackage-v0", entry_point="tests.environments:MissingPackageEnv")


if "Counter-v0" not in gymnasium.registry:
    _register()
