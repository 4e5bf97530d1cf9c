"""Adam's steps are those of the paper."""

import numpy as np
import torch

from parl_mq.model.adam import Adam


def test_steps_are_those_of_algorithm_1() -> None:
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=20)
    adam = Adam(changed := torch.from_numpy(parameters.copy()), learning_rate=0.01)
    mean, square = np.zeros(20), np.zeros(20)
    for step in range(1, 300):
        gradient = rng.normal(size=20) * 10.0 ** rng.integers(-6, 3, size=20)
        gradient[0] = 0.0
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        parameters -= 0.01 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        adam.step(torch.from_numpy(gradient))
        np.testing.assert_allclose(changed.numpy(), parameters, rtol=1e-10)
    assert adam.num_steps == 299


def test_parameter_without_gradient_stays() -> None:
    adam = Adam(parameters := torch.tensor([1.0, 2.0]), learning_rate=0.1)
    adam.step(torch.tensor([0.0, 1.0]))
    assert parameters[0] == 1.0
    assert parameters[1] < 2.0
