from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parl_mq.errors import EnvironmentFault
from parl_mq.rollout.assembler import FragmentAssembler, FragmentShape
from parl_mq.rollout.collector import Collector, Pace
from parl_mq.rollout.frames import FrameStack
from parl_mq.rollout.stepper import Stepper
from parl_mq.spec import WeightsVersion
from tests.environments import BrokenEnv, CounterEnv, vector_of
from tests.rollout.trajectories import CountingPolicy, rows_of

FOREVER = 1e9
FOUR_STEPS = FragmentShape(4)


class SteppingClock:
    """Time passes by `tick` at each look at it."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 0.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def collector_of(
    envs: Sequence[gymnasium.Env],
    *,
    shape: FragmentShape = FOUR_STEPS,
    message_rows: int = 1_000_000,
    wait_s: float = FOREVER,
    clock: SteppingClock | None = None,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
) -> tuple[Collector, CountingPolicy]:
    stepper = Stepper(vector_of(envs, mode))
    policy = CountingPolicy(len(envs))
    collector = Collector(
        stepper,
        policy,
        FragmentAssembler(stepper.spec, len(envs), shape),
        frames=FrameStack(stepper.spec.observation_names, shape.frame_stack),
        pace=Pace(message_rows, wait_s),
        seeds=range(len(envs)),
        rng=np.random.default_rng(0),
        clock=clock or SteppingClock(),
    )
    collector.load_weights({}, WeightsVersion(1, 0))
    return collector, policy


def test_steps_until_a_message_is_worth_sending() -> None:
    collector, policy = collector_of([CounterEnv(100), CounterEnv(100)], message_rows=8)
    collected = collector.collect(1000)
    assert policy.num_calls == 4
    assert collected.num_steps == 8
    assert len(rows_of(collected.fragments)) == 8


def test_actions_and_observations_stand_in_the_same_row() -> None:
    collector, policy = collector_of([CounterEnv(100)], message_rows=8)
    rows = rows_of(collector.collect(1000).fragments)
    assert [row.action for row in rows] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [row.stack[0] for row in rows] == [seen.item() for seen in policy.seen] == list(range(8))


def test_a_message_never_has_more_rows_than_it_may_and_the_rest_comes_next() -> None:
    collector, policy = collector_of([CounterEnv(100)] * 3, message_rows=12)
    first = collector.collect(10)
    steps_taken = policy.num_calls
    second = collector.collect(4)
    assert (len(rows_of(first.fragments)), len(rows_of(second.fragments))) == (8, 4)
    assert policy.num_calls == steps_taken


@pytest.mark.parametrize("max_rows", [0, 3])
def test_without_room_for_the_next_fragment_nothing_is_stepped(max_rows: int) -> None:
    collector, policy = collector_of([CounterEnv(100)] * 2, message_rows=4)
    collector.collect(4)
    steps_taken = policy.num_calls
    collected = collector.collect(max_rows)
    assert (collected.fragments, collected.num_steps) == (None, 0)
    assert policy.num_calls == steps_taken
    assert collector.next_rows == 4


def test_after_the_wait_it_sends_what_it_has() -> None:
    collector, _ = collector_of(
        [CounterEnv(100)], shape=FragmentShape(64, n_step=3), wait_s=1.0, clock=SteppingClock(0.125)
    )
    rows = rows_of(collector.collect(1000).fragments, n=3)
    assert 0 < len(rows) <= 8
    assert all(row.n_step[1] == 0.729 for row in rows), "a window was cut short"


def test_time_between_calls_does_not_cut_fragments() -> None:
    clock = SteppingClock()
    collector, policy = collector_of([CounterEnv(1000)], wait_s=1.0, message_rows=4, clock=clock)
    for _ in range(3):
        batch = collector.collect(1000).fragments
        assert batch is not None
        assert batch.lengths.tolist() == [4]
        clock.now += 60.0
    assert policy.num_calls == 12


def test_a_deadline_ends_the_call() -> None:
    collector, policy = collector_of([CounterEnv(100)], shape=FragmentShape(64), clock=SteppingClock(0.25))
    collected = collector.collect(1000, deadline=2.0)
    assert collected.fragments is None
    assert 1 <= policy.num_calls <= 8
    assert collector.num_unsent == policy.num_calls


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episodes_are_reported_with_raw_returns(mode: AutoresetMode) -> None:
    collector, _ = collector_of([CounterEnv(3), CounterEnv(4)], message_rows=50, mode=mode)
    collected = collector.collect(1000)
    assert set(zip(collected.returns, collected.lengths, strict=True)) == {(6.0, 3), (10.0, 4)}
    assert collected.num_steps - sum(collected.lengths) == collector.num_unsent


def test_fragments_carry_the_weights_version_in_use() -> None:
    collector, policy = collector_of([CounterEnv(100)], message_rows=4)
    collector.collect(1000)
    collector.load_weights({"w": 1}, WeightsVersion(2, 9))  # type: ignore[dict-item]
    batch = collector.collect(1000).fragments
    assert batch is not None
    assert batch.versions.tolist() == [[2, 9]]
    assert policy.weights == {"w": 1}


def test_drain_gives_every_step_away() -> None:
    collector, _ = collector_of([CounterEnv(100)], shape=FragmentShape(4, n_step=3), message_rows=4)
    collected = collector.collect(1000)
    collector.drain()
    rows = rows_of(collected.fragments) + rows_of(collector.take(1000))
    assert len(rows) == collected.num_steps
    assert collector.num_unsent == 0


def test_steps_before_a_fault_are_not_lost_nor_ended() -> None:
    collector, _ = collector_of([BrokenEnv("raises"), CounterEnv(100)], shape=FragmentShape(64))
    with pytest.raises(EnvironmentFault, match="joint 7"):
        collector.collect(1000)
    collector.drain()
    rows = rows_of(collector.take(1000))
    assert len(rows) == 4
    assert not any(row.terminated or row.truncated for row in rows)


def test_no_step_without_weights() -> None:
    stepper = Stepper(vector_of([CounterEnv(3)], AutoresetMode.SAME_STEP))
    collector = Collector(
        stepper,
        CountingPolicy(1),
        FragmentAssembler(stepper.spec, 1, FragmentShape(4)),
        frames=FrameStack(stepper.spec.observation_names, 1),
        pace=Pace(4, 1.0),
        seeds=[1],
        rng=np.random.default_rng(0),
        clock=SteppingClock(),
    )
    with pytest.raises(ValueError, match="no weights"):
        collector.collect(10)


def test_the_policy_sees_stacks_that_the_fragments_can_build() -> None:
    collector, policy = collector_of([CounterEnv(5)], shape=FragmentShape(3, frame_stack=3), message_rows=20)
    rows = rows_of(collector.collect(1000).fragments, stack=3)
    assert [row.stack for row in rows] == [tuple(seen[0, :, 0].tolist()) for seen in policy.seen[: len(rows)]]
