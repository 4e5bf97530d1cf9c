"""Settings of the thread that trains."""

from __future__ import annotations

import torch


def prepare_training_thread(num_threads: int) -> None:
    """Call once in the very thread that runs the updates: both settings are the calling thread's own.

    Denormal numbers are flushed to zero: Adam's moments of a unit that has gone dead decay to them and stay there
    for good, and arithmetic on them is many times slower.

    Args:
        num_threads: torch threads of one operation, >= 1.
    """
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
