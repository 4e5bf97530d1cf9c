"""Frames that no honest peer sends: a corpus made of a seed, and a bomb that tells when it goes off."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np

from parl_mq.wire.codec import encode
from tests.wire.examples import MESSAGES

DEEP = b"\x91" * 10_000 + b"\xc0"
WIDE = msgpack.packb(dict.fromkeys(range(5000), 0))
SLAB_OF_8 = bytes(8)


class Bomb:
    """Pickled, it touches a file as soon as somebody unpickles it."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self):
        return os.mknod, (str(self._marker),)


def corpus(seed: int, size: int, marker: Path) -> Iterator[list[bytes]]:
    """So many messages of one, two or many frames.

    Args:
        seed: of the random ones.
        size: how many.
        marker: the file that a bomb would touch.
    """
    rng = np.random.default_rng(seed)
    valid = [[bytes(frame) for frame in encode(message, arrays)] for message, arrays in MESSAGES]
    fixed = list(_fixed(pickle.dumps(Bomb(marker))))
    for number in range(size):
        frames = list(valid[int(rng.integers(len(valid)))])
        match number % 8:
            case 0:
                yield [rng.bytes(int(rng.integers(1, 300)))]
            case 1:
                yield [frames[0][: int(rng.integers(len(frames[0])))], *frames[1:]]
            case 2:
                yield [_flipped(frames[0], rng), *frames[1:]]
            case 3:
                yield [*frames[:-1], frames[-1][:-1]]
            case 4:
                yield [frames[0], rng.bytes(int(rng.integers(200)))]
            case 5:
                yield fixed[int(rng.integers(len(fixed)))]
            case 6:
                yield frames  # as they are: replayed, of another run, of whatever role
            case _:
                yield [b"x"] * int(rng.integers(3, 100))


def _flipped(frame: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(frame)
    for _ in range(int(rng.integers(1, 6))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _fixed(bomb: bytes) -> Iterator[list[bytes]]:
    insert = {"kind": "insert", "sequence": 0, "table": "main"}
    yield [bomb]
    yield [msgpack.packb({"nd": True, "kind": "O", "data": bomb})]
    yield [msgpack.packb({**insert, "arrays": [["obs", "O", [1], 0]]}), bomb]
    yield [msgpack.packb({**insert, "arrays": [["obs", "uint8", [2**40], 0]]}), SLAB_OF_8]
    yield [msgpack.packb({**insert, "arrays": [["obs", "uint8", [2**62, 4, 0], 0]]}), b""]
    yield [msgpack.packb({**insert, "arrays": [["obs", "float64", [1], 0]]}), SLAB_OF_8]
    yield [msgpack.packb({**insert, "arrays": [["obs", "float64", [-1], 0]]}), SLAB_OF_8]
    yield [msgpack.packb({"kind": "heartbeat", "sequence": 1, "progress": 1, "state": "x" * 3000})]
    yield [msgpack.packb({"kind": "heartbeat", "sequence": 2**63, "progress": 1, "state": "x"})]
    yield [
        msgpack.packb({"kind": "weights_announced", "version": [9, 9], "updates": 0, "num_bytes": 2**50, "digest": ""})
    ]
    yield [msgpack.packb({"kind": "weights_chunk", "version": [1, 1], "chunk": 2**40})]
    yield [msgpack.packb({"kind": "stop_request", "reason": "because I say so"})]
    yield [DEEP]
    yield [WIDE]
    yield [b"\xdd\xff\xff\xff\xff"]
    yield [b"\xc6\xff\xff\xff\xff" + bytes(100)]
    yield [b""]
    yield [b"", b""]
