"""Full replays behind the operations that `bench replay` times, and this package's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from parl_mq.bench.workloads import Steps, Workload
from parl_mq.fragments import FragmentBatch
from parl_mq.replay.buffer import Replay, ReplayStats
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

ALPHA: Final = 0.6
BETA: Final = 0.4
EPS: Final = 1e-6
FRAGMENT_LENGTH: Final = 64
FILL_STEPS: Final = 1024
"""Steps of one write while a replay is filled."""

Call = Callable[[], object]


class ReplayUser(Protocol):
    """One replay.

    The calls that it gives hold all that they need, in the form that the replay likes best: converting takes no time.
    """

    @property
    def draws(self) -> Literal["prioritized", "uniform"]:
        """`uniform` where there are no priorities."""

    @property
    def slowness(self) -> int:
        """About how many times slower than others it is: what is timed at once is so much less."""

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """Ways to store these steps, by name; any leaves them drawable with the largest priority so far."""

    def sample(self, batch_size: int) -> Any:
        """A batch of transitions with importance weights, as arrays that may be kept."""

    def update(self, batch: Any, magnitudes: npt.NDArray[np.float64]) -> Call | None:
        """Gives the rows of a batch from `sample` new priorities; None: there are none."""

    def close(self) -> None:
        """Gives memory back that does not go with the object."""


def fill(user: ReplayUser, workload: Workload) -> None:
    """Writes as many rows as it holds, and some more, so that every further write evicts."""
    write = next(iter(user.writes(workload.steps(FILL_STEPS)).values()))
    for _ in range(-(-workload.num_rows // FILL_STEPS) + 1):
        write()


class OwnReplay:
    """A table that is filled by fragments, as a replay node's is, and drawn from as in one process."""

    slowness = 1

    def __init__(
        self, workload: Workload, draws: Literal["prioritized", "uniform"] = "prioritized", *, num_shards: int = 1
    ) -> None:
        self.draws = draws
        settings = TableSettings(
            name="replay",
            capacity=workload.num_rows,
            kind=draws,
            alpha=ALPHA,
            eps=EPS,
            frame_stack=workload.stack,
            fragment_length=FRAGMENT_LENGTH,
            num_shards=num_shards,
        )
        self._table = Table(settings, spec_of_workload(workload), directory=None, rng=np.random.default_rng(0))
        self._replay = Replay(self._table)

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """`insert`: what a node does with a message. `add_fragment`: the same in process, one fragment at a time."""
        fragments = fragments_of(steps)
        writes: dict[str, Call] = {"insert": lambda: self._table.insert(fragments)}
        if len(steps) == FRAGMENT_LENGTH:
            num_steps = len(fragments.columns["reward"]) - 1
            writes["add_fragment"] = lambda: self._replay.add_fragment(
                obs=fragments.columns["obs"],
                action=fragments.columns["action"][:num_steps],
                reward=fragments.columns["reward"][:num_steps],
                terminated=False,
                starts_episode=False,
                num_context=steps.stack - 1,
            )
        return writes

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._replay.sample(batch_size, BETA)

    def update(self, batch: Any, magnitudes: npt.NDArray[np.float64]) -> Call | None:
        """The sums are refreshed too, which else the next draw would do."""
        if self.draws == "uniform":
            return None

        def call() -> None:
            self._replay.update_priorities(batch.key, magnitudes)
            _ = self._replay.total_priority

        return call

    def stats(self) -> ReplayStats:
        """What is in it, and what happened so far."""
        return self._replay.stats()

    def close(self) -> None:
        """See ReplayUser."""
        self._replay.close()


class OwnSingles:
    """The replay for single transitions, in two rows each, as other frameworks add them; only written to here."""

    draws: Literal["prioritized"] = "prioritized"
    slowness = 1

    def __init__(self, workload: Workload) -> None:
        settings = TableSettings("replay", workload.num_rows, alpha=ALPHA, eps=EPS)
        self._replay = Replay(Table(settings, spec_of_workload(workload), directory=None, rng=np.random.default_rng(0)))

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """`add_batch`, or `add` of the first step if it is the only one."""
        frames, ends = steps.frames, steps.nothing_ends
        if len(steps) > 1:
            return {
                "add_batch": lambda: self._replay.add_batch(
                    obs=frames[:-1], action=steps.action, reward=steps.reward, next_obs=frames[1:], terminated=ends
                )
            }
        obs, next_obs, action, reward = frames[0], frames[1], steps.action[0], float(steps.reward[0])
        return {
            "add": lambda: self._replay.add(
                obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=False, truncated=False
            )
        }

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._replay.sample(batch_size, BETA)

    def update(self, batch: Any, magnitudes: npt.NDArray[np.float64]) -> Call:
        """See ReplayUser."""
        return lambda: self._replay.update_priorities(batch.key, magnitudes)

    def stats(self) -> ReplayStats:
        """What is in it, and what happened so far."""
        return self._replay.stats()

    def close(self) -> None:
        """See ReplayUser."""
        self._replay.close()


def spec_of_workload(workload: Workload) -> TableSpec:
    """The columns of a table of such rows."""
    return TableSpec.of(
        {
            "obs": (workload.obs_shape, workload.obs_dtype),
            "action": (workload.action_shape, workload.action_dtype),
        }
    )


def fragments_of(steps: Steps) -> FragmentBatch:
    """The steps in fragments of FRAGMENT_LENGTH, each with its own context and closing row."""
    size = min(len(steps), FRAGMENT_LENGTH)
    num_fragments = len(steps) // size
    num_context = steps.stack - 1
    rows = (np.arange(num_fragments)[:, None] * size + np.arange(num_context + size + 1)).ravel()
    of_step = np.clip(rows - num_context, 0, len(steps) - 1)  # context and closing rows have a step that is not read
    return FragmentBatch(
        columns={
            "obs": steps.frames[rows],
            "action": steps.action[of_step],
            "reward": steps.reward[of_step],
            "terminated": np.zeros(len(rows), np.bool_),
            "truncated": np.zeros(len(rows), np.bool_),
        },
        lengths=np.full(num_fragments, size, np.int32),
        num_context=np.full(num_fragments, num_context, np.int32),
        num_overlap=np.zeros(num_fragments, np.int32),
        starts_episode=np.zeros(num_fragments, np.bool_),
        priorities=None,
        versions=np.zeros((num_fragments, 2), np.uint32),
    )
