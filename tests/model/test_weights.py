"""Weights go to bytes and back; damage is found."""

import subprocess
import sys

import pytest
import torch

from parl_mq.errors import SnapshotError
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.model.weights import check_shapes, pack, unpack
from parl_mq.spec import WeightsVersion


def _tensors() -> dict[str, torch.Tensor]:
    flat = torch.randn(14, generator=torch.Generator().manual_seed(0))
    return {"weight": flat[:12].view(3, 4), "bias": flat[12:], "half": torch.ones(3, dtype=torch.bfloat16)}


def test_tensors_come_back_to_the_bit() -> None:
    unpacked = unpack(pack(_tensors()))
    assert unpacked.keys() == _tensors().keys()
    assert all(torch.equal(unpacked[name], tensor) for name, tensor in _tensors().items())


def test_equal_tensors_give_equal_bytes_in_any_order() -> None:
    assert pack(_tensors()) == pack(dict(reversed(_tensors().items())))


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b[:20], lambda b: b"\xff" * 64])
def test_damaged_bytes_are_refused(damage) -> None:
    with pytest.raises(SnapshotError):
        unpack(damage(pack(_tensors())))


def test_tensors_that_overlap_are_refused() -> None:
    shared = torch.zeros(4)
    with pytest.raises(ValueError, match="share memory"):
        pack({"a": shared, "b": shared[1:]})


def test_snapshot_that_was_changed_is_refused() -> None:
    snapshot = WeightsSnapshot.of(WeightsVersion(1, 2), 3, b"payload")
    snapshot.verify()
    with pytest.raises(SnapshotError, match="damaged"):
        WeightsSnapshot(snapshot.version, snapshot.updates, b"paylaod", snapshot.digest).verify()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'a' is missing"),
        ({"a": torch.zeros(2), "b": torch.zeros(2)}, "'b' is unknown"),
        ({"a": torch.zeros(3)}, r"'a' is torch.float32 \(3,\), expected torch.float32 \(2,\)"),
        ({"a": torch.zeros(2, dtype=torch.float64)}, "'a' is torch.float64"),
    ],
)
def test_tensors_that_do_not_fit_are_named(given: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        check_shapes({"a": torch.zeros(2)}, given, what="test")


def test_snapshots_load_without_torch() -> None:
    script = "import sys, parl_mq.model.snapshot, parl_mq.model.encoder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
