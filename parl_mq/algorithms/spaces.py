"""Actions as the environment counts and scales them, and as networks do; torch-free.

What an environment receives and what the replay stores is in the environment's own scale, exploring and random actions
included. Only here it becomes indices from 0, or units from -1 to 1.

Shape letters: B batch, M environments, A elements of a Box action.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.errors import ConfigError
from parl_mq.spec import TableSpec

Array = npt.NDArray[np.generic]
Units = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DiscreteActions:
    """A Discrete action space: actions in the environment's numbering and dtype, and indices from 0."""

    start: int
    num_actions: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, spec: TableSpec, *, algorithm: str) -> DiscreteActions:
        """The action space of an environment.

        Raises:
            ConfigError: it is not one Discrete action; the message names the algorithm.
        """
        kinds = _kinds(spec)
        if list(kinds.values()) != ["Discrete"]:
            raise ConfigError(f"algorithm.name: {algorithm} needs one Discrete action; the environment has {kinds}")
        name = spec.action_names[0]
        space = spec.spaces[name]
        return cls(int(space.low[0]), space.num_values, np.dtype(spec[name].dtype))

    def to_indices(self, action_B: Array) -> npt.NDArray[np.int64]:
        """[B] from 0.

        Raises:
            ValueError: an action lies outside its space.
        """
        index_B = action_B.astype(np.int64) - self.start
        if index_B.size and index_B.view(np.uint64).max() >= self.num_actions:  # a negative one is huge as uint64
            raise ValueError(
                f"an action lies outside {self.start}..{self.start + self.num_actions - 1}: "
                f"{action_B.min()}..{action_B.max()}"
            )
        return index_B

    def from_indices(self, index_M: npt.NDArray[np.int64]) -> Array:
        """[M] as the environment counts them."""
        return (index_M + self.start).astype(self.dtype)


@dataclass(frozen=True)
class BoxActions:
    """A finite Box of float actions: each element has bounds of its own, which are -1 and 1 in units.

    Attributes:
        low: [A] in the environment's dtype and scale.
        high: the same.
        shape: of one action.
    """

    low: npt.NDArray[np.floating[Any]]
    high: npt.NDArray[np.floating[Any]]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, spec: TableSpec, *, algorithm: str) -> BoxActions:
        """The action space of an environment.

        Raises:
            ConfigError: it is not one Box of floats between finite bounds; the message names the algorithm.
        """
        kinds = _kinds(spec)
        wanted = f"algorithm.name: {algorithm} needs one Box action of floats with finite bounds"
        if list(kinds.values()) != ["Box"] or np.dtype(spec[spec.action_names[0]].dtype).kind != "f":
            dtypes = {name: spec[name].dtype for name in spec.action_names}
            raise ConfigError(f"{wanted}; the environment has {kinds} of {dtypes}")
        column, space = spec[spec.action_names[0]], spec.spaces[spec.action_names[0]]
        size = prod(column.shape)
        low, high = (np.resize(np.array(bound, column.dtype), size) for bound in (space.low, space.high))
        if not np.all(np.isfinite(low) & np.isfinite(high) & (low < high)):
            place = int(np.argmin(np.isfinite(low) & np.isfinite(high) & (low < high)))
            raise ConfigError(f"{wanted}, low < high; its element {place} lies in [{low[place]}, {high[place]}]")
        return cls(low, high, column.shape)

    @property
    def size(self) -> int:
        """A."""
        return len(self.low)

    @cached_property
    def log_scale(self) -> float:
        """Log of the volume that one unit of volume has in the environment's scale.

        A density over units is the density over the environment's actions times exp of this.
        """
        return float(np.log(self._half.astype(np.float64)).sum())

    def to_units(self, action_B: Array) -> Units:
        """[B, A] from actions [B, *shape] in the environment's scale; those outside the bounds are beyond ±1."""
        flat: npt.NDArray[Any] = action_B.reshape(len(action_B), -1)
        units: Units = ((flat - self._middle) / self._half).astype(np.float32)
        return units

    def from_units(self, unit_MA: Units) -> Array:
        """[M, *shape] in the environment's scale and dtype, never outside the bounds: units beyond ±1 are cut."""
        action: Array = np.clip(unit_MA * self._half + self._middle, self.low, self.high)
        return action.astype(self.low.dtype, copy=False).reshape(len(unit_MA), *self.shape)

    def random_units(self, num_envs: int, rng: np.random.Generator) -> Units:
        """[M, A] uniform."""
        return 2 * rng.random((num_envs, self.size), dtype=np.float32) - 1

    @cached_property
    def _middle(self) -> npt.NDArray[np.floating[Any]]:
        return self.low / 2 + self.high / 2  # their sum or difference may be too large a number

    @cached_property
    def _half(self) -> npt.NDArray[np.floating[Any]]:
        return self.high / 2 - self.low / 2


def _kinds(spec: TableSpec) -> dict[str, str]:
    return {name: space.kind if (space := spec.spaces.get(name)) else "unknown" for name in spec.action_names}
