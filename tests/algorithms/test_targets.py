"""The shared formulas have their published values."""

import pytest
import torch
from torch.nn import functional

from parl_mq.algorithms.targets import (
    clip_norm,
    double_values,
    huber_gradient,
    huber_loss,
    n_step_target,
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


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_loss_and_gradient_are_torchs(delta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    error = torch.cat((torch.randn(62, generator=generator) * 2, torch.tensor([0.0, delta]))).requires_grad_()
    weight = torch.rand(64, generator=generator)
    expected = (functional.huber_loss(error, torch.zeros(64), reduction="none", delta=delta) * weight).mean()
    expected.backward()
    magnitudes = error.detach().abs().double().numpy()
    assert huber_loss(magnitudes, weight.numpy(), delta) == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(huber_gradient(error.detach(), weight, delta), error.grad)


def test_large_errors_keep_their_gradient() -> None:
    gradient = huber_gradient(torch.tensor([100.0, -100.0]), torch.ones(2), 1.0)
    assert gradient.tolist() == [0.5, -0.5]


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
