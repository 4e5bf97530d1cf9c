"""`parl-mq bench replay`: whole samples, priority updates and inserts, beside the replays of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from parl_mq.bench.peers import open_peers, versions
from parl_mq.bench.replay_measures import (
    Full,
    Maker,
    Session,
    in_threads,
    learning,
    roots_in_threads,
    samples,
    updates,
    writes,
)
from parl_mq.bench.replay_peers import PEERS, MakeReplay
from parl_mq.bench.replay_users import OwnReplay, OwnSingles
from parl_mq.bench.report import BenchReport, Result, describe_machine
from parl_mq.bench.workloads import ATARI, HALF_CHEETAH, Workload

BATCHES: Final = (32, 256, 1024)
STANDARD_BATCH: Final = 256
WRITES: Final = (1, 64, 1024)
NO_FRAMES: Final = frozenset({"rllib"})
"""Peers that are left out there: an object for each row, with two whole stacks in it."""

ROUNDS: Final = 11
QUICK_ROUNDS: Final = 5
QUICK_ROWS: Final = 2**16
QUICK_FRAMES: Final = 2**13
CHUNK_FRAMES: Final = 2**11


def run(
    against: Sequence[str] = (),
    *,
    quick: bool = False,
    tell: Callable[[str], object] = lambda _: None,
    scale: float = 1.0,
) -> BenchReport:
    """Nanoseconds an item of whole samples, updates and inserts, and the bytes that a row takes.

    Args:
        against: peers to measure beside, of "cpprb", "torchrl", "tianshou", "sb3" and "rllib".
        quick: small replays, one batch size and few rounds: seconds, and little memory.
        tell: hears what is being done.
        scale: of the number of rows.

    Raises:
        UsageError: a peer is unknown.
        ConfigError: a peer is not installed.
        MemoryRefused: the rows do not fit.
    """
    makers = open_peers(against, PEERS)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    vectors = replace(HALF_CHEETAH, num_rows=int((QUICK_ROWS if quick else HALF_CHEETAH.num_rows) * scale))
    frames = replace(ATARI, num_rows=int((QUICK_FRAMES if quick else ATARI.num_rows) * scale))
    results: list[Result] = []
    for measure in (  # one after the other, each with its replays gone when the next one starts
        partial(_measure_vectors, vectors, makers, (STANDARD_BATCH,) if quick else BATCHES),
        partial(_measure_threads, vectors),
        partial(_measure_frames, frames, makers),
    ):
        with ExitStack() as held:
            results += measure(Session(rounds, tell, held))
    return BenchReport("replay", {**describe_machine(), **versions(against, PEERS)}, tuple(results))


def _measure_vectors(
    workload: Workload, makers: Mapping[str, MakeReplay], batches: Sequence[int], session: Session
) -> Iterator[Result]:
    wanted = [Maker("parl_mq", OwnReplay), *(Maker(name, make) for name, make in makers.items())]
    if "sb3" in makers:
        wanted.append(Maker("parl_mq", partial(OwnReplay, draws="uniform")))
    fulls: list[Full] = []
    for maker in wanted:
        full, memory = session.filled(maker, workload)
        fulls.append(full)
        yield memory
    for batch in batches:
        what = f"{workload.name}: batches of {batch}"
        yield from session.time(what, [contender for full in fulls for contender in updates(full, batch)])
        yield from session.time(what, [samples(full, batch) for full in fulls])
    yield from _measure_writes(fulls, session)


def _measure_writes(fulls: Sequence[Full], session: Session) -> Iterator[Result]:
    own, workload = fulls[0], fulls[0].workload
    singles, memory = session.filled(Maker("parl_mq", OwnSingles, {"kept": "singly"}), workload)
    yield memory
    others = [full for full in fulls if full.maker.system != "parl_mq"]
    for size in WRITES:
        writers = [singles, *others] if size == 1 else [own, singles, *others]
        contenders = [contender for full in writers for contender in writes(full, size)]
        yield from session.time(f"{workload.name}: writes of {size}", contenders)


def _measure_threads(workload: Workload, session: Session) -> Iterator[Result]:
    """Draws and updates by one thread and by two: of replays of their own, and of one replay in two shards."""
    half = replace(workload, num_rows=workload.num_rows // 2)
    own = Maker("parl_mq", OwnReplay)
    first, second = (session.filled(own, half)[0] for _ in range(2))
    shared = session.filled(Maker("parl_mq", partial(OwnReplay, num_shards=2)), workload)[0]
    pool = session.held.enter_context(ThreadPoolExecutor(2))
    yield from session.time_together(
        f"{workload.name}: two threads",
        [
            learning([first], pool, {"shards": "1"}),
            learning([first, second], pool, {"shards": "1 each"}),
            learning([shared], pool, {"shards": "2 shared"}),
            learning([shared, shared], pool, {"shards": "2 shared"}),
            *roots_in_threads(pool),
        ],
    )


def _measure_frames(workload: Workload, makers: Mapping[str, MakeReplay], session: Session) -> Iterator[Result]:
    peers = [Maker(name, make) for name, make in makers.items() if name not in NO_FRAMES]
    fulls: list[Full] = []
    for maker in [Maker("parl_mq", OwnReplay), *peers]:
        full, memory = session.filled(maker, workload)
        fulls.append(full)
        yield memory
    contenders = [samples(full, STANDARD_BATCH, CHUNK_FRAMES) for full in fulls]
    yield from session.time(f"{workload.name}: batches of {STANDARD_BATCH}", contenders)
    pool = session.held.enter_context(ThreadPoolExecutor(2))
    own = contenders[0]
    yield from session.time_together(f"{workload.name}: two threads", [in_threads(own, pool, n) for n in (1, 2)])
