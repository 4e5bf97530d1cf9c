"""Settings of the thread that trains."""

from __future__ import annotations

import torch


def prepare_training_thread(num_threads: int, device: torch.device | None = None) -> None:
    """Call once in the very thread that runs the updates: these settings are the calling thread's own.

    Denormal numbers are flushed to zero: Adam's moments of a unit that has gone dead decay to them and stay there
    for good, and arithmetic on them is many times slower.

    Args:
        num_threads: torch threads of one operation, >= 1.
        device: that the thread computes on; None: the CPU.
    """
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
