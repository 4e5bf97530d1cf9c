"""A run while it goes, for people who watch it: figures, nodes with their rates, who waits for whom, last events."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parl_mq.config.models import RunConfig
from parl_mq.observe.events import events_between, failure_in_words
from parl_mq.observe.progress import MAX_NAME, figure_grid, headline
from parl_mq.observe.status_view import health_of
from parl_mq.observe.words import compact, most_urgent
from parl_mq.wire.messages import NodeReport, RunStatus

MAX_EVENTS: Final = 200
"""Events that are remembered."""
WIDTH: Final = 80
DOES_WIDTH: Final = 26
"""Columns that there are at least for what a node does or waits for; a longer text goes on in the next line."""
RATES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "actor": (("env_steps_total", "steps/s"),),
    "learner": (("updates_total", "updates/s"),),
    "replay": (("inserted_rows_total", "in/s"), ("drawn_rows_total", "out/s")),
}
"""Which of a role's totals say how fast it is, and what that is called."""

Failure = Mapping[str, Any]


class Watcher:
    """Remembers what was seen of a run, so that it can say what changes.

    Attributes:
        events: the newest ones, oldest first: (seconds of the run, what).
    """

    def __init__(self, config: RunConfig) -> None:
        """Has seen nothing yet."""
        self.events: deque[tuple[float, str]] = deque(maxlen=MAX_EVENTS)
        self._config = config
        self._before: RunStatus | None = None
        self._newest: RunStatus | None = None
        self._num_failures = 0

    def see(self, status: RunStatus, failures: Sequence[Failure]) -> None:
        """Takes the newest state.

        Args:
            status: what the hub says.
            failures: all rows of failures.jsonl, oldest first.
        """
        if self._newest is not None:
            self.events += [(status.wall_s, event) for event in events_between(self._newest, status)]
        for failure in failures[self._num_failures :]:
            self.events.append((failure["time_s"], failure_in_words(failure)))
        self._num_failures = len(failures)
        self._before, self._newest = self._newest, status

    def render(self, note: str, *, height: int) -> RenderableType:
        """The picture; WIDTH columns are needed.

        Args:
            note: how new it is, in words.
            height: lines that there are at most; nodes that are well and do not wait are left out first, then events.
        """
        status = self._newest
        if status is None:
            return Text(note)
        pairs = headline(status, self._config)
        left = max(height - 4 - len(note) // WIDTH - (len(pairs) + 1) // 2, 6)
        rows = [
            _row(node, _figures_before(self._before, node), _seconds(self._before, status)) for node in status.nodes
        ]
        lines = list(accumulate(row.num_lines for row in sorted(rows, key=lambda row: row.rank)))
        shown = max(bisect(lines, left - 4), 1)
        left -= 4 + (lines[min(shown, len(lines)) - 1] if lines else 1)
        events = [*self.events][-left:] if left > 0 else []
        return Group(_title(status, note), figure_grid(pairs), _node_table(rows, shown), *_event_lines(events))


@dataclass(frozen=True, slots=True)
class _Row:
    """One node as the table shows it."""

    node: NodeReport
    rate: str
    processor: str
    memory: str

    @property
    def rank(self) -> tuple[bool, bool]:
        """Where not all can be shown, those that are not well are, then those that wait: they explain the others."""
        return self.node.health in ("healthy", "left"), self.node.waiting_for is None

    @property
    def waits(self) -> bool:
        """Whether it waits, as far as anybody knows."""
        return self.node.waiting_for is not None and self.node.health in ("healthy", "silent", "away")

    @property
    def does(self) -> str:
        """What it does, or waits for."""
        return f"{self.node.waiting_for} ({self.node.waiting_s:,.0f} s)" if self.waits else self.node.state

    @property
    def num_lines(self) -> int:
        """Of the table, about."""
        return max(self.rate.count("\n") + 1, ceil(len(self.node.name) / MAX_NAME), ceil(len(self.does) / DOES_WIDTH))


def _row(node: NodeReport, before: Mapping[str, float] | None, seconds: float) -> _Row:
    def per_s(name: str) -> float | None:
        if before is None or seconds <= 0 or name not in before or name not in node.figures:
            return None
        return max(0.0, node.figures[name] - before[name]) / seconds

    known = [(per_s(name), unit) for name, unit in RATES.get(node.role, ())]
    processor, memory = per_s("cpu_seconds_total"), node.figures.get("rss_bytes")
    return _Row(
        node,
        "\n".join(f"{compact(rate)} {unit}" for rate, unit in known if rate is not None),
        "" if processor is None else f"{processor:.0%}",
        "" if memory is None else compact(memory),
    )


def _figures_before(before: RunStatus | None, node: NodeReport) -> Mapping[str, float] | None:
    """What the same process told before."""
    same = [] if before is None else [old for old in before.nodes if (old.name, old.starts) == (node.name, node.starts)]
    return same[0].figures if same else None


def _seconds(before: RunStatus | None, status: RunStatus) -> float:
    return 0.0 if before is None else status.wall_s - before.wall_s


def _title(status: RunStatus, note: str) -> Text:
    title = Text.assemble(
        (status.preset, "bold"), f"  {status.env_id}  run {status.run_id}  ", (status.phase, "bold cyan")
    )
    title.append(f"  {status.wall_s:,.0f} s")
    if note:
        title.append(f"\n{note}", "yellow")
    return title


def _node_table(rows: Sequence[_Row], shown: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH)
    table.add_column("node", overflow="fold", max_width=MAX_NAME)
    table.add_column("health", no_wrap=True)
    table.add_column("rate", no_wrap=True)
    for name in ("cpu", "mem"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("does, or waits for", width=DOES_WIDTH, ratio=1)
    for row in most_urgent(rows, lambda row: row.rank, shown):
        table.add_row(*_cells(row))
    if len(rows) > shown:
        table.add_row(f"and {len(rows) - shown} more", "", "", "", "", "")
    return table


def _cells(row: _Row) -> list[Text]:
    return [
        Text(row.node.name),
        health_of(row.node),
        Text(row.rate),
        Text(row.processor),
        Text(row.memory),
        Text(row.does, "yellow" if row.waits else ""),
    ]


def _event_lines(events: Sequence[tuple[float, str]]) -> list[Text]:
    lines = [Text(f"{time_s:8,.0f} s  {what}", overflow="ellipsis", no_wrap=True) for time_s, what in reversed(events)]
    return [Text("last events, newest first", "dim"), *lines] if lines else []
