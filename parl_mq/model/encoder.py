"""Turns observations of any supported space into rows of float32 features; torch-free.

Shape letters: B rows, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.spec import Column, Space, TableSpec

Features = npt.NDArray[np.float32]
Array = npt.NDArray[np.generic]

WIDE_BYTES: Final = 4
"""Of integers whose extremes are no bounds."""


class ObservationEncoder:
    """Features of an observation: its columns, each flattened, side by side in the spec's order.

    A float column is taken as it is, an integer Box with bounds is scaled to [0, 1], and a Discrete or MultiDiscrete
    becomes one unit vector for each of its values' ranges. The extremes of a type of 32 or 64 bits are no bounds: they
    are what gymnasium makes of infinity, and of a range like that nothing would be left in float32.
    """

    def __init__(self, spec: TableSpec) -> None:
        """For observations as `spec` has them: with frame stacks, each column's shape starts with the frames."""
        parts = [_part(spec[name], spec.spaces.get(name)) for name in spec.observation_names]
        ends = np.cumsum([part.num_features for part in parts]).tolist()
        self._parts = [(part, slice(end - part.num_features, end)) for part, end in zip(parts, ends, strict=True)]
        self.num_features: int = ends[-1]

    def encode(self, obs: Array | Mapping[str, Array], out: Features | None = None) -> Features:
        """[B, F]; a new array, unless `out` is given or a single float32 column needs no change.

        Raises:
            ValueError: an observation's shape is not the spec's.
        """
        columns = {"": obs} if isinstance(obs, np.ndarray) else obs
        rows = [self._rows_of(part, columns) for part, _ in self._parts]
        if out is None and len(rows) == 1 and isinstance(self._parts[0][0], _Plain):
            return rows[0].astype(np.float32, copy=False)
        features = np.empty((len(rows[0]), self.num_features), np.float32) if out is None else out
        for (part, place), values in zip(self._parts, rows, strict=True):
            part.write(values, features[:, place])
        return features

    @staticmethod
    def _rows_of(part: _Part, columns: Mapping[str, Array]) -> Array:
        if (values := columns.get(part.key)) is None or values.shape[1:] != part.shape:
            found = None if values is None else values.shape
            raise ValueError(f"obs {part.key!r}: got shape {found}, expected (rows, *{part.shape})")
        return values.reshape(len(values), -1)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Values as they are."""

    key: str
    shape: tuple[int, ...]
    num_features: int

    def write(self, values: Array, out: Features) -> None:
        np.copyto(out, values, casting="unsafe")


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Values from `low` to `low + range`, mapped to [0, 1]."""

    key: str
    shape: tuple[int, ...]
    num_features: int
    low: npt.NDArray[np.float32]
    range: npt.NDArray[np.float32]

    def write(self, values: Array, out: Features) -> None:
        np.subtract(values, self.low, out=out, casting="unsafe")
        np.divide(out, self.range, out=out)


@dataclass(frozen=True, slots=True)
class _OneHot:
    """Whole numbers from `low` to `high`, each as a unit vector that starts at its `offset`."""

    key: str
    shape: tuple[int, ...]
    num_features: int
    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]

    def write(self, values: Array, out: Features) -> None:
        whole = values.astype(np.int64)
        if np.any((whole < self.low) | (whole > self.high)):
            raise ValueError(f"obs {self.key!r}: a value lies outside its space")
        out.fill(0.0)
        np.put_along_axis(out, whole - self.low + self.offset, np.float32(1.0), axis=1)


_Part = _Plain | _Scaled | _OneHot


def _part(column: Column, space: Space | None) -> _Part:
    key, size = column.name.removeprefix("obs").removeprefix("/"), prod(column.shape)
    if space is None or space.kind == "MultiBinary" or (space.kind == "Box" and not _is_bounded_integer(column, space)):
        return _Plain(key, column.shape, size)
    low, high = (np.resize(bound, size) for bound in (space.low, space.high))  # repeats the bounds for each frame
    if space.kind == "Box":
        return _Scaled(key, column.shape, size, low.astype(np.float32), np.maximum(high - low, 1).astype(np.float32))
    low, high = low.astype(np.int64), high.astype(np.int64)
    ends = np.cumsum(high - low + 1)
    return _OneHot(key, column.shape, int(ends[-1]), low, high, ends - (high - low + 1))


def _is_bounded_integer(column: Column, space: Space) -> bool:
    dtype = np.dtype(column.dtype)
    if dtype.kind not in "iu" or dtype.itemsize < WIDE_BYTES:
        return dtype.kind in "iu"
    lowest, highest = (float(bound) for bound in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    return (dtype.kind == "u" or min(space.low) > lowest) and max(space.high) < highest
