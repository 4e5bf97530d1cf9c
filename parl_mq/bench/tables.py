"""Reports as tables, on a terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parl_mq.bench.report import FIGURES, BenchReport, Result

OWN: Final = "parl_mq"
CASE: Final = ("rows", "leaves", "batch")
"""Parameters that two systems share where they do the same work."""
_FIGURES: Final = (*FIGURES, "ratio")
UNRATED: Final = ("return", "x")
"""Units whose ratios say nothing: returns have no zero, and `x` is a ratio itself."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One table.

    Attributes:
        title: measure, unit, and the parameters that are the same in all rows.
        header: what tells rows apart, then median, min, max, and the median over the best one of parl_mq.
        rows: as text.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(report: BenchReport) -> list[Grid]:
    """A table for each measure of each kind of rows, in the order of the report."""
    groups: dict[tuple[str, str, object], list[Result]] = {}
    for result in report.results:
        groups.setdefault((result.measure, result.unit, result.params.get("rows")), []).append(result)
    return [_grid(measure, unit, results) for (measure, unit, _), results in groups.items()]


def machine_line(machine: Mapping[str, int | float | str]) -> str:
    """What the numbers were taken on, in one line."""
    known = ("processor", "cores", "memory_gib", "load", "system", "python")
    versions = ", ".join(f"{name} {value}" for name, value in machine.items() if name not in known)
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, load {machine['load']} at the "
        f"end; Python {machine['python']}, {versions}"
    )


def print_report(report: BenchReport, console: Console) -> None:
    """Writes all tables; 80 columns are enough."""
    for grid in grids(report):
        console.print(Text(grid.title, "bold"))
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
        for name in grid.header:
            table.add_column(name, no_wrap=True, justify="right" if name in _FIGURES else "left")
        for row in grid.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
        console.print()
    console.print(Text(machine_line(report.machine), "dim"))


def to_markdown(grid: Grid) -> str:
    """One table as Markdown, its title in front."""
    lines = [
        grid.header,
        tuple("---:" if name in _FIGURES else "---" for name in grid.header),
        *grid.rows,
    ]
    return f"**{grid.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _grid(measure: str, unit: str, results: Sequence[Result]) -> Grid:
    names = list(dict.fromkeys(name for result in results for name in result.params))
    same = [name for name in names if len({result.params.get(name) for result in results}) == 1]
    varying = [name for name in names if name not in same]
    title = ", ".join([measure, unit, *(f"{name} {_text(results[0].params[name])}" for name in same)])
    best = _best_of_own(results)
    rows = [
        (
            *(_text(result.params.get(name, "")) for name in varying),
            result.system,
            *(_figure(value) for value in (result.median, result.min, result.max)),
            _ratio(result, best),
        )
        for result in results
    ]
    return Grid(title, (*varying, "system", *_FIGURES), tuple(rows))


def _best_of_own(results: Iterable[Result]) -> dict[tuple[object, ...], float]:
    best: dict[tuple[object, ...], float] = {}
    for result in results:
        if result.system == OWN and any(name in result.params for name in CASE):
            better = max if result.unit.endswith("/s") else min
            best[_case(result)] = better(result.median, best.get(_case(result), result.median))
    return best


def _case(result: Result) -> tuple[object, ...]:
    return tuple(result.params.get(name) for name in CASE)


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ratio(result: Result, best: Mapping[tuple[object, ...], float]) -> str:
    over = best.get(_case(result), math.inf)
    if result.unit in UNRATED or not math.isfinite(result.median) or not math.isfinite(over):
        return ""
    value = result.median / over
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
