"""`parl-mq plan`: measures a run's settings on this machine and proposes the split of its cores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parl_mq.bench.profiling import Tell, Watch
from parl_mq.bench.split import Prediction, Profile, choose, curve, with_one_more_core, with_one_more_machine
from parl_mq.bench.watched_run import changed
from parl_mq.config.models import RunConfig
from parl_mq.observe.words import compact, counted


@dataclass(frozen=True, slots=True)
class MeasuredSplit:
    """A split that was run with the settings' own ratio.

    Attributes:
        num_actors: x.
        num_learners: y.
        env_steps_per_s: of all actors.
        updates_per_s: of the learner group.
    """

    num_actors: int
    num_learners: int
    env_steps_per_s: float
    updates_per_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of the splits of a machine, and the one to take.

    Attributes:
        preset: name of the settings.
        machine: that the profile was measured on.
        profile: what was measured.
        splits: what each should come to.
        choice: one of them.
        measured: splits that were run too.
    """

    preset: str
    machine: Mapping[str, int | float | str]
    profile: Profile
    splits: tuple[Prediction, ...]
    choice: Prediction
    measured: tuple[MeasuredSplit, ...] = ()

    def to_json(self) -> str:
        """One line of JSON, the last that `parl-mq plan --json` prints."""
        return json.dumps(
            {
                "plan": self.preset,
                "machine": dict(self.machine),
                "profile": asdict(self.profile),
                "splits": [_shown(split) for split in self.splits],
                "choice": _shown(self.choice),
                "one_more_core": _shown(with_one_more_core(self.profile)),
                "one_more_machine": _shown(with_one_more_machine(self.profile)),
                "measured": [asdict(split) for split in self.measured],
                "share_of_best_measured": self.share_of_best_measured,
            }
        )

    @property
    def share_of_best_measured(self) -> float | None:
        """Measured rate of the choice over the best of all measured ones; None where it was not run."""
        rates = {(split.num_actors, split.num_learners): split.env_steps_per_s for split in self.measured}
        chosen = rates.get((self.choice.num_actors, self.choice.num_learners))
        return None if chosen is None else chosen / max(rates.values())


def make_plan(preset: str, machine: Mapping[str, int | float | str], profile: Profile) -> Plan:
    """Solves for the best split of a profile."""
    splits = curve(profile)
    return Plan(preset, machine, profile, tuple(splits), choose(splits))


def split_settings(profile: Profile, *, num_actors: int | None, num_learners: int | None) -> Prediction:
    """The best split of those that have the numbers that are given already.

    Raises:
        ValueError: so many learners were not measured.
    """
    splits = curve(profile, only_actors=num_actors)
    if num_learners is None:
        return choose(splits)
    profile.learner_cost(num_learners)
    return choose(split for split in splits if split.num_learners == num_learners)


def measure_splits(
    config: RunConfig, profile: Profile, *, max_actors: int, watching: Watch, tell: Tell
) -> tuple[MeasuredSplit, ...]:
    """Runs every split with up to so many actors, as the settings are.

    Raises:
        ParlError: as `watch`.
    """
    measured = []
    for num_learners in profile.group_sizes():
        for num_actors in range(1, max_actors + 1):
            tell(f"running {counted(num_actors, 'actor')} and {counted(num_learners, 'learner')}")
            split = changed(config, {"actor.num_actors": num_actors, "learner.num_learners": num_learners})
            names = [f"actor-{index}" for index in range(num_actors)]
            seen = watching(split, [*names, *(f"learner-{index}" for index in range(num_learners))])
            measured.append(MeasuredSplit(num_actors, num_learners, seen.env_steps_per_s, seen.updates_per_s))
    return tuple(measured)


def explained(plan: Plan) -> list[str]:
    """The choice, what holds it down, and what would bring more, in sentences."""
    choice, profile = plan.choice, plan.profile
    limits = sorted(choice.limits.items(), key=lambda item: item[1])
    lines = [
        f"take {in_words(choice)}: {_rate(choice)}, {compact(choice.updates_per_s)} updates/s at "
        f"{profile.samples_per_insert:g} samples per insert",
        f"the bottleneck is {_THE[limits[0][0]]}; "
        + ", ".join(f"{name} {compact(rate)}" for name, rate in limits)
        + " steps/s each alone",
        f"one more core: {_gain(choice, with_one_more_core(profile))}",
        f"one more machine with {counted(profile.cores, 'core')} for actors: "
        f"{_gain(choice, with_one_more_machine(profile))}",
    ]
    if (share := plan.share_of_best_measured) is not None:
        lines.append(f"measured, the choice has {share:.0%} of the best split's rate")
    return lines


def in_words(split: Prediction) -> str:
    """2 actors and 1 learner."""
    return f"{counted(split.num_actors, 'actor')} and {counted(split.num_learners, 'learner')}"


def split_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Of each split: actors, learners, predicted steps and updates a second, its bottleneck, and the measured steps."""
    measured = {(each.num_actors, each.num_learners): each.env_steps_per_s for each in plan.measured}
    rows: list[tuple[str, ...]] = []
    for split in plan.splits:
        key = (split.num_actors, split.num_learners)
        rows.append(
            (
                f"{split.num_actors}{' *' if split == plan.choice else ''}",
                str(split.num_learners),
                f"{split.env_steps_per_s:,.0f}",
                f"{split.updates_per_s:,.0f}",
                split.bottleneck,
                f"{measured[key]:,.0f}" if key in measured else "",
            )
        )
    return rows


def cost_rows(profile: Profile) -> list[tuple[str, ...]]:
    """What was measured: who, its rate if nobody disturbs it, and microseconds of processor time for what."""
    rows: list[tuple[str, ...]] = [
        (counted(each.num_actors, "actor"), f"{each.steps_per_s:,.0f} steps/s each", _us(each.cpu_s_per_step, "step"))
        for each in profile.actors
    ]
    rows += [
        (
            f"{counted(each.num_learners, 'learner')}, batch {each.rows_each}",
            f"{each.updates_per_s:,.0f} updates/s",
            _us(each.cpu_s_per_update, "update"),
        )
        for each in profile.learners
    ]
    replay = profile.replay
    saturation = f"{replay.saturates_at(profile.samples_per_insert):,.0f} steps/s"
    rows.append((counted(replay.num_nodes, "replay node"), saturation, _us(replay.cpu_s_per_insert, "row inserted")))
    rows.append(("", "", _us(replay.cpu_s_per_draw, "row drawn")))
    rows.append(("hub, evaluator", "", f"{profile.other_cores:.2f} cores"))
    return rows


_THE: dict[str, str] = {
    "actors": "the actors, which wait for their environments",
    "learner": "the learner",
    "replay": "the replay node",
    "cores": "the number of cores",
    "cores for replay and learner": "the number of cores for replay and learner",
}


def _gain(before: Prediction, after: Prediction) -> str:
    more = after.env_steps_per_s / before.env_steps_per_s - 1
    if more < 0.01:
        return f"brings nothing; {_THE[after.bottleneck]} would still be the bottleneck"
    return f"{more:+.0%} with {in_words(after)}; then the bottleneck is {_THE[after.bottleneck]}"


def _rate(split: Prediction) -> str:
    return f"{compact(split.env_steps_per_s)} steps/s"


def _us(seconds: float, what: str) -> str:
    article = "an" if what[0] in "aeiou" else "a"
    microseconds = seconds * 1e6
    return f"{microseconds:,.{0 if microseconds >= 100 else 2}f} us {article} {what}"


def _shown(split: Prediction) -> dict[str, Any]:
    return {
        "num_actors": split.num_actors,
        "num_learners": split.num_learners,
        "env_steps_per_s": split.env_steps_per_s,
        "updates_per_s": split.updates_per_s,
        "bottleneck": split.bottleneck,
        "limits": dict(split.limits),
    }


def measurable(splits: Sequence[Prediction], cores: int) -> int:
    """Actors up to which it is worth running all splits: one more than the cores, or than the best one has."""
    return max(cores, choose(splits).num_actors) + 1
