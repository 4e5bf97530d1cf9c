"""Heads read a network's outputs as they say, and their written-out gradient is autograd's."""

import numpy as np
import pytest
import torch

from parl_mq.model.heads import QHead

HEADS = [QHead(3), QHead(3, 4), QHead(3, 1, True), QHead(3, 4, True), QHead(1, 2, True)]


@pytest.mark.parametrize("head", HEADS)
def test_gradient_is_autograds(head: QHead) -> None:
    generator = torch.Generator().manual_seed(0)
    num_outputs = head.layout(5, (6,)).sizes[-1]
    output = torch.randn(7, num_outputs, generator=generator, dtype=torch.float64).requires_grad_()
    values = head.values(output)
    assert values.shape == (7, head.num_actions, head.num_values)
    upstream = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    values.backward(upstream)
    torch.testing.assert_close(head.backward(upstream), output.grad)


@pytest.mark.parametrize("head", HEADS)
def test_best_action_is_of_the_largest_mean(head: QHead) -> None:
    output = np.random.default_rng(0).normal(size=(100, head.layout(5, (6,)).sizes[-1])).astype(np.float32)
    expected = head.values(torch.from_numpy(output)).mean(2).argmax(1).numpy()
    np.testing.assert_array_equal(head.best(output), expected)


def test_dueling_value_is_that_of_the_state_and_advantages_have_no_mean() -> None:
    output = torch.tensor([[10.0, 1.0, 2.0, 6.0]])
    assert QHead(3, 1, True).values(output)[..., 0].tolist() == [[8.0, 9.0, 13.0]]


def test_each_stream_has_the_last_hidden_size_for_itself() -> None:
    assert QHead(3, 2, True).layout(5, (7, 6)).sizes == (5, 7, 12, 8)
    assert QHead(3, 2, True).layout(5, ()).sizes == (5, 8)
    assert QHead(3, 2).layout(5, (7, 6)).sizes == (5, 7, 6, 6)
