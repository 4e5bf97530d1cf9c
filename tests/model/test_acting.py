"""The NumPy forward pass computes what the trained network computes."""

import numpy as np
import pytest
import torch

from parl_mq.model.acting import NumpyMlp
from parl_mq.model.networks import Mlp, MlpLayout


@pytest.mark.parametrize("sizes", [(3, 2), (3, 16, 2), (5, 64, 32, 4)])
def test_outputs_are_the_networks(sizes: tuple[int, ...]) -> None:
    layout = MlpLayout(sizes)
    flat = layout.initial(0)
    inputs = np.random.default_rng(0).normal(size=(9, sizes[0])).astype(np.float32)
    expected = Mlp(layout, flat)(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(NumpyMlp(layout.named(flat))(inputs), expected, rtol=1e-5, atol=1e-6)


def test_inputs_stay_as_they_are_and_parameters_are_copied() -> None:
    layout = MlpLayout((2, 4, 2))
    flat = layout.initial(0)
    network = NumpyMlp(layout.named(flat))
    inputs = np.full((3, 2), -1.0, np.float32)
    before = network(inputs)
    flat.zero_()
    np.testing.assert_array_equal(network(inputs), before)
    np.testing.assert_array_equal(inputs, -1.0)
