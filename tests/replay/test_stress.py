"""Writers, samplers and updaters on one table at once; every row carries its own checksum."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.refusals import KeysRefused
from parl_mq.replay.ring import Ring, Targets
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

NUM_WRITERS, NUM_SAMPLERS, NUM_UPDATERS = 4, 4, 2
LENGTH = 12
SIZE = 2000
"""int64 of an observation: a fragment is large enough for its copy to go on beside other threads."""
BATCH = 16
SPEC = TableSpec.of({"obs": ((SIZE,), "int64"), "action": ((), "int64")})


def fragment(rng: np.random.Generator) -> FragmentBatch:
    """Rows whose numbers add up to their action."""
    obs = rng.integers(0, 2**40, (LENGTH + 1, SIZE))
    ends = np.zeros(LENGTH + 1, np.bool_)
    columns = {
        "obs": obs,
        "action": obs.sum(axis=1),
        "reward": np.zeros(LENGTH + 1, np.float32),
        "terminated": ends,
        "truncated": ends.copy(),
    }
    ints = [np.array([value], np.int32) for value in (LENGTH, 0, 0)]
    return FragmentBatch(columns, *ints, np.array([True]), None, np.zeros((1, 2), np.uint32))


class Stress:
    """One table under load; counts what its threads did and saw."""

    def __init__(
        self, directory: Path, duration_s: float, *, until: Callable[[Stress], bool] = lambda _: False
    ) -> None:
        settings = TableSettings("test", 5 * LENGTH, fragment_length=LENGTH, num_shards=2)
        self.table = Table(settings, SPEC, directory=directory, rng=np.random.default_rng(0))
        self.num_inserts = [0] * NUM_WRITERS
        self.num_torn = self.num_drawn = self.num_updates = 0
        self._fragments = [fragment(np.random.default_rng(seed)) for seed in range(12)]
        self._deadline = time.monotonic() + duration_s
        self._until = until
        for one in self._fragments:
            self.table.insert(one)

    def run(self) -> None:
        """Runs all threads to the end; an error of any of them is raised."""
        jobs = [(self._write, n) for n in range(NUM_WRITERS)]
        jobs += [(self._sample, n) for n in range(NUM_SAMPLERS)] + [(self._update, n) for n in range(NUM_UPDATERS)]
        with ThreadPoolExecutor(len(jobs)) as pool:
            for future in [pool.submit(job, number) for job, number in jobs]:
                future.result()

    def goes_on(self) -> bool:
        """Whether there is time, and nothing has been found yet."""
        return time.monotonic() < self._deadline and not self._until(self)

    def _write(self, writer: int) -> None:
        rng = np.random.default_rng(writer)
        while self.goes_on():
            rows = LENGTH * (self.num_inserts[writer] + 1)
            mark = SenderMark(f"writer-{writer}", 1, self.num_inserts[writer], rows, 0)
            self.table.insert(self._fragments[int(rng.integers(len(self._fragments)))], sender=mark)
            self.num_inserts[writer] += 1

    def _sample(self, sampler: int) -> None:
        while self.goes_on():
            drawn = self.table.draw(BATCH).columns
            self.num_drawn += BATCH
            self.num_torn += int((drawn["obs"].sum(axis=1) != drawn["action"]).sum())

    def _update(self, updater: int) -> None:
        rng = np.random.default_rng(100 + updater)
        while self.goes_on():
            keys = self.table.draw(BATCH).keys
            try:
                self.table.update_priorities(keys, rng.random(BATCH))
            except KeysRefused:  # a row was drawn that is not there yet
                self.num_torn += 1
            self.num_updates += BATCH


def check(stress: Stress, directory: Path) -> None:
    stress.run()
    table, counts = stress.table, stress.table.counts
    assert stress.num_torn == 0
    assert counts.inserted == (sum(stress.num_inserts) + 12) * LENGTH
    assert counts.inserted - counts.evicted == table.num_live
    for writer, number in enumerate(stress.num_inserts):
        assert table.sender(f"writer-{writer}") == (f"writer-{writer}", 1, number - 1, number * LENGTH, 0)
    for ring in table._rings:
        assert ring.tree.total == pytest.approx(ring.tree.leaves.sum(), rel=1e-12)
        assert (ring.tree.leaves > 0).sum() == ring.rows.num_live
    before = counts.inserted, table.num_live, table.total_priority
    table.close(remove=False)
    again = Table(table.settings, SPEC, directory=directory, rng=np.random.default_rng(1))
    assert (again.counts.inserted, again.num_live, again.total_priority) == before
    again.close()


def test_no_row_is_torn_and_the_counts_agree(tmp_path: Path) -> None:
    check(Stress(tmp_path, 2.0), tmp_path)


@pytest.mark.slow
def test_no_row_is_torn_within_a_minute(tmp_path: Path) -> None:
    check(Stress(tmp_path, 60.0), tmp_path)


def blind_draw(goes_on: Callable[[], bool]) -> Any:
    """A Ring.draw whose gather comes late, and does not look at the tail again."""

    def draw(ring: Ring, targets: Targets, start: int, stop: int, chance: float) -> float | None:
        total = ring.choose(targets.keys, targets.probabilities, start, stop, chance)
        if total is not None:
            last_to_go = int(targets.keys[start:stop].min()) - ring.prefix + 2 * (LENGTH + 1)
            while ring.rows.tail <= last_to_go and goes_on():
                time.sleep(0)  # gives the writers the interpreter
            ring.rows.gather(targets.keys, targets.columns, start, stop)
        return total

    return draw


def test_without_a_second_look_at_the_tail_rows_are_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stress = Stress(tmp_path, 60.0, until=lambda stress: stress.num_torn > 0)
    monkeypatch.setattr(Ring, "draw", blind_draw(stress.goes_on))
    stress.run()
    assert stress.num_torn > 0
    stress.table.close()


def store_without_zeroing(ring: Ring, incoming: Any, after: Any, leaves: Any, keys: Any, sender: Any) -> Any:
    """Shard.store, step by step, without one."""
    part = ring.rows.plan(incoming, after, ring.capacity)
    ring._log.reserve(part.end, part.tail)
    with ring.lock:
        ring.rows.evict(part)
    for _ in range(20):
        time.sleep(0)  # gives the others the interpreter, who draw what has gone
    ring.rows.scatter(incoming, part, leaves.values, leaves.default, keys)
    with ring.lock:
        ring.shard.write_leaves(part)
        ring._commit(part, sender)
    return part


def test_without_zeroing_what_goes_rows_are_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stress = Stress(tmp_path, 60.0, until=lambda stress: stress.num_torn > 0)
    monkeypatch.setattr(Ring, "_store", store_without_zeroing)
    stress.run()
    assert stress.num_torn > 0
    stress.table.close()
