"""What every actor-critic keeps to, whatever it computes: whole updates or none, exact resumes, honest refusals."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.registry import load_algorithm, settings_model
from parl_mq.errors import SnapshotError
from parl_mq.learn import checkpoint as checkpoints
from parl_mq.learn.checkpoint import Checkpoint
from parl_mq.model.weights import pack, unpack
from parl_mq.spec import TableSpec
from tests.algorithms.batches import (
    CPU,
    HIGH,
    LOW,
    NUM_FEATURES,
    box_batches,
    box_spec,
    discrete_batches,
    discrete_spec,
)

BOX_NAMES = ["sac", "td3", "ddpg"]
every = pytest.mark.parametrize("name", [*BOX_NAMES, "sac-discrete"])
every_of_boxes = pytest.mark.parametrize("name", BOX_NAMES)


def _config(name: str, **settings: Any) -> Any:
    return settings_model(name)(**{"name": name, "hidden_sizes": (8, 6), **settings})


def _trainer(name: str, seed: int = 0, **settings: Any) -> Any:
    return load_algorithm(name).make_trainer(_config(name, **settings), _spec(name), seed, CPU)


def _policy(name: str, num_envs: int, *, num_updates: int = 0, **settings: Any) -> Any:
    policy = load_algorithm(name).make_policy(_config(name, **settings), _spec(name), np.zeros(num_envs))
    policy.load_weights(_train(name, _trainer(name, **settings), num_updates).policy_weights())
    return policy


def _spec(name: str) -> TableSpec:
    return box_spec() if name in BOX_NAMES else discrete_spec()


def _batches(name: str, seed: int = 0, *, size: int = 16) -> Iterator[TrainingBatch]:
    return (box_batches if name in BOX_NAMES else discrete_batches)(seed, size)


def _train(name: str, trainer: Any, num_updates: int, *, seed: int = 0) -> Any:
    for batch, _ in zip(_batches(name, seed), range(num_updates), strict=False):
        trainer.update(batch)
    return trainer


def _are_equal(one: Any, other: Any) -> bool:
    (ours, our_values), (theirs, their_values) = one.state(), other.state()
    return our_values == their_values and all(torch.equal(ours[name], theirs[name]) for name in theirs)


@every
def test_magnitudes_do_not_feel_the_importance_weights(name: str) -> None:
    batch = next(_batches(name))
    light = replace(batch, weight=batch.weight / 1000)
    heavy_outcome, light_outcome = _trainer(name).update(batch), _trainer(name).update(light)
    np.testing.assert_array_equal(heavy_outcome.magnitudes, light_outcome.magnitudes)
    assert heavy_outcome.magnitudes.dtype == np.float64
    assert light_outcome.figures["loss"] == pytest.approx(heavy_outcome.figures["loss"] / 1000, rel=1e-4)


@every
def test_rows_of_weight_zero_change_nothing(name: str) -> None:
    batch = next(_batches(name))
    batch.weight[8:] = 0
    does_count = batch.weight > 0
    poisoned = replace(
        batch,
        obs=np.where(does_count[:, None], batch.obs, np.float32(9)),
        reward=np.where(does_count, batch.reward, np.float32(100)),
    )
    one, other = _trainer(name), _trainer(name)
    one.update(batch)
    other.update(poisoned)
    ours, theirs = one.state()[0], other.state()[0]
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-5, atol=1e-7)


@every
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["reward", "obs", "next_obs"])
def test_update_of_a_loss_that_is_not_finite_changes_no_network(name: str, place: str, poison: float) -> None:
    trainer = _train(name, _trainer(name), 3)
    before, values = trainer.state()
    batch = next(_batches(name))
    getattr(batch, place)[2] = poison
    outcome = trainer.update(batch)
    after, values_after = trainer.state()
    assert outcome.was_skipped
    assert outcome.figures == {}
    assert np.isfinite(outcome.magnitudes).all()
    assert {**values, "noise": None} == {**values_after, "noise": None}
    assert all(torch.equal(before[key], after[key]) for key in before)


@every
def test_training_repeats_with_its_seed_to_the_bit(name: str) -> None:
    one = _train(name, _trainer(name, seed=7), 30)
    assert _are_equal(one, _train(name, _trainer(name, seed=7), 30))
    assert not _are_equal(one, _train(name, _trainer(name, seed=8), 30))


HELD: dict[str, Any] = {"learns_temperature": False, "temperature": 0.2}


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in [*BOX_NAMES, "sac-discrete"]), ("sac", HELD), ("sac-discrete", HELD)],
)
def test_half_of_the_training_saved_and_gone_on_with_is_the_whole_to_the_bit(
    name: str, settings: dict[str, Any]
) -> None:
    batches = [batch for batch, _ in zip(_batches(name), range(30), strict=False)]
    whole, half, resumed = (_trainer(name, seed, **settings) for seed in (0, 0, 99))
    for batch in batches:
        whole.update(batch)
    for batch in batches[:15]:
        half.update(batch)
    resumed.load_state(*half.state())
    for batch in batches[15:]:
        resumed.update(batch)
    assert _are_equal(resumed, whole)


@every
def test_saved_state_and_published_weights_stay_when_training_goes_on(name: str) -> None:
    trainer = _train(name, _trainer(name), 3)
    weights, (tensors, values) = trainer.policy_weights(), trainer.state()
    noise = str(values)
    copies = {key: tensor.clone() for key, tensor in {**weights, **tensors}.items()}
    _train(name, trainer, 3, seed=1)
    assert all(torch.equal(copies[key], tensor) for key, tensor in {**weights, **tensors}.items())
    assert str(values) == noise


@every
def test_state_of_another_network_is_refused_and_changes_nothing(name: str) -> None:
    trainer = _trainer(name)
    with pytest.raises(SnapshotError, match="other settings"):
        trainer.load_state(*_trainer(name, hidden_sizes=(6, 8)).state())
    assert _are_equal(trainer, _trainer(name))


@every
@pytest.mark.parametrize(
    ("changed", "said"),
    [({"num_updates": -1}, "count"), ({"num_updates": None}, "count")],
)
def test_damaged_values_are_refused_and_change_nothing(name: str, changed: dict[str, Any], said: str) -> None:
    trainer, (tensors, values) = _trainer(name), _trainer(name, seed=5).state()
    with pytest.raises(SnapshotError, match=said):
        trainer.load_state(tensors, {**values, **changed})
    assert _are_equal(trainer, _trainer(name))


@every_of_boxes
def test_damaged_noise_is_refused_and_changes_nothing(name: str) -> None:
    trainer, (tensors, values) = _trainer(name), _trainer(name, seed=5).state()
    for noise in ({"state": 3}, None, {**values["noise"], "bit_generator": "MT19937"}):
        with pytest.raises(SnapshotError, match="random generator"):
            trainer.load_state(tensors, {**values, "noise": noise})
    assert _are_equal(trainer, _trainer(name))


@every_of_boxes
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_update_of_an_action_that_is_not_finite_changes_no_network(name: str, poison: float) -> None:
    trainer, batch = _trainer(name), next(_batches(name))
    batch.action[2] = poison
    assert trainer.update(batch).was_skipped
    assert trainer.num_updates == 0


@every
def test_arrays_may_be_read_only_and_batches_may_change_their_size(name: str) -> None:
    trainer = _trainer(name)
    for size in (16, 1, 32):
        batch = next(_batches(name, size=size))
        for array in (batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight):
            array.flags.writeable = False
        assert trainer.update(batch).magnitudes.shape == (size,)


@every_of_boxes
def test_actions_are_in_the_environments_scale_and_dtype(name: str) -> None:
    policy, rng = (
        _policy(name, 500, num_updates=1, exploration_noise=3.0)
        if name != "sac"
        else _policy(name, 500, num_updates=1),
        np.random.default_rng(0),
    )
    obs = np.random.default_rng(1).normal(size=(500, NUM_FEATURES)).astype(np.float32)
    action, greedy = policy.act(obs, rng), policy.act_greedily(obs)
    assert action.dtype == greedy.dtype == np.float32
    assert np.all((action >= LOW) & (action <= HIGH))
    np.testing.assert_allclose(action.max(0), HIGH, rtol=0.1)
    np.testing.assert_allclose(action.min(0), LOW, rtol=0.1)
    assert not np.array_equal(action, greedy)
    np.testing.assert_array_equal(greedy, policy.act_greedily(obs))


@every_of_boxes
def test_actors_act_uniformly_until_something_has_been_learned(name: str) -> None:
    obs, rng = np.zeros((20_000, NUM_FEATURES), np.float32), np.random.default_rng(0)
    policy = _policy(name, 20_000)
    action = policy.act(obs, rng)
    shares, _ = np.histogram(action[:, 0], bins=8, range=(LOW[0], HIGH[0]))
    np.testing.assert_allclose(shares / 20_000, 1 / 8, atol=4 * np.sqrt(1 / 8 * 7 / 8 / 20_000))
    assert np.unique(policy.act_greedily(obs), axis=0).shape[0] == 1
    policy.load_weights(_train(name, _trainer(name), 1).policy_weights())
    assert not np.histogram(policy.act(obs, rng)[:, 1], bins=8, range=(LOW[1], HIGH[1]))[0].min() > 2_400


@every
@pytest.mark.parametrize(
    ("until", "num_updates", "is_random"), [(0, 0, False), (1, 0, True), (3, 2, True), (3, 3, False)]
)
def test_warm_up_ends_with_the_updates_that_are_asked_for(
    name: str, until: int, num_updates: int, is_random: bool
) -> None:
    policy = _policy(name, 200, num_updates=num_updates, random_until_updates=until)
    generators = [np.random.default_rng(3) for _ in range(2)]
    first = policy.act(np.zeros((200, NUM_FEATURES), np.float32), generators[0])
    second = policy.act(np.full((200, NUM_FEATURES), 5, np.float32), generators[1])
    assert np.array_equal(first, second) == is_random  # random actions do not look at what is there


@every_of_boxes
def test_policy_computes_what_the_trainers_network_does(name: str) -> None:
    obs = np.random.default_rng(0).normal(size=(10, NUM_FEATURES)).astype(np.float32)
    policy = _policy(name, 10)
    weights = _trainer(name).policy_weights()
    values = torch.from_numpy(obs)
    for layer in range(3):
        values = values @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        values = values.relu() if layer < 2 else values
    expected = LOW + (values[:, :2].tanh().numpy() + 1) / 2 * (HIGH - LOW)
    np.testing.assert_allclose(policy.act_greedily(obs), expected, rtol=1e-5, atol=1e-5)


@every
def test_policy_without_weights_does_not_act(name: str) -> None:
    policy = load_algorithm(name).make_policy(_config(name), _spec(name), np.zeros(1))
    with pytest.raises(ValueError, match="no weights"):
        policy.act(np.zeros((1, NUM_FEATURES), np.float32), np.random.default_rng(0))


@every
def test_weights_of_another_network_are_refused_and_the_old_ones_stay(name: str) -> None:
    policy, obs = _policy(name, 4), np.ones((4, NUM_FEATURES), np.float32)
    before = policy.act_greedily(obs)
    with pytest.raises(SnapshotError, match="other settings"):
        policy.load_weights(_trainer(name, hidden_sizes=(5,)).policy_weights())
    np.testing.assert_array_equal(policy.act_greedily(obs), before)


@every
def test_size_of_the_policy_is_known_without_making_it(name: str) -> None:
    weights = _trainer(name).policy_weights()
    num_parameters = sum(part.numel() for key, part in weights.items() if key != "num_updates")
    assert _config(name).num_parameters(_spec(name)) == num_parameters


@every
def test_state_survives_a_checkpoint_on_disk(name: str, tmp_path: Path) -> None:
    trainer, resumed = _train(name, _trainer(name), 5), _trainer(name, seed=9)
    tensors, values = trainer.state()
    path = checkpoints.save(tmp_path, Checkpoint(5, b"", pack(tensors), {"trainer": values}), keep=1)
    read = checkpoints.load(path)
    resumed.load_state(unpack(read.trainer or b""), read.values["trainer"])
    assert _are_equal(_train(name, resumed, 5, seed=1), _train(name, trainer, 5, seed=1))
