"""What a ring holds, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parl_mq.observe.words import compact
from parl_mq.replay.inspection import Histogram, RingFigures
from parl_mq.replay.memory import mib

BAR_WIDTH: Final = 40


def figures_to_json(figures: RingFigures) -> dict[str, Any]:
    """All of them, in JSON values."""
    return {**asdict(figures), "fill": figures.fill}


def print_figures(figures: RingFigures, console: Console, *, title: str) -> None:
    """Writes them; 80 columns are enough, but for the title."""
    console.print(Text(title, "bold"))
    lines = {
        "rows": f"{figures.num_live:,} of {figures.capacity:,} live ({figures.fill:.1%}), "
        f"{figures.num_rows:,} in memory, {mib(figures.num_bytes)}",
        "books": f"{figures.num_inserted:,} inserted, {figures.num_evicted:,} evicted, {figures.num_drawn:,} drawn",
        "priorities": f"{figures.num_updated:,} updated, {figures.num_stale:,} came too late",
        "senders": f"{figures.num_senders:,}",
        "age": f"{figures.mean_age:,.0f} on average, {figures.mean_drawn_age:,.0f} when drawn, "
        f"{figures.oldest:,} the oldest",
        "sum": f"{compact(figures.total_priority)}, as even as {figures.effective_rows:,.0f} rows of equal priority",
    }
    for name, text in lines.items():
        console.print(f"{name:<11}{text}")
    console.print("An age is the number of live rows that came later.", style="dim")
    _print_histogram(figures.histogram, console)
    if figures.top:
        _print_top(figures, console)


def _print_histogram(histogram: Histogram, console: Console) -> None:
    most = max((*histogram.counts, histogram.num_zero), default=0)
    if most == 0:
        return
    console.print()
    console.print(Text("priority from       rows", "bold"))
    named = [(f"{low:.3g}", count) for low, count in zip(histogram.edges, histogram.counts, strict=False)]
    if histogram.num_zero:
        named.insert(0, ("0", histogram.num_zero))
    for name, count in named:
        bar = "#" * max(round(BAR_WIDTH * count / most), count > 0)
        console.print(f"{name:>13}{count:>11,} {bar}".rstrip())


def _print_top(figures: RingFigures, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("key", "priority", "chance of a draw", "age", "reward"):
        table.add_column(name, justify="right")
    for row in figures.top:
        table.add_row(
            str(row.key), f"{row.priority:.4g}", f"{row.probability:.3g}", f"{row.age:,}", f"{row.reward:.4g}"
        )
    console.print()
    console.print(table)
