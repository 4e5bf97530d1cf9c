from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import EnvironmentFault
from parl_mq.fragments import FragmentBatch
from parl_mq.rollout.environments import make_vector
from parl_mq.rollout.stepper import Stepper
from parl_mq.rollout.thread_vector import ThreadVectorEnv
from tests.environments import CounterEnv, ScriptedEnv
from tests.rollout.trajectories import VERSION, assembler_for

LIMIT_S = 20.0
"""A meeting that nobody else comes to is given up then; those that succeed take no time."""


class MeetingEnv(CounterEnv):
    """Each step and each reset comes to an end only while all the others are in theirs."""

    def __init__(self, meeting: threading.Barrier, length: int) -> None:
        super().__init__(length)
        self._meeting = meeting
        self.threads: set[threading.Thread] = set()

    def reset(self, **kwargs: Any) -> Any:
        self.threads.add(threading.current_thread())
        self._meeting.wait(LIMIT_S)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.threads.add(threading.current_thread())
        self._meeting.wait(LIMIT_S)
        return super().step(action)


def fragments_of(env_id: str, vectorization: str, **kwargs: Any) -> list[FragmentBatch]:
    settings = EnvironmentConfig(id=env_id, kwargs=kwargs)
    stepper = Stepper(make_vector(settings, 3, vectorization))  # type: ignore[arg-type]
    assembler = assembler_for(stepper, 8, n=3)
    rng, space = np.random.default_rng(7), stepper._envs.single_action_space
    space.seed(5)
    taken = []
    for _ in range(100):
        action = np.stack([space.sample() for _ in range(3)])
        assembler.add(action, stepper.step(action), VERSION)
        if rng.random() < 0.1 and (batch := assembler.take(1000)) is not None:
            taken.append(batch)
    stepper.close()
    assert taken
    return taken


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("tests.environments:Dict-v0", {"length": 5, "end": "trunc"}),
        ("tests.environments:Counter-v0", {"length": 1, "reuses_memory": True}),
    ],
)
def test_fragments_are_those_of_the_synchronous_vector(env_id: str, kwargs: dict[str, Any]) -> None:
    in_threads, in_turn = (fragments_of(env_id, vectorization, **kwargs) for vectorization in ("threads", "sync"))
    for found, expected in zip(in_threads, in_turn, strict=True):
        np.testing.assert_array_equal(found.lengths, expected.lengths)
        np.testing.assert_array_equal(found.starts_episode, expected.starts_episode)
        assert found.columns.keys() == expected.columns.keys()
        for name, column in found.columns.items():
            np.testing.assert_array_equal(column, expected.columns[name])


def test_all_environments_step_and_reset_at_the_same_time_each_in_its_own_thread() -> None:
    meeting = threading.Barrier(4)
    made = [MeetingEnv(meeting, length=3) for _ in range(4)]
    envs = ThreadVectorEnv([lambda env=env: env for env in made])  # type: ignore[misc]
    envs.reset(seed=[1, 2, 3, 4])
    for _ in range(7):
        envs.step(np.zeros(4, np.int64))
    envs.close()
    assert [len(env.threads) for env in made] == [1, 1, 1, 1]
    assert len(set.union(*(env.threads for env in made))) == 4


def test_closing_ends_the_threads_and_closes_each_environment_in_its_own() -> None:
    closed_in: list[threading.Thread] = []

    class Closing(CounterEnv):
        def close(self) -> None:
            closed_in.append(threading.current_thread())

    envs = ThreadVectorEnv([Closing, Closing])
    envs.reset(seed=1)
    envs.close()
    assert len(set(closed_in)) == 2
    assert not any(thread.is_alive() for thread in closed_in)
    assert threading.current_thread() not in closed_in


def test_a_fault_names_its_environment_and_the_vector_can_be_closed() -> None:
    settings = EnvironmentConfig(id="tests.environments:Broken-v0", kwargs={"fault": "raises"})
    stepper = Stepper(make_vector(settings, 3, "threads"))
    stepper.reset([1, 2, 3])
    stepper.step(np.zeros(3, int))
    stepper.step(np.zeros(3, int))
    with pytest.raises(EnvironmentFault, match="environment 0: step raised KeyError: 'joint 7'"):
        stepper.step(np.zeros(3, int))
    stepper.close()


def test_what_an_environment_raised_is_forgotten_when_all_are_reset() -> None:
    class BreaksOnce(ScriptedEnv):
        num_broken = 0

        def step(self, action: Any) -> Any:
            BreaksOnce.num_broken += 1
            if BreaksOnce.num_broken <= 2:
                raise KeyError("joint 7")
            return super().step(action)

    makers = [lambda: BreaksOnce([(5, "term")]) for _ in range(2)]
    envs: gymnasium.vector.VectorEnv[Any, Any, Any] = ThreadVectorEnv(makers)
    envs.reset(seed=1)
    with pytest.raises(KeyError, match="joint 7"):
        envs.step(np.zeros(2, np.int64))
    envs.reset(seed=1)
    obs, reward, *_ = envs.step(np.zeros(2, np.int64))
    assert obs[:, 0].tolist() == [1001, 1001]
    assert reward.tolist() == [1, 1]
    envs.close()
