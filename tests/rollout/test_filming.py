"""Pictures of episodes: which are taken, and what is refused."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import EnvironmentFault
from parl_mq.rollout.evaluation import Evaluator
from parl_mq.rollout.filming import DEFAULT_FPS, Picture, frames_per_s, make_filmed
from tests.environments import CounterEnv
from tests.rollout.trajectories import CountingPolicy


class PaintedEnv(CounterEnv):
    """Its picture is as bright as its observation, always drawn into the same memory."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, render_mode: str | None = None, fault: str = "") -> None:
        super().__init__(3)
        self.render_mode = render_mode
        self._fault = fault
        self._canvas = np.zeros((4, 6, 3), np.uint8)

    def render(self) -> Any:
        match self._fault:
            case "raises":
                raise gymnasium.error.DependencyNotInstalled("pygame is not installed")
            case "nothing":
                return None
        self._canvas[:] = self._step + 10 * self._episode
        return self._canvas


@pytest.fixture(autouse=True)
def painted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Painted-v0", EnvSpec(id="Painted-v0", entry_point=PaintedEnv))


def _film(num_episodes: int, **kwargs: Any) -> list[int]:
    pictures: list[Picture] = []
    config = EnvironmentConfig(id="Painted-v0", kwargs=kwargs)
    evaluator = Evaluator(
        lambda num_envs: make_filmed(config, pictures.append), num_episodes=num_episodes, seed=1, max_envs=1
    )
    evaluator.evaluate(CountingPolicy(1))
    evaluator.close()
    return [int(picture[0, 0, 0]) for picture in pictures]


def test_every_episode_is_shown_from_its_start_to_its_end() -> None:
    assert _film(2) == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("fault", "told"), [("raises", "cannot be rendered: .*pygame is not installed"), ("nothing", "rendered object")]
)
def test_environment_that_draws_nothing_is_named(fault: str, told: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"Painted-v0 {told}"):
        _film(1, fault=fault)


def test_speed_is_the_environments_own() -> None:
    assert frames_per_s(EnvironmentConfig(id="CartPole-v1"), "rgb_array") == 50
    assert frames_per_s(EnvironmentConfig(id="Painted-v0"), "rgb_array") == DEFAULT_FPS


def test_unknown_render_mode_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(EnvironmentFault, match="cannot be rendered as human; its render modes: rgb_array"):
        frames_per_s(EnvironmentConfig(id="Painted-v0"), "human")


def test_what_close_raises_does_not_hide_which_render_modes_there_are() -> None:
    settings = EnvironmentConfig(id="tests.environments:Careless-v0", kwargs={"fault": "close"})
    with pytest.raises(EnvironmentFault, match="its render modes: none"):
        frames_per_s(settings, "rgb_array")
