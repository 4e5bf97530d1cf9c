"""The shared formulas have their published values."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from parl_mq.algorithms.targets import (
    clip_norm,
    double_values,
    huber,
    n_step_target,
    of_largest_mean,
    quantile_huber,
    squared_losses,
    update_target,
)


def test_target_discounts_the_value_of_each_row() -> None:
    target = n_step_target(
        torch.tensor([1.0, 5.0, 8.5]), torch.tensor([0.9, 0.0, 0.81]), torch.tensor([10.0, 7.0, 2.0])
    )
    torch.testing.assert_close(target, torch.tensor([10.0, 5.0, 10.12]))


def test_double_value_is_the_targets_of_the_onlines_choice() -> None:
    q_online, q_target = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[9.0, 4.0], [5.0, 8.0]])
    assert double_values(q_online, q_target).tolist() == [4.0, 5.0]


def test_values_are_those_of_the_action_with_the_largest_mean() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    chooser = torch.tensor([[[9.0, 0.0], [4.0, 4.0]], [[0.0, 1.0], [0.0, 2.0]]])
    assert of_largest_mean(values, chosen_by=chooser).tolist() == [[1.0, 2.0], [7.0, 8.0]]


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_loss_and_gradient_are_torchs(delta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    error = torch.cat((torch.randn(62, generator=generator) * 2, torch.tensor([0.0, delta]))).requires_grad_()
    expected = functional.huber_loss(error, torch.zeros(64), reduction="none", delta=delta)
    expected.sum().backward()
    loss, slope = huber(error.detach().view(32, 2), delta)
    torch.testing.assert_close(loss, expected.detach().view(32, 2).sum(1))
    torch.testing.assert_close(slope.flatten(), error.grad)


def test_large_errors_keep_their_gradient() -> None:
    assert huber(torch.tensor([[100.0], [-100.0]]), 1.0)[1].tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_quantile_loss_is_the_papers_pair_by_pair_and_its_gradient_autograds(delta: float) -> None:
    rng = np.random.default_rng(0)
    quantiles, targets = rng.normal(size=(4, 5)), rng.normal(size=(4, 3))
    expected = np.zeros(4)
    for row, (estimates, values) in enumerate(zip(quantiles, targets, strict=True)):
        for index, estimate in enumerate(estimates):
            level = (2 * index + 1) / 10
            for value in values:
                error = value - estimate
                size = abs(error)
                loss = error**2 / 2 if size <= delta else delta * (size - delta / 2)
                expected[row] += abs(level - (error < 0)) * loss / delta / len(values)
    estimates = torch.from_numpy(quantiles).requires_grad_()
    loss, slope = quantile_huber(estimates, torch.from_numpy(targets), delta)
    np.testing.assert_allclose(loss.detach(), expected)
    loss.sum().backward()
    torch.testing.assert_close(slope.detach(), estimates.grad)


@pytest.mark.parametrize("num_quantiles", [1, 4])
def test_quantile_loss_settles_at_the_quantiles(num_quantiles: int) -> None:
    samples = torch.arange(1.0, 101.0).unsqueeze(0)
    quantiles = torch.zeros(1, num_quantiles)
    for _ in range(4_000):
        quantiles -= 0.5 * quantile_huber(quantiles, samples, 0.01)[1]
    levels = (2 * np.arange(num_quantiles) + 1) / (2 * num_quantiles)
    np.testing.assert_allclose(quantiles[0], 100 * levels, atol=1)


def test_squared_losses_are_summed_over_critics() -> None:
    error = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    torch.testing.assert_close(squared_losses(error), torch.tensor([(1 + 9) / 2, (4 + 0) / 2]))


@pytest.mark.parametrize(("max_norm", "expected"), [(10.0, [3.0, 4.0]), (5.0, [3.0, 4.0]), (1.0, [0.6, 0.8])])
def test_gradients_are_scaled_down_but_never_up(max_norm: float, expected: list[float]) -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip_norm(gradient, 5.0, max_norm)
    torch.testing.assert_close(gradient, torch.tensor(expected))


def test_target_moves_by_tau_and_is_copied_exactly_by_one() -> None:
    target, online = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.1])
    update_target(target, online, 0.25)
    torch.testing.assert_close(target, torch.tensor([0.25, 0.775]))
    update_target(target, online, 1.0)
    assert torch.equal(target, online)
