"""What stands behind the last layer of a Q-network: dueling streams, quantiles, both or neither.

Shape letters: B batch, A actions, K quantiles, or 1 where only the mean is learned; H units, R outputs of the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.model.networks import MlpLayout
from parl_mq.model.sizes import q_network_sizes


@dataclass(frozen=True, slots=True)
class QHead:
    """How the R outputs of a network are read as values of actions.

    With dueling streams (Wang et al. 2016, eq. 9) the outputs are a state's value, then the advantage of each action
    over their mean, and each stream has a last hidden layer of its own: the two lie side by side in one layer of 2H
    units, whose links to the other stream's outputs are held at 0.

    Attributes:
        num_actions: A.
        num_values: K of each action.
        is_dueling: there are two streams.
    """

    num_actions: int
    num_values: int = 1
    is_dueling: bool = False

    def layout(self, num_features: int, hidden_sizes: tuple[int, ...]) -> MlpLayout:
        """Of the network in front; the last hidden size is each stream's."""
        sizes = q_network_sizes(
            num_features, hidden_sizes, self.num_actions, num_values=self.num_values, is_dueling=self.is_dueling
        )
        return MlpLayout(sizes)

    def cut_streams(self, layout: MlpLayout, vector_P: torch.Tensor) -> None:
        """Sets the links between streams to 0, of parameters or of their gradient."""
        if self.is_dueling and len(layout.sizes) > 2:
            weight_RH = layout.named(vector_P)[f"{len(layout.sizes) - 2}.weight"]
            half = layout.sizes[-2] // 2
            weight_RH[: self.num_values, half:].zero_()
            weight_RH[self.num_values :, :half].zero_()

    def values(self, output_BR: torch.Tensor) -> torch.Tensor:
        """[B, A, K]."""
        streams = output_BR.view(len(output_BR), -1, self.num_values)
        if not self.is_dueling:
            return streams
        advantage_BAK = streams[:, 1:]
        return advantage_BAK - advantage_BAK.mean(1, keepdim=True) + streams[:, :1]

    def backward(self, gradient_BAK: torch.Tensor) -> torch.Tensor:
        """[B, R] the derivative with respect to the outputs, from that with respect to the values."""
        if not self.is_dueling:
            return gradient_BAK.flatten(1)
        sum_B1K = gradient_BAK.sum(1, keepdim=True)
        return torch.cat((sum_B1K, gradient_BAK - sum_B1K / self.num_actions), 1).flatten(1)

    def best(self, output_BR: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """[B] the action of the largest mean; the first of equal ones. What all actions share need not be added."""
        streams = output_BR.reshape(len(output_BR), -1, self.num_values)
        best: npt.NDArray[np.int64] = streams[:, self.is_dueling :].mean(2).argmax(1)
        return best
