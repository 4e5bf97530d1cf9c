"""Numbers in few characters, for people."""

from __future__ import annotations


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


def counted(number: int, thing: str) -> str:
    """A count with its noun: 1 run, 2 runs."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
