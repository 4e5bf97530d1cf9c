"""Gradients in one flat buffer, averaged over the learners of a group by one operation a step.

Each learner of a group has a part of the batch. Importance weights are relative to the largest of the *whole* batch,
which no learner knows before it computes. So each computes with weights relative to its own largest, the peak of its
part, and what it gives to the sum is multiplied by that peak; the peaks travel beside the gradients, and the mean is
divided by the largest of them. The gradient of a loss is linear in the weights: the result is that of the whole batch.

Shape letters: P parameters of one network or stack, S scalars, L learners at most.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

MAX_LEARNERS: Final = 64
"""Of one group."""


class Averaging(Protocol):
    """The group of a learner, as its trainer sees it."""

    @property
    def rank(self) -> int:
        """This learner's place among them, from 0."""

    @property
    def size(self) -> int:
        """Learners of the group, this one included."""

    def sum(self, vector: torch.Tensor) -> None:
        """Puts the sum over all learners in the place of each one's vector; waits for all of them.

        Raises:
            GroupBroken: a learner is gone. The vector's content is of no use then.
        """


class Alone:
    """The group of a learner that has no other."""

    rank = 0
    size = 1

    def sum(self, vector: torch.Tensor) -> None:
        """Leaves it as it is."""


class SharedGradients:
    """The gradients of one update, with scalars that belong to the same mean.

    Layout: [S] scalars, [L] peaks, then each part's [P]; an operation over all learners takes a prefix of it.

    Attributes:
        averaging: the group; alone until a learner joins one.
        parts: views, one vector for each network or stack, to be filled before `average`.
        scalars: [S] view, likewise: means over the batch, weighted like the gradient.
    """

    def __init__(self, *num_parameters: int, num_scalars: int, device: torch.device) -> None:
        self.averaging: Averaging = Alone()
        starts = list(accumulate(num_parameters, initial=num_scalars + MAX_LEARNERS))
        self._ends = starts[1:]
        self._flat = torch.zeros(starts[-1], device=device)
        self.scalars = self._flat[:num_scalars]
        self._peaks = self._flat[num_scalars : starts[0]]
        self.parts = [self._flat[start:end] for start, end in pairwise(starts)]

    def average(self, peak: float, *, num_parts: int | None = None) -> torch.Tensor:
        """Puts what one learner would have computed from the whole batch in the place of parts and scalars.

        Args:
            peak: what this learner's weights were divided by (TrainingBatch.weight_peak).
            num_parts: only the first ones; None: all.

        Returns:
            [S + parts] the scalars, and the norm of each part.

        Raises:
            GroupBroken: a learner is gone.
        """
        parts = self.parts[:num_parts]
        if self.averaging.size > 1:
            self._sum_with_others(peak, self._flat[: self._ends[len(parts) - 1]])
        return torch.cat((self.scalars, torch.stack([torch.linalg.vector_norm(part) for part in parts])))

    def _sum_with_others(self, peak: float, used: torch.Tensor) -> None:
        group = self.averaging
        used.mul_(peak)
        self._peaks.zero_()
        self._peaks[group.rank] = peak
        group.sum(used)
        used.div_(self._peaks.max() * group.size)

    def noise(self, rng: np.random.Generator, num_sets: int, batch_size: int, width: int) -> npt.NDArray[np.float32]:
        """[num_sets * batch_size, width] standard normal numbers for this learner's part of the batch.

        Every learner draws those of the whole batch and takes its own rows: so the generators of all of them stay
        equal, and the rows get what they would have got from one learner.
        """
        group = self.averaging
        whole = rng.standard_normal((num_sets, group.size, batch_size, width), np.float32)
        return whole[:, group.rank].reshape(num_sets * batch_size, width)
