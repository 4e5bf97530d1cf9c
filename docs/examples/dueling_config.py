"""Settings of the example algorithm, and the name under which a run finds it: `dueling_config:DUELING`.

Hub and replay nodes load this file too: it must not import torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from parl_mq.algorithms.registry import AlgorithmEntry
from parl_mq.config.models import AlgorithmConfig
from parl_mq.errors import ConfigError
from parl_mq.spec import TableSpec


class DuelingConfig(AlgorithmConfig):
    """Double Q-learning with a dueling network and Boltzmann exploration.

    Attributes:
        num_units: units of the hidden layer.
        tau: share of the online network that the target network takes at each update, in (0, 1].
        temperature: of the exploration at the ladder's first place, in units of reward.
        cooling: temperature at the ladder's last place over that at its first, in (0, 1].
    """

    name: str = "dueling_config:DUELING"
    num_units: PositiveInt = 64
    tau: Annotated[float, Field(gt=0, le=1)] = 0.01
    temperature: PositiveFloat = 0.3
    cooling: Annotated[float, Field(gt=0, le=1)] = 0.1

    def check_spaces(self, spec: TableSpec) -> None:
        """See AlgorithmConfig: the action must be Discrete and count from 0."""
        space = spec.spaces[spec.action_names[0]]
        if space.kind != "Discrete" or space.low != (0.0,):
            raise ConfigError(f"algorithm.name: dueling needs a Discrete action that counts from 0, not {space}")


DUELING = AlgorithmEntry(settings="dueling_config:DuelingConfig", algorithm="dueling:Dueling")
