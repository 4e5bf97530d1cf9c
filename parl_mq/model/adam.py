"""Adam on one flat parameter vector (Kingma and Ba 2015, Algorithm 1).

torch.optim.Adam computes the same, but the first optimizer of a process imports torch._dynamo (0.9 s), and for small
networks its bookkeeping takes longer than the step.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import torch

BETA_1: Final = 0.9
BETA_2: Final = 0.999
EPS: Final = 1e-8


class Adam:
    """State of the optimizer for parameters [P].

    Attributes:
        mean_P: running mean of the gradients.
        square_P: running mean of their squares.
        num_steps: steps taken.
    """

    def __init__(self, parameters_P: torch.Tensor, learning_rate: float) -> None:
        self.mean_P = torch.zeros_like(parameters_P)
        self.square_P = torch.zeros_like(parameters_P)
        self.num_steps = 0
        self._parameters_P = parameters_P
        self._scratch_P = torch.empty_like(parameters_P)
        self._learning_rate = learning_rate

    def step(self, gradient_P: torch.Tensor) -> None:
        """Changes the parameters in place."""
        self.num_steps += 1
        correction_1, correction_2 = 1 - BETA_1**self.num_steps, sqrt(1 - BETA_2**self.num_steps)
        self.mean_P.lerp_(gradient_P, 1 - BETA_1)
        self.square_P.mul_(BETA_2).addcmul_(gradient_P, gradient_P, value=1 - BETA_2)
        # sqrt(square) / correction_2 + eps, times correction_2, which is taken back in the step's size: one pass less
        torch.sqrt(self.square_P, out=self._scratch_P).add_(EPS * correction_2)
        step_size = self._learning_rate * correction_2 / correction_1
        self._parameters_P.addcdiv_(self.mean_P, self._scratch_P, value=-step_size)
