"""What is timed of full replays, and the bytes that a row of them takes."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from parl_mq.bench.replay_peers import MakeReplay
from parl_mq.bench.replay_users import Call, ReplayUser, fill
from parl_mq.bench.report import Contender, Params, Result, time_interleaved
from parl_mq.bench.workloads import Workload

CHUNK_ITEMS: Final = 2**14
CHUNK_ADDS: Final = 2**10
THREADS_BATCH: Final = 4096
"""Of a step by each thread: large enough for the kernels to give up the GIL."""
SWITCH_INTERVAL_S: Final = 0.0005
"""What every node of a run sets."""
WARM_UP_ROWS: Final = 4096
ROOTS: Final = 2**20


@dataclass(frozen=True, slots=True)
class Maker:
    """A system that takes part, before it is filled.

    Attributes:
        system: "parl_mq" or the peer's name.
        make: an empty replay.
        params: what tells it from others of the same name.
    """

    system: str
    make: MakeReplay
    params: Params = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Full:
    """The same when it is full of a workload's rows."""

    maker: Maker
    workload: Workload
    user: ReplayUser

    def contender(self, measure: str, params: Params, calls: Sequence[Call], batch: int) -> Contender:
        """Calls of `batch` items each, one after the other."""
        named = {"rows": self.workload.name, "batch": batch, **params, **self.maker.params}
        return Contender(measure, self.maker.system, named, partial(each, calls), batch * len(calls))


@dataclass(frozen=True, slots=True)
class Session:
    """How everything is measured.

    Attributes:
        rounds: of each measurement.
        tell: hears what is being done.
        held: closes the replays.
    """

    rounds: int
    tell: Callable[[str], object]
    held: ExitStack

    def filled(self, maker: Maker, workload: Workload) -> tuple[Full, Result]:
        """A full replay, and the bytes a row by which the process has grown meanwhile."""
        self.tell(f"{workload.name}: filling {maker.system} with {workload.num_rows:,} rows")
        _warm_up(maker, workload)
        before = _resident_bytes()
        user = maker.make(workload)
        self.held.callback(user.close)
        fill(user, workload)
        per_row = (_resident_bytes() - before) / workload.num_rows
        params: Params = {"rows": workload.name, "held": workload.num_rows, **maker.params}
        return Full(maker, workload, user), Result(
            "memory", maker.system, "bytes/row", params, per_row, per_row, per_row
        )

    def time(self, what: str, contenders: Sequence[Contender]) -> list[Result]:
        """Nanoseconds of this process's time an item of each: of one core, where it has one thread."""
        self.tell(what)
        return time_interleaved(contenders, self.rounds, time.process_time)

    def time_together(self, what: str, contenders: Sequence[Contender]) -> list[Result]:
        """Nanoseconds of wall time an item of each, for what runs in several threads."""
        self.tell(what)
        with _switching_as_nodes_do():
            return time_interleaved(contenders, self.rounds, time.perf_counter)


def samples(full: Full, batch: int, chunk_items: int = CHUNK_ITEMS) -> Contender:
    """Whole samples."""
    count = max(1, chunk_items // batch // full.user.slowness)
    return full.contender("sample", {"draws": full.user.draws}, [partial(full.user.sample, batch)] * count, batch)


def updates(full: Full, batch: int) -> list[Contender]:
    """New priorities for rows that were sampled; none where rows have no priorities."""
    rng = np.random.default_rng(batch)
    count = max(1, CHUNK_ITEMS // batch // full.user.slowness)
    calls = [full.user.update(full.user.sample(batch), rng.exponential(size=batch)) for _ in range(count)]
    wanted = [call for call in calls if call is not None]
    return [full.contender("update", {}, wanted, batch)] if wanted else []


def writes(full: Full, size: int) -> list[Contender]:
    """Every way to store `size` steps."""
    count = max(2, (CHUNK_ITEMS // size if size > 1 else CHUNK_ADDS) // full.user.slowness)
    ways = full.user.writes(full.workload.steps(size))
    return [full.contender("insert", {"by": way}, [call] * count, size) for way, call in ways.items()]


def learning(fulls: Sequence[Full], pool: ThreadPoolExecutor, params: Params) -> Contender:
    """Samples and their updates, in as many threads as there are replays in the list."""
    num_steps = CHUNK_ITEMS // THREADS_BATCH
    works = [partial(_learn, full.user, num_steps, seed) for seed, full in enumerate(fulls)]
    named: Params = {"rows": fulls[0].workload.name, "batch": THREADS_BATCH, "threads": len(fulls), **params}
    items = num_steps * THREADS_BATCH * len(fulls)
    return Contender(
        "sample and update in threads", fulls[0].maker.system, named, partial(_together, pool, works), items
    )


def in_threads(contender: Contender, pool: ThreadPoolExecutor, num_threads: int) -> Contender:
    """The same work by each of so many threads at once."""
    work = partial(_together, pool, [contender.chunk] * num_threads)
    params = {**contender.params, "threads": num_threads}
    return replace(
        contender,
        measure=f"{contender.measure} in threads",
        params=params,
        chunk=work,
        items=num_threads * contender.items,
    )


def roots_in_threads(pool: ThreadPoolExecutor) -> list[Contender]:
    """Square roots by one thread and by two, which nothing but the machine keeps from being twice as fast."""
    values = np.ones((2, ROOTS))
    works = [partial(np.sqrt, row, out=row) for row in values]
    return [
        Contender("roots in threads", "numpy", {"threads": n}, partial(_together, pool, works[:n]), ROOTS * n)
        for n in (1, 2)
    ]


def each(calls: Sequence[Call]) -> None:
    """Calls one after the other."""
    for call in calls:
        call()


@contextmanager
def _switching_as_nodes_do() -> Iterator[None]:
    """With the interpreter's switch interval that the package's own processes have."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _learn(user: ReplayUser, num_steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(num_steps):
        update = user.update(user.sample(THREADS_BATCH), rng.random(THREADS_BATCH))
        if update is not None:
            update()


def _together(pool: ThreadPoolExecutor, works: Sequence[Call]) -> None:
    for future in [pool.submit(work) for work in works]:
        future.result()


def _warm_up(maker: Maker, workload: Workload) -> None:
    """Loads and compiles what is no memory of the replay that comes next."""
    small = replace(workload, num_rows=min(WARM_UP_ROWS, workload.num_rows))
    user = maker.make(small)
    fill(user, small)
    user.close()


def _resident_bytes() -> int:
    """Memory that this process takes, after all that is free has gone back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
