from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.config.models import EnvironmentConfig
from parl_mq.fragments import FragmentBatch
from parl_mq.rollout.assembler import FragmentAssembler, FragmentShape
from parl_mq.rollout.environments import make_vector
from parl_mq.rollout.stepper import Stepper, VectorStep
from parl_mq.spec import Column, TableSpec, WeightsVersion
from tests.environments import MODES, CounterEnv, DictEnv, End, ScriptedEnv, vector_of
from tests.rollout.trajectories import VERSION, assembler_for, expected_rows, rows_of

EPISODE = st.tuples(st.integers(1, 9), st.sampled_from(("term", "trunc")))
ENV_GAP = 100_000.0
"""Between the observations of two environments."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragment_length", [2, 5, 64])
@pytest.mark.parametrize(
    ("end", "discounts"),
    [("term", [0.729, 0.729, 0.0, 0.0, 0.0]), ("trunc", [0.729, 0.729, 0.729, 0.81, 0.9])],
)
def test_n_step_windows_of_two_episodes_have_the_golden_numbers(
    mode: AutoresetMode, fragment_length: int, end: End, discounts: list[float]
) -> None:
    stepper = Stepper(vector_of([CounterEnv(5, end)], mode))
    assembler = assembler_for(stepper, fragment_length, n=3)
    for _ in range(11 if mode is AutoresetMode.NEXT_STEP else 10):
        assembler.add(np.array([0]), stepper.step(np.array([0])), VERSION)

    rows = rows_of(assembler.take(100), n=3, gamma=0.9)

    golden = [
        (episode + obs, reward, discount, episode + following)
        for episode in (0, 1000)
        for obs, reward, following, discount in zip(
            [0, 1, 2, 3, 4], [5.23, 7.94, 10.65, 8.5, 5.0], [3, 4, 5, 5, 5], discounts, strict=True
        )
    ]
    assert [(row.stack[0], *row.n_step) for row in rows] == golden


@pytest.mark.parametrize(
    ("mode", "num_rows"),
    [(AutoresetMode.NEXT_STEP, (20, 21)), (AutoresetMode.SAME_STEP, (24, 24)), (AutoresetMode.DISABLED, (24, 24))],
)
def test_each_autoreset_mode_stores_exactly_the_steps_that_exist(
    mode: AutoresetMode, num_rows: tuple[int, int]
) -> None:
    lengths = (4, 6)
    envs = [CounterEnv(length, "trunc", offset=ENV_GAP * env) for env, length in enumerate(lengths)]
    stepper = Stepper(vector_of(envs, mode))
    assembler = assembler_for(stepper, 64)
    for _ in range(24):
        assembler.add(np.zeros(2, int), stepper.step(np.zeros(2, int)), VERSION)
    assembler.drain()

    rows = rows_of(assembler.take(1000))

    for env, length in enumerate(lengths):
        own = [row for row in rows if row.stack[0] // ENV_GAP == env]
        assert len(own) == num_rows[env]
        assert all(row.next_obs == row.stack[0] + 1 for row in own)
        assert [row.truncated for row in own] == [row.next_obs % 1000 == length for row in own]
        assert not any(row.terminated for row in own)


@settings(max_examples=300, deadline=None)
@given(
    scripts=st.lists(st.lists(EPISODE, min_size=1, max_size=6), min_size=1, max_size=5),
    mode=st.sampled_from(MODES),
    length=st.integers(1, 7),
    stack=st.integers(1, 4),
    n=st.integers(1, 4),
    num_steps=st.integers(0, 45),
    flushed=st.sets(st.integers(0, 44)),
    reuses_memory=st.booleans(),
)
def test_fragments_put_together_are_the_plain_trajectory(
    scripts: list[list[tuple[int, End]]],
    mode: AutoresetMode,
    length: int,
    stack: int,
    n: int,
    num_steps: int,
    flushed: set[int],
    reuses_memory: bool,
) -> None:
    # In SAME_STEP a plain vector of environments that reuse their memory has lost the last observation already.
    reuses_memory = reuses_memory and mode is not AutoresetMode.SAME_STEP
    envs = [
        ScriptedEnv(script, offset=ENV_GAP * env, reuses_memory=reuses_memory) for env, script in enumerate(scripts)
    ]
    stepper = Stepper(vector_of(envs, mode, copy=False))
    assembler = assembler_for(stepper, length, n=n, stack=stack)
    actions = [step % 3 for step in range(num_steps)]
    batches: list[FragmentBatch | None] = []
    for step in range(num_steps):
        action = np.full(len(envs), actions[step])
        assembler.add(action, stepper.step(action), VERSION)
        if step in flushed:
            assembler.flush()
            batches.append(assembler.take(10_000))
    assembler.drain()
    batches.append(assembler.take(10_000))
    assert assembler.num_pending == assembler.num_queued == 0

    found = defaultdict(list)
    for batch in batches:
        for row in rows_of(batch, stack=stack, n=n):
            found[row.stack[-1] // ENV_GAP].append(row)
        if batch is not None:
            assert batch.lengths.max() <= length
            assert batch.num_overlap.max() <= n - 1
            assert batch.num_context.max() <= stack - 1
    for env, script in enumerate(scripts):
        assert found[env] == expected_rows(
            script,
            actions,
            offset=ENV_GAP * env,
            costs_a_step=mode is AutoresetMode.NEXT_STEP,
            stack=stack,
            n=n,
        )


def test_a_row_waits_for_the_steps_of_its_window_and_no_longer() -> None:
    stepper = Stepper(vector_of([CounterEnv(100)], AutoresetMode.NEXT_STEP))
    assembler = assembler_for(stepper, 4, n=3)
    queued = []
    for _ in range(10):
        assembler.add(np.array([0]), stepper.step(np.array([0])), VERSION)
        queued.append(assembler.num_queued)
    assert queued == [0, 0, 0, 0, 0, 4, 4, 4, 4, 8]


def test_take_gives_whole_fragments_in_order_up_to_the_limit() -> None:
    stepper = Stepper(vector_of([CounterEnv(3)], AutoresetMode.SAME_STEP))
    assembler = assembler_for(stepper, 64)
    for _ in range(9):
        assembler.add(np.array([0]), stepper.step(np.array([0])), VERSION)

    assert assembler.take(2) is None
    assert assembler.next_rows == 3
    assert [row.stack[0] for row in rows_of(assembler.take(8))] == [0, 1, 2, 1000, 1001, 1002]
    assert assembler.num_queued == 3
    assert [row.stack[0] for row in rows_of(assembler.take(8))] == [2000, 2001, 2002]
    assert assembler.take(8) is None
    assert assembler.next_rows == 0


def test_a_fragment_carries_the_version_of_its_last_live_step() -> None:
    stepper = Stepper(vector_of([CounterEnv(100)], AutoresetMode.NEXT_STEP))
    assembler = assembler_for(stepper, 2, n=3)
    for step in range(9):
        assembler.add(np.array([0]), stepper.step(np.array([0])), WeightsVersion(7, step))
    batch = assembler.take(100)
    assert batch is not None
    assert batch.versions.tolist() == [[7, 1], [7, 3], [7, 5]]


def test_extra_columns_stand_beside_their_steps() -> None:
    stepper = Stepper(vector_of([CounterEnv(3, offset=0), CounterEnv(3, offset=10)], AutoresetMode.SAME_STEP))
    spec = stepper.spec.extended([Column("log_prob", (), "float32"), Column("state", (2,), "float64")])
    assembler = FragmentAssembler(spec, 2, FragmentShape(64))
    assembler.begin(stepper.reset([1, 2]))
    for step in range(3):
        extras = {"log_prob": np.array([step, -step]), "state": np.full((2, 2), 0.5 * step)}
        assembler.add(np.zeros(2, int), stepper.step(np.zeros(2, int)), VERSION, extras)
    batch = assembler.take(100)
    assert batch is not None
    assert batch.columns["log_prob"].tolist() == [0, 1, 2, 0, 0, -1, -2, 0]
    assert batch.columns["state"][:, 1].tolist() == [0, 0.5, 1, 0, 0, 0.5, 1, 0]


@pytest.mark.parametrize("extras", [None, {}, {"log_prob": np.zeros(1), "state": np.zeros(1)}])
def test_missing_and_unknown_extra_columns_are_refused(extras: dict[str, np.ndarray] | None) -> None:
    stepper = Stepper(vector_of([CounterEnv(3)], AutoresetMode.SAME_STEP))
    assembler = FragmentAssembler(stepper.spec.extended([Column("log_prob", (), "float32")]), 1, FragmentShape(64))
    assembler.begin(stepper.reset([1]))
    with pytest.raises(ValueError, match="log_prob"):
        assembler.add(np.array([0]), stepper.step(np.array([0])), VERSION, extras)


@pytest.mark.parametrize("mode", MODES)
def test_nested_observations_fill_one_column_each(mode: AutoresetMode) -> None:
    stepper = Stepper(vector_of([DictEnv(3), DictEnv(3)], mode))
    assert stepper.spec.observation_names == ("obs/a", "obs/b/0", "obs/b/1")
    assembler = assembler_for(stepper, 64)
    for _ in range(3):
        assembler.add(np.zeros(2, int), stepper.step(np.zeros(2, int)), VERSION)
    batch = assembler.take(100)
    assert batch is not None
    assert batch.columns["obs/a"].tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]] * 2
    assert batch.columns["obs/b/0"].tolist() == [0, 1, 2, 3] * 2
    assert batch.columns["obs/b/1"][:, 1, 1].tolist() == [0, 1, 2, 3] * 2
    assert {name: column.dtype.name for name, column in batch.columns.items()} == {
        column.name: column.dtype for column in stepper.spec.columns
    }


def test_odd_sized_columns_keep_their_values() -> None:
    """Columns of one, two, four and eight bytes, so that records need padding."""
    spec = TableSpec.of(
        {
            "obs/a": ((3,), np.uint8),
            "obs/b": ((1,), np.float64),
            "action": ((), np.int16),
            "flag": ((), np.bool_),
            "wide": ((2, 2), np.int64),
        }
    )
    rng = np.random.default_rng(3)
    assembler = FragmentAssembler(spec, 2, FragmentShape(3, 2, 2))
    a, b = rng.integers(0, 255, (9, 2, 3), np.uint8), rng.standard_normal((9, 2, 1))
    action, wide = rng.integers(0, 99, (8, 2)), rng.integers(0, 2**60, (8, 2, 2, 2))
    assembler.begin((a[0], b[0]))
    no_ends = np.zeros(2, bool)
    for t in range(8):
        step = VectorStep((a[t + 1], b[t + 1]), np.array([t, -t]), no_ends, no_ends, {}, (), 2)
        assembler.add(action[t], step, VERSION, {"flag": np.array([t % 2, 1]), "wide": wide[t]})
    batch = assembler.take(3)
    assert batch is not None
    assert (batch.lengths.tolist(), batch.num_context.tolist(), batch.num_overlap.tolist()) == ([3], [0], [1])
    np.testing.assert_array_equal(batch.columns["obs/a"], a[:5, 0])
    np.testing.assert_array_equal(batch.columns["obs/b"], b[:5, 0])
    np.testing.assert_array_equal(batch.columns["action"][:4], action[:4, 0])
    np.testing.assert_array_equal(batch.columns["wide"][:4], wide[:4, 0])
    assert batch.columns["flag"][:4].tolist() == [False, True, False, True]


def test_drained_fragments_are_cut_but_not_ended_and_the_episode_goes_on() -> None:
    stepper = Stepper(vector_of([CounterEnv(6)], AutoresetMode.SAME_STEP))
    assembler = assembler_for(stepper, 64, n=3, stack=3)
    for _ in range(4):
        assembler.add(np.array([0]), stepper.step(np.array([0])), VERSION)
    assembler.drain()
    first = assembler.take(100)
    for _ in range(2):
        assembler.add(np.array([0]), stepper.step(np.array([0])), VERSION)
    second = assembler.take(100)
    assert first is not None
    assert second is not None
    assert not first.columns["terminated"].any()
    assert not first.columns["truncated"].any()
    assert (first.lengths.tolist(), second.lengths.tolist()) == ([4], [2])
    assert (second.num_context.tolist(), second.starts_episode.tolist()) == ([2], [False])
    assert [row.stack for row in rows_of(second, stack=3)] == [(2, 3, 4), (3, 4, 5)]


@pytest.mark.parametrize("shape", [FragmentShape(0), FragmentShape(1, 0), FragmentShape(1, 1, 0)])
def test_a_shape_below_one_is_refused(shape: FragmentShape) -> None:
    stepper = Stepper(vector_of([CounterEnv(6)], AutoresetMode.SAME_STEP))
    with pytest.raises(ValueError, match="at least 1"):
        FragmentAssembler(stepper.spec, 1, shape)


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_a_terminated_fragment_of_cartpole_closes_with_a_fallen_pole(vectorization: str) -> None:
    envs = make_vector(EnvironmentConfig(id="CartPole-v1"), 8, vectorization)  # type: ignore[arg-type]
    stepper = Stepper(envs)
    assembler = assembler_for(stepper, 500)
    rng = np.random.default_rng(5)
    for _ in range(200):
        action = rng.integers(0, 2, 8)
        assembler.add(action, stepper.step(action), VERSION)
    batch = assembler.take(10_000)
    assert batch is not None
    assert batch.num_fragments > 20
    closing = np.cumsum(batch.lengths + 1) - 1
    first = np.concatenate(([0], closing[:-1] + 1))
    assert batch.columns["terminated"][closing - 1].all()
    assert (np.abs(batch.columns["obs"][closing, 2]) > 12 / 180 * np.pi).all()
    assert (np.abs(batch.columns["obs"][first]) <= 0.05).all()
