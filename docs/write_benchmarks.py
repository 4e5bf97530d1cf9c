"""Puts measured numbers into docs/benchmarks.md and docs/results.md, and draws them: `python docs/write_benchmarks.py`.

The reports that it reads are the last lines of `parl-mq bench ... --json`, kept in docs/results, those of
`parl-mq bench train ... --against PEER --json` in docs/results/peers, and those of `parl-mq plan PRESET --exhaustive
--json` in docs/results/plans. It replaces everything between a mark such as `<!-- tree -->` and the next `<!-- end -->`
of a page; the rest is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import isinf
from pathlib import Path
from typing import Any, Final

from parl_mq.bench.plots import write_scaling, write_study, write_systems, write_trainings
from parl_mq.bench.report import BenchReport, Result
from parl_mq.bench.tables import grids, machine_line, to_markdown

DOCS: Final = Path(__file__).parent
RESULTS: Final = DOCS / "results"
PLANS: Final = RESULTS / "plans"
PEERS: Final = RESULTS / "peers"
PICTURES: Final = DOCS / "pictures"

PUBLISHED: Final = {
    (10**4, 128): ("1.03", "1.12"),
    (10**4, 512): ("1.15", "1.14"),
    (10**6, 128): ("1.24", "1.20"),
    (10**6, 512): ("1.59", "1.28"),
    (10**7, 128): ("1.67", "1.34"),
    (10**7, 512): ("2.20", "1.36"),
}
"""(leaves, batch) -> how many times faster K = 16 was than K = 2: update, draw."""


NEVER: Final = "never"
NO_TARGET: Final = "none"
OF_PEERS: Final = {
    "time to target": "time to target, s",
    "training alone": "training alone, s",
    "environment steps to target": "environment steps",
    "updates": "updates/s",
    "time to target over parl_mq's, same seed": "time over parl_mq's, seed by seed",
}
"""Measure -> the column that shows it."""
NAMES: Final = {"sb3": "Stable-Baselines3", "tianshou": "Tianshou", "rllib": "RLlib", "torchrl": "TorchRL"}

Texts = Mapping[str, Callable[[], str]]


def benchmarks(reports: Mapping[str, BenchReport]) -> Texts:
    """Mark -> text of docs/benchmarks.md."""
    return {
        "tree": lambda: _tables(reports["tree"]),
        "arity": lambda: _tables(reports["arity"]),
        "arity beside the published": lambda: _beside_published(reports["arity"]),
        "replay": lambda: _tables(reports["replay"]),
        "service": lambda: _tables(reports["service"]),
        "plans": lambda: "\n".join(_plan(json.loads(path.read_text("utf-8"))) for path in sorted(PLANS.glob("*.json"))),
        "scale": lambda: _tables(reports["scale"]),
        "encryption": lambda: _tables(reports["encryption"]),
    }


def results(peers: Mapping[str, BenchReport]) -> Texts:
    """Mark -> text of docs/results.md."""
    return {f"peers {name}": partial(_beside_peers, report) for name, report in peers.items()}


def filled(page: str, texts: Texts) -> str:
    """The page with these texts between its marks.

    Raises:
        ValueError: a mark is missing, or there twice.
    """
    for mark, text in texts.items():
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
        body = text()
        page, found = re.subn(
            pattern, lambda match, body=body: f"{match[1]}\n{body}\n{match[2]}", page, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"the page has {found} places marked {mark!r}: there must be one")
    return page


@cache
def read_reports(folder: Path = RESULTS) -> dict[str, BenchReport]:
    """What lies in docs/results, or a folder in it, by name."""
    return {path.stem: BenchReport.from_json(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def pages() -> dict[Path, Texts]:
    """What belongs into each page."""
    return {
        DOCS / "benchmarks.md": benchmarks(read_reports()),
        DOCS / "results.md": results(read_reports(PEERS)),
    }


def _tables(report: BenchReport) -> str:
    return "\n".join(
        [*(to_markdown(grid) for grid in grids(report)), f"Measured on: {machine_line(report.machine)}.\n"]
    )


def _plan(plan: Mapping[str, Any]) -> str:
    """Every split that was looked at or run, what it should come to, and what it came to."""
    expected = {(split["num_actors"], split["num_learners"]): split for split in plan["splits"]}
    measured = {(split["num_actors"], split["num_learners"]): split for split in plan["measured"]}
    chosen = (plan["choice"]["num_actors"], plan["choice"]["num_learners"])
    lines = [
        f"**{plan['plan']}, environment steps/s**\n",
        "| actors | learners | predicted | limited by | measured |",
        "|---:|---:|---:|---|---:|",
    ]
    for split in sorted(expected | measured, key=lambda split: split[::-1]):
        mark = " (chosen)" if split == chosen else ""
        rate, limit = (
            (f"{expected[split]['env_steps_per_s']:,.0f}", expected[split]["bottleneck"])
            if split in expected
            else ("", "")
        )
        ran = f"{measured[split]['env_steps_per_s']:,.0f}" if split in measured else ""
        lines.append(f"| {split[0]}{mark} | {split[1]} | {rate} | {limit} | {ran} |")
    share = f"The choice has {plan['share_of_best_measured']:.0%} of the best measured rate."
    return "\n".join([*lines, "", f"{share} Measured on: {machine_line(plan['machine'])}.", ""])


def _beside_peers(report: BenchReport) -> str:
    """One line for each library: medians, and the range of the seeds."""
    shown = {(result.system, result.measure): result for result in report.results}
    systems = list(dict.fromkeys(result.system for result in report.results))
    target = report.results[0].params["target"]
    has_target = target != NO_TARGET
    measures = list(OF_PEERS) if has_target else ["updates"]
    columns = ["system", *([f"reached {target:g}"] if has_target else []), *(OF_PEERS[each] for each in measures)]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * (len(columns) - len(measures))}{'---:|' * len(measures)}"]
    for system in systems:
        reached = [str(shown[system, measures[0]].params["reached"])] if has_target else []
        cells = [_with_range(shown.get((system, each))) for each in measures]
        lines.append(f"| {' | '.join([NAMES.get(system, system), *reached, *cells])} |")
    return "\n".join([*lines, "", f"Measured on: {machine_line(report.machine)}.", ""])


def _with_range(result: Result | None) -> str:
    if result is None:
        return ""
    if isinf(result.min):
        return NEVER
    median, first, last = (
        NEVER if isinf(value) else _short(value) for value in (result.median, result.min, result.max)
    )
    return f"{median} ({first} to {last})"


def _short(value: float) -> str:
    """Three digits that count, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _beside_published(report: BenchReport) -> str:
    median = {(r.measure, r.params["leaves"], r.params["batch"], r.params["arity"]): r.median for r in report.results}
    lines = [
        "| leaves | batch | update: K = 16 here | K = 8 here | published, K = 16 | draw: K = 16 here | K = 8 here "
        "| published, K = 16 |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (leaves, batch), published in PUBLISHED.items():
        cells = []
        for measure, theirs in zip(("update", "draw"), published, strict=True):
            binary = median[measure, leaves, batch, 2]
            cells += [f"{binary / median[measure, leaves, batch, arity]:.2f}" for arity in (16, 8)] + [theirs]
        lines.append(f"| {leaves:,} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes pages and pictures."""
    reports = read_reports()
    for page, texts in pages().items():
        page.write_text(filled(page.read_text("utf-8"), texts), encoding="utf-8")
    write_study(reports["arity"], PICTURES / "bench-arity.png")
    write_systems(reports["tree"], PICTURES / "bench-tree.png")
    write_systems(reports["replay"], PICTURES / "bench-replay.png")
    write_scaling(reports["scale"], PICTURES / "bench-scale.png")
    best = [report for name, report in read_reports(PEERS).items() if name.endswith("-best")]
    write_trainings(best, PICTURES / "bench-train.png")


if __name__ == "__main__":
    main()
