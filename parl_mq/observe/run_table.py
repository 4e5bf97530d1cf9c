"""Runs as tables for people: one for each group of runs that differ in their seed alone, and what it came to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parl_mq.observe.comparison import Comparison, Group
from parl_mq.observe.runs import Run
from parl_mq.observe.words import compact, counted, in_one_line, seconds

NO_WIDTH_LIMIT: Final = 10_000
"""Columns of what goes to files and pipes, which nobody wraps."""
STYLES: Final = {"done": "", "interrupted": "yellow", "failed": "red", "running": "cyan"}


def result_console(stream: TextIO) -> Console:
    """A console for results: as wide as the terminal (or as COLUMNS says), and unlimited where there is none."""
    console = Console(file=stream, highlight=False)
    if not stream.isatty() and "COLUMNS" not in os.environ:  # rich would fold at 80 columns there
        console.width = NO_WIDTH_LIMIT
    return console


def print_runs(groups: Iterable[tuple[Group, Comparison]], console: Console) -> None:
    """Writes every group's runs and its comparison; the tables need 80 columns at most."""
    for number, (group, comparison) in enumerate(groups):
        if number:
            console.print()
        first = group.runs[0]
        target = "" if first.target_return is None else f", target {first.target_return:g}"
        console.print(Text(group.label, "bold"))
        console.print(Text(f"{first.algorithm} on {first.env_id}{target}", "dim"))
        console.print(_table(group.runs))
        for run in group.runs:
            if run.error is not None:
                told = f"{_shortest(run.path)} failed: {in_one_line(run.error)}"
                console.print(Text(told, STYLES["failed"]), soft_wrap=True)  # so that a command in it can be copied
        console.print(Text(in_words(comparison)))


def in_words(comparison: Comparison) -> str:
    """A group's comparison in one line."""
    if not comparison.num_runs:
        return "no run has ended yet"
    parts = [f"reached by {comparison.num_reached} of {counted(comparison.num_runs, 'run')}"]
    if comparison.iqm_return is not None:
        band = "" if comparison.low is None else f" (95 % band {comparison.low:.4g} to {comparison.high:.4g})"
        parts.append(f"return {comparison.iqm_return:.4g}{band}")
    if comparison.median_time_to_target_s is not None:
        parts.append(f"median time to target {seconds(comparison.median_time_to_target_s)}")
    return "; ".join(parts)


def _table(runs: Iterable[Run]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("run", overflow="fold")
    for name in ("seed", "state", "return", "steps", "wall", "to target"):
        table.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    for run in runs:
        table.add_row(
            _shortest(run.path),
            str(run.seed),
            Text(run.state, STYLES[run.state]),
            "-" if run.eval_return is None else f"{run.eval_return:.4g}",
            compact(run.env_steps),
            seconds(run.wall_s),
            "-" if run.time_to_target_s is None else seconds(run.time_to_target_s),
        )
    return table


def _shortest(path: Path) -> str:
    """A path that a shell in this folder understands."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)
