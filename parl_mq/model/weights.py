"""Tensors by name to safetensors bytes and back. No pickle: reading cannot run code."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from parl_mq.errors import SnapshotError


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The tensors as one safetensors file. Equal tensors give equal bytes.

    Raises:
        ValueError: two of them share memory, or one is not contiguous.
    """
    try:
        return save(dict(sorted(tensors.items())))
    except RuntimeError as exc:
        raise ValueError(f"these tensors cannot be packed: {exc}") from exc


def unpack(payload: bytes) -> dict[str, torch.Tensor]:
    """The tensors that `pack` was given, on the CPU, in memory of their own.

    Raises:
        SnapshotError: the bytes are damaged.
    """
    try:
        return load(payload)
    except (SafetensorError, KeyError, RuntimeError) as exc:
        raise SnapshotError(f"{len(payload)} bytes do not hold tensors: {exc}") from exc


def check_shapes(expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], *, what: str) -> None:
    """Refuses tensors that cannot take the place of the expected ones.

    Raises:
        SnapshotError: a name is missing or unknown, or a shape or dtype differs; the message has the first one.
    """
    if strange := sorted(expected.keys() ^ given.keys()):
        side = "missing" if strange[0] in expected else "unknown"
        raise SnapshotError(f"{what}: {strange[0]!r} is {side}; was it made with other settings?")
    for name, tensor in expected.items():
        found = given[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise SnapshotError(
                f"{what}: {name!r} is {found.dtype} {tuple(found.shape)}, expected {tensor.dtype} "
                f"{tuple(tensor.shape)}; was it made with other settings?"
            )
