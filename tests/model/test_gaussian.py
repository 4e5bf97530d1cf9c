"""The squashed Gaussian's density is that of its samples, and its written-out gradient is autograd's."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from parl_mq.algorithms.spaces import BoxActions
from parl_mq.model.gaussian import SquashedSample, squashed_gradient, squashed_sample
from tests.algorithms.batches import box_spec


def _head(num_rows: int = 50, *, scale: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = scale * torch.randn(num_rows, 6, generator=generator, dtype=torch.float64)
    return head, torch.randn(num_rows, 3, generator=generator, dtype=torch.float64)


def test_actions_and_densities_are_torchs() -> None:
    head, noise = _head()
    mean, log_std = head.chunk(2, 1)
    std = log_std.clamp(-20, 2).exp()
    transform = TanhTransform(cache_size=1)
    squashed = TransformedDistribution(Independent(Normal(mean, std), 1), transform)
    action = transform(mean + std * noise)
    sample = squashed_sample(head, noise)
    torch.testing.assert_close(sample.action, action)
    torch.testing.assert_close(sample.log_prob, squashed.log_prob(action))


def test_gradient_is_autograds_even_beyond_the_bounds_of_the_deviation() -> None:
    head, noise = _head()
    head[:10, 3:] = 5.0
    head[10:20, 3:] = -25.0
    head.requires_grad_()
    by_action, by_log_prob = torch.randn_like(noise), torch.randn(len(noise), dtype=torch.float64)
    mean, log_std = head.chunk(2, 1)
    log_std = log_std.clamp(-20, 2)
    raw = mean + log_std.exp() * noise
    log_prob = (Normal(0, 1).log_prob(noise) - log_std - torch.log1p(-raw.tanh().square())).sum(1)
    (raw.tanh() * by_action).sum().add((log_prob * by_log_prob).sum()).backward()
    sample = squashed_sample(head.detach(), noise)
    gradient = squashed_gradient(sample, by_action_BA=by_action, by_log_prob_B=by_log_prob)
    torch.testing.assert_close(gradient, head.grad, rtol=1e-5, atol=1e-6)


def test_densities_of_saturated_actions_are_finite_in_single_precision() -> None:
    head = torch.tensor([[40.0, -40.0, 0.0, 2.0, 2.0, 50.0]])
    sample = squashed_sample(head, torch.tensor([[3.0, -3.0, 8.0]]))
    assert sample.action.abs().max() <= 1
    assert sample.log_prob.isfinite().all()
    by_head = squashed_gradient(sample, by_action_BA=torch.ones(1, 3), by_log_prob_B=torch.ones(1))
    assert by_head.isfinite().all()


def test_density_integrates_to_one_over_units_and_over_the_environments_box() -> None:
    low, high = np.array([-2.0]), np.array([6.0])
    actions = BoxActions.of(box_spec(low, high, dtype="float64"), algorithm="test")
    noise = torch.linspace(-6, 6, 200_001, dtype=torch.float64).unsqueeze(1)
    sample: SquashedSample = squashed_sample(
        torch.tensor([[0.4, -0.7]], dtype=torch.float64).expand(len(noise), 2), noise
    )
    density = sample.log_prob.exp().numpy()
    units = sample.action[:, 0].numpy()
    in_box = units * 4 + 2
    assert np.trapezoid(density, units) == pytest.approx(1, abs=1e-6)
    assert np.trapezoid(density / np.exp(actions.log_scale), in_box) == pytest.approx(1, abs=1e-6)
    assert actions.log_scale == pytest.approx(np.log(4))
