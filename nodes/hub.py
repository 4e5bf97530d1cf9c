"""The hub's process."""

from __future__ import annotations

from parl_mq.services.hub import HubOptions, serve
from parl_mq.services.runtime import NodeOptions, run_service


def main(options: NodeOptions, hub: HubOptions) -> int:
    """Runs to the run's end; returns the exit code."""
    return run_service(options, lambda stop: serve(options, hub, stop))
