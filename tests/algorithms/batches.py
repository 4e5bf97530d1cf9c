"""What the tests of actor-critics share: a table, batches, and a reference's networks in float64."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import linear

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.spec import Space, TableSpec

LOW = np.array([-2.0, -1.0], np.float32)
HIGH = np.array([6.0, 0.5], np.float32)
NUM_FEATURES = 3
NUM_ACTIONS = 4
CPU = torch.device("cpu")

Parameters = dict[str, torch.Tensor]


def box_spec(low: np.ndarray = LOW, high: np.ndarray = HIGH, *, dtype: str = "float32") -> TableSpec:
    columns = TableSpec.of({"obs": ((NUM_FEATURES,), "float32"), "action": (low.shape, dtype)}).columns
    return TableSpec(columns, {"action": Space("Box", tuple(low.ravel().tolist()), tuple(high.ravel().tolist()))})


def box_batches(seed: int = 0, size: int = 16) -> Iterator[TrainingBatch]:
    """Endless; actions are in the environment's scale."""
    rng = np.random.default_rng(seed)
    while True:
        yield TrainingBatch(
            obs=rng.normal(size=(size, NUM_FEATURES)).astype(np.float32),
            action=rng.uniform(LOW, HIGH, (size, len(LOW))).astype(np.float32),
            reward=(3 * rng.normal(size=size)).astype(np.float32),
            next_obs=rng.normal(size=(size, NUM_FEATURES)).astype(np.float32),
            discount=rng.choice(np.array([0.0, 0.9, 0.81, 0.729], np.float32), size),
            weight=rng.uniform(0.1, 1, size).astype(np.float32),
            extras={},
        )


def discrete_spec() -> TableSpec:
    columns = TableSpec.of({"obs": ((NUM_FEATURES,), "float32"), "action": ((), "int64")}).columns
    return TableSpec(columns, {"action": Space("Discrete", (0.0,), (NUM_ACTIONS - 1.0,))})


def discrete_batches(seed: int = 0, size: int = 16) -> Iterator[TrainingBatch]:
    """Endless."""
    rng = np.random.default_rng(seed)
    for batch in box_batches(seed, size):
        yield replace(batch, action=rng.integers(NUM_ACTIONS, size=size))


def to_units(action: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(2 * (action.astype(np.float64) - LOW) / (HIGH.astype(np.float64) - LOW) - 1)


def under(tensors: dict[str, torch.Tensor], prefix: str) -> Parameters:
    """Copies in float64 of the tensors under a prefix, as leaves to differentiate by."""
    names = [name for name in tensors if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): tensors[name].double().clone().requires_grad_() for name in names}


def network(of: int, parameters: Parameters) -> Parameters:
    """One network of a stack."""
    return {name: tensor[of] for name, tensor in parameters.items()}


def outputs(parameters: Parameters, *inputs: torch.Tensor) -> torch.Tensor:
    values = torch.cat(inputs, 1)
    num_layers = len(parameters) // 2
    for layer in range(num_layers):
        values = linear(values, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
        values = values.relu() if layer < num_layers - 1 else values
    return values


def tensors_of(batch: TrainingBatch) -> tuple[torch.Tensor, ...]:
    """Obs, action in units, reward, next obs, discount and weight, in float64."""
    obs, reward, next_obs, discount, weight = (
        torch.from_numpy(array).double()
        for array in (batch.obs, batch.reward, batch.next_obs, batch.discount, batch.weight)
    )
    return obs, to_units(batch.action), reward, next_obs, discount, weight


def assert_close(own: Parameters, expected: Parameters) -> None:
    assert own.keys() == expected.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(tensor.double(), expected[name].detach(), rtol=1e-3, atol=1e-4, msg=name)
