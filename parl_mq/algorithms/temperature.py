"""The weight that soft algorithms give to entropy beside the reward, and how it is learned."""

from __future__ import annotations

from math import exp, log

import torch

from parl_mq.model.adam import Adam


class Temperature:
    """Learned on the host, where its gradient is known: no device is asked for it.

    Args:
        first: its value at the start, > 0.
        learning_rate: of its logarithm; None holds it.
        device: of `on_device`; None: the CPU.

    Attributes:
        on_device: [] the same value, always in the same memory.
    """

    def __init__(self, first: float, learning_rate: float | None, device: torch.device | None = None) -> None:
        self._log = torch.tensor([log(first)])
        self._is_learned = learning_rate is not None
        self._adam = Adam(self._log, learning_rate or 0.0)
        self.on_device = torch.empty((), device=device)
        self._take_over()

    @property
    def value(self) -> float:
        """Now."""
        return self._value

    def step(self, lack: float) -> None:
        """Grows where entropy is lacking, and falls where there is more than was asked for.

        Args:
            lack: mean of target entropy minus entropy, so that log temperature times -lack is the loss (Haarnoja et
                al. 2018, arXiv 1812.05905, eq. 18, with the logarithm in the place of the temperature).
        """
        if self._is_learned:
            self._adam.step(torch.tensor([-lack]))
            self._take_over()

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds of it; its steps are the trainer's."""
        return {
            "log_temperature": self._log,
            "log_temperature_mean": self._adam.mean_P,
            "log_temperature_square": self._adam.square_P,
        }

    def resume(self, num_steps: int) -> None:
        """Goes on from `tensors` that were overwritten."""
        self._adam.num_steps = num_steps
        self._take_over()

    def _take_over(self) -> None:
        """The value is always that of the logarithm: a run that goes on with a checkpoint has the same one."""
        self._value = exp(float(self._log))
        self.on_device.fill_(self._value)
