"""Pictures of runs: the learning curve of one, the comparison of several.

matplotlib is imported when a picture is drawn, and through its objects alone: no window, no state that others share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from parl_mq.errors import RecordError, UsageError
from parl_mq.observe.comparison import Group
from parl_mq.observe.curves import Curve, Evaluations, Exploration, Floats, read_curve
from parl_mq.observe.files import LEARNING_CURVE
from parl_mq.observe.runs import Settings, read_settings
from parl_mq.observe.statistics import bootstrap_band, interquartile_mean, on_common_axis
from parl_mq.observe.words import compact, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg", ".pdf")

SPREAD: Final = (0.1, 0.9)
"""The band around an evaluation's mean holds the middle 80 % of its episodes."""
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREY: Final = "#6b6b6b"
PALETTE: Final = (BLUE, "#D55E00", "#009E73", "#CC79A7", ORANGE, "#56B4E9", "#000000")
"""Colours that people who see fewer of them can tell apart (Okabe and Ito)."""

_Axis = Callable[[Any], Floats]
_PANELS: Final[tuple[tuple[str, _Axis], ...]] = (
    ("environment steps", lambda points: points.env_steps),
    ("wall time, s", lambda points: points.wall_s),
)


def write_learning_curve(run_dir: Path) -> Path:
    """Draws a run's returns against environment steps and against wall time; takes about half a second.

    A run without evaluations, or without a finished episode, gets a picture that says so.

    Returns:
        Where it lies, in the run directory.

    Raises:
        RecordError: the directory is no run's, its metrics are damaged, or the picture cannot be written.
    """
    settings, curve = read_settings(run_dir), read_curve(run_dir)
    target = settings.get("stop.target_return")
    figure, panels = _two_panels(_title(settings) + _verdict(curve.evaluations, target))
    for axes, (_, along) in zip(panels, _PANELS, strict=True):
        _draw_evaluations(axes, curve.evaluations, along)
        _draw_exploration(axes, curve.exploration, along)
        _draw_target(axes, target)
        _frame(axes)
    _say_what_lacks(panels[0], curve)
    _legend(figure, panels[0])
    path = run_dir / LEARNING_CURVE
    _save(figure, path)
    return path


def write_comparison(groups: Sequence[Group], path: Path, rng: np.random.Generator) -> Path:
    """Draws the evaluations of groups of runs: interquartile mean over the seeds, and its 95 % band.

    Args:
        groups: of one environment; at most as many as people can tell apart.
        path: where to, a .png, .svg or .pdf.
        rng: draws the bands' resamples.

    Raises:
        UsageError: the file's name has another ending, or the groups are of several environments.
        RecordError: no run has an evaluation, metrics are damaged, or the picture cannot be written.
    """
    check_format(path)
    curves = [(group, _evaluated(group)) for group in groups]
    shown = [(group, runs) for group, runs in curves if runs]
    if not shown:
        raise RecordError("there is nothing to draw: no run has an evaluation yet")
    figure, panels = _two_panels(_common_title([group for group, _ in shown]))
    for axes, (_, along) in zip(panels, _PANELS, strict=True):
        for index, (group, runs) in enumerate(shown):
            label = f"{group.label}, {counted(len(runs), 'run')}"
            _draw_group(axes, runs, along, rng, label=label, color=PALETTE[index % len(PALETTE)])
        for target in {run.target_return for group, _ in shown for run in group.runs}:
            _draw_target(axes, target)
        _frame(axes)
    _legend(figure, panels[0])
    _save(figure, path)
    return path


def check_format(path: Path) -> None:
    """Raises UsageError if the name's ending is none of FORMATS."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: the file's name must end in {', '.join(FORMATS)}")


def _evaluated(group: Group) -> list[Evaluations]:
    """Of the runs that have any."""
    curves = [read_curve(run.path).evaluations for run in group.runs if run.eval_return is not None]
    return [evaluations for evaluations in curves if len(evaluations.mean_return)]


def _draw_group(axes: Axes, runs: Sequence[Evaluations], along: _Axis, rng: np.random.Generator, **look: Any) -> None:
    axis, returns = on_common_axis([(along(run), run.mean_return) for run in runs])
    if len(runs) > 1:
        band = bootstrap_band([returns], rng)
        axes.fill_between(axis, band.low, band.high, color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(axis, interquartile_mean(returns), linewidth=1.8, **look)


def _draw_exploration(axes: Axes, points: Exploration, along: _Axis) -> None:
    if len(points.mean_return):
        axes.plot(along(points), points.mean_return, color=ORANGE, linewidth=1.5, label="exploration, recent episodes")


def _draw_evaluations(axes: Axes, points: Evaluations, along: _Axis) -> None:
    if not len(points.mean_return):
        return
    low, high = (points.quantile(share) for share in SPREAD)
    axes.fill_between(
        along(points), low, high, color=BLUE, alpha=0.18, linewidth=0, label="middle 80 % of its episodes"
    )
    marker = "o" if len(points.mean_return) <= 60 else ""
    axes.plot(
        along(points),
        points.mean_return,
        color=BLUE,
        linewidth=1.8,
        marker=marker,
        markersize=3,
        label="evaluation, mean",
    )


def _draw_target(axes: Axes, target: float | None) -> None:
    if target is not None:
        axes.axhline(target, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label=f"target {target:g}")


def _say_what_lacks(axes: Axes, curve: Curve) -> None:
    if len(curve.evaluations.mean_return):
        return
    words = "no evaluation yet" if len(curve.exploration.mean_return) else "no episode has ended yet"
    axes.text(0.02, 0.9, words, transform=axes.transAxes, color=GREY, bbox={"color": "white"})


def _two_panels(title: str) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, 2, sharey=True))
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    for axes, (name, _) in zip(panels, _PANELS, strict=True):
        axes.set_xlabel(name)
    panels[0].set_ylabel("return of an episode")
    panels[0].xaxis.set_major_formatter(lambda value, _: compact(value))
    return figure, panels


def _frame(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, axes: Axes) -> None:
    """Below the panels, where it hides no curve."""
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    if by_label:
        columns = 4 if max(map(len, by_label)) < 30 else 1
        figure.legend(by_label.values(), by_label, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)


def _save(figure: Figure, path: Path) -> None:
    """A reader finds the old picture or the new one."""
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        figure.savefig(temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RecordError(f"{path} cannot be written: {error.strerror}") from error


def _title(settings: Settings) -> str:
    return (
        f"{settings.get('preset', 'custom')}: {settings['algorithm.name']} on {settings['environment.id']}, "
        f"seed {settings.get('seed', 0)}"
    )


def _verdict(evaluations: Evaluations, target: float | None) -> str:
    if target is None or not len(evaluations.mean_return):
        return ""
    if (place := evaluations.first_at_least(target)) is None:
        return f"; best evaluation {evaluations.mean_return.max():.4g} of {target:g}"
    return f"; reached {target:g} after {evaluations.env_steps[place]:,.0f} steps, {evaluations.wall_s[place]:.1f} s"


def _common_title(groups: Iterable[Group]) -> str:
    """Of a picture of groups; their returns must have an axis in common.

    Raises:
        UsageError: they are of several environments.
    """
    environments = sorted({run.env_id for group in groups for run in group.runs})
    if len(environments) > 1:
        raise UsageError(
            f"a picture compares runs of one environment; these are of {', '.join(environments)}: name those of one"
        )
    return f"{environments[0]}: interquartile mean over seeds, 95 % band; ended runs keep their last value"
