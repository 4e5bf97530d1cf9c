"""Statistics over runs: interquartile means, their bootstrap bands, curves on a common axis.

As in Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": few runs say little
by their mean and less by their best, so runs are compared by the mean of the middle half, with a band.

R runs, P points of an axis, N resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95


class Band(NamedTuple):
    """Limits of a confidence band, [P] each."""

    low: Floats
    high: Floats


def interquartile_mean(scores: npt.ArrayLike, axis: int = 0) -> Floats:
    """Mean of the middle half of the scores along `axis`.

    A quarter of their count, rounded down, is left out at each end, so that of three or fewer none is.

    Raises:
        ValueError: there are no scores.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=axis)
    count = ordered.shape[axis]
    if count == 0:
        raise ValueError("scores must not be empty")
    left_out = count // 4
    middle = np.take(ordered, range(left_out, count - left_out), axis=axis)
    return np.asarray(middle.mean(axis=axis))


def bootstrap_band(
    strata: Sequence[npt.ArrayLike],
    rng: np.random.Generator,
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = RESAMPLES,
) -> Band:
    """Percentile bootstrap band of the interquartile mean over all runs of all strata.

    Args:
        strata: [R_i, P] scores of each stratum, such as a task; runs are drawn again within each stratum alone, the
            same runs at all points.
        rng: draws the resamples.
        confidence: share of the resamples within the band.
        num_resamples: N.

    Raises:
        ValueError: a stratum has no runs.
    """
    resampled = np.concatenate([_resampled(np.asarray(scores, np.float64), rng, num_resamples) for scores in strata])
    means = interquartile_mean(resampled)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return Band(low, high)


def _resampled(scores: Floats, rng: np.random.Generator, num_resamples: int) -> Floats:
    """[R, N, P]: the runs, drawn with replacement."""
    if len(scores) == 0:
        raise ValueError("every stratum needs a run")
    return scores[rng.integers(len(scores), size=(len(scores), num_resamples))]


def on_common_axis(curves: Sequence[tuple[Floats, Floats]], num_points: int = 200) -> tuple[Floats, Floats]:
    """Brings curves to the same points, by straight lines between their own.

    The axis starts where the last of them starts and ends where the last of them ends; one that ended before keeps its
    last value.

    Args:
        curves: R pairs (axis, value), the axis rising; none empty.
        num_points: P.

    Returns:
        The axis [P], and the values [R, P].

    Raises:
        ValueError: there is no curve, or an empty one.
    """
    if not curves or not all(len(axis) for axis, _ in curves):
        raise ValueError("curves must not be empty")
    start, end = max(axis[0] for axis, _ in curves), max(axis[-1] for axis, _ in curves)
    axis = np.linspace(start, end, num_points)
    return axis, np.array([np.interp(axis, own, values) for own, values in curves])
