"""Networks whose parameters lie in one flat vector.

One vector makes an optimizer step, a norm, a target update, a copy and an average over learners one operation each,
which at the usual sizes is most of their cost.

Under torch.autocast products and what lies between layers are bfloat16; inputs, outputs and gradients stay as they are.

Shape letters: B batch, F input features, N networks of a stack, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod, sqrt

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class MlpLayout:
    """Where the weights and biases of a multi-layer perceptron, or of a stack of them, lie in one flat vector.

    Attributes:
        sizes: units of the input, of each hidden layer, and of the output.
        num_networks: N perceptrons of these sizes, layer beside layer, for StackedMlp; None: a single one, for Mlp.
    """

    sizes: tuple[int, ...]
    num_networks: int | None = None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, in the vector's order: `0.weight` [out, in], `0.bias` [out], `1.weight`, ...

        Those of a stack have N in front.
        """
        leading = () if self.num_networks is None else (self.num_networks,)
        return {
            f"{layer}.{kind}": (*leading, *shape)
            for layer, (num_in, num_out) in enumerate(pairwise(self.sizes))
            for kind, shape in (("weight", (num_out, num_in)), ("bias", (num_out,)))
        }

    @cached_property
    def num_parameters(self) -> int:
        """P."""
        return sum(map(prod, self.shapes.values()))

    def named(self, flat_P: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of the vector, by name."""
        parts = torch.split(flat_P, [prod(shape) for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def initial(self, seed: int) -> torch.Tensor:
        """[P] float32 on the CPU: uniform within ±1/sqrt(fan-in), weights and biases, as torch.nn.Linear does.

        The same seed gives the same values whichever device they are for.
        """
        generator = torch.Generator().manual_seed(seed)
        flat_P = torch.empty(self.num_parameters)
        fan_in = 1
        for name, part in self.named(flat_P).items():
            fan_in = part.shape[-1] if name.endswith("weight") else fan_in  # a bias shares its weight's
            part.uniform_(-1 / sqrt(fan_in), 1 / sqrt(fan_in), generator=generator)
        return flat_P


class Mlp:
    """A perceptron with ReLU between its layers, on the parameters in `flat_P`, which it shares and does not copy.

    The gradient is written out instead of left to autograd, whose bookkeeping takes longer than the arithmetic for
    the networks used here: one update of a 64x64 network at B = 256 took 0.26 ms instead of 0.40 ms.
    """

    def __init__(self, layout: MlpLayout, flat_P: torch.Tensor) -> None:
        self.layout = layout
        self.flat_P = flat_P
        parts = list(layout.named(flat_P).values())
        self._layers = list(zip(parts[::2], parts[1::2], strict=True))

    def __call__(self, inputs_BF: torch.Tensor) -> torch.Tensor:
        """[B, outputs]."""
        return self.activations(inputs_BF)[-1]

    def activations(self, inputs_BF: torch.Tensor) -> list[torch.Tensor]:
        """What goes into each layer, and last the output."""
        activations = [inputs_BF]
        for weight, bias in self._layers[:-1]:
            activations.append(F.linear(activations[-1], weight, bias).relu_())
        activations.append(F.linear(activations[-1], *self._layers[-1]).to(inputs_BF.dtype))
        return activations

    def backward(self, activations: Sequence[torch.Tensor], output_gradient: torch.Tensor, into: Mlp) -> None:
        """Writes the gradient of a loss with respect to the parameters in the place of those of `into`.

        Args:
            activations: from `activations`.
            output_gradient: [B, outputs], of the loss with respect to the output.
            into: of the same layout.
        """
        upstream = output_gradient
        for layer in reversed(range(len(self._layers))):
            inputs, (weight_gradient, bias_gradient) = activations[layer], into._layers[layer]
            _product(torch.mm, upstream.t(), inputs, into=weight_gradient)
            torch.sum(upstream, 0, dtype=bias_gradient.dtype, out=bias_gradient)
            if layer:
                upstream = _behind_relu(torch.mm(upstream, self._layers[layer][0]), inputs)


class StackedMlp:
    """N perceptrons of one layout that see the same inputs, each layer as one batched product.

    Args:
        layout: with `num_networks`.
        flat_P: their parameters, which are shared and not copied.
    """

    def __init__(self, layout: MlpLayout, flat_P: torch.Tensor) -> None:
        self.layout = layout
        self.flat_P = flat_P
        parts = list(layout.named(flat_P).values())
        self._layers = list(zip(parts[::2], (bias.unsqueeze(1) for bias in parts[1::2]), strict=True))

    def __call__(self, inputs_BF: torch.Tensor) -> torch.Tensor:
        """[N, B, outputs]."""
        return self.activations(inputs_BF)[-1]

    def first(self) -> StackedMlp:
        """The first of them, a stack of one on the same parameters; it has no vector of its own."""
        first = object.__new__(StackedMlp)
        first._layers = [(weight[:1], bias[:1]) for weight, bias in self._layers]
        return first

    def activations(self, inputs_BF: torch.Tensor) -> list[torch.Tensor]:
        """What goes into each layer, [N, B, units] each, and last the output."""
        activations = [inputs_BF.expand(len(self._layers[0][0]), *inputs_BF.shape)]
        for layer, (weight, bias) in enumerate(self._layers):
            outputs = torch.baddbmm(bias, activations[-1], weight.transpose(1, 2))
            activations.append(outputs.relu_() if layer < len(self._layers) - 1 else outputs.to(inputs_BF.dtype))
        return activations

    def backward(self, activations: Sequence[torch.Tensor], output_gradient: torch.Tensor, into: StackedMlp) -> None:
        """Writes the gradient of a loss with respect to the parameters in the place of those of `into`.

        Args:
            activations: from `activations`.
            output_gradient: [N, B, outputs], of the loss with respect to the output.
            into: of the same layout.
        """
        upstream = output_gradient
        for layer in reversed(range(len(self._layers))):
            weight_gradient, bias_gradient = into._layers[layer]
            _product(torch.bmm, upstream.transpose(1, 2), activations[layer], into=weight_gradient)
            torch.sum(upstream, 1, keepdim=True, dtype=bias_gradient.dtype, out=bias_gradient)
            if layer:
                upstream = self._upstream(layer, activations, upstream)

    def input_gradient(
        self, activations: Sequence[torch.Tensor], output_gradient: torch.Tensor, *, first_column: int
    ) -> torch.Tensor:
        """The gradient of a loss with respect to the inputs from `first_column` on, [B, F - first_column].

        Args:
            activations: from `activations`.
            output_gradient: [N, B, outputs], of the loss with respect to the output.
            first_column: the inputs before it are not asked for.
        """
        upstream = output_gradient
        for layer in reversed(range(1, len(self._layers))):
            upstream = self._upstream(layer, activations, upstream)
        return torch.bmm(upstream, self._layers[0][0][..., first_column:]).sum(0, dtype=output_gradient.dtype)

    def _upstream(self, layer: int, activations: Sequence[torch.Tensor], upstream: torch.Tensor) -> torch.Tensor:
        return _behind_relu(torch.bmm(upstream, self._layers[layer][0]), activations[layer])


def _product(
    multiply: Callable[..., torch.Tensor], left: torch.Tensor, right: torch.Tensor, *, into: torch.Tensor
) -> None:
    """Writes a product; autocast, which chooses the precision of products, does not look at those with `out`."""
    if torch.is_autocast_enabled(into.device.type):
        into.copy_(multiply(left, right))
    else:
        multiply(left, right, out=into)


def _behind_relu(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The gradient where the ReLU's output is not 0, in place: one pass, where a product with a mask takes two."""
    masked: torch.Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)
    return masked
