"""What every benchmark gives: medians of interleaved rounds, beside the machine that they were taken on."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

Params = Mapping[str, int | float | str]
FIGURES: Final = ("median", "min", "max")


@dataclass(frozen=True, slots=True)
class Contender:
    """One system at one measure.

    Attributes:
        measure: what is measured, such as "draw".
        system: "parl_mq" or the peer's name.
        params: what the measure depends on.
        chunk: the work that is timed at once; it must take long against the clock's resolution.
        items: items that one chunk handles.
    """

    measure: str
    system: str
    params: Params
    chunk: Callable[[], object]
    items: int


@dataclass(frozen=True, slots=True)
class Result:
    """Median, least and greatest of the rounds of one contender, in `unit`; infinite: it never came to that."""

    measure: str
    system: str
    unit: str
    params: Params
    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Results of one benchmark, and the machine."""

    bench: str
    machine: Mapping[str, int | float | str]
    results: tuple[Result, ...]

    def to_json(self) -> str:
        """One line of JSON, the last that `parl-mq bench --json` prints; null stands for never."""
        results = [
            {**asdict(result), **{name: _finite(getattr(result, name)) for name in FIGURES}} for result in self.results
        ]
        return json.dumps({"bench": self.bench, "machine": dict(self.machine), "results": results}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> BenchReport:
        """The report of which `to_json` made this line."""
        read = json.loads(line)
        results = [
            {**result, **{name: math.inf if result[name] is None else result[name] for name in FIGURES}}
            for result in read["results"]
        ]
        return cls(read["bench"], read["machine"], tuple(Result(**result) for result in results))

    def rows(self) -> list[tuple[str, ...]]:
        """The results as text for a table: measure, system, params, median, min, max, unit."""
        return [
            (r.measure, r.system, _words(r.params), f"{r.median:.4g}", f"{r.min:.4g}", f"{r.max:.4g}", r.unit)
            for r in self.results
        ]


def time_interleaved(contenders: Sequence[Contender], rounds: int, clock: Callable[[], float]) -> list[Result]:
    """Nanoseconds an item of each contender, over rounds in which each has one turn.

    For work in one thread the clock should be that of the process, `time.process_time`: what it waits for others on
    the same core does not count then.

    Taking turns spreads whatever else the machine does over all of them, so that their ratios hold; every round begins
    with another one. In its turn each runs its chunk twice and the second is timed: the first brings back the cache
    lines that the others have driven out.

    Args:
        contenders: who takes part.
        rounds: turns of each, at least 1.
        clock: seconds, monotonic.
    """
    times: list[list[float]] = [[] for _ in contenders]
    for first in range(rounds):
        for turn in range(len(contenders)):
            index = (first + turn) % len(contenders)
            contenders[index].chunk()
            start = clock()
            contenders[index].chunk()
            times[index].append((clock() - start) * 1e9 / contenders[index].items)
    return [_result(contender, taken) for contender, taken in zip(contenders, times, strict=True)]


def describe_machine() -> dict[str, int | float | str]:
    """Processor, cores that may be used, memory, and the versions that results depend on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _result(contender: Contender, taken: Sequence[float]) -> Result:
    return Result(
        contender.measure,
        contender.system,
        "ns/item",
        dict(contender.params),
        statistics.median(taken),
        min(taken),
        max(taken),
    )


def _finite(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None


def _words(params: Params) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
