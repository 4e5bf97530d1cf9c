"""Settings of SAC; torch-free."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from parl_mq.algorithms.spaces import BoxActions
from parl_mq.config.models import AlgorithmConfig
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.sizes import num_mlp_parameters
from parl_mq.spec import TableSpec


class SACConfig(AlgorithmConfig):
    """Soft actor-critic (Haarnoja et al. 2018) with a temperature that is learned, for Box actions.

    Attributes:
        learning_rate: of the critics, and of all else that has none of its own.
        actor_learning_rate: of the policy; None takes learning_rate.
        temperature_learning_rate: of the temperature's logarithm; None takes learning_rate.
        hidden_sizes: units of each hidden layer of the policy and of each critic.
        num_critics: critics, of which the smallest value counts.
        tau: share of the critics that their targets take at each update, in (0, 1].
        temperature: weight of the entropy beside the reward, at the start.
        learns_temperature: it is changed so that the entropy comes near target_entropy; else it stays.
        target_entropy: of an action in units from -1 to 1, in nats; None takes minus the number of its elements.
        random_until_updates: actors act uniformly at random until the weights have so many updates; 0: never.
    """

    name: str = "sac"
    learning_rate: PositiveFloat = 3e-4
    actor_learning_rate: PositiveFloat | None = None
    temperature_learning_rate: PositiveFloat | None = None
    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(max_length=16)] = (256, 256)
    num_critics: Annotated[int, Field(ge=1, le=64)] = 2
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    temperature: PositiveFloat = 1.0
    learns_temperature: bool = True
    target_entropy: float | None = None
    random_until_updates: NonNegativeInt = 1

    def check_spaces(self, spec: TableSpec) -> None:
        """See AlgorithmConfig: there must be one Box action with finite bounds."""
        BoxActions.of(spec, algorithm="sac")

    def num_parameters(self, spec: TableSpec) -> int:
        """See AlgorithmConfig; the policy's, which all processes hold."""
        return num_mlp_parameters(
            (ObservationEncoder(spec).num_features, *self.hidden_sizes, 2 * BoxActions.of(spec, algorithm="sac").size)
        )
