"""The nodes that need torch, run in processes forked from the zygote."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parl_mq.nodes import actor, evaluator, learner

from parl_mq.config.models import NodeConfig
from parl_mq.services.runtime import NodeOptions


def run_node(request: dict[str, Any]) -> int:
    """Runs the requested node in this process, which was forked for it; returns the exit code."""
    random.seed()
    np.random.seed()
    torch.seed()
    options = NodeOptions(
        name=request["name"],
        hub=request["hub"],
        node=NodeConfig.model_validate(request["node"]),
        lifeline_fd=request["lifeline_fd"],
    )
    exit_code: int
    if request["role"] == "learner":
        exit_code = learner.main(options, Path(request["run_directory"]))
    else:
        exit_code = {"actor": actor, "evaluator": evaluator}[request["role"]].main(options)
    return exit_code
