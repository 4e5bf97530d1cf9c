"""The Gaussian squashed by tanh, of which SAC's actions come (Haarnoja et al. 2018, appendix C).

An action is tanh(mean + std * noise), in units from -1 to 1. Its density is the one over these units: to have it over
actions in an environment's own scale, take the log of that scale away (BoxActions.log_scale).

Shape letters: B batch, A elements of an action.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Final

import torch
import torch.nn.functional as F

LOG_STD_MIN: Final = -20.0
LOG_STD_MAX: Final = 2.0
"""The published bounds: beyond them tanh(u) is constant to the last bit, or the same as uniform on {-1, 1}."""


@dataclass(frozen=True, slots=True)
class SquashedSample:
    """Actions drawn with noise that is kept, so that they can be differentiated.

    Attributes:
        action: [B, A] in units, within [-1, 1].
        log_prob: [B] log density.
        spread: [B, A] std * noise.
        is_bounded: [B, A] bool, whether log std was within its bounds, where alone it has a gradient.
    """

    action: torch.Tensor
    log_prob: torch.Tensor
    spread: torch.Tensor
    is_bounded: torch.Tensor


def squashed_sample(head: torch.Tensor, noise_BA: torch.Tensor) -> SquashedSample:
    """Draws actions.

    Args:
        head: [B, 2A] means, then logs of standard deviations, as a network gives them.
        noise_BA: standard normal.
    """
    mean_BA, raw_BA = head.chunk(2, 1)
    log_std_BA = raw_BA.clamp(LOG_STD_MIN, LOG_STD_MAX)
    spread_BA = log_std_BA.exp().mul_(noise_BA)
    raw_action_BA = mean_BA + spread_BA
    # log(1 - tanh(u)^2), in the form that neither overflows nor cancels: 2 (log 2 - u - softplus(-2u))
    log_slope_BA = raw_action_BA.add(F.softplus(-2 * raw_action_BA)).neg_().add_(log(2)).mul_(2)
    log_prob_BA = noise_BA.square().mul_(-0.5).sub_(log_std_BA).sub_(log_slope_BA).sub_(log(2 * pi) / 2)
    return SquashedSample(raw_action_BA.tanh_(), log_prob_BA.sum(1), spread_BA, log_std_BA == raw_BA)


def squashed_gradient(
    sample: SquashedSample, *, by_action_BA: torch.Tensor, by_log_prob_B: torch.Tensor
) -> torch.Tensor:
    """[B, 2A] the derivative of a loss with respect to the head, with the noise held fixed.

    Args:
        sample: from `squashed_sample`.
        by_action_BA: the loss's derivative with respect to each action.
        by_log_prob_B: the same with respect to each log density.
    """
    action_BA, by_log_prob_B1 = sample.action, by_log_prob_B.unsqueeze(1)
    by_raw_action_BA = 2 * by_log_prob_B1 * action_BA + by_action_BA * (1 - action_BA.square())
    by_log_std_BA = (by_raw_action_BA * sample.spread - by_log_prob_B1) * sample.is_bounded
    return torch.cat((by_raw_action_BA, by_log_std_BA), 1)
