"""Written-out gradients of a perceptron and of a stack are autograd's; their parameters are one vector."""

from math import sqrt

import pytest
import torch

from parl_mq.model.networks import Mlp, MlpLayout, StackedMlp


def _mlp(sizes: tuple[int, ...], *, seed: int = 0) -> Mlp:
    layout = MlpLayout(sizes)
    return Mlp(layout, layout.initial(seed).double())


def _reference(parameters: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    values = inputs
    for layer in range(len(parameters) // 2):
        values = values @ parameters[f"{layer}.weight"].T + parameters[f"{layer}.bias"]
        values = values if layer == len(parameters) // 2 - 1 else values.clamp(min=0)
    return values


@pytest.mark.parametrize("sizes", [(3, 2), (3, 5, 2), (4, 16, 8, 3), (1, 1, 1)])
def test_forward_and_gradient_are_autograds(sizes: tuple[int, ...]) -> None:
    mlp = _mlp(sizes)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(7, sizes[0], generator=generator, dtype=torch.float64)
    output_gradient = torch.randn(7, sizes[-1], generator=generator, dtype=torch.float64)
    parameters = mlp.flat_P.clone().requires_grad_()
    expected = _reference(mlp.layout.named(parameters), inputs)
    expected.backward(output_gradient)

    gradient = Mlp(mlp.layout, torch.full_like(mlp.flat_P, torch.nan))
    activations = mlp.activations(inputs)
    torch.testing.assert_close(activations[-1], expected.detach())
    mlp.backward(activations, output_gradient, into=gradient)
    torch.testing.assert_close(gradient.flat_P, parameters.grad)


def test_network_sees_changes_of_its_vector() -> None:
    mlp = _mlp((2, 3, 1))
    mlp.flat_P.zero_()
    assert mlp(torch.ones(4, 2, dtype=torch.float64)).tolist() == [[0.0]] * 4


def test_named_parameters_are_views_that_cover_the_vector() -> None:
    layout = MlpLayout((2, 3, 1))
    named = layout.named(torch.arange(13.0))
    assert {name: part.tolist() for name, part in named.items()} == {
        "0.weight": [[0, 1], [2, 3], [4, 5]],
        "0.bias": [6, 7, 8],
        "1.weight": [[9, 10, 11]],
        "1.bias": [12],
    }


def test_first_weights_repeat_with_the_seed_alone() -> None:
    layout = MlpLayout((4, 64, 2))
    state = torch.get_rng_state()
    assert torch.equal(layout.initial(3), layout.initial(3))
    assert not torch.equal(layout.initial(3), layout.initial(4))
    assert torch.equal(torch.get_rng_state(), state)


def test_first_weights_fill_the_range_of_their_fan_in() -> None:
    for name, part in MlpLayout((4, 400, 100)).named(MlpLayout((4, 400, 100)).initial(0)).items():
        bound = 1 / sqrt(4 if name.startswith("0") else 400)
        assert 0.9 * bound < part.abs().max() <= bound
        assert abs(part.mean()) < 0.2 * bound


@pytest.mark.parametrize("num_networks", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(3, 2), (4, 5, 1), (4, 16, 8, 3)])
def test_stack_computes_what_its_networks_do_one_by_one(sizes: tuple[int, ...], num_networks: int) -> None:
    layout = MlpLayout(sizes, num_networks)
    stack = StackedMlp(layout, layout.initial(0).double())
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(7, sizes[0], generator=generator, dtype=torch.float64).requires_grad_()
    output_gradient = torch.randn(num_networks, 7, sizes[-1], generator=generator, dtype=torch.float64)
    parameters = stack.flat_P.clone().requires_grad_()
    named = layout.named(parameters)
    expected = torch.stack(
        [_reference({name: part[index] for name, part in named.items()}, inputs) for index in range(num_networks)]
    )
    expected.backward(output_gradient)

    gradient = StackedMlp(layout, torch.full_like(stack.flat_P, torch.nan))
    torch.testing.assert_close(stack(inputs.detach()), expected.detach())
    stack.backward(stack.activations(inputs.detach()), output_gradient, into=gradient)
    torch.testing.assert_close(gradient.flat_P, parameters.grad)
    by_inputs = stack.input_gradient(stack.activations(inputs.detach()), output_gradient, first_column=1)
    torch.testing.assert_close(by_inputs, inputs.grad[:, 1:])


def test_first_of_a_stack_shares_its_parameters() -> None:
    layout = MlpLayout((2, 3, 1), 2)
    stack = StackedMlp(layout, layout.initial(0))
    inputs = torch.ones(4, 2)
    first = stack.first()
    torch.testing.assert_close(first(inputs), stack(inputs)[:1])
    stack.flat_P.zero_()
    assert first(inputs).abs().max() == 0
