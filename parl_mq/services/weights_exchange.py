"""How a version of the weights moves: announced by its holder, fetched chunk by chunk by whoever wants it.

The same two halves serve both hand-overs, learner -> hub and hub -> actors and evaluators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import WireError
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.net.channel import Frame
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import encode, expect_arrays
from parl_mq.wire.messages import CHUNK_BYTES, ChunkWanted, VersionGone, WeightsAnnounced, WeightsChunk

MAX_SNAPSHOT_BYTES: Final = 2**32
"""Of one version: what a fetch may allocate because a peer says so."""
WINDOW: Final = 4
"""Chunks that a fetch has asked for and not yet received: 1 MiB under way at most."""


def announcement(snapshot: WeightsSnapshot) -> WeightsAnnounced:
    """The message that offers `snapshot`."""
    return WeightsAnnounced(
        version=snapshot.version,
        updates=snapshot.updates,
        num_bytes=len(snapshot.payload),
        digest=snapshot.digest,
    )


def num_chunks(num_bytes: int) -> int:
    """Chunks of a snapshot of so many bytes."""
    return ceil(num_bytes / CHUNK_BYTES)


def chunk_frames(wanted: ChunkWanted, held: Iterable[WeightsSnapshot]) -> list[Frame]:
    """The answer to `wanted` from the snapshots held: the chunk, or that its version is gone."""
    for snapshot in held:
        if snapshot.version == wanted.version:
            start = wanted.chunk * CHUNK_BYTES
            part = np.frombuffer(snapshot.payload, np.uint8)[start : start + CHUNK_BYTES]
            return encode(WeightsChunk(version=wanted.version, chunk=wanted.chunk), {"bytes": part})
    return encode(VersionGone(version=wanted.version))


class Fetch:
    """One fetch of one announced version: which chunk to ask for next, and what has arrived."""

    def __init__(self, announced: WeightsAnnounced) -> None:
        """Begins a fetch.

        Raises:
            WireError: the version is larger than any network here may be.
        """
        if announced.num_bytes > MAX_SNAPSHOT_BYTES:
            raise WireError(
                f"weights of version {announced.version} have {announced.num_bytes} bytes, at most {MAX_SNAPSHOT_BYTES}"
            )
        self.announced = announced
        self._payload = bytearray(announced.num_bytes)
        self._next = 0
        self._missing = set(range(num_chunks(announced.num_bytes)))

    def first(self) -> list[ChunkWanted]:
        """The requests that open the window."""
        return [wanted for _ in range(WINDOW) if (wanted := self._ask()) is not None]

    def again(self) -> list[ChunkWanted]:
        """The requests for every chunk still missing of those asked for: after a reconnect."""
        asked = sorted(chunk for chunk in self._missing if chunk < self._next)
        return [ChunkWanted(version=self.announced.version, chunk=chunk) for chunk in asked]

    def take(self, message: WeightsChunk, arrays: Mapping[str, npt.NDArray[Any]]) -> list[ChunkWanted]:
        """Stores a chunk that arrived and returns the next request, if any. A repeated chunk does no harm.

        Raises:
            WireError: the chunk is none of this version, or of another length than agreed.
        """
        expect_arrays(arrays, {"bytes": (("N",), "uint8")})
        part = arrays["bytes"]
        start = message.chunk * CHUNK_BYTES
        expected = min(CHUNK_BYTES, self.announced.num_bytes - start)
        if tuple(message.version) != tuple(self.announced.version) or expected != len(part):
            raise WireError(
                f"weights chunk {message.chunk} of version {message.version}: got {len(part)} bytes, expected "
                f"{expected} of version {self.announced.version}"
            )
        self._payload[start : start + expected] = part.data
        self._missing.discard(message.chunk)
        wanted = self._ask()
        return [] if wanted is None else [wanted]

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has arrived."""
        return not self._missing

    def snapshot(self) -> WeightsSnapshot:
        """The whole version.

        Raises:
            WireError: the bytes do not match the announced digest.
        """
        payload = bytes(self._payload)
        if hashlib.sha256(payload).hexdigest() != self.announced.digest:
            raise WireError(f"weights of version {self.announced.version} do not match their announced digest")
        version = WeightsVersion(*self.announced.version)
        return WeightsSnapshot(version, self.announced.updates, payload, self.announced.digest)

    def _ask(self) -> ChunkWanted | None:
        if self._next * CHUNK_BYTES >= self.announced.num_bytes:
            return None
        self._next += 1
        return ChunkWanted(version=self.announced.version, chunk=self._next - 1)
