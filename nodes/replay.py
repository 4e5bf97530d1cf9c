"""A replay node's process."""

from __future__ import annotations

from parl_mq.services.replay import ReplayOptions, serve
from parl_mq.services.runtime import NodeOptions, run_service


def main(options: NodeOptions, replay: ReplayOptions) -> int:
    """Runs until it is told to stop; returns the exit code."""
    return run_service(options, lambda stop: serve(options, replay, stop))
