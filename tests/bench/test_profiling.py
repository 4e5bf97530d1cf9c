"""From watched runs to a profile and a plan, with runs that are made up."""

import json
from dataclasses import asdict, replace

import pytest

from parl_mq.bench import profile_store
from parl_mq.bench.plan import explained, make_plan, measure_splits, split_rows, split_settings
from parl_mq.bench.plan_view import write_plan
from parl_mq.bench.profile_store import load_profile, machine_identity, profile_path, save_profile
from parl_mq.bench.profiling import ACTORS_ALONE, LEARNERS_ALONE, actor_counts, learner_settings, measure_profile
from parl_mq.bench.split import predict
from parl_mq.bench.watched_run import OTHERS, Observed, changed
from parl_mq.config.loader import load_config
from parl_mq.errors import NodeFailed, RecordError

CONFIG = load_config("cartpole-dqn", environ={})
STEP_S, UPDATE_S = 1e-4, 2e-3


class Machine:
    """Each actor computes STEP_S a step and each learner UPDATE_S an update, on cores that another half takes."""

    def __init__(self):
        self.ran = []

    def __call__(self, config, names):
        self.ran.append((config, tuple(names)))
        ratio, batch = config.replay.samples_per_insert, config.algorithm.batch_size
        acting = 0.5 if ratio < LEARNERS_ALONE else 0.0
        learning = 0.5 if ratio > ACTORS_ALONE else 0.0
        steps = config.actor.num_actors * acting / STEP_S
        updates = learning / UPDATE_S
        return Observed(
            seconds=3.0,
            env_steps_per_s=steps,
            inserts_per_s=steps,
            samples_per_s=updates * batch,
            updates_per_s=updates,
            cores={
                **{f"actor-{index}": acting for index in range(config.actor.num_actors)},
                "learner-0": learning,
                "replay-0": steps * 2e-6 + updates * batch * 1e-6,
                OTHERS: 0.05,
            },
            busy={"replay-0": steps * 1e-6 + updates * batch * 5e-7},
            delayed={"actor-0": 0.5, "learner-0": 0.5},
        )


@pytest.fixture
def profile():
    return measure_profile(CONFIG, cores=4, watching=Machine(), batch_sizes=[256, 512])


def test_costs_are_those_of_processes_that_nobody_disturbs(profile):
    assert [cost.num_actors for cost in profile.actors] == [1, 2, 4]
    for cost in profile.actors:
        assert cost.steps_per_s == pytest.approx(1 / STEP_S)
        assert cost.cpu_s_per_step == pytest.approx(STEP_S)
    learner = profile.learner_cost(1)
    assert learner.updates_per_s == pytest.approx(1 / UPDATE_S)
    assert learner.cpu_s_per_update == pytest.approx(UPDATE_S)
    assert profile.replay.cpu_s_per_insert == pytest.approx(2e-6)
    assert profile.replay.cpu_s_per_draw == pytest.approx(1e-6)
    assert profile.replay.busy_s_per_insert == pytest.approx(1e-6)
    assert profile.replay.busy_s_per_draw == pytest.approx(5e-7)
    assert profile.other_cores == pytest.approx(0.05)
    assert [cost.batch_size for cost in profile.learners if cost.num_learners == 1] == [256, 512]


@pytest.mark.parametrize(("batches", "rows_each"), [("split", 128), ("each", 256)])
def test_of_several_learners_the_rows_count_that_each_of_them_draws(batches, rows_each):
    measured = measure_profile(changed(CONFIG, {"learner.batches": batches}), cores=2, watching=Machine())
    learners = [(cost.num_learners, cost.batch_size, cost.rows_each) for cost in measured.learners]
    assert learners == [(1, 256, 256), (2, 256, rows_each)]
    predicted = predict(measured, 1, 2)
    assert predicted.updates_per_step == 8 / (2 * rows_each)
    assert predicted.limits["learner"] == pytest.approx(2 * rows_each / UPDATE_S / 8)


def test_learners_that_cannot_share_a_batch_are_left_out_and_more_of_them_are_not():
    assert [config.learner.num_learners for config in learner_settings(CONFIG, cores=5)] == [1, 2, 4]


def test_each_run_waits_for_those_that_it_measures_and_lets_the_others_rest():
    machine = Machine()
    measure_profile(CONFIG, cores=2, watching=machine)
    settings = [(config.replay.samples_per_insert, names) for config, names in machine.ran]
    assert settings[:3] == [
        (ACTORS_ALONE, ("actor-0",)),
        (ACTORS_ALONE, ("actor-0", "actor-1")),
        (LEARNERS_ALONE, ("learner-0",)),
    ]


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])])
def test_numbers_of_actors_double_up_to_the_cores(cores, counts):
    assert actor_counts(cores) == counts


def test_actors_that_take_no_step_are_no_profile():
    def nothing_happens(config, names):
        return replace(Machine()(config, names), env_steps_per_s=1e-12)

    with pytest.raises(NodeFailed, match=r"the actors took no step in 3\.0 s: measure for longer, with --seconds"):
        measure_profile(CONFIG, cores=1, watching=nothing_happens)


def test_the_plan_says_what_to_take_what_holds_it_down_and_what_would_help(profile, tmp_path):
    plan = make_plan("cartpole-dqn", {"processor": "x"}, profile)
    words = "\n".join(explained(plan))
    assert f"take {plan.choice.num_actors} actor" in words
    assert "the bottleneck is " in words
    assert "one more core: " in words
    assert "one more machine with 4 cores for actors: " in words
    assert sum("*" in row[0] for row in split_rows(plan)) == 1
    assert json.loads(plan.to_json())["choice"]["num_actors"] == plan.choice.num_actors
    assert write_plan(plan, tmp_path / "plan.svg").stat().st_size > 0


def test_splits_are_run_as_the_settings_are_and_set_beside_what_was_predicted(profile):
    machine = Machine()
    measured = measure_splits(CONFIG, profile, max_actors=3, watching=machine, tell=lambda _: None)
    num_groups = len(profile.group_sizes())
    assert len(measured) == 3 * num_groups
    assert {config.replay.samples_per_insert for config, _ in machine.ran} == {CONFIG.replay.samples_per_insert}
    assert machine.ran[1][1][:3] == ("actor-0", "actor-1", "learner-0")
    plan = replace(make_plan("p", {}, profile), measured=measured)
    best = max(split.env_steps_per_s for split in measured)
    (chosen,) = [s for s in measured if (s.num_actors, s.num_learners) == (plan.choice.num_actors, 1)] or [measured[0]]
    assert plan.choice.num_actors > 3 or plan.share_of_best_measured == chosen.env_steps_per_s / best


def test_a_number_that_is_given_already_stays(profile):
    assert split_settings(profile, num_actors=3, num_learners=None).num_actors == 3
    assert split_settings(profile, num_actors=None, num_learners=1).num_learners == 1


def test_a_profile_is_found_again_by_machine_and_settings_alone(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = machine_identity(2)
    path = profile_path(CONFIG, here)
    assert load_profile(path) is None
    save_profile(path, profile)
    same = changed(CONFIG, {"actor.num_actors": 2, "stop.max_steps": 5, "node.log_level": "debug"})
    assert load_profile(profile_path(same, here)) == profile
    for key, value in {"algorithm.batch_size": 64, "actor.num_envs": 8, "node.device": "cpu"}.items():
        assert load_profile(profile_path(changed(CONFIG, {key: value}), here)) is None
    assert load_profile(profile_path(CONFIG, machine_identity(3))) is None
    monkeypatch.setattr(profile_store, "FORMAT", profile_store.FORMAT + 1)
    assert load_profile(profile_path(CONFIG, here)) is None


@pytest.mark.parametrize("text", ["", "{}", '{"cores": 2}', "[]"])
def test_a_damaged_profile_is_named_with_what_to_do(text, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"profile\.json holds no profile .*remove it, and it is measured again"):
        load_profile(path)


def test_what_is_kept_is_all_of_it(profile):
    assert profile_store.profile_of_json(json.loads(json.dumps(asdict(profile)))) == profile
