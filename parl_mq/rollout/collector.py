"""An actor's work without the network: policy and environments in, fragments and episodes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parl_mq.fragments import FragmentBatch
from parl_mq.rollout.assembler import FragmentAssembler
from parl_mq.rollout.frames import FrameStack
from parl_mq.rollout.statistics import EpisodeStatistics
from parl_mq.rollout.stepper import Stepper
from parl_mq.spec import TableSpec, WeightsVersion

if TYPE_CHECKING:
    import torch

    from parl_mq.algorithms.base import Policy


@dataclass(frozen=True, slots=True)
class Collected:
    """What one call of `collect` brought.

    Attributes:
        fragments: one message's worth, or None.
        returns: raw returns of the episodes that ended.
        lengths: their steps.
        num_steps: steps taken, those that only reset an environment not counted.
    """

    fragments: FragmentBatch | None
    returns: Sequence[float]
    lengths: Sequence[int]
    num_steps: int


@dataclass(frozen=True, slots=True)
class Pace:
    """When a message leaves.

    Attributes:
        message_rows: live rows that are worth a message.
        wait_s: seconds of stepping after which what there is is cut and sent; waiting between calls does not count.
    """

    message_rows: int
    wait_s: float


class Collector:
    """Steps environments with a policy. Synchronous; all calls from one thread.

    After an EnvironmentFault the steps before it are intact: `drain` and `take` give them, as fragments that are cut
    in mid-episode, and `tally` the episodes that ended before it; a new collector goes on.

    Args:
        stepper: the environments.
        policy: for as many environments.
        assembler: for as many environments.
        frames: what the policy sees.
        pace: when a message leaves.
        seeds: [M] of the environments.
        rng: of the policy's exploration.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        stepper: Stepper,
        policy: Policy,
        assembler: FragmentAssembler,
        *,
        frames: FrameStack,
        pace: Pace,
        seeds: Sequence[int],
        rng: np.random.Generator,
        clock: Callable[[], float],
    ) -> None:
        self._stepper = stepper
        self._policy = policy
        self._assembler = assembler
        self._frames = frames
        self._pace = pace
        self._rng = rng
        self._clock = clock
        self._statistics = EpisodeStatistics(stepper.num_envs)
        self._version: WeightsVersion | None = None
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._num_steps = 0
        obs = stepper.reset(seeds)
        assembler.begin(obs)
        self._observation = frames.begin(obs)
        self._left_at = clock()
        self._flush_at = self._left_at + pace.wait_s

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: WeightsVersion) -> None:
        """Acts with these weights from the next step on."""
        self._policy.load_weights(weights)
        self._version = version

    def collect(self, max_rows: int, deadline: float | None = None) -> Collected:
        """Steps until there is a message's worth of fragments, or the pace's time is over.

        Args:
            max_rows: live rows that the message may have. If the next fragment alone has more, nothing is stepped.
            deadline: on the clock; the call returns soon after it, with what has been cut by then.

        Raises:
            EnvironmentFault: an environment failed.
            ValueError: no weights were loaded.
        """
        if self._version is None:
            raise ValueError("the policy has no weights: load_weights comes before collect")
        now = self._clock()
        self._flush_at += now - self._left_at
        enough = min(max_rows, self._pace.message_rows)
        while self._assembler.num_queued < enough and (deadline is None or now < deadline):
            self._step(self._version)
            now = self._clock()
            if now >= self._flush_at:
                self._assembler.flush()
                self._flush_at = now + self._pace.wait_s
                break
        self._left_at = now
        return self.tally(self._assembler.take(max_rows))

    def tally(self, fragments: FragmentBatch | None = None) -> Collected:
        """What has happened since the last call of this kind, `collect` included, with these fragments."""
        collected = Collected(fragments, self._returns, self._lengths, self._num_steps)
        self._returns, self._lengths, self._num_steps = [], [], 0
        return collected

    def drain(self) -> None:
        """Cuts all open fragments, for `take`; the episodes go on if `collect` is called again."""
        self._assembler.drain()

    def take(self, max_rows: int) -> FragmentBatch | None:
        """Fragments that wait, without stepping: at most `max_rows` live rows; None if there are none that fit."""
        return self._assembler.take(max_rows)

    @property
    def spec(self) -> TableSpec:
        """Columns of the fragments."""
        return self._assembler.spec

    @property
    def next_rows(self) -> int:
        """Live rows of the next fragment; 0 if none is cut. With fewer as `max_rows`, nothing will come."""
        return self._assembler.next_rows

    @property
    def num_unsent(self) -> int:
        """Live rows that wait to be taken, and steps that are in no fragment yet."""
        return self._assembler.num_queued + self._assembler.num_pending

    @property
    def longest_running(self) -> int:
        """Steps of the longest episode that has not ended."""
        return self._statistics.longest_running

    def close(self) -> None:
        """Closes the environments."""
        self._stepper.close()

    def _step(self, version: WeightsVersion) -> None:
        action = self._policy.act(self._observation, self._rng)
        step = self._stepper.step(action)
        self._assembler.add(action, step, version)
        for episode in self._statistics.add(step):
            self._returns.append(episode.total)
            self._lengths.append(episode.length)
        self._observation = self._frames.add(step)
        self._num_steps += step.num_live
