"""A process from which `train` forks nodes: `python -m parl_mq.nodes.zygote KIND FD PARENT PATH`."""

from __future__ import annotations

import gc
import os
import signal
import sys

from parl_mq.services.early_start import PYTHONPATH, die_with


def main(kind: str, control_fd: int, parent: int, module_path: str) -> None:
    """Imports what nodes need, then forks what is asked for until the supervisor is gone.

    Args:
        kind: of the zygote.
        control_fd: socket to the supervisor.
        parent: its process id.
        module_path: PYTHONPATH as the supervisor has it; empty: none.
    """
    _leave_to_children(module_path)
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a run: its end would kill its children
        signal.signal(number, signal.SIG_IGN)
    die_with(parent)  # that the supervisor is gone it sees at its socket only when all is imported
    gc.disable()  # what is imported stays; to look for garbage in it takes a quarter of the time
    if kind == "torch":
        from parl_mq.nodes.with_torch import run_node
    else:
        from parl_mq.nodes.without_torch import run_node
    from parl_mq.services.zygote import serve

    gc.enable()
    serve(control_fd, run_node)


def _leave_to_children(module_path: str) -> None:
    """This process's own path is not for programs that environments start: they may be of another Python."""
    if module_path:
        os.environ[PYTHONPATH] = module_path
    else:
        os.environ.pop(PYTHONPATH, None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
