"""Puts measured numbers into docs/benchmarks.md, and draws them: `python docs/write_benchmarks.py`.

The reports that it reads are the last lines of `parl-mq bench ... --json`, kept in docs/results. It replaces everything
between a mark such as `<!-- tree -->` and the next `<!-- end -->` of the page; the rest is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from parl_mq.bench.plots import write_study, write_systems
from parl_mq.bench.report import BenchReport
from parl_mq.bench.tables import grids, machine_line, to_markdown

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "benchmarks.md"
RESULTS: Final = DOCS / "results"
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


def filled(page: str, reports: Mapping[str, BenchReport]) -> str:
    """The page with the reports' tables between its marks."""
    texts: dict[str, Callable[[], str]] = {
        "tree": lambda: _tables(reports["tree"]),
        "arity": lambda: _tables(reports["arity"]),
        "arity beside the published": lambda: _beside_published(reports["arity"]),
        "replay": lambda: _tables(reports["replay"]),
        "service": lambda: _tables(reports["service"]),
    }
    for mark, text in texts.items():
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
        body = text()
        page, found = re.subn(
            pattern, lambda match, body=body: f"{match[1]}\n{body}\n{match[2]}", page, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"the page has {found} places marked {mark!r}: there must be one")
    return page


def read_reports() -> dict[str, BenchReport]:
    """What lies in docs/results, by name."""
    return {path.stem: BenchReport.from_json(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def _tables(report: BenchReport) -> str:
    return "\n".join(
        [*(to_markdown(grid) for grid in grids(report)), f"Measured on: {machine_line(report.machine)}.\n"]
    )


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
    """Writes page and pictures."""
    reports = read_reports()
    PAGE.write_text(filled(PAGE.read_text("utf-8"), reports), encoding="utf-8")
    write_study(reports["arity"], PICTURES / "bench-arity.png")
    write_systems(reports["tree"], PICTURES / "bench-tree.png")
    write_systems(reports["replay"], PICTURES / "bench-replay.png")


if __name__ == "__main__":
    main()
