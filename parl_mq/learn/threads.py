"""Settings of the thread that trains."""

from __future__ import annotations

import torch


def prepare_training_thread(num_threads: int) -> None:
    """Call once in the thread that runs the updates.

    Denormal numbers are flushed to zero: Adam's moments of a unit that has gone dead decay to them and stay there
    for good, and arithmetic on them is many times slower.

    Args:
        num_threads: torch threads of one operation, >= 1; they are the whole process's.
    """
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
