"""The table at a run's end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parl_mq.observe.files import resume_command
from parl_mq.observe.words import faults_in_words, in_one_line


def print_summary(summary: Mapping[str, Any], stream: TextIO, *, reached_before: bool = False) -> None:
    """Writes the summary for people.

    Args:
        summary: as in summary.json; the table leaves out what it lacks or holds as None.
        stream: never stdout, which belongs to results.
        reached_before: an earlier start of the run had reached the target.
    """
    console = Console(file=stream, highlight=False)
    console.print(summary_table(summary, reached_before=reached_before))
    if summary.get("interrupted"):
        console.print(Text(f"go on with {resume_command(Path(summary['run_dir']))}"), soft_wrap=True)  # to be copied


def summary_table(summary: Mapping[str, Any], *, reached_before: bool = False) -> Table:
    """Two columns, what and how much; at most 80 columns are needed."""
    table = Table(box=box.ROUNDED, show_header=False, title=_verdict(summary, reached_before), title_justify="left")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in _rows(summary):
        table.add_row(name, Text(value))
    return table


def _verdict(summary: Mapping[str, Any], reached_before: bool) -> Text:
    target = summary.get("target_return")
    if (error := summary.get("error")) is not None:
        return Text(f"failed: {in_one_line(str(error))}", "bold red")
    if target is None:
        return Text("done", "bold")
    if summary.get("reached"):
        took = summary.get("time_to_target_s")
        had = "had reached" if reached_before else "reached"
        when = "" if took is None else f" after {took:.1f} s"
        resumed = ", in an earlier start" if reached_before else ""
        return Text(f"{had} {target:g}{when}{resumed}", "bold green")
    return Text(f"did not reach {target:g}", "bold yellow")


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("run", _words(summary, "{preset}: {algorithm} on {env_id}, seed {seed}")),
        ("evaluation return", _words(summary, "{eval_return:,.4g}")),
        ("best so far", _words(summary, "{best_eval_return:,.4g}")),
        ("environment steps", _words(summary, "{env_steps:,} ({env_steps_per_s:,.0f}/s)")),
        ("updates", _words(summary, "{updates:,} ({updates_per_s:,.0f}/s)")),
        ("samples per insert", _words(summary, "{samples_per_insert:.3g}")),
        ("wall time", _words(summary, "{wall_s:.1f} s")),
        ("restarts", _restarts(summary)),
        ("environment faults", _faults(summary)),
        ("stopped because", _words(summary, "{stop_reason}")),
        ("run directory", _words(summary, "{run_dir}")),
    ]
    return [(name, value) for name, value in rows if value]


def _restarts(summary: Mapping[str, Any]) -> str:
    """Which nodes failed and were started again, how often, and how each ended the first time."""
    first = {row["node"]: row["how"] for row in reversed(summary.get("failures") or [])}
    return "\n".join(f"{name} x{count}: {first[name]}" for name, count in (summary.get("restarts") or {}).items())


def _faults(summary: Mapping[str, Any]) -> str:
    number = summary.get("environment_faults", 0)
    return f"{faults_in_words(number)}: see logs/actor-*.log" if number else ""


def _words(summary: Mapping[str, Any], form: str) -> str:
    known = {name: value for name, value in summary.items() if value not in (None, "")}
    try:
        return form.format_map(known)
    except KeyError:
        return ""
