"""An actor's process."""

from __future__ import annotations

from parl_mq.services.actor import serve
from parl_mq.services.runtime import NodeOptions, run_service


def main(options: NodeOptions) -> int:
    """Runs until it is told to stop; returns the exit code."""
    return run_service(options, lambda stop: serve(options, stop))
