"""A run's status for people: who is well, who waits for whom, what became of the rows, who failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parl_mq.observe.events import failure_in_words
from parl_mq.observe.progress import MAX_NAME
from parl_mq.observe.words import faults_in_words, in_one_line, seconds
from parl_mq.wire.messages import NodeReport, RunStatus

STYLES: Final = {"healthy": "green", "silent": "yellow", "away": "yellow", "left": "dim", "failed": "red"}
MAX_FAILURES: Final = 10
TRACEBACK: Final = "Traceback (most recent call last):"

Failure = Mapping[str, Any]


def print_status(status: RunStatus, failures: Sequence[Failure], console: Console, *, note: str) -> None:
    """Writes the whole picture; at most 80 columns are needed.

    Args:
        status: what the hub said.
        failures: as in failures.jsonl, oldest first.
        console: where to.
        note: how new this is, in words.
    """
    title = Text.assemble((status.preset, "bold"), f": {status.algorithm} on {status.env_id}, run {status.run_id}")
    console.print(title)
    console.print(Text(f"{status.phase} after {status.wall_s:,.0f} s; {note}"), soft_wrap=True)
    if status.error is not None:
        console.print(Text(f"failed: {in_one_line(status.error)}", "red"))
    elif status.stop_reason:
        console.print(Text(f"stopped because {status.stop_reason}"))
    for line in _figures(status):
        console.print(Text(line))
    if status.nodes:
        console.print(_node_table(status.nodes))
    console.print(Text(rows_in_words(status.books)))
    _print_failures(failures, console)


def health_of(node: NodeReport) -> Text:
    """How a node is, and for how long it has been silent."""
    silence = f" {seconds(node.silent_s)}" if node.health in ("silent", "away") else ""
    return Text(node.health + silence, STYLES[node.health])


def rows_in_words(books: Mapping[str, int]) -> str:
    """What became of the actors' rows, as the two sums that must come out even."""
    known = {name: f"{value:,}" for name, value in books.items()}
    told = (
        "rows: {sent} sent = {acknowledged} acknowledged + {abandoned} abandoned + {under_way} under way;\n"
        "      {stored} of them are stored, {lost} were lost with a ring"
    ).format_map(known)
    if books["stored"] + books["lost"] > books["acknowledged"]:
        told += "\n      (replay nodes told theirs later than the actors did)"
    return told


def _figures(status: RunStatus) -> list[str]:
    figures = status.figures
    known = [
        f"steps {figures.get('env_steps_total', 0):,.0f} ({figures.get('env_steps_per_s', 0):,.0f}/s)",
        f"updates {figures.get('updates_total', 0):,.0f} ({figures.get('updates_per_s', 0):,.0f}/s)",
    ]
    if "samples_per_insert" in figures:
        known.append(f"samples/insert {figures['samples_per_insert']:.3g}")
    if "replay_live_rows" in figures:
        known.append(f"live rows {figures['replay_live_rows']:,.0f}")
    lines = [", ".join(known)]
    if "eval_return" in figures:
        target = "" if status.target_return is None else f" (target {status.target_return:g})"
        lines.append(f"evaluation {figures['eval_return']:,.4g}{target}, best {figures['best_eval_return']:,.4g}")
    if faults := figures.get("environment_faults_total"):
        lines.append(f"{faults_in_words(faults)}: see logs/actor-*.log")
    return lines


def _node_table(nodes: Sequence[NodeReport]) -> Table:
    """Nodes that wait, and those that are not well, come first."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, width=80)
    table.add_column("node", overflow="fold", max_width=MAX_NAME)
    for name in ("health", "state", "starts"):
        table.add_column(name, no_wrap=True, justify="right" if name == "starts" else "left")
    table.add_column("waits for", ratio=1)
    for node in sorted(nodes, key=lambda node: (node.health in ("healthy", "left"), node.waiting_for is None)):
        waits = "" if node.waiting_for is None else f"{node.waiting_for} (for {node.waiting_s:,.0f} s)"
        table.add_row(Text(node.name), health_of(node), Text(node.state), str(node.starts), Text(waits))
    return table


def _print_failures(failures: Sequence[Failure], console: Console) -> None:
    """The newest failures in a line each, and the first traceback of each node."""
    for failure in failures[-MAX_FAILURES:]:
        console.print(Text(f"{failure['time_s']:,.1f} s: {failure_in_words(failure)}", "yellow"))
    shown: set[str] = set()
    for failure in failures:
        if failure["node"] not in shown and TRACEBACK in failure["told"]:
            shown.add(failure["node"])
            console.print(Text(f"the first traceback of {failure['node']}:"))
            console.print(Text("\n".join(f"  {line}" for line in failure["told"].splitlines()), "dim"))
