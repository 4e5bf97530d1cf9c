from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_mq.errors import EnvironmentFault
from parl_mq.rollout.statistics import Episode, EpisodeStatistics
from parl_mq.rollout.stepper import Stepper
from tests.environments import MODES, CounterEnv, ScriptedEnv, vector_of


class NativeVector(VectorEnv[Any, Any, Any]):
    """Two environments of three steps that says what it is told to, in memory that it reuses."""

    def __init__(self, mode: object, *, final_obs: Any = None, dtype: type = np.float32) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = 2
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.seeds: list[Any] = []
        self._final_obs = final_obs
        self._obs = np.zeros((2, 1), dtype)
        self._step = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self._obs[:] = self._step = 0
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        actions[:] = 9
        self._step = (self._step + 1) % 3
        self._obs[:] = self._step
        is_end = np.full(2, self._step == 0)
        infos = {"final_obs": self._final_obs} if self._step == 0 and self._final_obs is not None else {}
        return self._obs, np.ones(2, np.float32), is_end, np.zeros(2, bool), infos


@pytest.mark.parametrize("mode", [None, "sometimes", 3])
def test_a_vector_that_does_not_say_when_it_resets_is_refused(mode: object) -> None:
    with pytest.raises(EnvironmentFault, match=r"NativeVector: metadata\['autoreset_mode'\]"):
        Stepper(NativeVector(mode))


def test_a_vector_of_its_own_kind_gets_one_seed() -> None:
    envs = NativeVector(AutoresetMode.NEXT_STEP)
    Stepper(envs).reset([5, 6])
    assert envs.seeds == [5]


def test_actions_stay_as_they_are() -> None:
    stepper = Stepper(NativeVector(AutoresetMode.NEXT_STEP))
    stepper.reset([5, 6])
    action = np.zeros(2, int)
    stepper.step(action)
    assert action.tolist() == [0, 0]


def test_observations_have_the_dtype_of_the_space() -> None:
    stepper = Stepper(NativeVector(AutoresetMode.NEXT_STEP, dtype=np.float64))
    assert stepper.reset([5, 6])[0].dtype == np.float32
    assert stepper.step(np.zeros(2, int)).obs[0].dtype == np.float32


@pytest.mark.parametrize(
    "final_obs",
    [np.array([[3.0], [4.0]]), np.array([np.array([3.0]), np.array([4.0]), None], dtype=object)[:2]],
    ids=["batched", "objects"],
)
def test_last_observations_are_read_in_every_form(final_obs: Any) -> None:
    stepper = Stepper(NativeVector(AutoresetMode.SAME_STEP, final_obs=final_obs))
    stepper.reset([5, 6])
    steps = [stepper.step(np.zeros(2, int)) for _ in range(3)]
    assert [len(step.ended) for step in steps] == [0, 0, 2]
    assert [last and last[0].tolist() for last in steps[2].ended.values()] == [[3.0], [4.0]]


@pytest.mark.parametrize(
    ("final_obs", "message"),
    [
        (None, "without a final_obs"),
        (np.array([None, None]), "without a final_obs"),
        (np.zeros((2, 2)), r"final_obs of environment 0 has the shape \(2,\)"),
        (np.array([[1.0], [np.nan]]), "environment 1 returned nan in its final obs"),
    ],
)
def test_a_wrong_last_observation_is_a_fault(final_obs: Any, message: str) -> None:
    stepper = Stepper(NativeVector(AutoresetMode.SAME_STEP, final_obs=final_obs))
    stepper.reset([5, 6])
    stepper.step(np.zeros(2, int))
    stepper.step(np.zeros(2, int))
    with pytest.raises(EnvironmentFault, match=message):
        stepper.step(np.zeros(2, int))


class _WalksOff(CounterEnv):
    """Counts 0, 1, 2, ..., one more than its space holds."""

    def __init__(self, observation_space: gymnasium.Space) -> None:
        super().__init__(3)
        self.observation_space = observation_space

    def _obs(self) -> Any:
        return np.full(self.observation_space.shape, self._step)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "space",
    [gymnasium.spaces.Discrete(3), gymnasium.spaces.MultiDiscrete([3, 9])],
    ids=lambda space: type(space).__name__,
)
def test_a_value_beyond_a_space_that_counts_its_values_is_a_fault(mode: AutoresetMode, space: gymnasium.Space) -> None:
    stepper = Stepper(vector_of([_WalksOff(space)], mode))
    stepper.reset([1])
    stepper.step(np.zeros(1, int))
    stepper.step(np.zeros(1, int))
    with pytest.raises(EnvironmentFault, match=r"environment 0 returned 3 in its .*obs; it may be 0 to 2"):
        stepper.step(np.zeros(1, int))


class _PaysTooMuch(CounterEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 1e39, *rest


def test_a_reward_that_the_replay_cannot_hold_is_a_fault() -> None:
    stepper = Stepper(vector_of([_PaysTooMuch(5)], AutoresetMode.SAME_STEP))
    stepper.reset([1])
    with pytest.raises(
        EnvironmentFault, match=r"environment 0 returned 1e\+39 in its reward; it may be -3.4.*e\+38 to 3.4.*e\+38"
    ):
        stepper.step(np.zeros(1, int))


def test_large_finite_numbers_pass() -> None:
    stepper = Stepper(vector_of([CounterEnv(5, offset=1e30)], AutoresetMode.SAME_STEP))
    assert stepper.reset([1])[0].item() == np.float32(1e30)
    assert stepper.step(np.zeros(1, int)).obs[0].item() == np.float32(1e30)


@pytest.mark.parametrize("mode", MODES)
def test_returns_and_lengths_are_right_in_every_mode(mode: AutoresetMode) -> None:
    stepper = Stepper(vector_of([CounterEnv(3), ScriptedEnv([(1, "term"), (4, "trunc")])], mode))
    statistics = EpisodeStatistics(2)
    stepper.reset([1, 2])
    episodes: list[Episode] = []
    for _ in range(20):
        episodes += statistics.add(stepper.step(np.zeros(2, int)))

    assert {(episode.total, episode.length) for episode in episodes if episode.env == 0} == {(6.0, 3)}
    assert [episode.length for episode in episodes if episode.env == 1][:4] == [1, 4, 4, 4]
    assert [episode.total for episode in episodes if episode.env == 1][:4] == [1.0, 10.0, 10.0, 10.0]
    per_episode = 4 if mode is AutoresetMode.NEXT_STEP else 3
    assert sum(episode.env == 0 for episode in episodes) == 20 // per_episode
    assert statistics.longest_running <= 4


@pytest.mark.parametrize("mode", MODES)
def test_steps_that_only_reset_are_not_counted(mode: AutoresetMode) -> None:
    stepper = Stepper(vector_of([CounterEnv(3), CounterEnv(3)], mode))
    stepper.reset([1, 2])
    steps = [stepper.step(np.zeros(2, int)) for _ in range(4)]
    assert [step.num_live for step in steps] == [2, 2, 2, 0 if mode is AutoresetMode.NEXT_STEP else 2]
    assert [list(step.began) for step in steps] == (
        [[], [], [], [0, 1]] if mode is AutoresetMode.NEXT_STEP else [[], [], [0, 1], []]
    )


def test_the_batched_action_space_is_seeded() -> None:
    def sample(seed: int) -> list[int]:
        envs = vector_of([CounterEnv(3) for _ in range(32)], AutoresetMode.SAME_STEP)
        Stepper(envs).reset(range(seed, seed + 32))
        return envs.action_space.sample().tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
