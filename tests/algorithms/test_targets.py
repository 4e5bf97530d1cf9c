"""The shared formulas have their published values."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from parl_mq.algorithms.targets import (
    clip_norm,
    double_values,
    huber_gradient,
    huber_loss,
    importance_weights,
    n_step_target,
    update_target,
)


def test_importance_weights_have_the_golden_values() -> None:
    scaled = np.array([1.0, 2.0, 3.0, 4.0]) ** 0.6
    probabilities = scaled / scaled.sum()
    np.testing.assert_allclose(probabilities, [0.148230, 0.224674, 0.286555, 0.340542], atol=1e-6)
    weights = importance_weights(probabilities, num_live=4, beta=0.4)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, [1, 0.846745, 0.768229, 0.716978], atol=1e-6)


def test_weights_are_relative_to_the_batch_and_so_free_of_its_size() -> None:
    probabilities = np.array([0.1, 0.2])
    np.testing.assert_allclose(
        importance_weights(probabilities, 10, 0.4), importance_weights(probabilities, 10_000, 0.4), rtol=1e-6
    )


@pytest.mark.parametrize(("probabilities", "beta"), [([0.3, 0.01], 0.0), ([0.25] * 4, 0.7), ([1.0], 1.0)])
def test_weights_are_exactly_one_where_nothing_is_to_correct(probabilities: list[float], beta: float) -> None:
    np.testing.assert_array_equal(importance_weights(np.array(probabilities), 4, beta), 1.0)


@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_rows_of_probability_zero_do_not_count(beta: float) -> None:
    weights = importance_weights(np.array([0.0, 0.5, 0.5]), 2, beta)
    np.testing.assert_array_equal(weights, [0, 1, 1])
    np.testing.assert_array_equal(importance_weights(np.zeros(2), 2, beta), 0)


@pytest.mark.parametrize(("probability", "num_live"), [(np.nan, 4), (-0.1, 4), (1.1, 4), (np.inf, 4), (0.5, 0)])
def test_impossible_probabilities_are_refused(probability: float, num_live: int) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        importance_weights(np.array([0.5, probability]), num_live, 0.4)


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
