"""Folds the steps of one stream into rows of up to n steps, as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class FoldedStep:
    """A step and those that were folded into it.

    Attributes:
        first: values of the columns at the first step, observation included.
        reward: discounted sum so far.
        span: steps so far.
        magnitude: given for the first step, or None.
    """

    first: Mapping[str, Any]
    reward: float
    span: int
    magnitude: float | None


class StepWindow:
    """The newest steps of one stream, each waiting for the n - 1 that follow it, or for the episode's end."""

    def __init__(self, n_step: int, gamma: float) -> None:
        self._n_step = n_step
        self._gamma = gamma
        self._waiting: deque[FoldedStep] = deque()

    def add(self, first: Mapping[str, Any], reward: float, magnitude: float | None, is_end: bool) -> list[FoldedStep]:
        """Takes one step; returns the windows that it completes, the oldest first.

        Args:
            first: values of the step's columns; kept.
            reward: of the step.
            magnitude: of the step, or None.
            is_end: the episode ends with it, so that all windows are complete.
        """
        for waiting in self._waiting:
            waiting.reward += self._gamma**waiting.span * reward
            waiting.span += 1
        self._waiting.append(FoldedStep(first, reward, 1, magnitude))
        if is_end:
            complete = list(self._waiting)
            self._waiting.clear()
            return complete
        return [self._waiting.popleft()] if len(self._waiting) == self._n_step else []
