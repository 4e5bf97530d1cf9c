from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parl_mq.rollout.frames import FrameStack
from parl_mq.rollout.stepper import Stepper
from tests.environments import MODES, CounterEnv, DictEnv, vector_of


@pytest.mark.parametrize("mode", MODES)
def test_a_stack_never_reaches_into_another_episode(mode: AutoresetMode) -> None:
    stepper = Stepper(vector_of([CounterEnv(3), CounterEnv(5, offset=100_000)], mode, copy=False))
    frames = FrameStack(stepper.spec.observation_names, 3)
    seen = frames.begin(stepper.reset([1, 2]))
    for _ in range(20):
        assert isinstance(seen, np.ndarray)
        assert seen.shape == (2, 3, 1)
        for oldest, middle, newest in seen[..., 0].tolist():
            start = newest // 1000 * 1000
            assert [oldest, middle] == [max(newest - 2, start), max(newest - 1, start)]
        seen = frames.add(stepper.step(np.zeros(2, int)))


def test_depth_one_passes_observations_through() -> None:
    stepper = Stepper(vector_of([CounterEnv(3)], AutoresetMode.SAME_STEP))
    obs = stepper.reset([1])
    assert FrameStack(stepper.spec.observation_names, 1).begin(obs) is obs[0]


def test_nested_observations_become_a_dict_by_key() -> None:
    stepper = Stepper(vector_of([DictEnv(3), DictEnv(3)], AutoresetMode.SAME_STEP))
    seen = FrameStack(stepper.spec.observation_names, 2).begin(stepper.reset([1, 2]))
    assert isinstance(seen, dict)
    assert {key: leaf.shape for key, leaf in seen.items()} == {"a": (2, 2, 2), "b/0": (2, 2), "b/1": (2, 2, 2, 2)}


def test_the_stacked_spec_says_what_the_policy_sees() -> None:
    stepper = Stepper(vector_of([DictEnv(3), DictEnv(3)], AutoresetMode.SAME_STEP))
    seen = FrameStack(stepper.spec.observation_names, 4).begin(stepper.reset([1, 2]))
    stacked = stepper.spec.stacked(4)
    assert isinstance(seen, dict)
    assert {f"obs/{key}": leaf.shape[1:] for key, leaf in seen.items()} == {
        name: stacked[name].shape for name in stacked.observation_names
    }
    assert stacked["reward"] == stepper.spec["reward"]
    assert stepper.spec.stacked(1) == stepper.spec
