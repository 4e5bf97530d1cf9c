"""The same table behind another system's messages, so that only these differ."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.bench.peers import Peer
from parl_mq.bench.replay_users import ALPHA, EPS, FILL_STEPS, FRAGMENT_LENGTH, fragments_of, spec_of_workload
from parl_mq.bench.reverb_peer import BAND_ROWS, measure_reverb
from parl_mq.bench.service_node import TICK_S
from parl_mq.bench.ticks import Ticks, ticks_of
from parl_mq.bench.workloads import Workload
from parl_mq.replay.table import Table, TableSettings

MeasurePeer = Callable[..., tuple[list[Ticks], list[Ticks]]]
"""As `measure_ray`."""

INSERTS_AHEAD: Final = 4
"""Inserts that are under way; more of them only wait."""


class RayTable:
    """A table in an actor of Ray; what it draws goes through the object store, which readers map."""

    def __init__(self, workload: Workload) -> None:
        settings = TableSettings(
            "ray",
            workload.num_rows,
            alpha=ALPHA,
            eps=EPS,
            frame_stack=workload.stack,
            fragment_length=FRAGMENT_LENGTH,
        )
        self._table = Table(settings, spec_of_workload(workload), directory=None, rng=np.random.default_rng(0))
        fragments = fragments_of(workload.steps(FILL_STEPS))
        for _ in range(-(-workload.num_rows // FILL_STEPS) + 1):
            self._table.insert(fragments)

    def sample(
        self,
        batch_size: int,
        keys: npt.NDArray[np.uint64] | None,
        magnitudes: npt.NDArray[np.float64] | None,
    ) -> dict[str, npt.NDArray[Any]]:
        """A batch, after new priorities of an earlier one."""
        if keys is not None and magnitudes is not None:
            self._table.update_priorities(keys, magnitudes)
        return self._table.draw(batch_size).arrays()

    def insert(self, fragments: Any) -> int:
        """Stores fragments; rows drawn so far."""
        self._table.insert(fragments)
        return self.drawn()

    def drawn(self) -> int:
        """Rows drawn so far."""
        return self._table.counts.drawn


class RayLearner:
    """Keeps batches asked for, and gives priorities back, as a learner does."""

    def run(self, table: Any, batch_size: int, prefetch: int, seconds: float) -> Ticks:
        """Draws for some seconds."""
        ray = _ray()
        magnitudes = np.random.default_rng(0).random(batch_size)
        asked = [table.sample.remote(batch_size, None, None) for _ in range(prefetch)]

        def take() -> int:
            batch = ray.get(asked.pop(0))
            asked.append(table.sample.remote(batch_size, batch["keys"].copy(), magnitudes))
            return batch_size

        return ticks_of(take, seconds)


class RayInserter:
    """Sends fragments as fast as they are stored, or as the ratio allows."""

    def run(self, table: Any, workload: Workload, insert_steps: int, ratio: float | None, seconds: float) -> Ticks:
        """Inserts for some seconds."""
        ray = _ray()
        fragments = fragments_of(workload.steps(insert_steps))
        under_way: list[Any] = []
        first_drawn = drawn = ray.get(table.drawn.remote())
        sent = 0

        def take() -> int:
            nonlocal drawn, sent
            while len(under_way) < INSERTS_AHEAD and not (ratio and sent * ratio > drawn - first_drawn + BAND_ROWS):
                under_way.append(table.insert.remote(fragments))
                sent += fragments.num_live
            if under_way:
                drawn = ray.get(under_way.pop(0))
                return fragments.num_live
            time.sleep(TICK_S / 10)  # nothing tells when rows were drawn
            drawn = ray.get(table.drawn.remote())
            return 0

        return ticks_of(take, seconds)


def _ray() -> Any:
    """Its module; what its decorators give has no types."""
    return importlib.import_module("ray")


def measure_ray(
    workload: Workload,
    *,
    learners: int,
    insert_steps: int,
    batch_size: int,
    prefetch: int,
    ratio: float | None,
    seconds: float,
) -> tuple[list[Ticks], list[Ticks]]:
    """What learners and, with `insert_steps`, an inserting client did side by side."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name; else its workers come after all other processes
    ray = _ray()
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=4)
    try:
        table = ray.remote(RayTable).remote(workload)
        drawing = [ray.remote(RayLearner).remote() for _ in range(learners)]
        inserting = [ray.remote(RayInserter).remote() for _ in range(insert_steps > 0)]
        ray.get([one.__ray_ready__.remote() for one in (table, *drawing, *inserting)])
        draws = [one.run.remote(table, batch_size, prefetch, seconds) for one in drawing]
        inserts = [one.run.remote(table, workload, insert_steps, ratio, seconds) for one in inserting]
        return ray.get(draws), ray.get(inserts)
    finally:
        ray.shutdown()


PEERS: Final[Mapping[str, Peer[MeasurePeer]]] = MappingProxyType(
    {"ray": Peer("ray", "ray", measure_ray), "reverb": Peer("dm-reverb[tensorflow]", "reverb", measure_reverb)}
)
