"""What trainers save and take back, as plain functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parl_mq.errors import SnapshotError
from parl_mq.model.networks import MlpLayout

Tensors = dict[str, torch.Tensor]


def named_parts(layout: MlpLayout, vectors: Mapping[str, torch.Tensor]) -> Tensors:
    """Views of vectors of one layout: `prefix.0.weight`, ..., by each vector's own prefix."""
    return {
        f"{prefix}.{name}": part for prefix, vector in vectors.items() for name, part in layout.named(vector).items()
    }


def copied(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Copies on the CPU, which later updates do not touch."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def put_back(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Overwrites a trainer's tensors by given ones, which parl_mq.model.weights.check_shapes has passed."""
    for name, tensor in own.items():
        tensor.copy_(given[name])


def count_in(values: Mapping[str, Any], name: str, *, what: str) -> int:
    """A count among the plain values of a state.

    Raises:
        SnapshotError: it is not there, or is none.
    """
    count = values.get(name)
    if not isinstance(count, int) or count < 0:
        raise SnapshotError(f"{what}: {name} is {count!r}, expected a count")
    return count


def generator_in(values: Mapping[str, Any], name: str, *, what: str) -> np.random.Generator:
    """The generator whose `bit_generator.state` stands among the plain values of a state.

    Raises:
        SnapshotError: it is not there, or damaged.
    """
    generator = np.random.default_rng()
    try:
        generator.bit_generator.state = values[name]
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        raise SnapshotError(f"{what}: {name} is no state of a random generator: {exc!r}") from exc
    return generator
