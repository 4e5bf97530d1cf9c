"""Keeps metrics.jsonl small: what is old is kept in parts of their own, with fewer rows a minute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from parl_mq.observe.files import METRICS, PART, metrics_files
from parl_mq.replay.durable import replacing
from parl_mq.services.files import writing

PART_BYTES: Final = 8 * 1024 * 1024
"""Of metrics.jsonl at which its rows become a part: some three quarters of an hour, and ten milliseconds' work."""
THINNED_S: Final = 30.0
"""In a part, between two rows of figures of one kind; evaluations stay."""

_THINNED: Final = re.compile(rb'\{"kind": "(figures|nodes)", "time_s": ([0-9.]+)')


def part_if_large(run_dir: Path, limit: int = PART_BYTES) -> None:
    """Makes a part of metrics.jsonl if it has grown too large; the next row begins it anew.

    Raises:
        RecordError: the part cannot be made, or not be thinned out: then it stays as it is.
    """
    newest = run_dir / METRICS
    if not newest.exists() or newest.stat().st_size < limit:
        return
    part = run_dir / PART.format(_next_number(run_dir))
    with writing(part):
        newest.rename(part)
        with part.open("rb") as lines, replacing(part) as file:
            file.writelines(thinned(lines))


def _next_number(run_dir: Path) -> int:
    """After that of the newest part; older ones may have been removed to make room."""
    parts = [path for path in metrics_files(run_dir) if path.name != METRICS]
    return int(parts[-1].name.split(".")[1]) + 1 if parts else 1


def thinned(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Of the rows of one kind those that are THINNED_S apart; of evaluations, and whatever else there is, all."""
    last_s: dict[bytes, float] = {}
    for line in lines:
        if found := _THINNED.match(line):
            kind, time_s = found[1], float(found[2])
            if abs(time_s - last_s.get(kind, -THINNED_S)) < THINNED_S:
                continue
            last_s[kind] = time_s
        yield line
