"""Shows a run while it goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from parl_mq.config.models import RunConfig
from parl_mq.observe.words import most_urgent
from parl_mq.wire.messages import RunProgress, RunStatus

LINE_EVERY_S: Final = 5.0
"""Seconds between two plain lines of one phase."""
MAX_NODES_SHOWN: Final = 12
MAX_NAME: Final = 20
"""Columns of a node's name; a longer one is folded, and leaves room for what the node waits for."""
NO_WIDTH_LIMIT: Final = 10_000
"""Columns of a plain line, which goes to files and pipes and is not wrapped."""

Clock = Callable[[], float]


class ProgressView(AbstractContextManager["ProgressView"], Protocol):
    """Takes a run's progress messages while its block is open."""

    def __call__(self, progress: RunProgress) -> None:
        """Shows the newest state."""

    def tell(self, event: str) -> None:
        """Writes a line about something that has happened, which stays."""


def progress_view(config: RunConfig, stream: TextIO, clock: Clock) -> ProgressView:
    """The view that suits the stream.

    Args:
        config: of the run; the view shows its targets beside what is reached.
        stream: where to; never stdout, which belongs to results.
        clock: monotonic, s; the view's time starts at 0 now.
    """
    started_at = clock()
    can_redraw = stream.isatty() and not Console(file=stream).is_dumb_terminal
    view = LiveView if can_redraw else LineView
    return view(config, stream, lambda: clock() - started_at)


class LineView:
    """One line when the phase changes, else one every LINE_EVERY_S at most."""

    def __init__(self, config: RunConfig, stream: TextIO, elapsed_s: Clock) -> None:
        self._config = config
        self._console = Console(file=stream, width=NO_WIDTH_LIMIT, highlight=False, no_color=True)
        self._elapsed_s = elapsed_s
        self._last_phase = ""
        self._next_line_at = 0.0

    def __enter__(self) -> Self:
        """Nothing is shown before the first message."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to close."""

    def __call__(self, progress: RunProgress) -> None:
        """Writes a line, if one is due."""
        now = self._elapsed_s()
        if now < self._next_line_at and progress.phase == self._last_phase:
            return
        self._last_phase, self._next_line_at = progress.phase, now + LINE_EVERY_S
        figures = [f"{name} {value}" for name, value in headline(progress, self._config)]
        waits = in_sentences({name: what for name, _, what in progress.nodes if what})[:MAX_NODES_SHOWN]
        self._console.print(f"{now:7.1f} s {progress.phase}: {' | '.join([*figures, *waits])}", markup=False)

    def tell(self, event: str) -> None:
        """Writes the line at once."""
        self._console.print(f"{self._elapsed_s():7.1f} s {event}", markup=False)


class LiveView:
    """A table that is drawn again in place; it goes when the block ends."""

    def __init__(self, config: RunConfig, stream: TextIO, elapsed_s: Clock) -> None:
        self._config = config
        self._elapsed_s = elapsed_s
        self._live = Live(console=Console(file=stream), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        """Takes the lower end of the terminal."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the terminal back."""
        self._live.stop()

    def __call__(self, progress: RunProgress) -> None:
        """Draws the newest state."""
        self._live.update(render(progress, self._config, self._elapsed_s()), refresh=True)

    def tell(self, event: str) -> None:
        """Writes the line above the table."""
        self._live.console.print(f"{self._elapsed_s():7.1f} s {event}", markup=False, highlight=False)


def render(progress: RunProgress, config: RunConfig, elapsed_s: float) -> RenderableType:
    """The live view's picture: title, figures, nodes; at most 80 columns are needed."""
    title = Text.assemble(
        (config.preset, "bold"), f"  {config.environment.id}  seed {config.seed}  ", (progress.phase, "bold cyan")
    )
    title.append(f"  {elapsed_s:.0f} s")
    return Group(title, figure_grid(headline(progress, config)), _node_table(progress))


def figure_grid(pairs: Sequence[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    figures = Table.grid(padding=(0, 2), expand=False)
    for left, right in zip(pairs[::2], [*pairs[1::2], ("", "")], strict=False):
        figures.add_row(Text(left[0], "dim"), left[1], Text(right[0], "dim"), right[1])
    return figures


def headline(progress: RunProgress | RunStatus, config: RunConfig) -> list[tuple[str, str]]:
    """What matters of a run, as (name, value) in words; what is not known yet is left out."""
    figures = progress.figures
    pairs = [
        ("steps", _counted(figures, "env_steps_total", "env_steps_per_s")),
        ("updates", _counted(figures, "updates_total", "updates_per_s")),
        ("evaluation", _against(figures.get("eval_return"), config.stop.target_return, "target")),
        ("training", _short(figures.get("train_return"))),
        ("replay", _filled(figures, config)),
        ("samples/insert", _against(figures.get("samples_per_insert"), config.replay.samples_per_insert, "wanted")),
        ("learner waits", _percent(figures.get("learner_wait_fraction"))),
        ("policy lag", _short(figures.get("policy_lag"))),
    ]
    return [(name, value) for name, value in pairs if value]


def in_sentences(waiting: Mapping[str, str]) -> list[str]:
    """Who waits for what, one sentence for all who wait for the same.

    Args:
        waiting: what each node that waits is waiting for.
    """
    names: dict[str, list[str]] = {}
    for name, what in waiting.items():
        names.setdefault(what, []).append(name)
    return [f"{', '.join(who)} {'waits' if len(who) == 1 else 'wait'} for {what}" for what, who in names.items()]


def _node_table(progress: RunProgress) -> Table:
    """Nodes that wait are shown before others, because they explain what those do."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("node", overflow="fold", max_width=MAX_NAME)
    table.add_column("state", no_wrap=True)
    table.add_column("waits for")
    for name, state, waiting_for in most_urgent(progress.nodes, lambda node: node[2] is None, MAX_NODES_SHOWN):
        table.add_row(Text(name), Text(state), Text(waiting_for or "", "yellow"))
    if len(progress.nodes) > MAX_NODES_SHOWN:
        table.add_row(f"and {len(progress.nodes) - MAX_NODES_SHOWN} more", "", "")
    return table


def _counted(figures: Mapping[str, float], total: str, rate: str) -> str:
    if total not in figures:
        return ""
    return f"{figures[total]:,.0f} ({figures.get(rate, 0.0):,.0f}/s)"


def _filled(figures: Mapping[str, float], config: RunConfig) -> str:
    if (live := figures.get("replay_live_rows")) is None:
        return ""
    return f"{live:,.0f} of {config.replay.buffer_size:,} rows ({live / config.replay.buffer_size:.0%})"


def _against(value: float | None, wanted: float | None, word: str) -> str:
    if value is None:
        return ""
    return _short(value) if wanted is None else f"{_short(value)} ({word} {_short(wanted)})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
