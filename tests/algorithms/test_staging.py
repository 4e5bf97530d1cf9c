"""Batches on a device with memory of its own, of which the CPU plays one."""

import numpy as np
import torch

from parl_mq.algorithms.staging import Staging
from parl_mq.model.encoder import ObservationEncoder
from tests.algorithms.batches import CPU, discrete_batches, discrete_spec


def _staging(**options):
    return Staging(ObservationEncoder(discrete_spec()), CPU, **options)


def test_a_device_apart_gets_copies_of_what_the_host_has():
    batches = discrete_batches()
    own, apart = _staging(), _staging(is_apart=True)
    for _ in range(3):
        batch = next(batches)
        here, there = own.stage(batch, batch.action), apart.stage(batch, batch.action)
        for name in ("features", "action", "scalars"):
            assert torch.equal(getattr(here, name), getattr(there, name))
            assert getattr(there, name).data_ptr() != getattr(apart._on_host, name).data_ptr()


def test_memory_on_both_sides_is_used_again_until_the_batch_size_changes():
    staging = _staging(is_apart=True)
    first, second = (staging.stage(batch, batch.action) for batch, _ in zip(discrete_batches(), range(2), strict=False))
    assert first is second
    larger = next(discrete_batches(size=20))
    staged = staging.stage(larger, larger.action)
    assert staged.batch_size == 20
    np.testing.assert_array_equal(staged.action.numpy()[:, 0], larger.action)
