"""The device that a learner computes on: which there are, which one it takes, and what is said when its memory ends."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final

import torch

from parl_mq.errors import ConfigError, MemoryRefused

OUT_OF_MEMORY: Final = re.compile(r"out of memory|ALLOC_FAILED|can't allocate memory")
"""CUDA's libraries and the CPU's allocator raise no error of its own: only the text tells that it was the memory."""

log = logging.getLogger("parl_mq")


def choose_device(wanted: str, index: int = 0) -> torch.device:
    """The device that `node.device` asks for, of this machine's learner `index`; `auto` says what it took.

    Where no GPU is named, learners take one after the other.

    Raises:
        ConfigError: it is not there.
    """
    gpus = _gpus()
    if wanted == "auto":
        device = torch.device("cuda", index % len(gpus)) if gpus else torch.device("cpu")
        log.info("node.device = auto: training on %s", _described(device))
        return device
    if wanted == "cpu":
        return torch.device("cpu")
    number = int(wanted.partition(":")[2] or index % max(len(gpus), 1))
    if number >= len(gpus):
        raise ConfigError(f"node.device = {wanted!r} is not on this machine; there is: {devices_there()}")
    return torch.device("cuda", number)


def devices_there() -> str:
    """The devices of this machine, for people."""
    return ", ".join(map(_described, [torch.device("cpu"), *_gpus()]))


@contextlib.contextmanager
def memory_named(device: torch.device) -> Iterator[None]:
    """Tells that the device's memory was not enough for what the block does, and what can be done.

    Raises:
        MemoryRefused: in the place of torch's own error.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        told = str(error).partition(". ")[0]
        raise MemoryRefused(
            f"the memory of {device} is not enough: {told}; lower algorithm.batch_size, make the networks smaller, or "
            f"set node.device to another one of: {devices_there()}"
        ) from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch, or a library that it uses, had not the memory for what was asked of it."""
    return isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def _gpus() -> list[torch.device]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", number) for number in range(count)]


def _described(device: torch.device) -> str:
    return str(device) if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})"
