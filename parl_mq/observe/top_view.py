"""A run while it goes, for people who watch it: figures, nodes with their rates, who waits for whom, last events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parl_mq.config.models import RunConfig
from parl_mq.observe.events import events_between, failure_in_words
from parl_mq.observe.progress import figure_grid, headline
from parl_mq.observe.status_view import STYLES
from parl_mq.observe.words import compact
from parl_mq.wire.messages import NodeReport, RunStatus

MAX_EVENTS: Final = 200
"""Events that are remembered."""
WIDTH: Final = 80
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
        left = max(height - 4 - (len(pairs) + 1) // 2, 6)
        rows = [
            _row(node, _figures_before(self._before, node), _seconds(self._before, status)) for node in status.nodes
        ]
        shown = max(min(len(rows), left - 4), 1)
        events = [*self.events][-max(left - shown - 4, 0) :] if left - shown > 4 else []
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
        """Those that are not well come first, then those that wait: they explain what the others do."""
        return self.node.health in ("healthy", "left"), self.node.waiting_for is None


def _row(node: NodeReport, before: Mapping[str, float] | None, seconds: float) -> _Row:
    def per_s(name: str) -> float | None:
        if before is None or seconds <= 0 or name not in before or name not in node.figures:
            return None
        return max(0.0, node.figures[name] - before[name]) / seconds

    known = [(per_s(name), unit) for name, unit in RATES.get(node.role, ())]
    processor, memory = per_s("cpu_seconds_total"), node.figures.get("rss_bytes")
    return _Row(
        node,
        " ".join(f"{compact(rate)} {unit}" for rate, unit in known if rate is not None),
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
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), width=WIDTH)
    for name, justify in (("node", "left"), ("health", "left"), ("rate", "left"), ("cpu", "right"), ("mem", "right")):
        table.add_column(name, no_wrap=True, justify="right" if justify == "right" else "left")
    table.add_column("does, or waits for", no_wrap=True, overflow="ellipsis", ratio=1)
    ordered = sorted(rows, key=lambda row: row.rank)
    for row in ordered[:shown]:
        table.add_row(*_cells(row))
    if len(rows) > shown:
        table.add_row(f"and {len(rows) - shown} more", "", "", "", "", "")
    return table


def _cells(row: _Row) -> list[Text]:
    node = row.node
    health = node.health + (f" {node.silent_s:,.0f} s" if node.health in ("silent", "away") else "")
    waits = node.waiting_for is not None and node.health in ("healthy", "silent", "away")
    does = Text(f"{node.waiting_for} ({node.waiting_s:,.0f} s)", "yellow") if waits else Text(node.state)
    return [
        Text(node.name),
        Text(health, STYLES[node.health]),
        Text(row.rate),
        Text(row.processor),
        Text(row.memory),
        does,
    ]


def _event_lines(events: Sequence[tuple[float, str]]) -> list[Text]:
    lines = [Text(f"{time_s:8,.0f} s  {what}", overflow="ellipsis", no_wrap=True) for time_s, what in reversed(events)]
    return [Text("last events, newest first", "dim"), *lines] if lines else []
