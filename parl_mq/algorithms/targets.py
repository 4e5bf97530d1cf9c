"""Formulas that several algorithms share, as plain functions.

Shape letters: B batch, A actions, N critics, P parameters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def importance_weights(probabilities_B: npt.NDArray[np.float64], num_live: int, beta: float) -> npt.NDArray[np.float32]:
    """(N P(i))^-beta over the largest of the batch (Schaul et al. 2016, section 3.4).

    Args:
        probabilities_B: P(i) of each drawn row, in [0, 1]; 0 marks a row that must not count.
        num_live: N, rows that the draw could have given.
        beta: in [0, 1]; 0 corrects nothing.

    Returns:
        [B] in (0, 1], and 0 where P(i) is 0.

    Raises:
        ValueError: a probability is NaN or outside [0, 1], or N < 1.
    """
    if num_live < 1 or not np.all((probabilities_B >= 0) & (probabilities_B <= 1)):
        raise ValueError(f"need num_live >= 1 and probabilities in [0, 1]; got {num_live} and {probabilities_B}")
    counts = probabilities_B > 0
    weights = np.zeros(len(probabilities_B))
    np.power(num_live * np.asarray(probabilities_B, np.float64), -beta, out=weights, where=counts)
    return (weights / (weights.max(initial=0.0) or 1.0)).astype(np.float32)


def double_values(q_online_BA: torch.Tensor, q_target_BA: torch.Tensor) -> torch.Tensor:
    """[B] the target network's value of the online network's choice (van Hasselt et al. 2016, eq. 4)."""
    return q_target_BA.gather(1, q_online_BA.argmax(1, keepdim=True)).squeeze(1)


def n_step_target(reward_B: torch.Tensor, discount_B: torch.Tensor, value_B: torch.Tensor) -> torch.Tensor:
    """[B] reward sum plus discounted value; the discount is gamma^k, and 0 behind a termination."""
    return torch.addcmul(reward_B, discount_B, value_B)


def huber_loss(magnitude_B: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32], delta: float) -> float:
    """Mean over the batch of weight times error^2 / 2, which goes on linearly from |error| = delta (Huber 1964)."""
    linear_B = np.minimum(magnitude_B, delta)
    return float(np.dot(weight_B, linear_B * (magnitude_B - linear_B / 2))) / len(magnitude_B)


def huber_gradient(error_B: torch.Tensor, weight_B: torch.Tensor, delta: float) -> torch.Tensor:
    """[B] the derivative of `huber_loss` with respect to each error."""
    return error_B.clamp(-delta, delta).mul_(weight_B).div_(len(error_B))


def clip_norm(gradient_P: torch.Tensor, norm: float, max_norm: float) -> None:
    """Scales a gradient of this Euclidean norm down to `max_norm`, in place."""
    if norm > max_norm:
        gradient_P.mul_(max_norm / norm)


def update_target(target_P: torch.Tensor, online_P: torch.Tensor, tau: float) -> None:
    """Moves the target by the share `tau` towards the online network, in place; 1 copies it exactly."""
    if tau == 1.0:
        target_P.copy_(online_P)
    else:
        target_P.lerp_(online_P, tau)


def squared_loss(error_NB: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32]) -> float:
    """Mean over the batch of weight times error^2 / 2, summed over the critics."""
    return float(np.dot(np.square(error_NB).sum(0), weight_B)) / (2 * len(weight_B))
