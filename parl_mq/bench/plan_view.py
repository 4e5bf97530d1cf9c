"""A plan for people: tables on a terminal, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parl_mq.bench.plan import Plan, cost_rows, explained, split_rows
from parl_mq.bench.split import predict
from parl_mq.bench.tables import machine_line
from parl_mq.errors import RecordError
from parl_mq.observe.plots import GREY, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS: Final = 24
"""Splits that are listed; the picture and the JSON have all."""
_COSTS: Final = ("measured", "if nobody disturbs it", "processor time")
_SPLITS: Final = ("actors", "learners", "steps/s", "updates/s", "bottleneck", "steps/s measured")
_LEFT: Final = ("measured", "bottleneck", "actors")


def print_plan(plan: Plan, stream: TextIO) -> None:
    """Writes costs, splits and the choice; 80 columns are enough."""
    console = Console(file=stream, highlight=False)
    console.print(Text(f"{plan.preset} on {plan.profile.cores} cores", "bold"))
    _print_table(console, _COSTS, cost_rows(plan.profile))
    _print_table(console, _SPLITS, split_rows(plan)[:MAX_ROWS])
    for line in explained(plan):
        console.print(Text(line))
    console.print(Text(machine_line(plan.machine), "dim"))


def write_plan(plan: Plan, path: Path) -> Path:
    """Draws the rate over the number of actors, a line for each number of learners, and what each limit would allow.

    Raises:
        RecordError: the picture cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for color, num_learners in zip(PALETTE, plan.profile.group_sizes(), strict=False):
        _draw_splits(axes, plan, num_learners, color)
    choice = plan.choice
    axes.plot(choice.num_actors, choice.env_steps_per_s, "*", markersize=13, color="black", label="choice")
    for name in ("learner", "replay"):
        limit = predict(plan.profile, choice.num_actors, choice.num_learners).limits[name]
        if limit < 3 * choice.env_steps_per_s:
            axes.axhline(limit, color=GREY, linewidth=0.8, linestyle=":")
            axes.annotate(f"{name} alone", (1, limit), fontsize=7, color=GREY, va="bottom")
    axes.set_title(f"{plan.preset} on {plan.profile.cores} cores", fontsize=9)
    axes.set_xlabel("actors", fontsize=8)
    axes.set_ylabel("environment steps/s", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7)
    try:
        figure.savefig(path, dpi=120)
    except OSError as exc:
        raise RecordError(f"{path}: the picture cannot be written ({exc})") from exc
    return path


def _draw_splits(axes: Axes, plan: Plan, num_learners: int, color: str) -> None:
    line = [split for split in plan.splits if split.num_learners == num_learners]
    label = f"{num_learners} learner{'' if num_learners == 1 else 's'}"
    actors = [split.num_actors for split in line]
    axes.plot(actors, [split.env_steps_per_s for split in line], "o-", markersize=3, color=color, label=label)
    ran = [split for split in plan.measured if split.num_learners == num_learners]
    if ran:
        axes.plot(
            [split.num_actors for split in ran],
            [split.env_steps_per_s for split in ran],
            "x",
            color=color,
            label=f"{label}, measured",
        )


def _print_table(console: Console, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for name in header:
        table.add_column(name, no_wrap=True, justify="left" if name in _LEFT else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print()
