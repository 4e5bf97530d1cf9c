"""DDPG (Lillicrap et al. 2016): TD3 with one critic, without its delay and its smoothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.ddpg_config import DDPGConfig
from parl_mq.algorithms.td3 import TD3Policy, TD3Trainer
from parl_mq.spec import TableSpec


class DDPG:
    """The algorithm's entry."""

    @staticmethod
    def make_trainer(config: DDPGConfig, spec: TableSpec, seed: int, device: torch.device) -> TD3Trainer:
        """See parl_mq.algorithms.base.Algorithm."""
        return TD3Trainer(config.as_td3(), spec, seed, device)

    @staticmethod
    def make_policy(config: DDPGConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> TD3Policy:
        """See parl_mq.algorithms.base.Algorithm."""
        return TD3Policy(config.as_td3(), spec, ladder)
