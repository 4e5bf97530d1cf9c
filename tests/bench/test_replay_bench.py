"""What `bench replay` reports, and that every system holds and gives the same steps; no speed is judged."""

from dataclasses import replace

import numpy as np
import pytest

from parl_mq.bench import replay
from parl_mq.bench.replay_users import FRAGMENT_LENGTH, OwnReplay, OwnSingles, fill
from parl_mq.bench.workloads import ATARI, HALF_CHEETAH

SMALL_VECTORS = replace(HALF_CHEETAH, num_rows=2048)
SMALL_FRAMES = replace(ATARI, num_rows=2048, obs_shape=(3, 2))


@pytest.fixture(scope="module")
def report():
    return replay.run(quick=True, scale=1 / 16)


def test_all_that_is_promised_is_measured(report):
    measured = {(r.measure, r.params.get("rows"), r.unit) for r in report.results}
    assert measured == {
        ("memory", "HalfCheetah", "bytes/row"),
        ("update", "HalfCheetah", "ns/item"),
        ("sample", "HalfCheetah", "ns/item"),
        ("insert", "HalfCheetah", "ns/item"),
        ("sample and update in threads", "HalfCheetah", "ns/item"),
        ("roots in threads", None, "ns/item"),
        ("memory", "Atari", "bytes/row"),
        ("sample", "Atari", "ns/item"),
        ("sample in threads", "Atari", "ns/item"),
    }
    assert all(0 < r.min <= r.median <= r.max for r in report.results if r.unit == "ns/item")


def test_writes_are_measured_by_every_call_of_every_size(report):
    ways = {(r.params["batch"], r.params["by"]) for r in report.results if r.measure == "insert"}
    assert ways == {
        (1, "add"),
        (64, "insert"),
        (64, "add_fragment"),
        (64, "add_batch"),
        (1024, "insert"),
        (1024, "add_batch"),
    }


def test_threads_are_measured_alone_and_in_pairs(report):
    shards = [(r.params["threads"], r.params["shards"]) for r in report.results if r.measure.startswith("sample and")]
    assert shards == [(1, "1"), (2, "1 each"), (1, "2 shared"), (2, "2 shared")]


@pytest.mark.parametrize("draws", ["prioritized", "uniform"])
def test_a_full_replay_draws_steps_of_its_workload(draws):
    user = OwnReplay(SMALL_VECTORS, draws)
    fill(user, SMALL_VECTORS)
    batch = user.sample(100)
    steps = SMALL_VECTORS.steps(1024)
    indices = [int(np.flatnonzero(steps.reward == reward)[0]) for reward in batch.reward]
    np.testing.assert_array_equal(batch.obs, steps.frames[indices])
    np.testing.assert_array_equal(batch.action, steps.action[indices])
    np.testing.assert_array_equal(batch.next_obs, steps.frames[np.array(indices) + 1])
    user.close()


def test_a_replay_of_frames_draws_the_stacks_that_peers_are_given():
    user = OwnReplay(SMALL_FRAMES)
    fill(user, SMALL_FRAMES)
    batch = user.sample(100)
    steps = SMALL_FRAMES.steps(1024)
    observations = steps.observations()
    indices = np.array([int(np.flatnonzero(steps.reward == reward)[0]) for reward in batch.reward])
    np.testing.assert_array_equal(batch.obs, observations[indices])
    np.testing.assert_array_equal(batch.next_obs, observations[indices + 1])
    np.testing.assert_array_equal(steps.observations(frames_last=True), np.moveaxis(observations, 1, -1))
    user.close()


def test_a_full_replay_evicts_with_every_write():
    user = OwnReplay(SMALL_VECTORS)
    fill(user, SMALL_VECTORS)
    for name, write in user.writes(SMALL_VECTORS.steps(FRAGMENT_LENGTH)).items():
        before = user.stats()
        write()
        after = user.stats()
        assert after.num_live == before.num_live == SMALL_VECTORS.num_rows, name
        assert after.counts.evicted == before.counts.evicted + FRAGMENT_LENGTH, name
    user.close()


@pytest.mark.parametrize("size", [1, 64])
def test_singles_store_each_step_once(size):
    user = OwnSingles(SMALL_VECTORS)
    (write,) = user.writes(SMALL_VECTORS.steps(size)).values()
    write()
    assert user.stats().num_live == size
    user.close()


def test_an_update_changes_what_was_drawn_and_uniform_rows_have_none():
    user, uniform = OwnReplay(SMALL_VECTORS), OwnReplay(SMALL_VECTORS, "uniform")
    for one in (user, uniform):
        fill(one, SMALL_VECTORS)
    before = user.stats()
    update = user.update(user.sample(64), np.full(64, 9.0))
    assert update is not None
    update()
    assert user.stats().counts.updated == 64
    assert user.stats().total_priority > before.total_priority
    assert uniform.update(uniform.sample(64), np.full(64, 9.0)) is None
    user.close()
    uniform.close()
