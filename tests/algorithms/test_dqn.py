"""DQN's update is the published one, and its policy explores as it is told."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import huber_loss, linear

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.dqn import DQN, DQNPolicy, DQNTrainer
from parl_mq.algorithms.dqn_config import DQNConfig
from parl_mq.algorithms.registry import load_algorithm
from parl_mq.errors import ConfigError, SnapshotError
from parl_mq.spec import Space, TableSpec

NUM_ACTIONS = 3
CPU = torch.device("cpu")


def _spec(*, start: int = 0, dtype: str = "int64", space: Space | None = None) -> TableSpec:
    columns = TableSpec.of({"obs": ((4,), "float32"), "action": ((), dtype)}).columns
    space = space or Space("Discrete", (float(start),), (float(start + NUM_ACTIONS - 1),))
    return TableSpec(columns, {"action": space})


def _trainer(seed: int = 0, *, spec: TableSpec | None = None, **settings: Any) -> DQNTrainer:
    config = DQNConfig(**{"hidden_sizes": (8, 6), **settings})
    return DQN.make_trainer(config, spec or _spec(), seed, CPU)


def _policy(num_envs: int, *, spec: TableSpec | None = None, **settings: Any) -> DQNPolicy:
    config = DQNConfig(**{"hidden_sizes": (8, 6), **settings})
    policy = DQN.make_policy(config, spec or _spec(), np.arange(num_envs) / max(num_envs - 1, 1))
    policy.load_weights(_trainer(spec=spec, **settings).policy_weights())
    return policy


def _batches(seed: int = 0, size: int = 16) -> Iterator[TrainingBatch]:
    rng = np.random.default_rng(seed)
    while True:
        yield TrainingBatch(
            obs=rng.normal(size=(size, 4)).astype(np.float32),
            action=rng.integers(NUM_ACTIONS, size=size),
            reward=(3 * rng.normal(size=size)).astype(np.float32),
            next_obs=rng.normal(size=(size, 4)).astype(np.float32),
            discount=rng.choice(np.array([0.0, 0.9, 0.81, 0.729], np.float32), size),
            weight=rng.uniform(0.1, 1, size).astype(np.float32),
            extras={},
        )


def _train(trainer: DQNTrainer, num_updates: int, *, seed: int = 0) -> DQNTrainer:
    for batch, _ in zip(_batches(seed), range(num_updates), strict=False):
        trainer.update(batch)
    return trainer


def _weights_differ(one: DQNTrainer, other: DQNTrainer) -> bool:
    ours, theirs = one.policy_weights(), other.policy_weights()
    return any(not torch.equal(ours[name], theirs[name]) for name in ours)


class _Reference:
    """Double or single DQN with autograd, torch's Huber loss, clipping and Adam, in float64."""

    def __init__(self, weights: dict[str, torch.Tensor], config: DQNConfig) -> None:
        self.online = {name: tensor.double().requires_grad_() for name, tensor in weights.items()}
        self.target = {name: tensor.double() for name, tensor in weights.items()}
        self.config = config
        self.num_updates = 0
        self.adam = torch.optim.Adam(self.online.values(), lr=config.learning_rate)

    @staticmethod
    def q(parameters: dict[str, torch.Tensor], obs: np.ndarray) -> torch.Tensor:
        values = torch.from_numpy(obs).double()
        for layer in range(3):
            values = linear(values, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
            values = values.relu() if layer < 2 else values
        return values

    def z(self, parameters: dict[str, torch.Tensor], obs: np.ndarray) -> torch.Tensor:
        """[rows, actions, quantiles]; with dueling streams each stream has half of the last hidden layer."""
        num_values = self.config.num_quantiles or 1
        if not self.config.dueling:
            return self.q(parameters, obs).view(len(obs), NUM_ACTIONS, num_values)
        hidden = torch.from_numpy(obs).double()
        for layer in range(2):
            hidden = linear(hidden, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]).relu()
        weight, bias = parameters["2.weight"], parameters["2.bias"]
        value = linear(hidden[:, :6], weight[:num_values, :6], bias[:num_values])
        advantage = linear(hidden[:, 6:], weight[num_values:, 6:], bias[num_values:])
        advantage = advantage.view(len(obs), NUM_ACTIONS, num_values)
        return value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)

    def losses(self, z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        delta = self.config.huber_delta
        if self.config.num_quantiles is None:
            return huber_loss(z, target, reduction="none", delta=delta).squeeze(1)
        levels = (torch.arange(z.shape[1]).double() * 2 + 1) / (2 * z.shape[1])
        error = target[:, None, :] - z[:, :, None]
        sizes = huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta) / delta
        return ((levels[None, :, None] - (error.detach() < 0).double()).abs() * sizes).mean(2).sum(1)

    def update(self, batch: TrainingBatch) -> tuple[np.ndarray, dict[str, float]]:
        rows, action = np.arange(len(batch.action)), batch.action
        with torch.no_grad():
            z_next = self.z(self.target, batch.next_obs)
            chooser = self.z(self.online, batch.next_obs) if self.config.double else z_next
            value = z_next[rows, chooser.mean(2).argmax(1)]
            target_z = torch.from_numpy(batch.reward)[:, None] + torch.from_numpy(batch.discount)[:, None] * value
        z = self.z(self.online, batch.obs)[rows, action]
        q, target = z.mean(1), target_z.mean(1)
        losses = self.losses(z, target_z)
        loss = (losses * torch.from_numpy(batch.weight)).mean()
        self.adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.online.values(), self.config.max_grad_norm)
        self.adam.step()
        self.num_updates += 1
        if self.num_updates % self.config.target_update_interval == 0:
            with torch.no_grad():
                for name, tensor in self.target.items():
                    tensor.lerp_(self.online[name], self.config.tau)
        q = q.detach()
        magnitudes = (target - q).abs().numpy()
        figures = {
            "loss": loss.item(),
            "grad_norm": norm,
            "q_mean": q.mean(),
            "q_max": q.max(),
            "td_mean": magnitudes.mean(),
        }
        return magnitudes, {name: float(figure) for name, figure in figures.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"double": False},
        {"target_update_interval": 3},
        {"target_update_interval": 1, "tau": 0.1},
        {"huber_delta": 0.3, "max_grad_norm": 0.05},
        {"dueling": True},
        {"num_quantiles": 5},
        {"num_quantiles": 1, "double": False, "huber_delta": 0.3},
        {"num_quantiles": 4, "dueling": True, "target_update_interval": 3},
    ],
)
def test_updates_are_those_of_the_reference(settings: dict[str, Any]) -> None:
    trainer = _trainer(learning_rate=0.01, **settings)
    config = DQNConfig(hidden_sizes=(8, 6), learning_rate=0.01, **settings)
    reference = _Reference(trainer.policy_weights(), config)
    for batch, _ in zip(_batches(), range(20), strict=False):
        outcome = trainer.update(batch)
        magnitudes, figures = reference.update(batch)
        assert outcome.magnitudes.dtype == np.float64
        np.testing.assert_allclose(outcome.magnitudes, magnitudes, rtol=1e-3, atol=1e-4)
        assert outcome.figures == pytest.approx(figures, rel=1e-3, abs=1e-4)
    for name, tensor in trainer.policy_weights().items():
        torch.testing.assert_close(tensor.double(), reference.online[name].detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("num_quantiles", [None, 4])
def test_streams_of_a_dueling_network_stay_apart(num_quantiles: int | None) -> None:
    trainer = _train(_trainer(dueling=True, num_quantiles=num_quantiles, learning_rate=0.1), 10)
    weight, num_values = trainer.policy_weights()["2.weight"], num_quantiles or 1
    assert weight.shape == ((1 + NUM_ACTIONS) * num_values, 12)
    assert weight[:num_values, 6:].abs().max() == weight[num_values:, :6].abs().max() == 0
    assert weight[:num_values, :6].abs().min() > 0


@pytest.mark.parametrize("settings", [{"dueling": True}, {"num_quantiles": 5}, {"dueling": True, "num_quantiles": 2}])
def test_greedy_actions_are_of_the_largest_mean_whatever_the_head(settings: dict[str, Any]) -> None:
    obs = np.random.default_rng(0).normal(scale=5, size=(200, 4)).astype(np.float32)
    trainer = _trainer(**settings)
    policy = DQN.make_policy(DQNConfig(hidden_sizes=(8, 6), **settings), _spec(), np.zeros(200))
    policy.load_weights(trainer.policy_weights())
    reference = _Reference(trainer.policy_weights(), DQNConfig(hidden_sizes=(8, 6), **settings))
    expected = reference.z(reference.target, obs).mean(2).argmax(1).numpy()
    assert len(set(expected.tolist())) > 1
    np.testing.assert_array_equal(policy.act_greedily(obs), expected)


@pytest.mark.parametrize("settings", [{"dueling": True}, {"num_quantiles": 5, "dueling": True}])
def test_heads_work_without_hidden_layers(settings: dict[str, Any]) -> None:
    assert _train(_trainer(hidden_sizes=(), **settings), 3).num_updates == 3


def test_magnitudes_do_not_feel_the_importance_weights() -> None:
    batch = next(_batches())
    light = replace(batch, weight=batch.weight / 1000)
    np.testing.assert_array_equal(_trainer().update(batch).magnitudes, _trainer().update(light).magnitudes)


def test_rows_of_weight_zero_do_not_change_the_gradient() -> None:
    batch = next(_batches())
    batch.weight[8:] = 0
    poisoned = replace(batch, reward=np.where(batch.weight == 0, np.float32(100), batch.reward))
    one, other = _trainer(), _trainer()
    one.update(batch)
    other.update(poisoned)
    assert not _weights_differ(one, other)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_update_of_a_loss_that_is_not_finite_changes_nothing(poison: float) -> None:
    trainer = _train(_trainer(), 3)
    before, values = trainer.state()
    batch = next(_batches())
    batch.reward[[2, 5]] = poison
    outcome = trainer.update(batch)
    after, values_after = trainer.state()
    assert outcome.was_skipped
    assert outcome.figures == {}
    assert values == values_after
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rows_behind_a_skipped_update_get_finite_magnitudes() -> None:
    batch = next(_batches())
    expected = _trainer().update(batch).magnitudes
    batch.reward[3] = np.nan
    magnitudes = _trainer().update(batch).magnitudes
    assert magnitudes[3] == 0.0
    np.testing.assert_array_equal(np.delete(magnitudes, 3), np.delete(expected, 3))


def test_training_goes_on_behind_a_skipped_update() -> None:
    one, other = _train(_trainer(), 3), _train(_trainer(), 3)
    poisoned = next(_batches())
    poisoned.obs[0] = np.nan
    assert one.update(poisoned).was_skipped
    assert _train(one, 2, seed=1).num_updates == 5
    assert not _weights_differ(one, _train(other, 2, seed=1))


def test_training_repeats_with_its_seed_to_the_bit() -> None:
    one = _train(_trainer(seed=7), 50)
    assert not _weights_differ(one, _train(_trainer(seed=7), 50))
    assert _weights_differ(one, _train(_trainer(seed=8), 50))


def test_half_of_the_training_saved_and_gone_on_with_is_the_whole_to_the_bit() -> None:
    batches = [batch for batch, _ in zip(_batches(), range(60), strict=False)]
    whole, half = _trainer(target_update_interval=7), _trainer(target_update_interval=7)
    for batch in batches:
        whole.update(batch)
    for batch in batches[:30]:
        half.update(batch)
    resumed = _trainer(seed=99, target_update_interval=7)
    resumed.load_state(*half.state())
    for batch in batches[30:]:
        resumed.update(batch)
    ours, theirs = resumed.state(), whole.state()
    assert ours[1] == theirs[1]
    assert all(torch.equal(ours[0][name], theirs[0][name]) for name in theirs[0])


def test_saved_state_and_published_weights_stay_when_training_goes_on() -> None:
    trainer = _train(_trainer(), 3)
    weights, (tensors, _) = trainer.policy_weights(), trainer.state()
    copies = {name: tensor.clone() for name, tensor in {**weights, **tensors}.items()}
    _train(trainer, 3, seed=1)
    assert all(torch.equal(copies[name], tensor) for name, tensor in {**weights, **tensors}.items())


@pytest.mark.parametrize("other", [{"hidden_sizes": (6, 8)}, {"hidden_sizes": (8,)}])
def test_state_of_another_network_is_refused_and_changes_nothing(other: dict[str, Any]) -> None:
    trainer, untouched = _trainer(), _trainer()
    with pytest.raises(SnapshotError, match="other settings"):
        trainer.load_state(*_trainer(**other).state())
    assert not _weights_differ(trainer, untouched)


@pytest.mark.parametrize("values", [{}, {"num_updates": 1}, {"num_updates": -1, "num_adam_steps": 0}])
def test_state_without_its_counts_is_refused_and_changes_nothing(values: dict[str, Any]) -> None:
    trainer, untouched = _trainer(), _trainer()
    with pytest.raises(SnapshotError, match="expected a count"):
        trainer.load_state(_trainer(seed=5).state()[0], values)
    assert not _weights_differ(trainer, untouched)


def test_arrays_may_be_read_only_and_batches_may_change_their_size() -> None:
    trainer = _trainer()
    for size in (16, 1, 32):
        batch = next(_batches(size=size))
        for array in (batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight):
            array.flags.writeable = False
        assert trainer.update(batch).magnitudes.shape == (size,)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_actions_are_counted_from_the_spaces_start(dtype: str) -> None:
    batch = next(_batches())
    shifted = replace(batch, action=(batch.action + 5).astype(dtype))
    plain, started = _trainer(), _trainer(spec=_spec(start=5, dtype=dtype))
    plain.update(batch)
    started.update(shifted)
    assert not _weights_differ(plain, started)


@pytest.mark.parametrize("action", [4, 8])
def test_actions_outside_their_space_are_refused_and_change_nothing(action: int) -> None:
    trainer = _trainer(spec=_spec(start=5))
    batch = next(_batches())
    with pytest.raises(ValueError, match=r"outside 5\.\.7"):
        trainer.update(replace(batch, action=np.full(16, action)))
    assert not _weights_differ(trainer, _trainer(spec=_spec(start=5)))


def _own_best(policy: DQNPolicy, obs: np.ndarray) -> np.ndarray:
    return _Reference.q({n: t.double() for n, t in _trainer().policy_weights().items()}, obs).argmax(1).numpy()


def test_greedy_actions_are_of_the_largest_q() -> None:
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    policy = _policy(50)
    expected = _own_best(policy, obs)
    assert len(set(expected.tolist())) > 1
    np.testing.assert_array_equal(policy.act_greedily(obs), expected)


@pytest.mark.parametrize(("start", "dtype"), [(0, "int64"), (-1, "int32"), (7, "uint8")])
def test_actions_have_the_columns_dtype_and_start(start: int, dtype: str) -> None:
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    policy = _policy(64, spec=_spec(start=start, dtype=dtype), epsilon=1.0, epsilon_alpha=0.0)
    explored = policy.act(obs, np.random.default_rng(0))
    assert explored.dtype == dtype
    assert set(explored.tolist()) == {start, start + 1, start + 2}
    assert policy.act_greedily(obs).dtype == dtype
    assert policy.act_greedily(obs).min() >= start


def test_each_environment_explores_with_its_own_epsilon() -> None:
    policy, rng = _policy(4), np.random.default_rng(0)
    obs = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    greedy = policy.act_greedily(obs)
    num_draws = 20_000
    other = np.mean([policy.act(obs, rng) != greedy for _ in range(num_draws)], axis=0)
    share = policy.epsilons * (NUM_ACTIONS - 1) / NUM_ACTIONS
    np.testing.assert_allclose(policy.epsilons, [0.4 ** (1 + 7 * i / 3) for i in range(4)])
    assert np.all(np.abs(other - share) <= 4 * np.sqrt(share * (1 - share) / num_draws))


def test_without_epsilon_the_policy_is_greedy() -> None:
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    policy = _policy(64, epsilon=0.0)
    np.testing.assert_array_equal(policy.act(obs, np.random.default_rng(0)), policy.act_greedily(obs))


def test_exploration_repeats_with_its_generator() -> None:
    obs = np.zeros((64, 4), np.float32)
    actions = [_policy(64).act(obs, np.random.default_rng(3)) for _ in range(2)]
    np.testing.assert_array_equal(*actions)


def test_policy_without_weights_does_not_act() -> None:
    policy = DQN.make_policy(DQNConfig(), _spec(), np.zeros(1))
    with pytest.raises(ValueError, match="no weights"):
        policy.act_greedily(np.zeros((1, 4), np.float32))


def test_weights_of_another_network_are_refused_and_the_old_ones_stay() -> None:
    policy, obs = _policy(64), np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    before = policy.act_greedily(obs)
    with pytest.raises(SnapshotError, match="other settings"):
        policy.load_weights(_trainer(hidden_sizes=(5,)).policy_weights())
    np.testing.assert_array_equal(policy.act_greedily(obs), before)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (Space("Box", (-1.0,), (1.0,)), "Box"),
        (Space("MultiDiscrete", (0.0, 0.0), (1.0, 2.0)), "MultiDiscrete"),
    ],
)
def test_other_action_spaces_are_refused_by_name(space: Space, named: str) -> None:
    with pytest.raises(ConfigError, match=f"Discrete action; the environment has .*{named}"):
        _trainer(spec=_spec(space=space))


def test_unknown_or_several_action_spaces_are_refused() -> None:
    unknown = TableSpec.of({"obs": ((4,), "float32"), "action": ((), "int64")})
    several = TableSpec.of({"obs": ((4,), "float32"), "action/a": ((), "int64"), "action/b": ((), "int64")})
    for spec in (unknown, several):
        with pytest.raises(ConfigError, match="unknown"):
            _trainer(spec=spec)


def test_registry_loads_it() -> None:
    assert load_algorithm("dqn") is DQN


@pytest.mark.parametrize("hidden_sizes", [(), (5,), (8, 6, 4)])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("head", [{}, {"dueling": True}, {"num_quantiles": 3}, {"dueling": True, "num_quantiles": 3}])
def test_size_of_the_network_is_known_without_making_it(
    hidden_sizes: tuple[int, ...], depth: int, head: dict[str, Any]
) -> None:
    spec = _spec(start=2).stacked(depth)
    weights = _trainer(spec=spec, hidden_sizes=hidden_sizes, **head).policy_weights()
    config = DQNConfig(hidden_sizes=hidden_sizes, **head)
    assert config.num_parameters(spec) == sum(part.numel() for part in weights.values())
