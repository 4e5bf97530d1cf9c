"""Numbers, moments and errors in few characters, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


def compact(number: float) -> str:
    """A count in five characters or so: 950, 12.3k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def seconds(duration_s: float) -> str:
    """A duration: 16.9 s, 4.2 min, 3.1 h."""
    for size, unit in ((3_600, "h"), (60, "min")):
        if duration_s >= 2 * size:
            return f"{duration_s / size:.1f} {unit}"
    return f"{duration_s:.1f} s"


def most_urgent(items: Sequence[T], rank: Callable[[T], Any], number: int) -> list[T]:
    """So many items of the lowest rank, in their own order: what is shown again and again must not jump about."""
    chosen = sorted(range(len(items)), key=lambda place: rank(items[place]))[:number]
    return [items[place] for place in sorted(chosen)]


def counted(number: int, thing: str) -> str:
    """A count with its noun: 1 run, 2 runs."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def faults_in_words(number: float) -> str:
    """Environment faults that an actor could go on after."""
    return f"environments broke {'once' if number == 1 else f'{number:,.0f} times'}, and were made anew"


def moment(wall_time: float) -> str:
    """A time of this machine's clock: 2026-11-30 08:15:00."""
    return datetime.fromtimestamp(wall_time).strftime("%Y-%m-%d %H:%M:%S")


def in_one_line(error: str) -> str:
    """An error of several lines: what happened, and the last line that was told of it, which names the cause."""
    first, *told = error.splitlines() or [""]
    return f"{first} {told[-1].strip()}" if told else first
