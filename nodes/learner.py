"""A learner's process."""

from __future__ import annotations

from pathlib import Path

from parl_mq.services.learner import serve
from parl_mq.services.runtime import NodeOptions, run_service


def main(options: NodeOptions, run_directory: Path) -> int:
    """Runs until it is told to stop; returns the exit code."""
    return run_service(options, lambda stop: serve(options, run_directory, stop))
