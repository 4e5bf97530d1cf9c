"""The model of the split: hand-made profiles whose best split is known."""

from dataclasses import replace

import pytest

from parl_mq.bench.split import (
    ActorCost,
    LearnerCost,
    Profile,
    ReplayCost,
    choose,
    curve,
    predict,
    with_one_more_core,
    with_one_more_machine,
)

FREE = ReplayCost(0.0, 0.0, 0.0, 0.0)


def profile(
    *, step_s, update_s, cores=4, ratio=8.0, batch=256, waits_s=0.0, replay=FREE, other_cores=0.0, learners=(1,)
):
    """Actors that compute `step_s` and wait `waits_s` for each step; learners that compute `update_s` a whole batch."""
    return Profile(
        cores=cores,
        batch_size=batch,
        samples_per_insert=ratio,
        actors=(ActorCost(1, 1 / (step_s + waits_s), step_s),),
        learners=tuple(LearnerCost(count, batch, batch, 1 / update_s, count * update_s) for count in learners),
        replay=replay,
        other_cores=other_cores,
    )


def brute_force(measured, max_actors):
    """(rate, actors, learners) of the fastest split, in plain arithmetic."""
    rates = []
    for learners in (1, 2):
        for actors in range(1, max_actors + 1):
            rows = measured.samples_per_insert
            update_s = 1 / measured.learners[0].updates_per_s
            step_s = measured.actors[0].cpu_s_per_step
            insert, draw = measured.replay.cpu_s_per_insert, measured.replay.cpu_s_per_draw
            rate = min(
                actors * measured.actors[0].steps_per_s,
                learners * measured.batch_size / update_s / rows,
                1 / (insert + rows * draw),
                measured.cores / (step_s + insert + rows * draw + rows / measured.batch_size * update_s),
            )
            rates.append((rate, actors, learners))
    return max(rates)


def test_with_linear_parts_the_split_is_that_of_the_papers_formula():
    """A core takes 1,000 steps or learns from 4,000 rows; at 2 rows a step, two thirds of the cores act."""
    measured = profile(step_s=1e-3, update_s=256 / 4_000, ratio=2.0, cores=6, learners=(1, 2, 3))
    best = choose(curve(measured))
    assert (best.num_actors, best.num_learners) == (4, 2)
    assert best.env_steps_per_s == pytest.approx(4_000)


@pytest.mark.parametrize("step_s", [2e-5, 1e-4, 5e-4, 2e-3])
@pytest.mark.parametrize("update_s", [5e-4, 3e-3])
@pytest.mark.parametrize("cores", [2, 3, 8])
def test_the_choice_is_as_fast_as_the_best_of_all_splits(step_s, update_s, cores):
    measured = profile(
        step_s=step_s, update_s=update_s, cores=cores, replay=ReplayCost(1e-6, 3e-7, 1e-6, 3e-7), learners=(1, 2)
    )
    best_rate, _, _ = brute_force(measured, max_actors=4 * cores)
    assert choose(curve(measured)).env_steps_per_s >= 0.98 * best_rate


def test_of_equally_fast_splits_the_one_with_the_fewest_processes_is_chosen():
    measured = profile(step_s=1e-6, update_s=1e-2, learners=(1, 2), cores=1)
    best = choose(curve(measured))
    assert (best.num_actors, best.num_learners) == (1, 1)


@pytest.mark.parametrize(
    ("measured", "bottleneck"),
    [
        (profile(step_s=1e-5, update_s=1e-2), "learner"),
        (profile(step_s=1e-6, update_s=1e-5, replay=ReplayCost(1e-3, 0, 1e-3, 0)), "replay"),
        (profile(step_s=1e-3, update_s=1e-4, cores=2), "cores"),
    ],
)
def test_the_lowest_limit_is_named(measured, bottleneck):
    assert choose(curve(measured)).bottleneck == bottleneck


def test_one_actor_on_many_cores_is_limited_by_itself():
    assert predict(profile(step_s=1e-3, update_s=1e-4), 1, 1).bottleneck == "actors"


def test_actors_that_wait_may_be_more_than_the_cores():
    measured = profile(step_s=1e-5, waits_s=1e-2, update_s=1e-2, cores=2)
    best = choose(curve(measured))
    assert best.num_actors == pytest.approx(256 / 1e-2 / 8 * (1e-2 + 1e-5), rel=0.03)
    assert best.bottleneck in ("actors", "learner")


def test_what_other_processes_take_is_not_there():
    alone, beside = (profile(step_s=1e-3, update_s=1e-4, cores=2, other_cores=taken) for taken in (0.0, 1.0))
    assert choose(curve(beside)).env_steps_per_s == pytest.approx(choose(curve(alone)).env_steps_per_s / 2)


def test_costs_of_more_actors_are_those_that_were_measured():
    measured = profile(step_s=1e-3, update_s=1e-9, cores=2)
    slower = replace(measured, actors=(*measured.actors, ActorCost(2, 500.0, 2e-3)))
    assert predict(slower, 2, 1).limits["cores"] == pytest.approx(predict(measured, 2, 1).limits["cores"] / 2, rel=1e-3)


def test_another_core_helps_where_cores_lack_and_not_where_the_learner_does():
    lacking = profile(step_s=1e-3, update_s=1e-5, cores=2)
    assert with_one_more_core(lacking).env_steps_per_s == pytest.approx(1.5 * choose(curve(lacking)).env_steps_per_s)
    waiting = profile(step_s=1e-6, update_s=1e-2, cores=2)
    assert with_one_more_core(waiting).env_steps_per_s == pytest.approx(choose(curve(waiting)).env_steps_per_s)


def test_another_machine_for_actors_helps_until_learner_and_replay_need_all_of_the_first_one():
    measured = profile(step_s=1e-4, update_s=256 / 8 * 1e-4, cores=1)
    assert choose(curve(measured)).env_steps_per_s == pytest.approx(5_000)
    assert with_one_more_machine(measured).env_steps_per_s == pytest.approx(10_000)
    learning = profile(step_s=1e-4, update_s=256 / 8 * 4e-4, cores=1)
    assert with_one_more_machine(learning).env_steps_per_s == pytest.approx(2_500)


def test_a_group_of_learners_draws_a_batch_each():
    measured = profile(step_s=1e-6, update_s=1e-2, learners=(1, 2), cores=8)
    one, two = (predict(measured, 1, count) for count in (1, 2))
    assert two.env_steps_per_s == pytest.approx(2 * one.env_steps_per_s)
    assert two.updates_per_s == pytest.approx(one.updates_per_s)


def test_a_group_of_learners_that_share_a_batch_needs_no_more_rows_for_an_update_than_one_learner():
    one = profile(step_s=1e-6, update_s=1e-2, cores=8)
    shared = replace(one, learners=(*one.learners, LearnerCost(2, 256, 128, 1 / 1e-2, 1e-2)))
    alone, group = (predict(shared, 1, count) for count in (1, 2))
    assert group.limits == pytest.approx(alone.limits)
    assert group.updates_per_step == alone.updates_per_step == 8 / 256


def test_two_replay_nodes_saturate_at_twice_the_rate():
    cost = ReplayCost(2e-6, 1e-6, 1e-6, 5e-7)
    assert cost.saturates_at(8) == pytest.approx(200_000)
    assert replace(cost, num_nodes=2).saturates_at(8) == pytest.approx(400_000)


def test_a_group_that_was_not_measured_is_refused():
    with pytest.raises(ValueError, match="2 learners with batches of 256 were not measured"):
        predict(profile(step_s=1e-3, update_s=1e-3), 1, 2)
