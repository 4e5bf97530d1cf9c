"""Observations of any structure: copied, compared, held against their space, and described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from parl_mq.spec import Space, TableSpec

MAX_SHOWN: Final = 60
"""Characters of a list of bounds that are shown."""


def described(spec: TableSpec, name: str) -> str:
    """A column's space, shape, dtype and bounds in words."""
    column, space = spec[name], spec.spaces[name]
    shape = f" {list(column.shape)}" if column.shape else ""
    return f"{space.kind}{shape} {column.dtype}, {_bounds(space)}"


def _bounds(space: Space) -> str:
    low, high = (", ".join(f"{value:.4g}" for value in values) for values in (space.low, space.high))
    if len(low) + len(high) > MAX_SHOWN:
        return f"{min(space.low):.4g} to {max(space.high):.4g}"
    return f"{low} to {high}" if len(space.low) == len(space.high) == 1 else f"[{low}] to [{high}]"


def mismatch(spec: TableSpec, obs: Any) -> str:
    """Why an observation is not in its space, as a sentence about `it` or about the first part that does not fit."""
    for name in spec.observation_names:
        part = name if "/" in name else "it"
        try:
            column, space, array = spec[name], spec.spaces[name], np.asarray(_leaf(obs, name))
        except (KeyError, IndexError, TypeError):
            return f"{part} is missing"
        if array.shape != column.shape:
            return f"{part} has the shape {list(array.shape)} instead of {list(column.shape)}"
        if array.dtype != column.dtype and space.kind != "Discrete":
            return f"{part} is {array.dtype} instead of {column.dtype} (parl_mq converts it)"
        if not np.isfinite(array).all():
            return f"{part} is not finite"
        low, high = np.reshape(space.low, -1), np.reshape(space.high, -1)
        outside = (array.ravel() < low) | (array.ravel() > high)
        if outside.any():
            place = int(np.flatnonzero(outside)[0])
            return f"element {place} of {part} is {array.ravel()[place]:.6g}, outside {_bounds(space)}"
    return f"its parts fit, but it is a {type(obs).__name__}"


def _leaf(obs: Any, column: str) -> Any:
    for part in column.split("/")[1:]:
        obs = obs[int(part)] if isinstance(obs, tuple) else obs[part]
    return obs


def copied(obs: Any) -> Any:
    """A deep copy; its leaves are arrays."""
    match obs:
        case dict():
            return {key: copied(value) for key, value in obs.items()}
        case tuple():
            return tuple(copied(value) for value in obs)
        case _:
            return np.array(obs)


def leaves_of(obs: Any) -> Iterator[Any]:
    """Its arrays and numbers, in its own order."""
    match obs:
        case dict():
            for value in obs.values():
                yield from leaves_of(value)
        case tuple():
            for value in obs:
                yield from leaves_of(value)
        case _:
            yield obs


def are_equal(one: Any, other: Any) -> bool:
    """Whether two observations of one structure hold the same values; NaN equals NaN."""
    pairs = list(zip(leaves_of(one), leaves_of(other), strict=True))
    return all(np.array_equal(mine, yours, equal_nan=np.asarray(mine).dtype.kind == "f") for mine, yours in pairs)


def share_memory(one: Any, other: Any) -> bool:
    """Whether a leaf of one lies in the memory of the same leaf of the other."""
    pairs = zip(leaves_of(one), leaves_of(other), strict=False)
    return any(
        isinstance(mine, np.ndarray) and isinstance(yours, np.ndarray) and np.shares_memory(mine, yours)
        for mine, yours in pairs
    )
