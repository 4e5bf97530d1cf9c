"""A process that stores numbered messages of several senders, until it is killed; each acknowledgement is a line."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.ring import Ring
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

NUM_SENDERS: Final = 3
LENGTH: Final = 5
SPEC: Final = TableSpec.of(
    {"obs": ((300,), "uint8"), "action": ((3,), "int64"), "checksum": ((), "uint32")},
)


def name(sender: int) -> str:
    return f"sender-{sender}"


def open_table(directory: Path, capacity: int) -> Table:
    settings = TableSettings("test", capacity, fragment_length=LENGTH, num_shards=2)
    return Table(settings, SPEC, directory=directory, rng=np.random.default_rng(0))


def fragment(sender: int, sequence: int) -> FragmentBatch:
    """A message whose rows tell where they belong, and carry their own checksum."""
    rng = np.random.default_rng([sender, sequence])
    obs = rng.integers(0, 256, (LENGTH + 1, 300), np.uint8)
    action = np.array([[sender, sequence, row] for row in range(LENGTH + 1)])
    ends = np.zeros(LENGTH + 1, np.bool_)
    sums = [checksum(*row) for row in zip(obs, action, strict=True)]
    columns = {
        "obs": obs,
        "action": action,
        "reward": np.zeros(LENGTH + 1, np.float32),
        "terminated": ends,
        "truncated": ends.copy(),
        "checksum": np.array(sums, np.uint32),
    }
    ints = [np.array([value], np.int32) for value in (LENGTH, 0, 0)]
    return FragmentBatch(columns, *ints, np.array([True]), None, np.zeros((1, 2), np.uint32))


def checksum(obs: npt.NDArray[np.uint8], action: npt.NDArray[np.int64]) -> int:
    return zlib.crc32(obs.tobytes() + action.tobytes())


def stored_rows(table: Table) -> list[dict[int, list[tuple[int, int]]]]:
    """(sequence, row) of all live rows by sender, for each shard; each row is whole."""
    return [_rows_of(ring) for ring in table._rings]


def _rows_of(ring: Ring) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {sender: [] for sender in range(NUM_SENDERS)}
    contents = ring.contents()
    columns = {key: np.concatenate(pieces) for key, pieces in contents.columns.items()}
    for index in np.flatnonzero(np.concatenate(contents.headers["flags"]) & 1):
        obs, action = columns["obs"][index], columns["action"][index]
        assert checksum(obs, action) == columns["checksum"][index]
        found[int(action[0])].append((int(action[1]), int(action[2])))
    return found


def main(directory: Path, capacity: int) -> None:
    table = open_table(directory, capacity)
    rng = np.random.default_rng()
    marks = [table.sender(name(sender)) for sender in range(NUM_SENDERS)]
    next_of = [0 if mark is None else mark.sequence + 1 for mark in marks]
    while True:
        sender = int(rng.integers(NUM_SENDERS))
        sequence = next_of[sender]
        rows = LENGTH * (sequence + 1)
        table.insert(fragment(sender, sequence), sender=SenderMark(name(sender), 1, sequence, rows, 10 * rows))
        next_of[sender] += 1
        os.write(1, f"{sender} {sequence}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
