"""Run directories with the weights of a policy that was never trained."""

from __future__ import annotations

from pathlib import Path

import torch

from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.loader import load_config
from parl_mq.learn.checkpoint import Checkpoint, save, save_best
from parl_mq.model.weights import pack
from parl_mq.rollout.building import table_spec
from parl_mq.services.run_directory import RunDirectory

FEW_EPISODES = ("evaluation.num_episodes=3", "evaluation.seed=77")


def weights_of(directory: RunDirectory, seed: int) -> bytes:
    """Weights that fit the run's environment."""
    config = load_config(directory.config, environ={})
    algorithm = load_algorithm(config.algorithm.name)
    trainer = algorithm.make_trainer(config.algorithm, table_spec(config), seed, torch.device("cpu"))
    return pack(trainer.policy_weights())


def run_with_policies(path: Path, *overrides: str) -> RunDirectory:
    """A run with a best policy, of 20 updates, and a newer checkpoint of 50 updates."""
    config = load_config("cartpole-dqn", overrides=[*FEW_EPISODES, *overrides], environ={})
    directory = RunDirectory.create(path, config)
    save_best(directory.checkpoints, Checkpoint(20, weights_of(directory, 1)))
    save(directory.checkpoints, Checkpoint(50, weights_of(directory, 2)), keep=3)
    return directory
