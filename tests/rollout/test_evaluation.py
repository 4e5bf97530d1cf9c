from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parl_mq.config.models import EnvironmentConfig
from parl_mq.rollout.environments import AnyVectorEnv, make_vector
from parl_mq.rollout.evaluation import MAX_ENVS, Evaluator
from tests.environments import MODES, CounterEnv, ScriptedEnv, vector_of
from tests.rollout.trajectories import CountingPolicy


class Leaning:
    """Pushes the cart to where the pole leans, which keeps it up for some forty steps."""

    def load_weights(self, weights: object) -> None: ...

    def act(self, obs: object, rng: np.random.Generator) -> np.ndarray:
        raise AssertionError("an evaluation does not explore")

    def act_greedily(self, obs: np.ndarray) -> np.ndarray:
        return (obs[:, 2] > 0).astype(np.int64)


@pytest.mark.parametrize("mode", MODES)
def test_every_environment_plays_one_full_episode(mode: AutoresetMode) -> None:
    evaluator = Evaluator(
        lambda num_envs: vector_of([CounterEnv(2 + env) for env in range(num_envs)], mode), num_episodes=5, seed=1
    )
    evaluation = evaluator.evaluate(CountingPolicy(5))
    assert evaluation is not None
    assert evaluation.lengths.tolist() == [2, 3, 4, 5, 6]
    assert evaluation.returns.tolist() == [3, 6, 10, 15, 21]


@pytest.mark.parametrize("mode", MODES)
def test_short_episodes_get_no_more_than_their_share(mode: AutoresetMode) -> None:
    num_episodes = 2 * MAX_ENVS + 1

    def make(num_envs: int) -> AnyVectorEnv:
        scripts = [[(1, "term"), (2, "term"), (3, "term")] if env < 40 else [(9, "trunc")] for env in range(num_envs)]
        return vector_of([ScriptedEnv(script) for script in scripts], mode)  # type: ignore[arg-type]

    evaluator = Evaluator(make, num_episodes=num_episodes, seed=1)
    evaluation = evaluator.evaluate(CountingPolicy(evaluator.num_envs))
    assert evaluation is not None
    assert evaluator.num_envs == MAX_ENVS
    assert evaluation.lengths.tolist() == [1, 2, 3] + [1, 2] * 39 + [9] * (2 * (MAX_ENVS - 40))


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_equal_policies_get_equal_results_from_environments_made_once(vectorization: str) -> None:
    made = []

    def make(num_envs: int) -> AnyVectorEnv:
        made.append(num_envs)
        return make_vector(EnvironmentConfig(id="CartPole-v1"), num_envs, vectorization)  # type: ignore[arg-type]

    evaluator = Evaluator(make, num_episodes=10, seed=10_000)
    first, second = evaluator.evaluate(Leaning()), evaluator.evaluate(Leaning())
    assert first is not None
    assert second is not None
    assert made == [10]
    assert len(np.unique(first.returns)) > 1
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.lengths, second.lengths)


def test_other_seeds_start_elsewhere() -> None:
    make = partial(make_vector, EnvironmentConfig(id="CartPole-v1"))
    first, second = (Evaluator(make, num_episodes=10, seed=seed).evaluate(Leaning()) for seed in (1, 2))
    assert first is not None
    assert second is not None
    assert first.returns.tolist() != second.returns.tolist()


def test_it_can_be_stopped() -> None:
    evaluator = Evaluator(
        lambda num_envs: vector_of([CounterEnv(1000)] * num_envs, AutoresetMode.SAME_STEP), num_episodes=1, seed=1
    )
    policy = CountingPolicy(1)
    assert evaluator.evaluate(policy, should_stop=lambda: policy.num_calls == 7) is None
    assert policy.num_calls == 7


def test_the_policy_sees_frame_stacks() -> None:
    evaluator = Evaluator(
        lambda num_envs: vector_of([CounterEnv(3)] * num_envs, AutoresetMode.SAME_STEP),
        num_episodes=1,
        seed=1,
        frame_stack=2,
    )
    policy = CountingPolicy(1)
    evaluator.evaluate(policy)
    assert [seen[0, :, 0].tolist() for seen in policy.seen] == [[0, 0], [0, 1], [1, 2]]


def test_no_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_episodes"):
        Evaluator(lambda num_envs: vector_of([CounterEnv(3)], AutoresetMode.SAME_STEP), num_episodes=0, seed=1)
