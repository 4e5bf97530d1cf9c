"""What trainings came to, read from the directories that they left: runs of parl_mq, and peers' in the same form."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parl_mq.bench.report import Params, Result
from parl_mq.bench.tables import OWN
from parl_mq.errors import RecordError
from parl_mq.observe.comparison import Comparison
from parl_mq.observe.curves import read_curve
from parl_mq.observe.files import SUMMARY
from parl_mq.observe.runs import Run

EVALUATION_S: Final = "evaluation_s"
"""In the summary of a run whose evaluations interrupt its training: their seconds."""
FIRST_STEP_S: Final = "first_env_step_s"


@dataclass(frozen=True, slots=True)
class Training:
    """One run in figures; infinite where the target was not reached.

    Attributes:
        seed: of the run.
        to_target_s: from the start of the process to the end of the first evaluation that met the target.
        training_s: of that, from the first environment step, without evaluations that interrupted the training.
        steps_to_target: environment steps until then.
        updates_per_s: of the whole run from the first environment step, without those evaluations.
    """

    seed: int
    to_target_s: float
    training_s: float
    steps_to_target: float
    updates_per_s: float


@dataclass(frozen=True, slots=True)
class System:
    """The runs of one library.

    Attributes:
        name: of the library.
        settings: `preset`, `equal` or `best`.
        trainings: in the order of their seeds.
        comparison: what they came to.
    """

    name: str
    settings: str
    trainings: tuple[Training, ...]
    comparison: Comparison


def read_training(run: Run) -> Training:
    """The figures of a run that has ended.

    Raises:
        RecordError: a file of it is damaged.
    """
    summary = _summary(run.path)
    set_up_s, judging_s = float(summary[FIRST_STEP_S] or 0.0), float(summary.get(EVALUATION_S, 0.0))
    in_training_s = run.wall_s - set_up_s - judging_s
    to_target_s = math.inf if run.time_to_target_s is None else run.time_to_target_s
    return Training(
        run.seed,
        to_target_s,
        to_target_s - set_up_s - judging_s,  # a peer's run ends with the evaluation that met the target
        _steps_to_target(run),
        run.updates / in_training_s if in_training_s > 0 else 0.0,
    )


def results_of(systems: Sequence[System], params: Params) -> list[Result]:
    """A row for each measure of each system; those of peers also seed by seed over parl_mq's.

    Args:
        systems: parl_mq's first.
        params: what all rows share.
    """
    return [row for system in systems for row in _rows(system, systems[0], params)]


MEASURES: Final[Mapping[str, tuple[str, Callable[[Training], float]]]] = {
    "time to target": ("s", lambda training: training.to_target_s),
    "training alone": ("s", lambda training: training.training_s),
    "environment steps to target": ("steps", lambda training: training.steps_to_target),
    "updates": ("updates/s", lambda training: training.updates_per_s),
}


def _rows(system: System, own: System, shared: Params) -> list[Result]:
    compared = system.comparison
    params = {**shared, "settings": system.settings, "reached": f"{compared.num_reached} of {compared.num_runs}"}
    rows = [
        _result(measure, system.name, unit, params, [figure(training) for training in system.trainings])
        for measure, (unit, figure) in MEASURES.items()
    ]
    if system.name != OWN and (ratios := _ratios(system, own)):
        rows.append(_result("time to target over parl_mq's, same seed", system.name, "x", params, ratios))
    if compared.iqm_return is not None:
        low, high = (compared.iqm_return if end is None else end for end in (compared.low, compared.high))
        measure = "last evaluation: interquartile mean, 95 % band"
        rows.append(Result(measure, system.name, "return", params, compared.iqm_return, low, high))
    return rows


def _ratios(system: System, own: System) -> list[float]:
    """Of the seeds that either reached the target with; infinite where the peer did not, 0 where parl_mq did not."""
    by_seed = {training.seed: training.to_target_s for training in own.trainings}
    ratios = [training.to_target_s / by_seed[training.seed] for training in system.trainings]
    return [ratio for ratio in ratios if not math.isnan(ratio)]


def _result(measure: str, name: str, unit: str, params: Params, figures: Sequence[float]) -> Result:
    return Result(measure, name, unit, params, statistics.median(figures), min(figures), max(figures))


def _steps_to_target(run: Run) -> float:
    evaluations = read_curve(run.path).evaluations
    place = None if run.target_return is None else evaluations.first_at_least(run.target_return)
    return math.inf if place is None else float(evaluations.env_steps[place])


def _summary(path: Path) -> Mapping[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path / SUMMARY} cannot be read: {error}") from error
    if FIRST_STEP_S not in summary:
        raise RecordError(f"{path / SUMMARY} is no ended run's: it lacks {FIRST_STEP_S}")
    return summary
