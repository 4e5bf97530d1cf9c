"""Sizes of networks, for those that need no network; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def num_mlp_parameters(sizes: Sequence[int]) -> int:
    """Weights and biases of a perceptron with these units: of the input, each hidden layer, and the output."""
    return sum((num_in + 1) * num_out for num_in, num_out in pairwise(sizes))


def q_network_sizes(
    num_features: int, hidden_sizes: Sequence[int], num_actions: int, *, num_values: int = 1, is_dueling: bool = False
) -> tuple[int, ...]:
    """Units of the perceptron in front of a parl_mq.model.heads.QHead; each dueling stream has the last hidden size."""
    *body, last = (num_features, *hidden_sizes)
    if hidden_sizes and is_dueling:
        last *= 2
    return (*body, last, (is_dueling + num_actions) * num_values)
