"""Pictures of reports, with matplotlib's objects alone: no window, no state that others share."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parl_mq.bench.report import BenchReport, Result
from parl_mq.bench.tables import OWN
from parl_mq.errors import RecordError
from parl_mq.observe.plots import GREY, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES: Final = 3.4
"""Of one panel, each way."""


def write_study(report: BenchReport, path: Path) -> Path:
    """Draws nanoseconds an item over K: a row of panels for draws and one for updates, a panel for each batch.

    Raises:
        RecordError: the picture cannot be written.
    """
    measures = list(dict.fromkeys(result.measure for result in report.results))
    batches = sorted({int(result.params["batch"]) for result in report.results})
    figure, panels = _panels(len(measures), len(batches))
    for row, measure in zip(panels, measures, strict=True):
        for axes, batch in zip(row, batches, strict=True):
            shown = [r for r in report.results if r.measure == measure and r.params["batch"] == batch]
            _draw_study(axes, shown, f"{measure}, batch {batch}")
        row[0].set_ylabel("ns an item", fontsize=8)
    panels[0][-1].legend(fontsize=7, title="leaves", title_fontsize=7)
    return _save(figure, path)


def write_systems(report: BenchReport, path: Path) -> Path:
    """Draws the systems beside each other on a logarithmic scale, a panel for each measure at the middle case.

    Raises:
        RecordError: the picture cannot be written.
    """
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in report.results:
        if (
            result.unit == "ns/item"
            and result.params.get("batch") == 256
            and result.params.get("leaves") in (None, 2**20)
            and "threads" not in result.params
        ):
            groups.setdefault((result.measure, result.params.get("rows")), []).append(result)
    figure, panels = _panels(1, max(1, len(groups)))
    for axes, ((measure, rows), results) in zip(panels[0], groups.items(), strict=False):
        _draw_systems(axes, results, f"{measure}, batch 256" + (f", {rows}" if rows else ""))
    return _save(figure, path)


def write_trainings(reports: Sequence[BenchReport], path: Path) -> Path:
    """Draws the seconds to target of `bench train` beside peers, a panel for each report; who never came has no bar.

    Raises:
        RecordError: the picture cannot be written.
    """
    figure, panels = _panels(1, len(reports))
    for axes, report in zip(panels[0], reports, strict=True):
        shown = [result for result in report.results if result.measure == "time to target"]
        _draw_bars(axes, shown, "{:.3g}")
        axes.set_title(f"{shown[0].params['preset']}, to {shown[0].params['target']:g}", fontsize=9)
        axes.set_xlabel("s, median of the seeds", fontsize=8)
        _frame(axes)
    return _save(figure, path)


def write_scaling(report: BenchReport, path: Path) -> Path:
    """Draws steps a second over the number of environments that wait, beside a straight line through the first point.

    Raises:
        RecordError: the picture cannot be written.
    """
    shown = [
        result
        for result in report.results
        if result.measure == "environment steps" and result.params["environments"] == "waiting"
    ]
    in_flight = [int(result.params["in flight"]) for result in shown]
    figure, ((axes,),) = _panels(1, 1)
    linear = [shown[0].median * number / in_flight[0] for number in in_flight]
    axes.plot(in_flight, linear, color=GREY, linewidth=0.8, linestyle=":", label="linear")
    axes.plot(in_flight, [result.median for result in shown], color=PALETTE[0], marker="o", markersize=3)
    axes.fill_between(in_flight, [r.min for r in shown], [r.max for r in shown], color=PALETTE[0], alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(in_flight)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_title("environments that wait", fontsize=9)
    axes.set_xlabel("in flight", fontsize=8)
    axes.set_ylabel("environment steps/s", fontsize=8)
    axes.legend(fontsize=7)
    _frame(axes)
    return _save(figure, path)


def _draw_study(axes: Axes, results: Sequence[Result], title: str) -> None:
    for color, leaves in zip(PALETTE, sorted({int(result.params["leaves"]) for result in results}), strict=False):
        line = [result for result in results if result.params["leaves"] == leaves]
        arities = [int(result.params["arity"]) for result in line]
        axes.plot(
            arities, [result.median for result in line], color=color, marker="o", markersize=3, label=f"{leaves:,}"
        )
        axes.fill_between(arities, [r.min for r in line], [r.max for r in line], color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({int(result.params["arity"]) for result in results}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("K", fontsize=8)
    _frame(axes)


def _draw_systems(axes: Axes, results: Sequence[Result], title: str) -> None:
    _draw_bars(axes, results, "{:,.0f}")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("ns an item", fontsize=8)
    _frame(axes)


def _draw_bars(axes: Axes, results: Sequence[Result], told: str) -> None:
    """Medians on a logarithmic scale, the first system on top."""
    medians = [result.median for result in results][::-1]
    colors = [PALETTE[0] if result.system == OWN else GREY for result in results][::-1]
    bars = axes.barh(
        [_label(result) for result in results][::-1], [1 if isinf(each) else each for each in medians], color=colors
    )
    axes.bar_label(bars, ["never" if isinf(each) else told.format(each) for each in medians], fontsize=7, padding=2)
    axes.set_xscale("log")
    axes.set_xlim(left=1, right=4 * max(each for each in medians if not isinf(each)))
    axes.minorticks_off()


def _label(result: Result) -> str:
    told = [str(result.params[name]) for name in ("kernel",) if name in result.params]
    if result.params.get("draws") == "uniform":
        told.append("uniform")
    return " ".join([result.system, *told])


def _panels(num_rows: int, num_columns: int) -> tuple[Figure, list[list[Axes]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES * num_columns, _INCHES * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    return figure, [list(row) for row in grid]


def _frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)


def _save(figure: Figure, path: Path) -> Path:
    try:
        figure.savefig(path, dpi=120)
    except OSError as exc:
        raise RecordError(f"{path}: the picture cannot be written ({exc})") from exc
    return path
