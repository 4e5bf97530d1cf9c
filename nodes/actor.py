"""An actor's process."""

from __future__ import annotations

import os

from parl_mq.services.actor import serve
from parl_mq.services.runtime import NodeOptions, run_service


def main(options: NodeOptions) -> int:
    """Runs until it is told to stop; returns the exit code."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the GPUs are the learners'; CUDA has not been asked for yet
    return run_service(options, lambda stop: serve(options, stop))
