"""Steps a vector environment; every autoreset mode looks the same to whoever reads its steps.

M is the number of environments. An observation is a tuple of arrays, one for each observation column of the table's
spec, in the spec's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from parl_mq.errors import EnvironmentFault
from parl_mq.rollout.environments import AnyVectorEnv, described
from parl_mq.spec import Limits, limits_of, spec_of

Leaves = tuple[npt.NDArray[Any], ...]
Path = tuple[str | int, ...]

REWARDS: Final[Limits] = (np.array(np.finfo(np.float32).min), np.array(np.finfo(np.float32).max))
"""The replay keeps float32."""


class VectorStep(NamedTuple):
    """One step of M environments; a tuple, because one is made at every step and a dataclass takes three times as long.

    Attributes:
        obs: [M, ...] each, what to act on next; the environment's own memory, valid until its next step.
        reward: [M]; 0 for an environment that only reset.
        terminated: [M] bool.
        truncated: [M] bool.
        ended: index of an environment whose episode ended in this step -> its last observation, [...] each; None where
            `obs` holds it.
        began: environments whose `obs` is the first one of an episode.
        num_live: environments that took a step, and did not only reset.
    """

    obs: Leaves
    reward: npt.NDArray[np.floating[Any]]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    ended: Mapping[int, Leaves | None]
    began: Sequence[int]
    num_live: int


class Stepper:
    """Owns a vector environment, checks all that comes from it, and hides when it resets.

    - NEXT_STEP: the step after an end ignores the action and only resets; it counts as no step.
    - SAME_STEP: the last observation is in the infos.
    - DISABLED: environments that ended are reset here, by mask.

    Raises:
        EnvironmentFault: the vector does not say when it resets.
    """

    def __init__(self, envs: AnyVectorEnv) -> None:
        self.spec = spec_of(envs)
        self.num_envs = envs.num_envs
        self._envs = envs
        self._name = envs.spec.id if envs.spec is not None else type(envs).__name__
        self._mode = self._autoreset_mode()
        self._paths = tuple(_paths(envs.single_observation_space))
        self._columns = tuple(self.spec[name] for name in self.spec.observation_names)
        self._shapes = tuple((self.num_envs, *column.shape) for column in self._columns)
        self._dtypes = tuple(np.dtype(column.dtype) for column in self._columns)
        self._limits = tuple(limits_of(self.spec.spaces.get(column.name), column.shape) for column in self._columns)
        self._resetting: Sequence[int] = ()

    def reset(self, seeds: Sequence[int]) -> Leaves:
        """Starts an episode in all environments.

        Args:
            seeds: [M]; a vector environment that takes a single seed gets the first.

        Returns:
            The first observation of each; valid until the next step.

        Raises:
            EnvironmentFault: the environment raised or broke its contract.
        """
        takes_many = isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._envs.action_space.seed(seeds[0])
        self._resetting = ()
        obs, _ = self._call(self._envs.reset, seed=list(seeds) if takes_many else seeds[0])
        return self._checked(obs)

    def step(self, action: npt.NDArray[Any]) -> VectorStep:
        """Takes one step in all environments.

        Args:
            action: [M, ...]; stays as it is, even if an environment writes into what it gets.

        Raises:
            EnvironmentFault: as `reset`. The environments cannot be used further.
        """
        raw, reward, terminated, truncated, infos = self._call(self._envs.step, action.copy())
        obs = self._checked(raw)
        reward, terminated, truncated = self._checked_outcome(reward, terminated, truncated)
        ended = (terminated | truncated).nonzero()[0].tolist()
        if not ended and not self._resetting:
            return VectorStep(obs, reward, terminated, truncated, {}, (), self.num_envs)
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                began, self._resetting = self._resetting, ended
                num_live = self.num_envs - len(began)
                return VectorStep(obs, reward, terminated, truncated, dict.fromkeys(ended), began, num_live)
            case AutoresetMode.SAME_STEP:
                last = {env: self._final_obs(infos, env) for env in ended}
            case _:
                last = {env: tuple(leaf[env].copy() for leaf in obs) for env in ended}
                obs = self._reset_some(ended)
        return VectorStep(obs, reward, terminated, truncated, last, ended, self.num_envs)

    def close(self) -> None:
        """Closes the environments.

        Raises:
            EnvironmentFault: one of them raised.
        """
        self._call(self._envs.close)

    def _autoreset_mode(self) -> AutoresetMode:
        mode = self._envs.metadata.get("autoreset_mode")
        try:
            return AutoresetMode(mode)
        except ValueError:
            raise EnvironmentFault(
                f"{self._name}: metadata['autoreset_mode'] is {mode!r}, so nobody knows which step resets it; "
                f"it must be one of {', '.join(map(str, AutoresetMode))}"
            ) from None

    def _reset_some(self, envs: Sequence[int]) -> Leaves:
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[list(envs)] = True
        obs, _ = self._call(self._envs.reset, options={"reset_mask": mask})
        return self._checked(obs)

    def _final_obs(self, infos: dict[str, Any], env: int) -> Leaves:
        """An episode's last observation; `final_obs` holds one for each environment, or is batched as `obs` is."""
        final = infos.get("final_obs")
        if final is None or (not isinstance(final, dict | tuple) and final[env] is None):
            raise EnvironmentFault(f"{self._name}: an episode of environment {env} ended without a final_obs")
        is_batched = isinstance(final, dict | tuple)
        leaves = []
        for path, column, dtype, limits in zip(self._paths, self._columns, self._dtypes, self._limits, strict=True):
            leaf = _at(final, path)[env] if is_batched else _at(final[env], path)
            array = np.asarray(leaf, dtype)
            if array.shape != column.shape:
                raise EnvironmentFault(
                    f"{self._name}: final_obs of environment {env} has the shape {array.shape} in {column.name}, "
                    f"its space says {column.shape}"
                )
            self._check(f"final {column.name}", array[None], limits, first=env)
            leaves.append(array)
        return tuple(leaves)

    def _checked(self, obs: Any) -> Leaves:
        leaves = []
        for path, column, shape, dtype, limits in zip(
            self._paths, self._columns, self._shapes, self._dtypes, self._limits, strict=True
        ):
            leaf = np.asarray(_at(obs, path), dtype)
            if leaf.shape != shape:
                raise EnvironmentFault(f"{self._name}: {column.name} has the shape {leaf.shape}, expected {shape}")
            self._check(column.name, leaf, limits)
            leaves.append(leaf)
        return tuple(leaves)

    def _checked_outcome(self, reward: Any, terminated: Any, truncated: Any) -> tuple[Any, Any, Any]:
        reward = np.asarray(reward)
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        if not reward.shape == terminated.shape == truncated.shape == (self.num_envs,):
            shapes = f"{reward.shape}, {terminated.shape} and {truncated.shape}"
            raise EnvironmentFault(
                f"{self._name}: reward, terminated and truncated have the shapes {shapes}, expected {(self.num_envs,)}"
            )
        self._check("reward", reward, REWARDS)
        return reward, terminated, truncated

    def _check(self, name: str, values: npt.NDArray[Any], limits: Limits | None = None, first: int = 0) -> None:
        """Refuses what is not finite, or beyond the limits; `first` is the environment of the first row."""
        if limits is not None:
            is_fine = (values >= limits[0]) & (values <= limits[1])
        elif values.dtype.kind == "f":
            is_fine = np.isfinite(values)
        else:
            return
        if np.count_nonzero(is_fine) < values.size:  # in half the time of .all()
            place = np.argwhere(~is_fine)[0]
            told = f"environment {first + place[0]} returned {values[tuple(place)]} in its {name}"
            allowed = (
                ""
                if limits is None
                else f"; it may be {limits[0][tuple(place[1:])]:g} to {limits[1][tuple(place[1:])]:g}"
            )
            raise EnvironmentFault(f"{self._name}: {told}{allowed}")

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except EnvironmentFault:  # a sub-environment's own, which names it
            raise
        except Exception as exc:  # an environment may raise anything
            raise EnvironmentFault(f"{self._name}: {method.__name__} raised {described(exc)}") from exc


def _paths(space: Space[Any], path: Path = ()) -> Iterator[Path]:
    """Where the leaves of an observation lie, in the order of the spec's columns."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _paths(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _paths(inner, (*path, index))
    else:
        yield path


def _at(obs: Any, path: Path) -> Any:
    for key in path:
        obs = obs[key]
    return obs
