"""A process from which `train` forks nodes: `python -m parl_mq.nodes.zygote KIND FD`."""

from __future__ import annotations

import gc
import sys

from parl_mq.services.zygote import serve


def main(kind: str, control_fd: int) -> None:
    """Imports what nodes need, then forks what is asked for until the supervisor is gone."""
    gc.disable()  # what is imported stays; to look for garbage in it takes a quarter of the time
    if kind == "torch":
        from parl_mq.nodes.with_torch import run_node
    else:
        from parl_mq.nodes.without_torch import run_node
    gc.enable()
    serve(control_fd, run_node)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
