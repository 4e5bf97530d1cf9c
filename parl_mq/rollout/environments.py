"""Makes gymnasium environments, one or a vector of them, and says in one line what is wrong with one that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import EnvironmentFault
from parl_mq.extras import install_command
from parl_mq.rollout.lookup import environment_spec
from parl_mq.rollout.thread_vector import ThreadVectorEnv
from parl_mq.spec import spec_of

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]
Vectorization = Literal["auto", "sync", "threads", "async"]

EXTRAS: Final = {"box2d": "box2d", "classic_control": "video", "mujoco": "mujoco"}
"""Group of gymnasium's environments -> the extra of parl_mq that brings what it needs, if only to be drawn."""


def make_single(config: EnvironmentConfig) -> AnyEnv:
    """One environment, as the sub-environments of a vector are.

    Raises:
        EnvironmentFault: it cannot be made, or its spaces are not supported.
    """
    env = _make_sub(config, index=0)
    _check_spaces(config.id, env)
    return env


def make_vector(config: EnvironmentConfig, num_envs: int, vectorization: Vectorization = "auto") -> AnyVectorEnv:
    """A vector of `num_envs` environments. Observations may lie in memory that the next step writes again.

    `auto` takes the environment's own vector version where it has one and `num_envs` > 1 (at one environment it is
    slower than the plain one), else `sync`. `sync`, `threads` and `async` reset in the step that ends an episode, which
    wastes no step; an environment's own version does as its metadata says.

    Raises:
        EnvironmentFault: it cannot be made, or its spaces are not supported.
    """
    found = _found(config.id)
    has_own = found.vector_entry_point is not None and not found.additional_wrappers
    with _translated(config.id):
        if vectorization == "auto" and has_own and num_envs > 1:
            envs = _make_own(found, config, num_envs)
        else:
            envs = _make_from_subs(config, num_envs, vectorization)
    envs.unwrapped.spec = found
    _check_spaces(config.id, envs)
    return envs


def _make_own(found: EnvSpec, config: EnvironmentConfig, num_envs: int) -> AnyVectorEnv:
    time_limit: dict[str, Any] = (
        {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    )
    return gymnasium.make_vec(found, num_envs, "vector_entry_point", **config.kwargs, **time_limit)


def _make_from_subs(config: EnvironmentConfig, num_envs: int, vectorization: Vectorization) -> AnyVectorEnv:
    makers = [partial(_make_sub, config, index) for index in range(num_envs)]
    if vectorization == "async":
        # A fork server, because a plain fork of a process that has threads and sockets may hang.
        return AsyncVectorEnv(makers, copy=False, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
    if vectorization == "threads":
        return ThreadVectorEnv(makers)
    return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


def _make_sub(config: EnvironmentConfig, index: int) -> AnyEnv:
    with _translated(config.id):
        # Gymnasium's checker is left out: SubEnvironment and the stepper check what matters at every step.
        env = gymnasium.make(
            environment_spec(config.id),
            max_episode_steps=config.max_episode_steps,
            disable_env_checker=True,
            **config.kwargs,
        )
        return SubEnvironment(env, f"{config.id}, environment {index}")


class SubEnvironment(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of a vector: says which one it is when it fails, and seeds its action space too."""

    def __init__(self, env: AnyEnv, name: str) -> None:
        super().__init__(env)
        self._name = name
        space = env.observation_space
        self._shape = space.shape if isinstance(space, gymnasium.spaces.Box) else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Raises:
            EnvironmentFault: the environment raised, or its observation has the wrong shape.
        """
        if seed is not None:
            self.action_space.seed(seed)
        try:
            obs, infos = self.env.reset(seed=seed, options=options)
        except Exception as exc:  # an environment may raise anything
            raise EnvironmentFault(f"{self._name}: reset raised {described(exc)}") from exc
        self._check_shape(obs)
        return obs, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step.

        Returns:
            As the environment's; an episode's last observation is a copy, because some environments write the
            next episode's first one into the same memory.

        Raises:
            EnvironmentFault: as `reset`.
        """
        try:
            obs, reward, terminated, truncated, infos = self.env.step(action)
        except Exception as exc:  # an environment may raise anything
            raise EnvironmentFault(f"{self._name}: step raised {described(exc)}") from exc
        self._check_shape(obs)
        if terminated or truncated:
            obs = _copied(obs)
        return obs, reward, terminated, truncated, infos

    def _check_shape(self, obs: Any) -> None:
        if self._shape is not None and (shape := np.shape(obs)) != self._shape:
            raise EnvironmentFault(f"{self._name}: its observation has the shape {shape}, its space says {self._shape}")


def described(exc: BaseException) -> str:
    """Type and text of a foreign exception."""
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


def _copied(obs: Any) -> Any:
    match obs:
        case dict():
            return {key: _copied(value) for key, value in obs.items()}
        case tuple():
            return tuple(_copied(value) for value in obs)
        case _:
            return np.array(obs)


def _found(env_id: str) -> EnvSpec:
    with _translated(env_id):
        return environment_spec(env_id)


def close_unused(env: AnyEnv | AnyVectorEnv) -> str | None:
    """Closes an environment that was looked at alone; many count on a reset before, which is no reason to end.

    Returns:
        What closing it raised, in words; None where it went well.
    """
    try:
        env.close()
    except Exception as exc:  # foreign code may raise anything
        return f"close raised {described(exc)}"
    return None


def _check_spaces(env_id: str, env: AnyEnv | AnyVectorEnv) -> None:
    try:
        with _translated(env_id):
            _refuse_unsupported(env_id, env)
    except EnvironmentFault:
        close_unused(env)
        raise


def _refuse_unsupported(env_id: str, env: AnyEnv | AnyVectorEnv) -> None:
    try:
        actions = spec_of(env).action_names
    except ValueError as exc:
        raise EnvironmentFault(f"{env_id}: {exc}") from exc
    if actions != ("action",):
        raise EnvironmentFault(f"{env_id}: an action made of several parts ({', '.join(actions)}) is not supported")


@contextmanager
def _translated(env_id: str) -> Iterator[None]:
    """Turns whatever making an environment raises into an EnvironmentFault."""
    try:
        yield
    except EnvironmentFault:
        raise
    except DependencyNotInstalled as exc:
        raise EnvironmentFault(f"{env_id}: {exc}{install_hint(exc, env_id)}") from exc
    except Exception as exc:  # foreign code may raise anything
        raise EnvironmentFault(f"{env_id} cannot be made: {described(exc)}") from exc


def install_hint(exc: BaseException, env_id: str) -> str:
    """What brings the package that an environment lacks, if it is that."""
    if not isinstance(exc, DependencyNotInstalled):
        return ""
    registered = gymnasium.registry.get(env_id.rpartition(":")[2])
    place = "" if registered is None else str(registered.entry_point)
    extras = [extra for group, extra in EXTRAS.items() if f".{group}." in place]
    return f" (here: {install_command(extras[0])})" if extras else ""
