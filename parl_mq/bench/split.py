"""The model behind `parl-mq plan`: what each part costs, which split of the cores is the fastest, and what limits it.

With v environment steps a second and R rows drawn for each row inserted, y learners that draw n rows each and average
their gradients make v R / (y n) updates a second; n is a part of the settings' batch, or all of it. Four limits hold v
down:

- actors: x processes step at x times the rate of one that nobody disturbs.
- learner: a group of y that nobody disturbs makes so many updates a second.
- replay: a replay node does its work in one thread, which has v (b_insert + R b_draw) seconds of it a second.
- cores: all processes together need v (c_step + c_insert + R c_draw + R c_update / (y n)) seconds of processor time a
  second, and have the cores that the nodes that do not scale leave over.

The costs c are processor seconds of whole processes, and b of the replay node's thread, all measured on the running
system. A limit that is above the others has slack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

SAME: Final = 0.02
"""Rates that differ by less than this part are equal: the split with fewer processes is taken."""
ACTORS_A_CORE: Final = 64
"""Actors that wait most of the time may be many; beyond this many a core nobody looks."""


@dataclass(frozen=True, slots=True)
class ActorCost:
    """Actors as they were measured.

    Attributes:
        num_actors: processes that stepped at once.
        steps_per_s: of one process that nobody disturbs.
        cpu_s_per_step: of all of them, inference and sending included.
    """

    num_actors: int
    steps_per_s: float
    cpu_s_per_step: float


@dataclass(frozen=True, slots=True)
class LearnerCost:
    """Learners as they were measured.

    Attributes:
        num_learners: processes of the group.
        batch_size: of the settings.
        rows_each: rows that each of them draws for one update.
        updates_per_s: of the group if nobody disturbs it.
        cpu_s_per_update: of the whole group.
    """

    num_learners: int
    batch_size: int
    rows_each: int
    updates_per_s: float
    cpu_s_per_update: float

    @property
    def rows_per_update(self) -> int:
        """Rows that the whole group draws for one update."""
        return self.num_learners * self.rows_each

    @property
    def rows_per_s(self) -> float:
        """Rows that the group learns from if nobody disturbs it."""
        return self.updates_per_s * self.rows_per_update

    @property
    def cpu_s_per_row(self) -> float:
        """Processor time for one row."""
        return self.cpu_s_per_update / self.rows_per_update


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """One replay node.

    Attributes:
        cpu_s_per_insert: for a live row inserted.
        cpu_s_per_draw: for a row drawn, its new priority included.
        busy_s_per_insert: of that, in the thread that does the work.
        busy_s_per_draw: likewise.
        num_nodes: of the run, each a process.
    """

    cpu_s_per_insert: float
    cpu_s_per_draw: float
    busy_s_per_insert: float
    busy_s_per_draw: float
    num_nodes: int = 1

    def cpu_s_per_step(self, samples_per_insert: float) -> float:
        """For one environment step at this ratio."""
        return self.cpu_s_per_insert + samples_per_insert * self.cpu_s_per_draw

    def saturates_at(self, samples_per_insert: float) -> float:
        """Environment steps a second at which all nodes have work all the time."""
        cost = self.busy_s_per_insert + samples_per_insert * self.busy_s_per_draw
        return self.num_nodes / cost if cost > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a run's settings on a machine.

    Attributes:
        cores: that the run may use.
        batch_size: of the settings.
        samples_per_insert: R of the settings.
        actors: by number of processes, rising, at least one.
        learners: of the settings' batch size and others, at least one of the settings'.
        replay: its costs.
        other_cores: processor seconds a second of all other processes.
    """

    cores: int
    batch_size: int
    samples_per_insert: float
    actors: tuple[ActorCost, ...]
    learners: tuple[LearnerCost, ...]
    replay: ReplayCost
    other_cores: float

    def actor_cost(self, num_actors: int) -> ActorCost:
        """Of so many, or of the nearest number that was measured."""
        return min(self.actors, key=lambda cost: (abs(cost.num_actors - num_actors), cost.num_actors))

    def group_sizes(self) -> list[int]:
        """Numbers of learners that can be chosen."""
        return sorted({cost.num_learners for cost in self.learners if cost.batch_size == self.batch_size})

    def learner_cost(self, num_learners: int) -> LearnerCost:
        """Of a group of this size, at the settings' batch size.

        Raises:
            ValueError: it was not measured.
        """
        for cost in self.learners:
            if (cost.num_learners, cost.batch_size) == (num_learners, self.batch_size):
                return cost
        raise ValueError(f"{num_learners} learners with batches of {self.batch_size} were not measured")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a split should come to.

    Attributes:
        num_actors: x.
        num_learners: y.
        limits: what each limit alone would allow, environment steps a second.
        updates_per_step: of the learner group, for one environment step.
    """

    num_actors: int
    num_learners: int
    limits: Mapping[str, float]
    updates_per_step: float

    @property
    def env_steps_per_s(self) -> float:
        """The rate: the lowest limit."""
        return min(self.limits.values())

    @property
    def updates_per_s(self) -> float:
        """Of the learner group."""
        return self.env_steps_per_s * self.updates_per_step

    @property
    def bottleneck(self) -> str:
        """The lowest limit's name."""
        return min(self.limits, key=lambda name: self.limits[name])


def predict(profile: Profile, num_actors: int, num_learners: int, *, actor_cores: float = 0.0) -> Prediction:
    """What a split should come to.

    Args:
        profile: of the settings on the machine.
        num_actors: x >= 1.
        num_learners: y, one of `group_sizes`.
        actor_cores: cores of other machines, on which actors alone run.
    """
    ratio, replay = profile.samples_per_insert, profile.replay.cpu_s_per_step(profile.samples_per_insert)
    actor, learner = profile.actor_cost(num_actors), profile.learner_cost(num_learners)
    rate_of_one = profile.actors[0].steps_per_s
    here = max(profile.cores - profile.other_cores, 0.0)
    without_actors = replay + ratio * learner.cpu_s_per_row
    limits = {
        "actors": num_actors * rate_of_one,
        "learner": learner.rows_per_s / ratio,
        "replay": profile.replay.saturates_at(ratio),
        "cores": (here + actor_cores) / (actor.cpu_s_per_step + without_actors),
    }
    if actor_cores:
        limits["cores for replay and learner"] = here / without_actors
    return Prediction(num_actors, num_learners, limits, ratio / learner.rows_per_update)


def curve(profile: Profile, *, actor_cores: float = 0.0, only_actors: int | None = None) -> list[Prediction]:
    """All splits that are looked at: as many actors as can help, with each number of learners.

    Args:
        profile: of the settings on the machine.
        actor_cores: as for `predict`.
        only_actors: this number of actors alone.
    """
    shown = []
    for num_learners in profile.group_sizes():
        most = only_actors or _most_actors(profile, num_learners, actor_cores)
        for num_actors in range(only_actors or 1, most + 1):
            shown.append(predict(profile, num_actors, num_learners, actor_cores=actor_cores))
    return shown


def choose(predictions: Iterable[Prediction]) -> Prediction:
    """The fastest split; of those that are as fast, the one with the fewest processes, learners first.

    Raises:
        ValueError: there is none.
    """
    splits = list(predictions)
    if not splits:
        raise ValueError("there is no split to choose from")
    best = max(split.env_steps_per_s for split in splits)
    equal = [split for split in splits if split.env_steps_per_s >= best * (1 - SAME)]
    return min(equal, key=lambda split: (split.num_learners, split.num_actors))


def with_one_more_core(profile: Profile) -> Prediction:
    """The best split on a machine with one core more."""
    return choose(curve(replace(profile, cores=profile.cores + 1)))


def with_one_more_machine(profile: Profile) -> Prediction:
    """The best split if actors run on a second machine of as many cores too."""
    return choose(curve(profile, actor_cores=profile.cores))


def _most_actors(profile: Profile, num_learners: int, actor_cores: float) -> int:
    """One actor more than it takes to reach what the other limits allow; at least as many as there are cores."""
    others = predict(profile, 1, num_learners, actor_cores=actor_cores).limits
    most_needed = min(limit for name, limit in others.items() if name != "actors") / profile.actors[0].steps_per_s
    cores = profile.cores + actor_cores
    return int(min(max(most_needed + 1, cores), ACTORS_A_CORE * cores))
