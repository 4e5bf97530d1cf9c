"""Values with a known answer: a constant reward of 1 for ten steps, cut by truncation or ended by termination."""

import numpy as np
import pytest
import torch

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.dqn import DQN
from parl_mq.algorithms.dqn_config import DQNConfig
from parl_mq.spec import Space, TableSpec

GAMMA = 0.9
LENGTH = 10
SPEC = TableSpec(
    TableSpec.of({"obs": ((1,), "float32"), "action": ((), "int64")}).columns,
    {"action": Space("Discrete", (0.0,), (0.0,))},
)


def _rows(n_step: int, *, terminates: bool) -> tuple[np.ndarray, np.ndarray]:
    """Reward sum and discount of each of an episode's steps: windows are cut where it ends."""
    num_steps = [min(n_step, LENGTH - position) for position in range(LENGTH)]
    rewards = [sum(GAMMA**k for k in range(steps)) for steps in num_steps]
    ends = [position + steps == LENGTH for position, steps in enumerate(num_steps)]
    discounts = [0.0 if terminates and end else GAMMA**steps for end, steps in zip(ends, num_steps, strict=True)]
    return np.array(rewards, np.float32), np.array(discounts, np.float32)


def _steady_q(rewards: np.ndarray, discounts: np.ndarray, *, huber_delta: float) -> float:
    config = DQNConfig(hidden_sizes=(16,), learning_rate=3e-3, target_update_interval=20, huber_delta=huber_delta)
    trainer = DQN.make_trainer(config, SPEC, 0, torch.device("cpu"))
    rng = np.random.default_rng(0)
    obs = np.zeros((64, 1), np.float32)
    action = np.zeros(64, np.int64)
    q_means = []
    for _ in range(3_000):
        drawn = rng.integers(LENGTH, size=64)
        weight = np.ones(64, np.float32)
        outcome = trainer.update(TrainingBatch(obs, action, rewards[drawn], obs, discounts[drawn], weight, {}))
        q_means.append(outcome.figures["q_mean"])
    return float(np.mean(q_means[-500:]))


@pytest.mark.parametrize(
    ("n_step", "terminates", "expected", "tolerance"),
    [(1, False, 10.0, 0.3), (3, False, 10.0, 0.3), (1, True, 5.263, 0.2), (3, True, 5.02, 0.2)],
)
def test_q_reaches_the_fixed_point(n_step: int, terminates: bool, expected: float, tolerance: float) -> None:
    rewards, discounts = _rows(n_step, terminates=terminates)
    assert rewards.mean() / (1 - discounts.mean()) == pytest.approx(expected, abs=0.005)
    assert _steady_q(rewards, discounts, huber_delta=100.0) == pytest.approx(expected, abs=tolerance)


def test_huber_settles_where_its_own_gradients_cancel() -> None:
    # The mean target is what the squared error finds. Beyond delta each error counts alike: one terminal row in ten
    # pulls down with 1, the others up with 1 - 0.1 V, so 0.9 (1 - 0.1 V) = 0.1.
    assert _steady_q(*_rows(1, terminates=True), huber_delta=1.0) == pytest.approx(80 / 9, abs=0.3)
