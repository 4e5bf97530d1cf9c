"""The network that a policy acts with, and how its weights travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from parl_mq.algorithms.base import Observation
from parl_mq.model.acting import Matrix, NumpyMlp
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.networks import Mlp, MlpLayout
from parl_mq.model.weights import check_shapes

NUM_UPDATES: Final = "num_updates"
"""The learner's updates travel with the weights: a policy is to know whether anything has been learned."""


def acting_weights(network: Mlp, num_updates: int) -> dict[str, torch.Tensor]:
    """What ActingNetwork takes: parameters on the CPU and the updates in them; later updates do not touch them."""
    parameters = network.layout.named(network.flat_P.to("cpu", copy=True))
    return {**parameters, NUM_UPDATES: torch.tensor(num_updates)}


class ActingNetwork:
    """What a policy computes its actions with.

    Args:
        layout: of the network.
        encoder: of the observations.
        random_until_updates: weights with fewer updates ask for random actions.
        what: the weights' name in errors.

    Attributes:
        is_random: the policy is to act at random with the weights that there are.
    """

    def __init__(self, layout: MlpLayout, encoder: ObservationEncoder, *, random_until_updates: int, what: str) -> None:
        self.is_random = False
        self._encoder = encoder
        self._random_until_updates = random_until_updates
        self._what = what
        self._expected = {**layout.named(torch.empty(layout.num_parameters)), NUM_UPDATES: torch.tensor(0)}
        self._network: NumpyMlp | None = None

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Computes with a copy of these from now on.

        Raises:
            SnapshotError: they belong to another network. Those that there are stay.
        """
        check_shapes(self._expected, weights, what=self._what)
        self._network = NumpyMlp({name: tensor for name, tensor in weights.items() if name != NUM_UPDATES})
        self.is_random = int(weights[NUM_UPDATES]) < self._random_until_updates

    def __call__(self, obs: Observation) -> Matrix:
        """[M, outputs].

        Raises:
            ValueError: no weights have been loaded, or `obs` is not rows of the spec.
        """
        if self._network is None:
            raise ValueError("the policy has no weights yet: call load_weights first")
        return self._network(self._encoder.encode(obs))
