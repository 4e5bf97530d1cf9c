"""What a rollout must give, said as plainly as possible, and a policy whose actions are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parl_mq.fragments import FragmentBatch
from parl_mq.rollout.assembler import FragmentAssembler, FragmentShape
from parl_mq.rollout.stepper import Stepper
from parl_mq.spec import WeightsVersion
from tests.environments import End

VERSION = WeightsVersion(1, 0)


class CountingPolicy:
    """Acts 0, 1, 2, 0, ... in all environments; remembers what it saw."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.num_calls = 0
        self.seen: list[Any] = []
        self.weights: Mapping[str, Any] | None = None

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        self.weights = weights

    def act(self, obs: Any, rng: np.random.Generator) -> np.ndarray:
        assert isinstance(rng, np.random.Generator)
        return self.act_greedily(obs)

    def act_greedily(self, obs: Any) -> np.ndarray:
        self.seen.append({key: leaf.copy() for key, leaf in obs.items()} if isinstance(obs, dict) else obs.copy())
        self.num_calls += 1
        return np.full(self._num_envs, (self.num_calls - 1) % 3)


@dataclass(frozen=True)
class Row:
    """A live row, with all that a draw may read around it."""

    stack: tuple[float, ...]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: float
    n_step: tuple[float, float, float]


def n_step_window(
    rewards: Sequence[float], terminated: Sequence[bool], obs: Sequence[float], first: int, n: int, gamma: float
) -> tuple[float, float, float]:
    """(return, bootstrap discount, observation to bootstrap from) of the window at `first`; obs has one row more."""
    end = min(first + n, len(rewards))
    total = sum(gamma**k * rewards[first + k] for k in range(end - first))
    return round(total, 6), 0.0 if terminated[end - 1] else round(gamma ** (end - first), 6), obs[end]


def rows_of(batch: FragmentBatch | None, *, stack: int = 1, n: int = 1, gamma: float = 0.9) -> list[Row]:
    """The live rows of a batch in order; checks the batch's form on the way."""
    rows: list[Row] = []
    if batch is None:
        return rows
    assert {len(column) for column in batch.columns.values()} == {batch.num_rows}
    assert all(column.flags.c_contiguous and column.flags.writeable for column in batch.columns.values())
    first = 0
    for length, context, overlap, starts in zip(
        batch.lengths, batch.num_context, batch.num_overlap, batch.starts_episode, strict=True
    ):
        assert length >= 1
        after = first + context + length + overlap + 1
        part = {name: column[first:after].tolist() for name, column in batch.columns.items()}
        obs = [value[0] for value in part["obs"]]
        steps = {name: part[name][:-1] for name in ("action", "reward", "terminated", "truncated")}
        ends = [a or b for a, b in zip(steps["terminated"], steps["truncated"], strict=True)]
        assert not any(ends[:-1]), "an episode ends within a fragment"
        assert not any(part[name][-1] for name in steps), "the closing row holds a step"
        assert starts or context >= stack - 1, "too little context"
        for row in range(context, context + length):
            rows.append(
                Row(
                    tuple(obs[max(row - back, 0)] for back in reversed(range(stack))),
                    steps["action"][row],
                    steps["reward"][row],
                    steps["terminated"][row],
                    steps["truncated"][row],
                    obs[row + 1],
                    n_step_window(steps["reward"], steps["terminated"], obs, row, n, gamma),
                )
            )
        first = after
    return rows


def expected_rows(
    script: Sequence[tuple[int, End]],
    actions: Sequence[int],
    *,
    offset: float,
    costs_a_step: bool,
    stack: int = 1,
    n: int = 1,
    gamma: float = 0.9,
) -> list[Row]:
    """The rows of a ScriptedEnv after `len(actions)` vector steps, n-step windows cut only where the steps end.

    `costs_a_step` says whether a reset takes a vector step of its own.
    """
    rows: list[Row] = []
    taken = 0
    for episode, (length, end) in enumerate([*script, *[script[-1]] * len(actions)]):
        obs = [float(step + 1000 * episode + offset) for step in range(length + 1)]
        done = min(length, len(actions) - taken)
        rewards = [float(step + 1) for step in range(done)]
        terminated = [step + 1 == length and end == "term" for step in range(done)]
        rows += [
            Row(
                tuple(obs[max(step - back, 0)] for back in reversed(range(stack))),
                actions[taken + step],
                rewards[step],
                terminated[step],
                step + 1 == length and end == "trunc",
                obs[step + 1],
                n_step_window(rewards, terminated, obs, step, n, gamma),
            )
            for step in range(done)
        ]
        taken += done + costs_a_step
        if taken >= len(actions):
            break
    return rows


def assembler_for(stepper: Stepper, length: int, *, n: int = 1, stack: int = 1) -> FragmentAssembler:
    """An assembler that has seen the first observations of `stepper`."""
    assembler = FragmentAssembler(stepper.spec, stepper.num_envs, FragmentShape(length, n, stack))
    assembler.begin(stepper.reset(range(stepper.num_envs)))
    return assembler
