"""What a table's rows hold: names, shapes and dtypes of the columns, and the types that several layers share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf, prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import gymnasium

DTYPES: Final = frozenset(
    {
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    }
)
"""Every dtype that may be stored or sent; anything else is refused at both ends."""

MAX_DIMENSIONS: Final = 8
STEP_COLUMNS: Final = ("reward", "terminated", "truncated")

WireColumn = tuple[str, list[int], str]
WireSpace = tuple[str, list[float], list[float]]


class WeightsVersion(NamedTuple):
    """A version of the policy's weights; ordered, so that a restarted learner is never older.

    Attributes:
        generation: given by the hub to each learner epoch; grows by one at each.
        counter: publications within the generation, from 0.
    """

    generation: int
    counter: int


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: an array of `shape` and `dtype` in every row."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"column {self.name!r}: dtype {self.dtype!r} is not one of {sorted(DTYPES)}")
        if len(self.shape) > MAX_DIMENSIONS or any(size < 1 for size in self.shape):
            raise ValueError(f"column {self.name!r}: shape {self.shape} must have at most 8 sizes, each >= 1")

    @property
    def num_bytes(self) -> int:
        """Bytes that one row of this column takes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


MAX_BOUNDS: Final = 4096
"""Of one space that can be told to others, where they are not the same for all elements."""


@dataclass(frozen=True, slots=True)
class Space:
    """Which values a column of observations or actions may take.

    Attributes:
        kind: the gymnasium space it was read from: `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary`.
        low: smallest values, one for all elements or one for each, in C order; a Discrete's is its start.
        high: largest values, included.
    """

    kind: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def num_values(self) -> int:
        """Values of a Discrete space."""
        return int(self.high[0] - self.low[0]) + 1


Limits = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Smallest and largest values of a column, included."""


@lru_cache(maxsize=256)
def limits_of(space: Space | None, shape: tuple[int, ...]) -> Limits | None:
    """Smallest and largest values, each of this shape, of a space that counts its values; None of any other.

    Both are read-only: whoever asks for the same gets the same.
    """
    if space is None or space.kind not in ("Discrete", "MultiDiscrete"):
        return None
    low, high = (np.resize(np.array(bound, np.int64), shape) for bound in (space.low, space.high))
    low.flags.writeable = high.flags.writeable = False
    return low, high


@dataclass(frozen=True)
class TableSpec:
    """The columns of a table, in order: observations, action, reward, terminated, truncated, extra ones.

    An observation is the column `obs`, or several named `obs/KEY` where the space is a Dict or a Tuple;
    likewise `action`. `reward` is float32, `terminated` and `truncated` are bool, all of shape ().

    Attributes:
        columns: in the order in which rows are described everywhere.
        spaces: what the observation's and action's columns may hold, by name; empty where nobody has said.
    """

    columns: tuple[Column, ...]
    spaces: Mapping[str, Space] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"column names repeat: {names}")
        missing = [name for name in STEP_COLUMNS if name not in names]
        if missing or not self.observation_names or not self.action_names:
            raise ValueError(f"a table needs obs, action, {', '.join(STEP_COLUMNS)}; got {names}")

    @classmethod
    def of(cls, arrays: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]) -> TableSpec:
        """A spec from name -> (shape, dtype); the step columns are added where they are not named."""
        given = [Column(name, tuple(shape), np.dtype(dtype).name) for name, (shape, dtype) in arrays.items()]
        step = [
            Column(name, (), "float32" if name == "reward" else "bool") for name in STEP_COLUMNS if name not in arrays
        ]
        is_step_input = [_is_part_of(column.name, "obs") or _is_part_of(column.name, "action") for column in given]
        inputs = [column for column, is_input in zip(given, is_step_input, strict=True) if is_input]
        extras = [column for column, is_input in zip(given, is_step_input, strict=True) if not is_input]
        return cls(tuple(sorted(inputs, key=lambda column: not _is_part_of(column.name, "obs")) + step + extras))

    @classmethod
    def from_wire(cls, columns: Iterable[WireColumn], spaces: Mapping[str, WireSpace]) -> TableSpec:
        """The spec that `to_wire` of another one described.

        Raises:
            ValueError: it is none.
        """
        return cls(
            tuple(Column(name, tuple(shape), dtype) for name, shape, dtype in columns),
            {name: Space(kind, tuple(low), tuple(high)) for name, (kind, low, high) in spaces.items()},
        )

    def to_wire(self) -> tuple[list[WireColumn], dict[str, WireSpace]]:
        """Plain lists that describe columns and spaces, for messages and files."""
        columns = [(column.name, list(column.shape), column.dtype) for column in self.columns]
        spaces = {name: (space.kind, list(space.low), list(space.high)) for name, space in self.spaces.items()}
        return columns, spaces

    def extended(self, extra: Iterable[Column]) -> TableSpec:
        """This spec with an algorithm's extra columns behind its own."""
        return TableSpec((*self.columns, *extra), self.spaces)

    def stacked(self, depth: int) -> TableSpec:
        """What a policy sees of this: with `depth` > 1, the shape of each observation column starts with the frames."""
        columns = [
            Column(column.name, (depth, *column.shape), column.dtype)
            if depth > 1 and column.name in self.observation_names
            else column
            for column in self.columns
        ]
        return TableSpec(tuple(columns), self.spaces)

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the observation's columns."""
        return tuple(column.name for column in self.columns if _is_part_of(column.name, "obs"))

    @cached_property
    def action_names(self) -> tuple[str, ...]:
        """Names of the action's columns."""
        return tuple(column.name for column in self.columns if _is_part_of(column.name, "action"))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row's columns, without padding."""
        return sum(column.num_bytes for column in self.columns)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that two nodes compare before they exchange rows."""
        return hashlib.sha256(json.dumps(self.to_wire()).encode()).hexdigest()[:16]


def _is_part_of(name: str, group: str) -> bool:
    return name == group or name.startswith(group + "/")


def spec_of(env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]) -> TableSpec:
    """The table spec of an environment's (single) observation and action spaces.

    Raises:
        ValueError: a space is not made of Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple, or has more bounds
            than can be told.
    """
    observation = getattr(env, "single_observation_space", env.observation_space)
    action = getattr(env, "single_action_space", env.action_space)
    leaves = {**dict(_leaves("obs", observation)), **dict(_leaves("action", action))}
    columns = TableSpec.of({name: (space.shape or (), space.dtype or "") for name, space in leaves.items()})
    bounds = {name: _bounds(space) for name, space in leaves.items()}
    return TableSpec(columns.columns, {name: _tellable(columns[name], each) for name, each in bounds.items()})


def _tellable(column: Column, space: Space) -> Space:
    """The same, if it fits into a message; nobody reads the bounds of observations that are floats.

    Raises:
        ValueError: it has more bounds than can be told, and they are needed.
    """
    if len(space.low) <= MAX_BOUNDS and len(space.high) <= MAX_BOUNDS:
        return space
    if np.dtype(column.dtype).kind == "f" and _is_part_of(column.name, "obs"):
        return Space(space.kind, (-inf,), (inf,))
    raise ValueError(
        f"{column.name}: its bounds differ over {prod(column.shape):,} elements, and {MAX_BOUNDS:,} can be told; give "
        "all elements the same ones"
    )


def _leaves(name: str, space: gymnasium.Space[Any]) -> Iterable[tuple[str, gymnasium.Space[Any]]]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(f"{name}/{key}", inner)
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(f"{name}/{index}", inner)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        yield name, space
    else:
        raise ValueError(
            f"{name}: {type(space).__name__} is not supported; supported are Box, Discrete, MultiBinary, "
            "MultiDiscrete, and Dict and Tuple of them"
        )


def _bounds(space: gymnasium.Space[Any]) -> Space:
    from gymnasium import spaces

    match space:
        case spaces.Box():
            return Space("Box", _shortest(space.low), _shortest(space.high))
        case spaces.Discrete():
            return Space("Discrete", (float(space.start),), (float(space.start + space.n - 1),))
        case spaces.MultiDiscrete():
            return Space("MultiDiscrete", _shortest(space.start), _shortest(space.start + space.nvec - 1))
        case _:
            return Space("MultiBinary", (0.0,), (1.0,))


def _shortest(values: npt.NDArray[Any]) -> tuple[float, ...]:
    flat = np.unique(values)
    return tuple(float(value) for value in (flat if len(flat) == 1 else values.ravel()))
