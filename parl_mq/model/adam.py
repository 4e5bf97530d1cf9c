"""Adam on one flat parameter vector (Kingma and Ba 2015, Algorithm 1).

torch.optim.Adam(fused=True) computes the same by the same kernel, but the first optimizer of a process imports
torch._dynamo (0.9 s), and for small networks its bookkeeping takes longer than the step. The kernel has no public name:
pyproject.toml bounds torch, and the tests compare its steps with the paper's. Written out in seven passes over the
vectors, a step took 1.4 to 1.9 times as long.
"""

from __future__ import annotations

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
    """

    def __init__(self, parameters_P: torch.Tensor, learning_rate: float) -> None:
        self.mean_P = torch.zeros_like(parameters_P)
        self.square_P = torch.zeros_like(parameters_P)
        self._num_steps = torch.zeros((), device=parameters_P.device)  # where the kernel reads it: no transfer
        self._count = 0
        self._parameters_P = parameters_P
        self._learning_rate = learning_rate

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return self._count

    @num_steps.setter
    def num_steps(self, count: int) -> None:
        self._count = count
        self._num_steps.fill_(count)

    def step(self, gradient_P: torch.Tensor) -> None:
        """Changes the parameters in place."""
        self._count += 1
        self._num_steps += 1
        torch._fused_adam_(
            [self._parameters_P],
            [gradient_P],
            [self.mean_P],
            [self.square_P],
            [],
            [self._num_steps],
            lr=self._learning_rate,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )
