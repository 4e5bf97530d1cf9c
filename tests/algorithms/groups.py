"""Learners of one group in threads of one process: their sums are taken where all of them meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

T = TypeVar("T")

MEET_S = 30.0


@dataclass
class _Meeting:
    barrier: threading.Barrier
    vectors: dict[int, torch.Tensor] = field(default_factory=dict)


class Member:
    """A learner's face of the group; counts its sums, and refuses vectors of different lengths."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, size
        self.num_sums = 0
        self._meeting = meeting

    def sum(self, vector: torch.Tensor) -> None:
        meeting = self._meeting
        meeting.vectors[self.rank] = vector.clone()
        meeting.barrier.wait(MEET_S)
        total = torch.stack([meeting.vectors[rank] for rank in range(self.size)]).sum(0)
        meeting.barrier.wait(MEET_S)
        vector.copy_(total)
        self.num_sums += 1


def group_of(size: int) -> list[Member]:
    meeting = _Meeting(threading.Barrier(size))
    return [Member(rank, size, meeting) for rank in range(size)]


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls give, each made in a thread of its own at the same time."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        return [future.result() for future in futures]
