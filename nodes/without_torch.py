"""The nodes that need no torch, run as their command lines say in processes forked from a zygote."""

from __future__ import annotations

import sys
from typing import Any

from parl_mq.nodes import hub, replay  # noqa: F401  (what their commands import, so that each fork finds it)

from parl_mq.cli import app, main  # noqa: F401  (app likewise)


def run_node(request: dict[str, Any]) -> int:
    """Runs `parl-mq ROLE --name NAME ARGUMENTS` in this process, which was forked for it; returns the exit code."""
    sys.argv[1:] = [request["role"], "--name", request["name"], *request["arguments"]]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
