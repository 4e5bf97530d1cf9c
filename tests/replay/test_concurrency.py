"""Threads that insert, draw and update at once, with rows that carry their own checksum."""

from __future__ import annotations

import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.draws import split_frames
from parl_mq.replay.ring import Targets
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

SIZE = 3000
SPEC = TableSpec.of({"obs": ((SIZE,), "uint8"), "action": ((), "int64"), "checksum": ((), "uint32")})
LENGTH = 10
NUM_DRAWS = 250


def checksum(obs: npt.NDArray[np.uint8], action: np.int64, reward: np.float32) -> int:
    return zlib.crc32(obs.tobytes() + action.tobytes() + reward.tobytes())


def random_fragment(rng: np.random.Generator) -> FragmentBatch:
    num_rows = LENGTH + 2
    obs = rng.integers(0, 256, (num_rows, SIZE), np.uint8)
    obs[:, 0] = np.arange(num_rows)
    action, reward = rng.integers(0, 2**62, num_rows), rng.random(num_rows, np.float32)
    sums = [checksum(*row) for row in zip(obs, action, reward, strict=True)]
    columns = {
        "obs": obs,
        "action": action,
        "reward": reward,
        "terminated": np.zeros(num_rows, np.bool_),
        "truncated": np.zeros(num_rows, np.bool_),
        "checksum": np.array(sums, np.uint32),
    }
    ints = [np.array([value], np.int32) for value in (LENGTH, 1, 0)]
    return FragmentBatch(columns, *ints, np.array([False]), None, np.zeros((1, 2), np.uint32))


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("frame_stack", [1, 2])
def test_no_row_is_torn_and_no_priority_misapplied(num_shards: int, frame_stack: int) -> None:
    settings = TableSettings(
        "test", 60, fragment_length=LENGTH, frame_stack=frame_stack, num_shards=num_shards, row_overhead=1.5
    )
    table = Table(settings, SPEC, directory=None, rng=np.random.default_rng(0))
    fragments = [random_fragment(np.random.default_rng(seed)) for seed in range(20)]
    table.insert(fragments[0])
    has_enough = threading.Event()

    def write(worker: int) -> int:
        rng = np.random.default_rng(worker)
        num_inserts = 0
        while not has_enough.is_set():
            table.insert(fragments[int(rng.integers(len(fragments)))])
            num_inserts += 1
        return num_inserts

    def read(worker: int) -> None:
        rng = np.random.default_rng(100 + worker)
        for _ in range(NUM_DRAWS):
            drawn = table.draw(32).columns
            obs = drawn["obs"] if frame_stack == 1 else split_frames(drawn["frames"], drawn["num_steps"], 2)[0][:, 1]
            rows = zip(obs, drawn["action"], drawn["reward"], drawn["checksum"], strict=True)
            assert all(checksum(*row) == expected for *row, expected in rows)
            next_obs = (
                drawn["next_obs"] if frame_stack == 1 else split_frames(drawn["frames"], drawn["num_steps"], 2)[1][:, 1]
            )
            assert (next_obs[:, 0] == obs[:, 0] + 1).all()
            draw = table.draw(32)
            table.update_priorities(draw.keys, rng.random(32))

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, worker) for worker in range(4)]
        readers = [pool.submit(read, worker) for worker in range(4)]
        try:
            for reader in readers:
                reader.result(timeout=60)
        finally:
            has_enough.set()
        num_inserts = 1 + sum(writer.result(timeout=60) for writer in writers)
    counts = table.counts
    assert counts.inserted == num_inserts * LENGTH
    assert counts.inserted - counts.evicted == table.num_live
    assert counts.drawn == 4 * NUM_DRAWS * 2 * 32
    assert counts.updated + counts.stale == 4 * NUM_DRAWS * 32
    for ring in table._rings:
        assert ring.tree.total == pytest.approx(ring.tree.leaves.sum(), rel=1e-12)
        assert (ring.tree.leaves > 0).sum() <= ring.rows.num_live


def test_a_row_overwritten_while_it_is_copied_is_drawn_again() -> None:
    settings = TableSettings("test", 60, fragment_length=LENGTH, row_overhead=1.5)
    table = Table(settings, SPEC, directory=None, rng=np.random.default_rng(0))
    fragments = [random_fragment(np.random.default_rng(seed)) for seed in range(7)]
    for fragment in fragments[:6]:
        table.insert(fragment)
    (ring,) = table._rings
    draw = table.draw(64)
    table.insert(fragments[6])
    targets = Targets(tuple(draw.columns.values()), draw.keys, draw.probabilities)
    torn = ring.rows.gather(draw.keys, targets.columns, 0, 64)
    oldest = np.uint64(ring.prefix + ring.rows.tail)
    assert torn == np.flatnonzero(draw.keys < oldest).tolist()
    assert torn
    ring._draw_again(torn, targets, 1.0)
    assert (draw.keys >= oldest).all()
    assert table.counts.torn == len(torn)
    rows = zip(
        draw.columns["obs"], draw.columns["action"], draw.columns["reward"], draw.columns["checksum"], strict=True
    )
    assert all(checksum(*row) == expected for *row, expected in rows)
