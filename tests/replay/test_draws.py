from __future__ import annotations

import numpy as np
import pytest

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.draws import importance_weights, split_frames
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec


def test_weights_are_those_of_the_paper_over_the_batchs_largest() -> None:
    priorities = np.arange(1, 5) ** 0.6
    probabilities = priorities / priorities.sum()
    np.testing.assert_allclose(probabilities, [0.148230, 0.224674, 0.286555, 0.340542], atol=1e-6)
    weights = importance_weights(probabilities, 0.4)
    np.testing.assert_allclose(weights, [1, 0.846745, 0.768229, 0.716978], atol=1e-6)
    assert weights.dtype == np.float32


def test_weights_do_not_depend_on_the_rows_that_were_not_drawn() -> None:
    probabilities = np.array([0.3, 0.1, 0.2])
    for num_live in (4, 1000):
        by_definition = (num_live * probabilities) ** -0.7
        np.testing.assert_allclose(
            importance_weights(probabilities, 0.7), by_definition / by_definition.max(), rtol=1e-6
        )


def test_weights_lie_above_0_and_at_most_at_1_however_far_apart_the_probabilities_are() -> None:
    weights = importance_weights(np.array([3e-308, 1e-300, 0.5, 1.0]), 1.0)
    assert (weights > 0).all()
    assert weights.max() == 1.0


def test_beta_0_gives_weights_of_1() -> None:
    np.testing.assert_array_equal(importance_weights(np.array([0.1, 0.9]), 0.0), [1, 1])


STACK = 3


def episodes(rng: np.random.Generator, num: int) -> list[np.ndarray]:
    return [rng.integers(0, 256, (int(rng.integers(2, 30)), 4, 5), np.uint8) for _ in range(num)]


def stacked(frames: np.ndarray) -> np.ndarray:
    return np.stack([[frames[max(t - back, 0)] for back in range(STACK - 1, -1, -1)] for t in range(len(frames))])


def cut(frames: np.ndarray, actions: np.ndarray, length: int, n_step: int, num_context: int) -> list[FragmentBatch]:
    """An episode in fragments of `length` steps."""
    num_steps = len(frames) - 1
    batches = []
    for start in range(0, num_steps, length):
        stop = min(start + length, num_steps)
        first, last = max(start - num_context, 0), min(stop + n_step - 1, num_steps)
        size = last - first + 1
        truncated = np.zeros(size, np.bool_)
        truncated[-2] = last == num_steps
        columns = {
            "obs": frames[first : last + 1],
            "action": np.append(actions[first:last], 0),
            "reward": np.append(actions[first:last] / 7, 0).astype(np.float32),
            "terminated": np.zeros(size, np.bool_),
            "truncated": truncated,
        }
        batches.append(
            FragmentBatch(
                columns,
                np.array([stop - start], np.int32),
                np.array([start - first], np.int32),
                np.array([last - stop], np.int32),
                np.array([first == 0]),
                None,
                np.zeros((1, 2), np.uint32),
            )
        )
    return batches


@pytest.mark.parametrize("n_step", [1, 3])
def test_frames_stored_once_give_the_same_pixels_as_whole_stacks(n_step: int) -> None:
    rng = np.random.default_rng(3)
    single = TableSpec.of({"obs": ((4, 5), "uint8"), "action": ((), "int64")})
    whole = single.stacked(STACK)
    options = {"capacity": 60, "n_step": n_step, "fragment_length": 6, "gamma": 0.9}
    frames_table = Table(
        TableSettings("frames", frame_stack=STACK, **options), single, directory=None, rng=np.random.default_rng(1)
    )
    plain_table = Table(TableSettings("plain", **options), whole, directory=None, rng=np.random.default_rng(1))
    seen: dict[int, tuple[bytes, ...]] = {}
    number = num_compared = 0
    for frames in episodes(rng, 60):
        actions = np.arange(number, number + len(frames) - 1)
        number += len(actions)
        for batch in cut(frames, actions, 6, n_step, STACK - 1):
            frames_table.insert(batch)
        for batch in cut(stacked(frames), actions, 6, n_step, 0):
            plain_table.insert(batch)
        drawn = frames_table.draw(64).columns
        obs, next_obs = split_frames(drawn["frames"], drawn["num_steps"], STACK)
        plain = plain_table.draw(64).columns
        rows = [*zip(plain["action"], plain["obs"], plain["next_obs"], plain["reward"], plain["discount"], strict=True)]
        seen |= {int(action): tuple(one.tobytes() for one in rest) for action, *rest in rows}
        for i, action in enumerate(drawn["action"]):
            given = (obs[i], next_obs[i], drawn["reward"][i], drawn["discount"][i])
            if int(action) in seen:
                assert tuple(one.tobytes() for one in given) == seen[int(action)]
                num_compared += 1
    assert num_compared > 1000


def test_whole_windows_are_split_without_a_copy() -> None:
    frames = np.arange(2 * 5).reshape(2, 5, 1)
    obs, next_obs = split_frames(frames, np.array([2, 2], np.int32), 3)
    assert np.shares_memory(obs, frames)
    assert np.shares_memory(next_obs, frames)
    obs, next_obs = split_frames(frames, np.array([2, 1], np.int32), 3)
    np.testing.assert_array_equal(next_obs[:, :, 0], [[2, 3, 4], [6, 7, 8]])


def test_frames_behind_a_short_window_are_0() -> None:
    spec = TableSpec.of({"obs": ((), "uint8"), "action": ((), "int64")})
    table = Table(
        TableSettings("test", 10, n_step=3, frame_stack=2), spec, directory=None, rng=np.random.default_rng(0)
    )
    frames = np.array([7, 8, 9], np.uint8)
    (batch,) = cut(frames, np.array([0, 1]), 2, 3, 1)
    table.insert(batch)
    drawn = table.draw(20).columns
    for window, action in zip(drawn["frames"], drawn["action"], strict=True):
        np.testing.assert_array_equal(window, [[7, 7, 8, 9, 0], [7, 8, 9, 0, 0]][action])
