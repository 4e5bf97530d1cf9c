"""What `bench scale` runs, and what it makes of it; no speed is judged."""

import time
from dataclasses import replace

import gymnasium
import pytest

from parl_mq.bench import saturation, service
from parl_mq.bench.environments import WAITING
from parl_mq.bench.plots import write_scaling
from parl_mq.bench.report import BenchReport
from parl_mq.bench.saturation import Driven
from parl_mq.bench.scale import IN_FLIGHT, scale_computing, scale_waiting, waiting_settings, waiting_size
from parl_mq.bench.service import Rounds, Scene
from parl_mq.bench.watched_run import OTHERS, Observed
from parl_mq.bench.workloads import HALF_CHEETAH
from parl_mq.config.models import EnvironmentConfig
from parl_mq.rollout.environments import make_vector
from parl_mq.rollout.thread_vector import ThreadVectorEnv


class Machine:
    """Every environment steps 50 times a second, however many there are, until a quarter is lost at 64."""

    def __init__(self):
        self.ran = []

    def __call__(self, config, names):
        self.ran.append((config, tuple(names)))
        in_flight = config.actor.num_actors * config.actor.num_envs
        steps = 50.0 * in_flight * (0.75 if in_flight == 64 else 1.0)
        cores = {**dict.fromkeys(names, steps * 1e-5), "replay-0": 0.001, "evaluator-0": 0.0, OTHERS: 0.01}
        return Observed(3.0, steps, steps, 8 * steps, steps / 32, cores, {}, {})


def measured(results, measure, **params):
    return [r for r in results if r.measure == measure and params.items() <= r.params.items()]


def test_each_size_is_run_so_often_and_set_beside_the_first_one():
    machine = Machine()
    results = list(scale_waiting(machine, 3, IN_FLIGHT, tell=lambda _: None))
    assert len(machine.ran) == 3 * len(IN_FLIGHT)
    shares = {r.params["in flight"]: r.median for r in measured(results, "scaling")}
    assert shares == {1: 100.0, 4: 100.0, 16: 100.0, 64: 75.0}
    assert [r.median for r in measured(results, "samples")] == [400.0, 1600.0, 6400.0, 19200.0]


def test_costs_of_a_row_are_told_for_each_role():
    results = list(scale_waiting(Machine(), 1, (16,), tell=lambda _: None))
    costs = {r.params["node"]: r.median for r in measured(results, "processor time")}
    assert costs.keys() == {"actor", "replay", "learner", "evaluator", OTHERS}
    assert costs["actor"] == pytest.approx(20.0)  # two of them, 10 us of each for a row of all
    assert costs["replay"] == pytest.approx(1.25)


@pytest.mark.parametrize(("in_flight", "num_actors"), [(1, 1), (4, 1), (16, 2), (64, 8)])
def test_environments_that_wait_are_spread_over_actors(in_flight, num_actors):
    size = waiting_size(in_flight)
    assert (size.num_actors, size.in_flight) == (num_actors, in_flight)


def test_environments_that_compute_have_one_more_actor_each_time():
    machine = Machine()
    list(scale_computing(machine, 1, 3, tell=lambda _: None))
    assert [config.actor.num_actors for config, _ in machine.ran] == [1, 2, 3]
    assert machine.ran[2][1] == ("learner-0", "actor-0", "actor-1", "actor-2")


def test_the_environment_that_waits_is_made_from_its_settings_and_waits_in_threads():
    settings = waiting_settings(waiting_size(4))
    assert settings.environment.id == WAITING
    envs = make_vector(settings.environment, 4, settings.actor.vectorization)
    assert isinstance(envs, ThreadVectorEnv)
    envs.close()
    (env,) = make_vector(EnvironmentConfig(id=WAITING, kwargs={"wait_s": 0.05}), 1, "sync").envs
    env.reset(seed=1)
    start = time.monotonic()
    env.step(0)
    assert time.monotonic() - start >= 0.05
    assert env.observation_space == gymnasium.make("CartPole-v1").observation_space


def test_a_picture_is_drawn(tmp_path):
    results = tuple(scale_waiting(Machine(), 1, IN_FLIGHT, tell=lambda _: None))
    assert write_scaling(BenchReport("scale", {}, results), tmp_path / "scale.svg").stat().st_size > 0


def test_capacity_is_what_a_busy_second_takes_and_a_saturated_thread_has_no_other_time():
    driven = Driven(inserts_per_s=[100.0, 200.0], draws_per_s=[800.0, 1600.0], busy=[0.5, 0.8], delayed=[0.1, 0.2])
    assert driven.capacity == [200.0, 250.0]
    assert driven.occupied == pytest.approx([0.6, 1.0])
    assert driven.cost_per_row(driven.draws_per_s) == [0.5 / 800, 0.8 / 1600]


def test_the_model_stands_beside_the_driven_node_at_each_ratio(monkeypatch):
    def drive_nodes(scene, rounds, count):
        draws = 1e6 if scene.learners else 0.0
        return [Driven(inserts_per_s=[1e5], draws_per_s=[draws], busy=[0.5], delayed=[0.25])] * count

    monkeypatch.setattr(saturation, "drive_nodes", drive_nodes)
    results = list(saturation.saturation(HALF_CHEETAH, Rounds(1, 1.0), tell=lambda _: None))
    at_8 = {
        r.params["by"]: r.median for r in measured(results, "one replay node saturates at", **{"samples per insert": 8})
    }
    assert at_8["the model"] == pytest.approx(1 / (5e-6 + 8 * 5e-7))
    assert at_8["its busy seconds"] == pytest.approx(2e5)
    assert [r.median for r in measured(results, "replay node, driven")] == [0.75, 0.75, 0.75]
    assert [r.median for r in measured(results, "replay nodes take", by="the wall")] == [1e5, 2e5]


@pytest.mark.timeout(150)
def test_two_real_replay_nodes_are_driven_at_once_and_end(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(saturation, "WARM_S", 0.5)
    scene = Scene("drive", replace(HALF_CHEETAH, num_rows=4096), "ipc", learners=1, inserting=1, path="mapped", ratio=8)
    for driven in saturation.drive_nodes(scene, Rounds(1, 1.0), 2):
        assert min(*driven.inserts_per_s, *driven.draws_per_s, *driven.busy) > 0
        assert 0 < driven.occupied[0] < 2
    assert list(tmp_path.iterdir()) == []
