"""An environment that shows each of its pictures to a camera, or to people in a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import EnvironmentFault
from parl_mq.rollout.environments import AnyEnv, AnyVectorEnv, close_unused, described, install_hint, make_single

Picture = npt.NDArray[np.uint8]
"""[height, width, 3]."""
Camera = Callable[[Picture], None]
RenderMode = Literal["human", "rgb_array"]

DEFAULT_FPS: Final = 30.0


def frames_per_s(config: EnvironmentConfig, render_mode: RenderMode) -> float:
    """Pictures a second at which the environment looks natural.

    Raises:
        EnvironmentFault: it cannot be made, or cannot be rendered in this way; the message says in which it can.
    """
    env = make_single(config)
    modes, fps = env.metadata.get("render_modes", []), env.metadata.get("render_fps")
    close_unused(env)
    if render_mode not in modes:
        has = ", ".join(map(str, modes)) or "none"
        raise EnvironmentFault(f"{config.id} cannot be rendered as {render_mode}; its render modes: {has}")
    return float(fps or DEFAULT_FPS)


def make_filmed(config: EnvironmentConfig, camera: Camera) -> AnyVectorEnv:
    """A vector of one environment; `camera` gets the picture behind every reset that is followed by a step, and step.

    Raises:
        EnvironmentFault: it cannot be made.
    """
    return _vector_of_one(lambda: Filmed(make_single(_rendered(config, "rgb_array")), camera))


def make_shown(config: EnvironmentConfig) -> AnyVectorEnv:
    """A vector of one environment that draws itself in a window, as fast as it looks natural.

    Raises:
        EnvironmentFault: it cannot be made.
    """
    return _vector_of_one(lambda: make_single(_rendered(config, "human")))


class Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes pictures. The one of a reset waits for the next step: a reset behind the last episode is not shown."""

    def __init__(self, env: AnyEnv, camera: Camera) -> None:
        super().__init__(env)
        self._camera = camera
        self._first: Picture | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        started = self.env.reset(seed=seed, options=options)
        self._first = self._picture()
        return started

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        taken = self.env.step(action)
        if self._first is not None:
            self._camera(self._first)
            self._first = None
        self._camera(self._picture())
        return taken

    def _picture(self) -> Picture:
        """A copy: some environments draw every picture into the same memory.

        Raises:
            EnvironmentFault: rendering raised, or gave no picture.
        """
        name = self.unwrapped.spec.id if self.unwrapped.spec is not None else type(self.unwrapped).__name__
        try:
            picture = np.array(self.env.render())
        except Exception as exc:  # foreign code may raise anything
            raise EnvironmentFault(f"{name} cannot be rendered: {described(exc)}{install_hint(exc, name)}") from exc
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise EnvironmentFault(
                f"{name} rendered {picture.dtype} {picture.shape}, expected uint8 (height, width, 3)"
            )
        return picture


def _vector_of_one(make: Callable[[], AnyEnv]) -> AnyVectorEnv:
    return SyncVectorEnv([make], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


def _rendered(config: EnvironmentConfig, render_mode: RenderMode) -> EnvironmentConfig:
    return config.model_copy(update={"kwargs": {**config.kwargs, "render_mode": render_mode}})
