"""A process from which `train` forks nodes: `python -m parl_mq.nodes.zygote KIND FD PARENT`."""

from __future__ import annotations

import gc
import signal
import sys

from parl_mq.services.early_start import die_with


def main(kind: str, control_fd: int, parent: int) -> None:
    """Imports what nodes need, then forks what is asked for until the supervisor is gone."""
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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
