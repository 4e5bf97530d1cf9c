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

from parl_mq.config.models import RunConfig
from parl_mq.errors import WireError
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.net.channel import Frame
from parl_mq.spec import TableSpec, WeightsVersion
from parl_mq.wire.codec import encode, expect_arrays
from parl_mq.wire.messages import CHUNK_BYTES, ChunkWanted, VersionGone, WeightsAnnounced, WeightsChunk

MAX_SNAPSHOT_BYTES: Final = 2**32
"""Of one version, where the algorithm does not say how many parameters its network has."""
BYTES_A_PARAMETER: Final = 16
"""Four times what one takes: a policy may have more than the one network that the algorithm speaks of."""
SLACK_BYTES: Final = 2**20
"""For the names of the tensors."""
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


def most_bytes_of_weights(config: RunConfig, spec: TableSpec) -> int:
    """Bytes that no version of a run's weights exceeds, from its settings and its table's spec."""
    num_parameters = config.algorithm.num_parameters(spec.stacked(config.environment.frame_stack))
    if num_parameters is None:
        return MAX_SNAPSHOT_BYTES
    return min(MAX_SNAPSHOT_BYTES, SLACK_BYTES + num_parameters * BYTES_A_PARAMETER)


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
    """One fetch of one announced version: which chunk to ask for next, and what has arrived.

    It takes the memory of the chunks that have arrived, whatever was announced.
    """

    def __init__(self, announced: WeightsAnnounced, max_bytes: int = MAX_SNAPSHOT_BYTES) -> None:
        """Begins a fetch.

        Raises:
            WireError: the version is larger than any of this run may be.
        """
        if announced.num_bytes > max_bytes:
            raise WireError(
                f"weights of version {announced.version} have {announced.num_bytes} bytes, at most {max_bytes} fit the "
                "run's network"
            )
        self.announced = announced
        self._chunks: dict[int, bytes] = {}
        self._num_chunks = num_chunks(announced.num_bytes)
        self._next = 0

    def first(self) -> list[ChunkWanted]:
        """The requests that open the window."""
        return [wanted for _ in range(WINDOW) if (wanted := self._ask()) is not None]

    def again(self) -> list[ChunkWanted]:
        """The requests for every chunk still missing of those asked for: after a reconnect."""
        missing = [chunk for chunk in range(self._next) if chunk not in self._chunks]
        return [ChunkWanted(version=self.announced.version, chunk=chunk) for chunk in missing]

    def take(self, message: WeightsChunk, arrays: Mapping[str, npt.NDArray[Any]]) -> list[ChunkWanted]:
        """Stores a chunk that arrived and returns the next request, if any. A repeated chunk does no harm.

        Raises:
            WireError: the chunk is none of this version, or of another length than agreed.
        """
        expect_arrays(arrays, {"bytes": (("N",), "uint8")})
        part = arrays["bytes"]
        expected = min(CHUNK_BYTES, self.announced.num_bytes - message.chunk * CHUNK_BYTES)
        is_asked = message.chunk < self._next
        if tuple(message.version) != tuple(self.announced.version) or not is_asked or expected != len(part):
            raise WireError(
                f"weights chunk {message.chunk} of version {message.version}: got {len(part)} bytes, expected "
                f"{expected} of version {self.announced.version}"
            )
        self._chunks[message.chunk] = part.tobytes()
        wanted = self._ask()
        return [] if wanted is None else [wanted]

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has arrived."""
        return len(self._chunks) == self._num_chunks

    def snapshot(self) -> WeightsSnapshot:
        """The whole version.

        Raises:
            WireError: the bytes do not match the announced digest.
        """
        payload = b"".join(self._chunks[chunk] for chunk in range(self._num_chunks))
        if hashlib.sha256(payload).hexdigest() != self.announced.digest:
            raise WireError(f"weights of version {self.announced.version} do not match their announced digest")
        version = WeightsVersion(*self.announced.version)
        return WeightsSnapshot(version, self.announced.updates, payload, self.announced.digest)

    def _ask(self) -> ChunkWanted | None:
        if self._next == self._num_chunks:
            return None
        self._next += 1
        return ChunkWanted(version=self.announced.version, chunk=self._next - 1)
