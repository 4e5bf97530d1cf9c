"""States of a run, as its hub tells them."""

from __future__ import annotations

from typing import Any

from parl_mq.wire.messages import NodeReport, RunStatus


def node(name: str = "actor-0", role: str = "actor", **changes: Any) -> NodeReport:
    """A node that is well."""
    values: dict[str, Any] = {
        "name": name,
        "role": role,
        "health": "healthy",
        "state": "stepping",
        "waiting_for": None,
        "waiting_s": 0.0,
        "silent_s": 0.0,
        "starts": 1,
        "pid": 42,
        "host": "box",
        "figures": {},
    }
    return NodeReport(**{**values, **changes})


def status(**changes: Any) -> RunStatus:
    """A run that trains."""
    values: dict[str, Any] = {
        "run_id": "a1b2c3",
        "preset": "cartpole-dqn",
        "env_id": "CartPole-v1",
        "algorithm": "dqn",
        "phase": "training",
        "wall_s": 10.0,
        "nodes": [],
        "figures": {},
        "books": {},
    }
    return RunStatus(**{**values, **changes})
