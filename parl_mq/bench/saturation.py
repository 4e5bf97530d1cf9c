"""Where one replay node saturates: a model from two costs, and the node driven there by synthetic clients.

The node does its work in one thread. Rows that are inserted take b_insert seconds of it each, rows that are drawn
b_draw. At R rows drawn for each one inserted it can take 1 / (b_insert + R b_draw) rows a second and no more. Both
costs are measured apart; then clients that need no time to act or learn drive the node at some R, and what it takes for
each second that its thread works is set beside the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from parl_mq.bench.processes import Usage, usage_of
from parl_mq.bench.report import Params, Result
from parl_mq.bench.service import WARM_S, Process, Rounds, Scene, started
from parl_mq.bench.service_node import TICK_S
from parl_mq.bench.tables import OWN
from parl_mq.bench.workloads import Workload

RATIOS: Final = (1, 8, 32)
SHARED_RATIO: Final = 8
DRIVERS: Final = 2
"""Clients of each kind that drive the node."""
SEVERAL: Final = 2
"""Replay nodes that are driven at the same time, each by clients of its own."""


@dataclass(frozen=True, slots=True)
class Driven:
    """A replay node under its clients, round by round.

    Attributes:
        inserts_per_s: rows acknowledged.
        draws_per_s: rows drawn.
        busy: processor seconds a second of the node's busiest thread.
        delayed: share of the time that this thread waited for a core.
    """

    inserts_per_s: Sequence[float]
    draws_per_s: Sequence[float]
    busy: Sequence[float]
    delayed: Sequence[float]

    def cost_per_row(self, rates: Sequence[float]) -> list[float]:
        """Seconds of the thread for each row of these."""
        return [busy / rate for busy, rate in zip(self.busy, rates, strict=True) if rate > 0]

    @property
    def capacity(self) -> list[float]:
        """Rows inserted a second if the thread worked all the time."""
        return [rate / busy for busy, rate in zip(self.busy, self.inserts_per_s, strict=True) if busy > 0]

    @property
    def occupied(self) -> list[float]:
        """Share of the time in which the thread worked or waited for a core: 1 where the node is saturated."""
        return [busy + delayed for busy, delayed in zip(self.busy, self.delayed, strict=True)]


def saturation(workload: Workload, rounds: Rounds, tell: Callable[[str], object]) -> Iterator[Result]:
    """Costs, what the model makes of them, and the driven node beside it.

    Raises:
        NodeFailed: a process ended by itself.
    """
    params: Params = {"rows": workload.name}
    tell(f"{workload.name}: what a row costs the replay node")
    inserting = drive(Scene("insert", workload, "ipc", inserting=1), rounds)
    drawing = drive(Scene("sample", workload, "ipc", learners=1, path="mapped"), rounds)
    insert_costs = inserting.cost_per_row(inserting.inserts_per_s)
    draw_costs = drawing.cost_per_row(drawing.draws_per_s)
    yield result("replay node, an insert", "ns/row", params, [cost * 1e9 for cost in insert_costs])
    yield result("replay node, a draw", "ns/row", params, [cost * 1e9 for cost in draw_costs])
    for ratio in RATIOS:
        tell(f"{workload.name}: driven at {ratio} samples per insert")
        scene = Scene("drive", workload, "ipc", learners=DRIVERS, inserting=DRIVERS, path="mapped", ratio=ratio)
        driven = drive(scene, rounds)
        at: Params = {**params, "samples per insert": ratio}
        model = [1 / (median(insert_costs) + ratio * median(draw_costs))]
        yield result("one replay node saturates at", "rows inserted/s", {**at, "by": "the model"}, model)
        yield result(
            "one replay node saturates at", "rows inserted/s", {**at, "by": "its busy seconds"}, driven.capacity
        )
        yield result("one replay node saturates at", "rows inserted/s", {**at, "by": "the wall"}, driven.inserts_per_s)
        yield result("replay node, driven", "share of the time occupied", at, driven.occupied)
    yield from several(workload, rounds, tell)


def several(workload: Workload, rounds: Rounds, tell: Callable[[str], object]) -> Iterator[Result]:
    """What one replay node takes, and SEVERAL of them at the same time, each with one client of each kind.

    Raises:
        NodeFailed: a process ended by itself.
    """
    scene = Scene("drive", workload, "ipc", learners=1, inserting=1, path="mapped", ratio=SHARED_RATIO)
    for count in (1, SEVERAL):
        tell(f"{workload.name}: {count} replay nodes at once")
        driven = drive_nodes(scene, rounds, count)
        at: Params = {"rows": workload.name, "samples per insert": SHARED_RATIO, "replay nodes": count}
        for by, rates in (("busy seconds", [node.capacity for node in driven]), ("the wall", _inserts(driven))):
            sums = [sum(of_nodes) for of_nodes in zip(*rates, strict=True)]
            yield result("replay nodes take", "rows inserted/s", {**at, "by": by}, sums)


def drive(scene: Scene, rounds: Rounds) -> Driven:
    """Starts a scene and looks at its replay node, round by round.

    Raises:
        NodeFailed: a process ended by itself.
    """
    (driven,) = drive_nodes(scene, rounds, 1)
    return driven


def drive_nodes(scene: Scene, rounds: Rounds, count: int) -> list[Driven]:
    """Starts a scene several times at once, and looks at their replay nodes in the same rounds.

    Raises:
        NodeFailed: a process ended by itself.
    """
    with ExitStack() as held:
        scenes = [held.enter_context(started(scene)) for _ in range(count)]
        cuts, usages = _look([replay.pid for replay, _ in scenes], rounds)
        return [
            _driven(replay, clients, cuts, of_node) for (replay, clients), of_node in zip(scenes, usages, strict=True)
        ]


def _driven(replay: Process, clients: Sequence[Process], cuts: list[float], usages: Sequence[Usage]) -> Driven:
    """Ends a node and its clients; what they did between the cuts."""
    told = {client: client.end() for client in clients}  # before the node, which they would miss
    drawn = replay.end().counts_at(cuts)
    inserted = [ticks.counts_at(cuts) for client, ticks in told.items() if client.role == "insert"]
    seconds = [after - before for before, after in pairwise(cuts)]
    return Driven(
        inserts_per_s=_rates([sum(counts) for counts in zip(*inserted, strict=True)] or [0.0] * len(cuts), seconds),
        draws_per_s=_rates(list(drawn), seconds),
        busy=_rates([usage.busy_s for usage in usages], seconds),
        delayed=_rates([usage.delayed_s for usage in usages], seconds),
    )


def result(measure: str, unit: str, params: Params, values: Sequence[float]) -> Result:
    """Median, least and greatest of these."""
    return Result(measure, OWN, unit, dict(params), median(values), min(values), max(values))


def _inserts(driven: Sequence[Driven]) -> list[Sequence[float]]:
    return [node.inserts_per_s for node in driven]


def _look(pids: Sequence[int], rounds: Rounds) -> tuple[list[float], list[list[Usage]]]:
    """Times of the rounds' ends, the first one's start before them, and what each process had had then."""
    cuts: list[float] = []
    usages: list[list[Usage]] = [[] for _ in pids]
    start = time.monotonic() + WARM_S
    for index in range(rounds.num_rounds + 1):
        time.sleep(max(0.0, start + index * rounds.seconds - time.monotonic()))  # the round itself
        cuts.append(time.monotonic())
        for pid, of_process in zip(pids, usages, strict=True):
            of_process.append(usage_of(pid))
    time.sleep(2 * TICK_S)  # what was done up to the last cut is told after it
    return cuts, usages


def _rates(counts: Sequence[float], seconds: Sequence[float]) -> list[float]:
    return [float(after - before) / length for (before, after), length in zip(pairwise(counts), seconds, strict=True)]
