"""Settings of DQN; torch-free."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from parl_mq.algorithms.spaces import DiscreteActions
from parl_mq.config.models import AlgorithmConfig
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.sizes import num_mlp_parameters, q_network_sizes
from parl_mq.spec import TableSpec


class DQNConfig(AlgorithmConfig):
    """Deep Q-learning (Mnih et al. 2015) with double targets, n-step returns and the exploration ladder of Ape-X.

    Attributes:
        double: the online network chooses the action that the target network values (van Hasselt et al. 2016).
        dueling: a state's value and the advantages of actions are computed apart (Wang et al. 2016); each then has the
            last of the hidden sizes for itself.
        num_quantiles: of each action's return, which are learned in the place of its mean (QR-DQN, Dabney et al. 2018);
            None learns the mean.
        hidden_sizes: units of each hidden layer; none makes Q linear in the observation.
        target_update_interval: updates between two updates of the target network.
        tau: share of the online network that such an update takes, in (0, 1]; 1 copies it.
        max_grad_norm: gradients with a larger Euclidean norm are scaled down to it.
        huber_delta: TD error from which on the loss grows linearly, in units of reward.
        epsilon: share of random actions at the ladder's first place, in [0, 1].
        epsilon_alpha: the place p in [0, 1] explores with epsilon^(1 + epsilon_alpha * p) (Horgan et al. 2018).
    """

    name: str = "dqn"
    double: bool = True
    dueling: bool = False
    num_quantiles: Annotated[int, Field(ge=1, le=1024)] | None = None
    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(max_length=16)] = (64, 64)
    target_update_interval: PositiveInt = 100
    tau: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_grad_norm: PositiveFloat = 10.0
    huber_delta: PositiveFloat = 1.0
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.4
    epsilon_alpha: NonNegativeFloat = 7.0

    def check_spaces(self, spec: TableSpec) -> None:
        """See AlgorithmConfig: there must be one Discrete action."""
        DiscreteActions.of(spec, algorithm="dqn")

    def num_parameters(self, spec: TableSpec) -> int:
        """See AlgorithmConfig."""
        sizes = q_network_sizes(
            ObservationEncoder(spec).num_features,
            self.hidden_sizes,
            DiscreteActions.of(spec, algorithm="dqn").num_actions,
            num_values=self.num_quantiles or 1,
            is_dueling=self.dueling,
        )
        return num_mlp_parameters(sizes)
