"""Measures what `split` reckons with: actors without a learner, learners without actors, each in the real system."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from parl_mq.bench.split import ActorCost, LearnerCost, Profile, ReplayCost
from parl_mq.bench.watched_run import OTHERS, Observed, changed, watch
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_INTERNAL, ConfigError, NodeFailed
from parl_mq.observe.words import counted

ACTORS_ALONE: Final = 1e-9
"""Rows drawn for each inserted: after the few batches that the error band pays for, the learner waits for good."""
LEARNERS_ALONE: Final = 1e9
"""The same the other way round: the actors fill the replay, and then wait for good."""
LEAST_UNDISTURBED: Final = 0.02
"""A process that waits for a core for a larger share of the time than what this leaves cannot be measured."""

Watch = Callable[[RunConfig, Sequence[str]], Observed]
"""Runs settings and watches them from the moment on at which the named nodes work."""
Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Watching:
    """How the runs of a profile are watched.

    Attributes:
        seconds: each, once everybody works.
        cores: that they may use; None: all.
    """

    seconds: float
    cores: int | None = None

    def __call__(self, config: RunConfig, names: Sequence[str]) -> Observed:
        """See `watch`."""
        return watch(config, names=names, seconds=self.seconds, cores=self.cores)


def measure_profile(
    config: RunConfig, *, cores: int, watching: Watch, batch_sizes: Sequence[int] = (), tell: Tell = lambda _: None
) -> Profile:
    """The profile of a run's settings on this machine; takes some seconds for each number of actors and of learners.

    Args:
        config: of the run; its numbers of actors and learners do not matter.
        cores: that the run may use.
        watching: runs settings and watches them.
        batch_sizes: to be looked at beside the settings' own.
        tell: hears what is being done.

    Raises:
        ParlError: as `watch`.
    """
    actors, last = [], None
    for count in actor_counts(cores):
        tell(f"measuring {counted(count, 'actor')}")
        last = watching(actors_alone(config, count), _names("actor", count))
        actors.append(actor_cost(count, last))
    learners, drawn = [], None
    for changed_config in learner_settings(config, cores, batch_sizes):
        count = changed_config.learner.num_learners
        tell(f"measuring {counted(count, 'learner')} with batches of {changed_config.learner_batch_size}")
        seen = watching(changed_config, _names("learner", count))
        learners.append(learner_cost(changed_config, seen))
        drawn = drawn or seen  # the settings' own batch size, by one learner
    if last is None or drawn is None:
        raise RuntimeError("a profile has at least one actor and one learner")
    return Profile(
        cores=cores,
        batch_size=config.algorithm.batch_size,
        samples_per_insert=config.replay.samples_per_insert,
        actors=tuple(actors),
        learners=tuple(learners),
        replay=replay_cost(last, drawn, config.replay.nodes),
        other_cores=drawn.cores_of(OTHERS) + drawn.cores_of("evaluator"),
    )


def actor_counts(cores: int) -> list[int]:
    """1, 2, 4 and so on up to the cores, and the cores themselves."""
    powers = [2**power for power in range(math.floor(math.log2(cores)) + 1)]
    return sorted({*powers, cores})


def actors_alone(config: RunConfig, num_actors: int) -> RunConfig:
    """So many actors that send all that they collect, and a learner that soon waits for good."""
    return changed(
        config,
        {"actor.num_actors": num_actors, "replay.samples_per_insert": ACTORS_ALONE, "replay.error_band": None},
    )


def learner_settings(config: RunConfig, cores: int, batch_sizes: Sequence[int] = ()) -> Iterator[RunConfig]:
    """Learners without actors: as many as may be at the settings' batch size, then one at the other sizes."""
    alone = {
        "actor.num_actors": 1,
        "replay.samples_per_insert": LEARNERS_ALONE,
        "replay.error_band": None,
        "replay.learning_starts": min(config.replay.learning_starts, config.algorithm.batch_size),
    }
    yield changed(config, {**alone, "learner.num_learners": 1})
    for count in range(2, cores + 1):
        try:
            several = changed(config, {**alone, "learner.num_learners": count})
        except ConfigError:  # no run can have so many; three cannot share a batch that four can
            continue
        yield several
    for batch_size in batch_sizes:
        if batch_size != config.algorithm.batch_size:
            yield changed(config, {**alone, "learner.num_learners": 1, "algorithm.batch_size": batch_size})


def actor_cost(num_actors: int, seen: Observed) -> ActorCost:
    """From a run in which so many actors were alone.

    Raises:
        NodeFailed: they took no step.
    """
    steps_per_s = _some(seen.env_steps_per_s, "the actors took no step", seen)
    undisturbed = steps_per_s / num_actors / _undisturbed(seen, "actor")
    return ActorCost(num_actors, undisturbed, seen.cores_of("actor") / steps_per_s)


def learner_cost(config: RunConfig, seen: Observed) -> LearnerCost:
    """From a run with these settings, in which learners were alone.

    Raises:
        NodeFailed: they made no update.
    """
    updates_per_s = _some(seen.updates_per_s, "the learner made no update", seen)
    undisturbed = updates_per_s / _undisturbed(seen, "learner")
    return LearnerCost(
        config.learner.num_learners,
        config.algorithm.batch_size,
        config.learner_batch_size,
        undisturbed,
        seen.cores_of("learner") / updates_per_s,
    )


def replay_cost(inserting: Observed, drawing: Observed, num_nodes: int) -> ReplayCost:
    """From a run in which actors were alone, and one in which a learner was.

    Raises:
        NodeFailed: no row was inserted, or none drawn.
    """
    inserts_per_s = _some(inserting.inserts_per_s, "no row was inserted", inserting)
    samples_per_s = _some(drawing.samples_per_s, "no row was drawn", drawing)
    return ReplayCost(
        cpu_s_per_insert=inserting.cores_of("replay") / inserts_per_s,
        cpu_s_per_draw=drawing.cores_of("replay") / samples_per_s,
        busy_s_per_insert=inserting.busy_of("replay") / inserts_per_s,
        busy_s_per_draw=drawing.busy_of("replay") / samples_per_s,
        num_nodes=num_nodes,
    )


def _some(rate: float, lack: str, seen: Observed) -> float:
    """A rate that is not 0 but for rounding."""
    if rate * seen.seconds < 1:
        raise NodeFailed(f"{lack} in {seen.seconds:.1f} s: measure for longer, with --seconds", EXIT_INTERNAL)
    return rate


def _undisturbed(seen: Observed, role: str) -> float:
    """Share of the time that the role's processes did not wait for a core."""
    return max(1 - seen.delayed_of(role), LEAST_UNDISTURBED)


def _names(role: str, count: int) -> list[str]:
    return [f"{role}-{index}" for index in range(count)]
