"""Compares runs that differ in nothing but their seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from parl_mq.observe.runs import Run
from parl_mq.observe.statistics import bootstrap_band, interquartile_mean


@dataclass(frozen=True, slots=True)
class Group:
    """Runs with equal settings but for the seed and what belongs to each machine (the section `node`).

    Attributes:
        label: the preset, and the settings in which it differs from other groups of that preset.
        runs: in the order of their seeds.
    """

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the runs of a group came to; those that still go are left out.

    Attributes:
        num_runs: N that ended.
        num_reached: of them, those that reached the target.
        iqm_return: interquartile mean of their last evaluations, or None if there was none.
        low: lower end of its 95 % band, or None for fewer than two runs.
        high: upper end.
        median_time_to_target_s: over all N, where one that did not reach counts as never; None for never.
    """

    label: str
    num_runs: int
    num_reached: int
    iqm_return: float | None
    low: float | None
    high: float | None
    median_time_to_target_s: float | None


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Puts runs together that differ in their seed alone; groups in the order of their labels."""
    by_settings = sorted(runs, key=lambda run: (run.preset, _shared(run), run.seed, str(run.path)))
    groups = [tuple(same) for _, same in groupby(by_settings, key=_shared)]
    labels = _labels([group[0] for group in groups])
    return [Group(label, group) for label, group in zip(labels, groups, strict=True)]


def compare(group: Group, rng: np.random.Generator) -> Comparison:
    """What a group's runs came to; `rng` draws the band's resamples."""
    ended = [run for run in group.runs if run.state != "running"]
    returns = [run.eval_return for run in ended if run.eval_return is not None]
    low = high = None
    if len(returns) > 1:
        band = bootstrap_band([np.array(returns)[:, None]], rng)
        low, high = band.low.item(), band.high.item()
    return Comparison(
        group.label,
        len(ended),
        sum(run.reached for run in ended),
        float(interquartile_mean(returns)) if returns else None,
        low,
        high,
        _median_time(ended),
    )


def _median_time(runs: Sequence[Run]) -> float | None:
    times = [np.inf if run.time_to_target_s is None else run.time_to_target_s for run in runs]
    median = float(np.median(times)) if times else np.inf
    return median if np.isfinite(median) else None


def _shared(run: Run) -> str:
    """What the runs of a group have in common, as one comparable text."""
    shared = {key: value for key, value in run.settings.items() if key != "seed" and not key.startswith("node.")}
    return json.dumps(shared, sort_keys=True, default=str)


def _labels(runs: Sequence[Run]) -> list[str]:
    """Names that tell groups apart: the preset, and what differs among the groups that share it."""
    labels = []
    for run in runs:
        rivals = [other for other in runs if other.preset == run.preset]
        keys = sorted({key for other in rivals for key in other.settings if _differs(key, rivals)})
        names = [key.rpartition(".")[2] for key in keys]
        short = [key if names.count(name) > 1 else name for key, name in zip(keys, names, strict=True)]
        shown = ", ".join(f"{name}={run.settings.get(key, 'none')}" for key, name in zip(keys, short, strict=True))
        labels.append(f"{run.preset} ({shown})" if shown else run.preset)
    return labels


def _differs(key: str, runs: Sequence[Run]) -> bool:
    if key == "seed" or key.startswith("node."):
        return False
    return any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)
