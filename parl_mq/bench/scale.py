"""`parl-mq bench scale`: how the real system grows with its actors, and where a replay node saturates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from parl_mq.bench.environments import WAITING
from parl_mq.bench.profiling import Watch, Watching
from parl_mq.bench.report import BenchReport, Params, Result, describe_machine
from parl_mq.bench.saturation import result, saturation
from parl_mq.bench.service import QUICK_ROWS, Rounds
from parl_mq.bench.watched_run import OTHERS, Observed, changed
from parl_mq.bench.workloads import HALF_CHEETAH
from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig

WAIT_S: Final = 0.02
"""Of a step: 50 steps a second, as many robots take."""
IN_FLIGHT: Final = (1, 4, 16, 64)
ENVS_AN_ACTOR: Final = 8
"""Environments that wait in one actor: its step ends with the slowest of them, so that few wait for one another."""
COMPUTING: Final = "acrobot-dqn"
"""The preset whose environments compute for the whole of their steps, one after another."""
ROLES: Final = ("actor", "replay", "learner", "evaluator", OTHERS)

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Size:
    """So many actors with so many environments each."""

    num_actors: int
    num_envs: int

    @property
    def in_flight(self) -> int:
        """Environments in all."""
        return self.num_actors * self.num_envs

    @property
    def names(self) -> list[str]:
        """The nodes that must have begun."""
        return ["learner-0", *(f"actor-{index}" for index in range(self.num_actors))]


def run(*, quick: bool = False, tell: Tell = lambda _: None, watching: Watch | None = None) -> BenchReport:
    """Rates and costs of the system with more and more actors, and of a replay node that is driven to its limit.

    Args:
        quick: fewer sizes, short runs, a small table.
        tell: hears what is being done.
        watching: runs settings and watches them.

    Raises:
        NodeFailed: a process ended by itself.
        ParlError: as `parl_mq.train`.
    """
    watching = watching or Watching(2.0 if quick else 5.0)
    num_runs = 1 if quick else 3
    results = [*scale_waiting(watching, num_runs, IN_FLIGHT[::3] if quick else IN_FLIGHT, tell)]
    results += scale_computing(watching, num_runs, len(os.sched_getaffinity(0)), tell)
    workload = replace(HALF_CHEETAH, num_rows=QUICK_ROWS) if quick else HALF_CHEETAH
    results += saturation(workload, Rounds(3, 0.3) if quick else Rounds(7, 1.0), tell)
    return BenchReport("scale", describe_machine(), tuple(results))


def scale_waiting(watching: Watch, num_runs: int, in_flight: tuple[int, ...], tell: Tell) -> Iterator[Result]:
    """Environments that wait for WAIT_S in each step, more and more of them at once."""
    base = 0.0
    for number in in_flight:
        size = waiting_size(number)
        tell(f"{number} environments in flight, which wait {WAIT_S:g} s a step, in {size.num_actors} actors")
        seen = [watching(waiting_settings(size), size.names) for _ in range(num_runs)]
        params: Params = {"environments": "waiting", "in flight": number, "actors": size.num_actors}
        yield from rates(params, seen)
        base = base or median(each.env_steps_per_s for each in seen) / number
        shares = [100 * each.env_steps_per_s / (base * number) for each in seen]
        yield result("scaling", "% of linear", params, shares)


def scale_computing(watching: Watch, num_runs: int, cores: int, tell: Tell) -> Iterator[Result]:
    """Environments that compute for the whole of their steps, in one actor up to as many as there are cores."""
    config = load_config(COMPUTING, environ={})
    for number in range(1, cores + 1):
        size = Size(number, config.actor.num_envs)
        tell(f"{number} actors whose environments compute")
        settings = _with_size(config, size, {})
        seen = [watching(settings, size.names) for _ in range(num_runs)]
        yield from rates({"environments": "computing", "in flight": size.in_flight, "actors": number}, seen)


def rates(params: Params, seen: list[Observed]) -> Iterator[Result]:
    """What a size came to: rates, and processor time of each role for a row."""
    for measure, unit, per_s in (
        ("environment steps", "steps/s", [each.env_steps_per_s for each in seen]),
        ("inserts", "rows/s", [each.inserts_per_s for each in seen]),
        ("samples", "items/s", [each.samples_per_s for each in seen]),
        ("updates", "updates/s", [each.updates_per_s for each in seen]),
    ):
        yield result(measure, unit, params, per_s)
    for role in ROLES:
        costs = [each.cores_of(role) / each.inserts_per_s * 1e6 for each in seen]
        yield result("processor time", "us/row", {**params, "node": role}, costs)


def waiting_size(in_flight: int) -> Size:
    """How many actors hold so many environments."""
    num_envs = min(in_flight, ENVS_AN_ACTOR)
    return Size(in_flight // num_envs, num_envs)


def waiting_settings(size: Size) -> RunConfig:
    """CartPole by DQN with environments that wait; it learns as soon as there is a batch, and is hardly evaluated."""
    return _with_size(
        load_config("cartpole-dqn", environ={}),
        size,
        {
            "environment.id": WAITING,
            "environment.kwargs": {"wait_s": WAIT_S},
            "actor.vectorization": "threads",
            "replay.learning_starts": 64,
            "evaluation.num_episodes": 1,
            "evaluation.every_updates": 1_000_000,
        },
    )


def _with_size(config: RunConfig, size: Size, values: Mapping[str, Any]) -> RunConfig:
    return changed(config, {"actor.num_actors": size.num_actors, "actor.num_envs": size.num_envs, **values})
