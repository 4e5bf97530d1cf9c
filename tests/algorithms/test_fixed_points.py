"""Values with a known answer: a constant reward of 1 for ten steps, cut by truncation or ended by termination."""

from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.dqn import DQN
from parl_mq.algorithms.dqn_config import DQNConfig
from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import RunConfig
from parl_mq.learn.learner import DrawnRows, Learner
from parl_mq.model.weights import unpack
from parl_mq.replay.table import Table
from parl_mq.rollout.building import build_collector
from parl_mq.services.tables import table_settings
from parl_mq.spec import Space, TableSpec
from tests.marks import slow

GAMMA = 0.9
LENGTH = 10
NUM_ROWS = 8_000
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


def _steady_q(rewards: np.ndarray, discounts: np.ndarray, **settings: Any) -> float:
    config = DQNConfig(hidden_sizes=(16,), learning_rate=3e-3, target_update_interval=20, **settings)
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


def test_quantiles_of_q_have_the_fixed_point_as_their_mean() -> None:
    rewards, discounts = _rows(1, terminates=True)
    for settings in ({"num_quantiles": 32}, {"num_quantiles": 32, "dueling": True}):
        assert _steady_q(rewards, discounts, huber_delta=0.1, **settings) == pytest.approx(5.263, abs=0.2)


@pytest.mark.parametrize(
    ("end", "n_step", "expected", "tolerance"),
    [slow("trunc", 1, 10.0, 0.3), ("trunc", 3, 10.0, 0.3), ("term", 1, 5.263, 0.2), slow("term", 3, 5.02, 0.2)],
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dqn", "uniform"),
        ("dqn", "prioritized"),
        ("sac", "prioritized"),
        ("td3", "prioritized"),
        ("ddpg", "prioritized"),
        ("sac-discrete", "prioritized"),
    ],
)
def test_q_reaches_the_fixed_point_through_environment_fragments_table_and_learner(
    name: str, kind: str, end: str, n_step: int, expected: float, tolerance: float
) -> None:
    config = _const_config(name, kind, end, n_step)
    collector = build_collector(config, 0, clock=lambda: 0.0)
    trainer = load_algorithm(name).make_trainer(config.algorithm, collector.spec, 0, torch.device("cpu"))
    learner = Learner(trainer, collector.spec, config.learner, beta=1.0, generation=1, clock=lambda: 0.0)
    weights = learner.publish()
    collector.load_weights(unpack(weights.payload), weights.version)
    table = Table(table_settings(config), collector.spec, directory=None, rng=np.random.default_rng(0))
    while table.num_live < NUM_ROWS:
        fragments = collector.collect(1_000).fragments
        if fragments is not None:
            table.insert(fragments)
    q_means = []
    for _ in range(3_000):
        draw = table.draw(64)
        step = learner.learn(DrawnRows(draw.arrays(), draw.probabilities, draw.num_live))
        table.update_priorities(draw.keys, step.magnitudes)
        q_means.append(learner.take_figures()["q_mean"])  # all rows are of one state and actions that do the same
    assert np.mean(q_means[-500:]) == pytest.approx(expected, abs=tolerance)
    table.close()
    collector.close()


SLOW_POLICY = {"actor_learning_rate": 1e-4, "hidden_sizes": (8,)}
"""Otherwise the policy finds whatever the critic makes of one row's noise or another's, and values rise by it."""
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"target_update_interval": 20, "huber_delta": 100.0},
    "sac": {"tau": 0.05, "temperature": 1e-6, "learns_temperature": False, **SLOW_POLICY},  # entropy would add to it
    "sac-discrete": {"tau": 0.05},
    "td3": {"tau": 0.05, **SLOW_POLICY},
    "ddpg": {"tau": 0.05, **SLOW_POLICY},
}


def _const_config(name: str, kind: str, end: str, n_step: int) -> RunConfig:
    kwargs = {"length": LENGTH, "end": end, "is_box": name in ("sac", "td3", "ddpg")}
    return RunConfig.model_validate(
        {
            "environment": {"id": "tests.environments:Const-v0", "kwargs": kwargs},
            "algorithm": {
                "name": name,
                "gamma": GAMMA,
                "n_step": n_step,
                "batch_size": 64,
                "hidden_sizes": (16,),
                "learning_rate": 3e-3,
                **OWN_SETTINGS[name],
            },
            "replay": {"kind": kind, "buffer_size": 2 * NUM_ROWS, "learning_starts": 100, "fragment_length": 8},
            "actor": {"num_envs": 4},
        }
    )
