"""From what callers pass to the columns of a table, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.replay.refusals import PrioritiesRefused
from parl_mq.spec import STEP_COLUMNS, TableSpec

Array = npt.NDArray[Any]
Value = Any
"""Of one column: an array, a NumPy scalar, a Python number, or a list; of several columns `NAME/KEY`: a dict by KEY."""

_ACCEPTED_KINDS: Final = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""By the kind of a column: kinds of numbers that lose nothing but digits in it."""


def checked(name: str, value: Value, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The value as an array that fits a column.

    Arrays must have the column's dtype: one of another dtype is a mistake that a cast would hide. Rewards are the
    exception, as environments give them in any float. Python numbers and lists must be of the column's kind.

    Raises:
        ValueError: its shape or dtype is wrong, or a whole number is too large for it.
    """
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: it must be {shape}")
    is_exact = hasattr(value, "dtype") and name != "reward"
    if (is_exact and array.dtype != dtype) or array.dtype.kind not in _ACCEPTED_KINDS[dtype.kind]:
        raise ValueError(f"{name} is {array.dtype}: it must be {dtype}")
    if array.dtype != dtype and dtype.kind in "iu" and array.size:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        for extreme in (int(array.min()), int(array.max())):
            if not least <= extreme <= most:
                raise ValueError(f"{name} is {extreme}: a {dtype} lies in [{least}, {most}]")
    return array


def magnitudes_of(name: str, value: Any) -> npt.NDArray[np.float64]:
    """What somebody gave as magnitudes, as a row of float64.

    Raises:
        PrioritiesRefused: they are not real numbers.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.ndim != 1:
        raise PrioritiesRefused(f"{name} is {array.dtype} {array.shape}: it must be a row of real numbers")
    return np.ascontiguousarray(array, np.float64)


def length_of(name: str, value: Value) -> int:
    """Rows of what has a leading axis, at least 1.

    Raises:
        ValueError: it has none.
    """
    try:
        length = len(value)
    except TypeError as exc:
        raise ValueError(f"{name} is {value!r}: it must have a leading axis") from exc
    if length == 0:
        raise ValueError(f"{name} is empty: there must be at least one step")
    return length


class StepValues:
    """The columns of a step by their roles: observation, and all others in the order action, step columns, extras.

    Attributes:
        observation_names: of the observation's columns.
        next_names: of the columns of a draw that hold the next observation.
        action_names: of the action's.
        extra_names: of those that are neither these nor step columns.
        step_names: of all but the observation's.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.observation_names = spec.observation_names
        self.next_names = tuple(f"next_{name}" for name in spec.observation_names)
        self.extra_names = tuple(
            column.name
            for column in spec.columns
            if column.name not in (*spec.observation_names, *spec.action_names, *STEP_COLUMNS)
        )
        self.action_names = spec.action_names
        self.step_names = (*spec.action_names, *STEP_COLUMNS, *self.extra_names)
        self._is_plain = self.step_names == ("action", *STEP_COLUMNS)

    def observation(self, value: Value) -> tuple[Value, ...]:
        """Values of the observation's columns.

        Raises:
            ValueError: keys are missing or unknown.
        """
        return _parts("obs", value, self.observation_names)

    def step(
        self, action: Value, reward: Value, terminated: Value, truncated: Value, extras: Mapping[str, Value]
    ) -> tuple[Value, ...]:
        """Values of the other columns.

        Raises:
            ValueError: extra columns or keys of the action are missing or unknown.
        """
        if self._is_plain and not extras:
            return action, reward, terminated, truncated
        if extras.keys() != set(self.extra_names):
            raise ValueError(f"the extra columns are {sorted(self.extra_names)}; got {sorted(extras)}")
        others = tuple(extras[name] for name in self.extra_names)
        return (*_parts("action", action, self.action_names), reward, terminated, truncated, *others)


def grouped(columns: Mapping[str, Array], group: str, names: tuple[str, ...]) -> Array | dict[str, Array]:
    """The inverse: one array, or a dict by KEY of the columns `group/KEY`."""
    if names == (group,):
        return columns[group]
    return {name.removeprefix(f"{group}/"): columns[name] for name in names}


def _parts(group: str, value: Value, names: tuple[str, ...]) -> tuple[Value, ...]:
    if names[0] == group:
        return (value,)
    keys = [name.removeprefix(f"{group}/") for name in names]
    if not isinstance(value, Mapping) or value.keys() != set(keys):
        raise ValueError(f"{group} must be a dict with the keys {sorted(keys)}")
    return tuple(value[key] for key in keys)
