"""The examples do what the documents say of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import dueling
import dueling_config
import gymnasium
import numpy as np
import pytest
import torch
from corridor import make_corridor
from gymnasium.utils.env_checker import check_env

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.registry import load_algorithm, settings_model
from parl_mq.config.loader import load_config
from parl_mq.errors import ConfigError, SnapshotError
from parl_mq.spec import TableSpec, spec_of

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
CPU: Final = torch.device("cpu")
CONFIG: Final = dueling_config.DuelingConfig(num_units=16, learning_rate=1e-2)
SPEC: Final = spec_of(gymnasium.make("CartPole-v1"))


def _batch(rng: np.random.Generator, size: int = 32) -> TrainingBatch:
    obs, next_obs = rng.normal(size=(2, size, 4)).astype(np.float32)
    return TrainingBatch(
        obs=obs,
        action=rng.integers(2, size=size),
        reward=rng.normal(size=size).astype(np.float32),
        next_obs=next_obs,
        discount=rng.choice(np.array([0.0, 0.99], np.float32), size),
        weight=rng.uniform(0.1, 1, size).astype(np.float32),
        extras={},
    )


def _trainer(seed: int = 1, spec: TableSpec = SPEC) -> dueling.DuelingTrainer:
    return dueling.Dueling.make_trainer(CONFIG, spec, seed, CPU)


def _run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_corridor_keeps_the_contract_of_gymnasium() -> None:
    check_env(gymnasium.make("Corridor-v0").unwrapped)


def test_corridor_is_walked_from_left_to_right() -> None:
    env = make_corridor(length=3)
    start, _ = env.reset(seed=1)
    steps = [env.step(np.int64(1)) for _ in range(2 - round(2 * float(start[0])))]
    assert [step[1] for step in steps[:-1]] == [-0.1] * (len(steps) - 1)
    assert steps[-1][1:4] == (1.0, True, False)


def test_own_environment_is_learned(tmp_path: Path) -> None:
    out = _run(["parl-mq", "train", "corridor.toml", "--json", "--run-dir", str(tmp_path / "run")], EXAMPLES)
    assert json.loads(out.splitlines()[-1])["reached"]


def test_program_elsewhere_trains_its_own_environment_and_algorithm(tmp_path: Path) -> None:
    out = _run([sys.executable, str(EXAMPLES / "train_corridor.py")], tmp_path)
    assert out.startswith("reached 0.6")


def test_own_algorithm_is_found_by_its_path() -> None:
    name = load_config(EXAMPLES / "dueling.toml", environ={}).algorithm.name
    assert settings_model(name) is dueling_config.DuelingConfig
    assert load_algorithm(name) is dueling.Dueling


def test_settings_load_without_torch() -> None:
    script = "import sys, dueling_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=EXAMPLES, check=False).returncode == 0


def test_value_is_the_mean_over_actions() -> None:
    network = dueling.DuelingNetwork(4, 8, 3)
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    value = network.value(network.body(features).relu()).squeeze(1)
    torch.testing.assert_close(network(features).mean(1), value)


def test_magnitudes_are_the_unweighted_errors() -> None:
    batch = _batch(np.random.default_rng(1))
    trainer = _trainer()
    q, goal = (values.detach().numpy() for values in trainer._values(batch))
    np.testing.assert_allclose(trainer.update(batch).magnitudes, np.abs(q - goal), rtol=1e-6)


def test_updates_lower_the_error_on_a_fixed_batch() -> None:
    batch, trainer = _batch(np.random.default_rng(2)), _trainer()
    first = trainer.update(batch).magnitudes.mean()
    for _ in range(200):
        last = trainer.update(batch).magnitudes.mean()
    assert last < first / 2


def test_trainer_goes_on_exactly_from_its_state() -> None:
    rng = np.random.default_rng(3)
    trainer, other = _trainer(), _trainer(seed=2)
    for _ in range(3):
        trainer.update(_batch(rng))
    other.load_state(*trainer.state())
    batch = _batch(rng)
    assert trainer.update(batch).figures == other.update(batch).figures
    assert all(torch.equal(tensor, other.state()[0][name]) for name, tensor in trainer.state()[0].items())
    assert other.num_updates == 4


def test_state_of_another_network_is_refused() -> None:
    wider = dueling_config.DuelingConfig(num_units=17)
    with pytest.raises(SnapshotError, match="'online' is"):
        _trainer().load_state(*dueling.Dueling.make_trainer(wider, SPEC, 1, CPU).state())


def test_loss_that_is_not_finite_changes_nothing() -> None:
    batch, trainer = _batch(np.random.default_rng(4)), _trainer()
    batch.reward[3] = np.inf
    before = trainer.state()[0]
    outcome = trainer.update(batch)
    assert outcome.was_skipped
    assert np.isfinite(outcome.magnitudes).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state()[0].items())


def test_exploration_follows_the_ladder() -> None:
    places = np.linspace(0.0, 1.0, 2)
    policy = dueling.Dueling.make_policy(CONFIG, SPEC, places)
    policy.load_weights(_trainer().policy_weights())
    obs = np.repeat(np.random.default_rng(5).normal(size=(1, 4)), 2, axis=0).astype(np.float32)
    rng = np.random.default_rng(6)
    actions = np.array([policy.act(obs, rng) for _ in range(4_000)])
    logits = policy._q(obs) / (CONFIG.temperature * CONFIG.cooling**places)[:, None]
    expected = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    np.testing.assert_allclose(actions.mean(0), expected, atol=0.03)
    np.testing.assert_array_equal(policy.act_greedily(obs), policy._q(obs).argmax(1))


def test_actions_that_are_not_discrete_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a Discrete action"):
        CONFIG.check_spaces(spec_of(gymnasium.make("Pendulum-v1")))
    CONFIG.check_spaces(SPEC)
