"""Formulas that several algorithms share, as plain functions.

Shape letters: B batch, A actions, K quantiles, J of the target's, N critics, P parameters.
"""

from __future__ import annotations

import torch


def double_values(q_online_BA: torch.Tensor, q_target_BA: torch.Tensor) -> torch.Tensor:
    """[B] the target network's value of the online network's choice (van Hasselt et al. 2016, eq. 4)."""
    return q_target_BA.gather(1, q_online_BA.argmax(1, keepdim=True)).squeeze(1)


def n_step_target(reward_B: torch.Tensor, discount_B: torch.Tensor, value_B: torch.Tensor) -> torch.Tensor:
    """[B] reward sum plus discounted value; the discount is gamma^k, and 0 behind a termination."""
    return torch.addcmul(reward_B, discount_B, value_B)


def of_largest_mean(values_BAK: torch.Tensor, *, chosen_by: torch.Tensor) -> torch.Tensor:
    """[B, K] the values of the action whose mean is the largest in `chosen_by` [B, A, K]."""
    chosen_B1K = chosen_by.mean(2).argmax(1).view(-1, 1, 1).expand(-1, 1, values_BAK.shape[2])
    return values_BAK.gather(1, chosen_B1K).squeeze(1)


def huber(error_BK: torch.Tensor, delta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Error^2 / 2, which goes on linearly from |error| = delta (Huber 1964).

    Returns:
        [B] the loss, summed over K, and [B, K] its derivative with respect to each error.
    """
    slope_BK = error_BK.clamp(-delta, delta)
    return torch.sum(slope_BK * (error_BK - slope_BK / 2), 1), slope_BK


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


def squared_losses(error_NB: torch.Tensor) -> torch.Tensor:
    """[B] error^2 / 2, summed over the critics."""
    return error_NB.square().sum(0).div_(2)


def quantile_huber(
    quantile_BK: torch.Tensor, target_BJ: torch.Tensor, delta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantile regression with Huber's loss (Dabney et al. 2018, eq. 10).

    Args:
        quantile_BK: estimates of the quantiles at (2k + 1) / 2K.
        target_BJ: equally likely values that they are to describe.
        delta: error from which on the loss grows linearly.

    Returns:
        [B] the loss, a sum over K and a mean over J, and [B, K] its derivative with respect to each estimate.
    """
    num_quantiles = quantile_BK.shape[1]
    error_BKJ = target_BJ.unsqueeze(1) - quantile_BK.unsqueeze(2)
    level_K1 = (torch.arange(0.5, num_quantiles, device=quantile_BK.device) / num_quantiles).unsqueeze(1)
    share_BKJ = (level_K1 - (error_BKJ < 0).to(error_BKJ.dtype)).abs_() / delta
    clamped_BKJ = error_BKJ.clamp(-delta, delta)
    loss_BKJ = share_BKJ * clamped_BKJ * (error_BKJ - clamped_BKJ / 2)
    return loss_BKJ.mean(2).sum(1), (share_BKJ * clamped_BKJ).mean(2).neg_()
