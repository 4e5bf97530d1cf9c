"""Learners that share a batch learn what one would from all of it, whatever the algorithm."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.averaging import MAX_LEARNERS, SharedGradients
from parl_mq.algorithms.base import ParallelTrainer, TrainingBatch
from tests.algorithms.batches import CPU
from tests.algorithms.cases import BATCH, CASES, batches_of, trainer_of
from tests.algorithms.groups import Member, group_of, together

every = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _part(batch: TrainingBatch, rank: int, size: int) -> TrainingBatch:
    """A learner's rows, with weights relative to the largest among them."""
    rows = slice(rank * (BATCH // size), (rank + 1) * (BATCH // size))
    columns = {name: getattr(batch, name)[rows] for name in ("obs", "action", "reward", "next_obs", "discount")}
    peak = float(batch.weight[rows].max())
    return replace(batch, **columns, weight=batch.weight[rows] / peak, weight_peak=peak)


def _learn(trainer: ParallelTrainer, member: Member, batches: list[TrainingBatch]) -> list[Any]:
    trainer.join(member)
    return [trainer.update(batch) for batch in batches]


def _group(case: str, size: int, batches: list[TrainingBatch]) -> tuple[list[ParallelTrainer], list[list[Any]]]:
    members, trainers = group_of(size), [trainer_of(case) for _ in range(size)]
    parts = [[_part(batch, rank, size) for batch in batches] for rank in range(size)]
    calls = [
        lambda trainer=trainer, member=member, part=part: _learn(trainer, member, part)
        for trainer, member, part in zip(trainers, members, parts, strict=True)
    ]
    outcomes = together(calls)
    assert {member.num_sums for member in members} == {len(batches)}  # one operation a step
    return trainers, outcomes


@pytest.mark.usefixtures("float64")
@every
@pytest.mark.parametrize("size", [2, 3])
def test_learners_with_parts_of_a_batch_are_one_learner_with_the_whole(case: str, size: int) -> None:
    batches = batches_of(case)
    alone = trainer_of(case)
    expected = [alone.update(batch) for batch in batches]
    trainers, outcomes = _group(case, size, batches)
    tensors, values = alone.state()
    assert next(iter(tensors.values())).dtype == torch.float64
    for trainer in trainers:
        own, own_values = trainer.state()
        assert own_values == values
        for name, tensor in tensors.items():
            torch.testing.assert_close(own[name], tensor, rtol=1e-9, atol=1e-9, msg=f"{case}: {name}")
    for step, whole in enumerate(expected):
        joined = np.concatenate([outcome[step].magnitudes for outcome in outcomes])
        np.testing.assert_allclose(joined, whole.magnitudes, rtol=1e-9, atol=1e-9)
        for outcome in outcomes:
            assert outcome[step].figures["loss"] == pytest.approx(whole.figures["loss"], rel=1e-9)
            assert outcome[step].figures["grad_norm"] == pytest.approx(whole.figures["grad_norm"], rel=1e-9)


@every
def test_the_parts_do_change_the_outcome(case: str) -> None:
    """Without the averages each learner would go its own way: the equality above is no accident of the batches."""
    batches = batches_of(case)
    lone = [trainer_of(case) for _ in range(2)]
    for rank, trainer in enumerate(lone):
        for batch in batches:
            trainer.update(_part(batch, rank, 2))
    first, second = (trainer.state()[0] for trainer in lone)
    assert any(not torch.allclose(first[name], second[name], atol=1e-6) for name in first)


@every
def test_targets_temperature_and_schedules_are_the_same_on_all_ranks_to_the_bit(case: str) -> None:
    trainers, _ = _group(case, 2, batches_of(case, 20))
    (one, values), (other, other_values) = (trainer.state() for trainer in trainers)
    assert values == other_values
    assert all(torch.equal(one[name], other[name]) for name in one)


@every
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_at_one_rank_skips_the_update_at_all(case: str, poison: float) -> None:
    batches = batches_of(case, 4)
    batches[2].reward[BATCH - 1] = poison
    trainers, outcomes = _group(case, 2, batches)
    for trainer, outcome in zip(trainers, outcomes, strict=True):
        assert [step.was_skipped for step in outcome] == [False, False, True, False]
        assert trainer.num_updates == 3
    (one, values), (other, other_values) = (trainer.state() for trainer in trainers)
    assert values == other_values
    assert all(torch.equal(one[name], other[name]) for name in one)


@every
def test_with_products_in_bfloat16_the_same_is_learned_but_for_their_rounding(case: str) -> None:
    """Parameters and what a checkpoint holds stay float32."""
    one, other = trainer_of(case), trainer_of(case)
    for batch in batches_of(case):
        one.update(batch)
        with torch.autocast("cpu", torch.bfloat16):
            outcome = other.update(batch)
        assert not outcome.was_skipped
    ours, theirs = one.state()[0], other.state()[0]
    assert {tensor.dtype for tensor in theirs.values()} == {torch.float32}
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)
    for name in ours:
        if "square" not in name and "mean" not in name:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0.05, atol=0.02, msg=name)


def test_noise_of_the_parts_is_that_of_the_whole() -> None:
    whole = SharedGradients(1, num_scalars=1, device=CPU).noise(np.random.default_rng(1), 2, 6, 3)
    parts = []
    for member in group_of(3):
        shared = SharedGradients(1, num_scalars=1, device=CPU)
        shared.averaging = member
        parts.append(shared.noise(np.random.default_rng(1), 2, 2, 3).reshape(2, 2, 3))
    np.testing.assert_array_equal(np.concatenate(parts, axis=1).reshape(12, 3), whole)


def test_the_mean_of_parts_with_different_peaks_is_relative_to_the_largest() -> None:
    members = group_of(2)
    shared = [SharedGradients(2, 3, num_scalars=1, device=CPU) for _ in members]
    for each, member, value in zip(shared, members, (1.0, 2.0), strict=True):
        each.averaging = member
        each.scalars.fill_(value)
        for part in each.parts:
            part.fill_(10 * value)
    together([lambda: shared[0].average(4.0), lambda: shared[1].average(0.5)])
    expected = (4.0 * 1.0 + 0.5 * 2.0) / 2 / 4.0
    for each in shared:
        assert each.scalars.tolist() == pytest.approx([expected])
        assert [part.tolist() for part in each.parts] == [pytest.approx([10 * expected] * n) for n in (2, 3)]


def test_only_the_first_parts_are_averaged_where_no_more_are_asked_for() -> None:
    members = group_of(2)
    shared = [SharedGradients(1, 1, num_scalars=1, device=CPU) for _ in members]
    for each, member in zip(shared, members, strict=True):
        each.averaging = member
        for part in each.parts:
            part.fill_(member.rank)
    together([lambda: shared[0].average(1.0, num_parts=1), lambda: shared[1].average(1.0, num_parts=1)])
    assert [[part.item() for part in each.parts] for each in shared] == [[0.5, 0.0], [0.5, 1.0]]


def test_as_many_learners_have_a_place_for_their_peak_as_the_settings_allow() -> None:
    from parl_mq.config.models import LearnerConfig

    field = LearnerConfig.model_fields["num_learners"]
    assert next(each.le for each in field.metadata if hasattr(each, "le")) == MAX_LEARNERS
