"""The learner trains from drawn rows and says when weights and checkpoints are due."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.base import TrainingBatch, UpdateOutcome
from parl_mq.algorithms.dqn import DQN
from parl_mq.algorithms.dqn_config import DQNConfig
from parl_mq.config.models import LearnerConfig
from parl_mq.errors import ConfigError, ParlError, SnapshotError
from parl_mq.learn.checkpoint import Checkpoint, find_newest, save
from parl_mq.learn.learner import DrawnRows, Learner, training_batch
from parl_mq.model.weights import pack, unpack
from parl_mq.spec import Column, Space, TableSpec

SPEC = TableSpec(
    TableSpec.of({"obs": ((2,), "float32"), "action": ((), "int64")}).columns,
    {"action": Space("Discrete", (0.0,), (1.0,))},
)


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Trainer:
    """Counts updates; a reward that is not finite makes it skip."""

    def __init__(self) -> None:
        self.num_updates = 0
        self.last_batch: TrainingBatch | None = None

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        assert batch.weight.dtype == np.float32
        self.last_batch = batch
        if not np.isfinite(batch.reward).all():
            return UpdateOutcome(np.zeros(len(batch.reward)), {}, was_skipped=True)
        self.num_updates += 1
        return UpdateOutcome(np.abs(batch.reward).astype(np.float64), {"loss": float(self.num_updates)})

    def policy_weights(self) -> dict[str, torch.Tensor]:
        return {"updates": torch.tensor([self.num_updates])}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return self.policy_weights(), {"num_updates": self.num_updates}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        assert tensors["updates"].item() == values["num_updates"]
        self.num_updates = values["num_updates"]


def _learner(trainer: Any = None, *, clock: _Clock | None = None, generation: int = 4, **settings: Any) -> Learner:
    config = LearnerConfig(**settings)
    return Learner(trainer or _Trainer(), SPEC, config, beta=0.4, generation=generation, clock=clock or _Clock())


def _rows(seed: int = 0, *, reward: float | None = None, size: int = 8) -> DrawnRows:
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(size, 2)).astype(np.float32),
        "next_obs": rng.normal(size=(size, 2)).astype(np.float32),
        "action": rng.integers(2, size=size),
        "reward": rng.normal(size=size).astype(np.float32) if reward is None else np.full(size, reward, np.float32),
        "discount": np.full(size, 0.9, np.float32),
    }
    return DrawnRows(columns, rng.uniform(0.001, 0.1, size), num_live=100)


def test_batch_has_the_rows_and_weights_over_all_of_them() -> None:
    rows = _rows()
    batch = training_batch(rows, SPEC, beta=0.4)
    assert batch.obs is rows.columns["obs"]
    assert batch.next_obs is rows.columns["next_obs"]
    expected = (100 * rows.probabilities) ** -0.4
    np.testing.assert_allclose(batch.weight, expected / expected.max(), rtol=1e-6)
    assert batch.extras == {}


def test_batch_of_a_dict_observation_has_its_keys_and_the_extra_columns() -> None:
    spec = TableSpec.of({"obs/a": ((2,), "float32"), "obs/b/c": ((), "int8"), "action": ((), "int64")})
    spec = spec.extended([Column("log_prob", (), "float32")])
    names = ("obs/a", "obs/b/c", "next_obs/a", "next_obs/b/c", "action", "reward", "discount", "log_prob")
    columns = {name: np.zeros((3,), np.float32) for name in names}
    batch = training_batch(DrawnRows(columns, np.full(3, 0.1), 10), spec, beta=0.4)
    assert isinstance(batch.obs, dict)
    assert isinstance(batch.next_obs, dict)
    assert batch.obs["b/c"] is columns["obs/b/c"]
    assert batch.next_obs["a"] is columns["next_obs/a"]
    assert dict(batch.extras) == {"log_prob": columns["log_prob"]}


def test_magnitudes_are_the_trainers() -> None:
    rows = _rows()
    np.testing.assert_array_equal(_learner().learn(rows).magnitudes, np.abs(rows.columns["reward"]))


def test_first_version_is_counter_zero_and_each_publication_the_next() -> None:
    learner = _learner(generation=4, publish_every_updates=3)
    assert learner.publish().version == (4, 0)
    published = [learner.learn(_rows()).published for _ in range(7)]
    assert [snapshot and (snapshot.version, snapshot.updates) for snapshot in published] == [
        None, None, ((4, 1), 3), None, None, ((4, 2), 6), None,
    ]  # fmt: skip
    assert published[5] is not None
    published[5].verify()
    assert unpack(published[5].payload)["updates"].item() == 6


def test_skipped_update_publishes_nothing_again() -> None:
    learner = _learner(publish_every_updates=2)
    steps = [learner.learn(_rows(reward=reward)) for reward in (1.0, 1.0, np.nan, np.nan)]
    assert [step.published is not None for step in steps] == [False, True, False, False]
    assert [step.was_skipped for step in steps] == [False, False, True, True]


def test_learner_gives_up_after_too_many_skipped_updates_in_a_row() -> None:
    learner = _learner(max_skipped_updates=2)
    for reward in (np.nan, np.nan, 1.0, np.nan, np.nan):
        learner.learn(_rows(reward=reward))
    with pytest.raises(ParlError, match=r"3 updates in a row .*max_skipped_updates = 2"):
        learner.learn(_rows(reward=np.nan))


def _counted(learner: Learner) -> dict[str, float]:
    """The figures but for times."""
    return {name: value for name, value in learner.take_figures().items() if not name.endswith("_seconds_total")}


def test_figures_are_means_since_they_were_last_taken() -> None:
    learner = _learner()
    for reward in (1.0, 1.0, np.nan, 1.0):
        learner.learn(_rows(reward=reward))
    assert _counted(learner) == {"updates_total": 3, "skipped_updates_total": 1, "loss": 2.0}
    learner.learn(_rows())
    assert _counted(learner) == {"updates_total": 4, "skipped_updates_total": 1, "loss": 4.0}


def test_time_is_split_into_staging_updates_and_publications() -> None:
    clock = _Clock()

    def tick() -> float:
        clock.now += 1.0
        return clock.now

    learner = _learner(clock=tick, publish_every_updates=2)  # type: ignore[arg-type]  # a clock all the same
    for _ in range(4):
        learner.learn(_rows())
    figures = learner.take_figures()
    assert {name: value for name, value in figures.items() if name.endswith("_seconds_total")} == {
        "learner_stage_seconds_total": 4.0,
        "learner_update_seconds_total": 4.0,
        "learner_publish_seconds_total": 2.0,
    }


def test_figures_without_updates_have_no_means() -> None:
    assert _counted(_learner()) == {"updates_total": 0, "skipped_updates_total": 0}


def test_checkpoints_are_due_after_ever_longer_times_up_to_the_interval() -> None:
    clock = _Clock()
    began_at = clock.now
    learner = _learner(clock=clock, checkpoint_every_s=10)
    due = []
    for _ in range(400):
        if learner.learn(_rows()).is_checkpoint_due:
            due.append(clock.now - began_at)
        clock.now += 0.125
    assert due == pytest.approx([1, 2, 4, 8, 16, 26, 36, 46], abs=0.5)


def test_no_checkpoint_is_due_before_the_first_interval_where_that_is_short() -> None:
    clock = _Clock()
    learner = _learner(clock=clock, checkpoint_every_s=0.5)
    due = []
    for seconds in (0, 0.4, 0.1, 0.4, 0.1):
        clock.now += seconds
        due.append(learner.learn(_rows()).is_checkpoint_due)
    assert due == [False, False, True, False, True]


def test_resumed_learner_goes_on_counting_under_a_newer_version() -> None:
    learner = _learner(generation=1)
    for reward in (1.0, np.nan, 1.0):
        learner.learn(_rows(reward=reward))
    checkpoint = learner.checkpoint()
    assert checkpoint.updates == 2
    resumed = _learner(generation=2)
    resumed.resume(checkpoint)
    assert _counted(resumed) == {"updates_total": 2, "skipped_updates_total": 1}
    first = resumed.publish()
    assert first.version > learner.publish().version
    assert first.payload == checkpoint.weights


def test_weights_alone_are_no_checkpoint_to_go_on_from() -> None:
    with pytest.raises(SnapshotError, match="weights alone"):
        _learner().resume(Checkpoint(1, b""))


def _dqn_learner(seed: int) -> tuple[Learner, Any]:
    config = DQNConfig(hidden_sizes=(8,), target_update_interval=7)
    trainer = DQN.make_trainer(config, SPEC, seed, torch.device("cpu"))
    return _learner(trainer), trainer


def test_training_in_two_halves_with_a_checkpoint_between_is_training_at_once(tmp_path: Path) -> None:
    at_once, whole = _dqn_learner(seed=0)
    first, _ = _dqn_learner(seed=0)
    for seed in range(2_000):
        at_once.learn(_rows(seed))
    for seed in range(1_000):
        first.learn(_rows(seed))
    save(tmp_path, first.checkpoint(), keep=1)
    second, resumed = _dqn_learner(seed=1)
    found = find_newest(tmp_path).checkpoint
    assert found is not None
    second.resume(found)
    for seed in range(1_000, 2_000):
        second.learn(_rows(seed))
    assert pack(resumed.state()[0]) == pack(whole.state()[0])
    assert resumed.state()[1] == whole.state()[1]


class _Group:
    """A group in which all begin with the state of this one, or of another."""

    rank, size = 1, 2

    def __init__(self, common: bytes | None = None) -> None:
        self.sent: bytes | None = None
        self._common = common

    def sum(self, vector: torch.Tensor) -> None:
        raise AssertionError("nothing is averaged here")

    def broadcast(self, payload: bytes) -> bytes:
        self.sent = payload
        return self._common or payload


class _ParallelTrainer(_Trainer):
    def __init__(self) -> None:
        super().__init__()
        self.group: Any = None

    def join(self, group: Any) -> None:
        self.group = group


def test_a_learner_takes_the_state_that_its_group_begins_with() -> None:
    source, own = _learner(_ParallelTrainer()), _ParallelTrainer()
    for seed in range(3):
        source.learn(_rows(seed))
    group = _Group(source.checkpoint().to_bytes())
    learner = _learner(own)
    learner.join(group, 7)
    assert (learner.num_updates, own.group) == (3, group)
    assert Checkpoint.from_bytes(group.sent or b"").updates == 0


def test_a_learner_of_another_rank_than_0_publishes_nothing_and_saves_nothing() -> None:
    clock = _Clock()
    learner = _learner(_ParallelTrainer(), clock=clock, publish_every_updates=1, checkpoint_every_s=1.0)
    learner.join(_Group(), 7)
    clock.now = 100.0
    step = learner.learn(_rows())
    assert (step.published, step.is_checkpoint_due) == (None, False)


def test_a_group_s_first_version_has_its_generation() -> None:
    learner = _learner(_ParallelTrainer())
    learner.join(_Group(), 7)
    assert learner.publish().version == (7, 0)


def test_a_trainer_that_cannot_share_is_refused_in_a_group() -> None:
    with pytest.raises(ConfigError, match=r"_Trainer, cannot learn with others: it has no method `join`"):
        _learner().join(_Group(), 1)


def test_a_trainer_that_cannot_be_compiled_is_refused_where_that_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"learner\.compile: .*_Trainer, has no method `compile_with`"):
        _learner(compile=True)


def test_products_are_in_bfloat16_where_that_is_asked_for() -> None:
    seen = []

    class Looking(_Trainer):
        def update(self, batch: TrainingBatch) -> UpdateOutcome:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return super().update(batch)

    for precision in ("float32", "bfloat16"):
        _learner(Looking(), precision=precision).learn(_rows())
    assert [enabled for enabled, _ in seen] == [False, True]
    assert seen[1][1] == torch.bfloat16


def test_weights_of_parts_brought_to_one_scale_are_those_of_the_whole() -> None:
    rows = _rows(size=12)
    whole = training_batch(rows, SPEC, beta=0.6)
    parts = [
        training_batch(
            DrawnRows({name: column[part] for name, column in rows.columns.items()}, rows.probabilities[part], 100),
            SPEC,
            beta=0.6,
        )
        for part in (slice(0, 6), slice(6, 12))
    ]
    largest = max(part.weight_peak for part in parts)
    assert largest == whole.weight_peak
    joined = np.concatenate([part.weight * part.weight_peak / largest for part in parts])
    np.testing.assert_allclose(joined, whole.weight, rtol=1e-6)


def test_rows_that_must_not_count_set_no_peak() -> None:
    rows = _rows()
    none = DrawnRows(rows.columns, np.zeros(8), 100)
    assert training_batch(none, SPEC, beta=0.4).weight_peak == 0.0
