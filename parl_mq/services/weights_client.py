"""The actor's and the evaluator's half of the weights plane: asks for newer versions and fetches them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, assert_never

import numpy.typing as npt

from parl_mq.errors import WireError
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.net.channel import ClientChannel, LinkEvent
from parl_mq.services.weights_exchange import MAX_SNAPSHOT_BYTES, Fetch
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    ChunkWanted,
    Message,
    VersionGone,
    Weights,
    WeightsAnnounced,
    WeightsChunk,
    WeightsWanted,
)

log = logging.getLogger("parl_mq")


class WeightsClient:
    """Pulls versions from the hub, one at a time; versions in between are skipped."""

    def __init__(self, channel: ClientChannel, max_bytes: int = MAX_SNAPSHOT_BYTES) -> None:
        """Makes a client.

        Args:
            channel: to the hub.
            max_bytes: of a version; larger ones are passed over.
        """
        self._channel = channel
        self._max_bytes = max_bytes
        self._num_connects = 0
        self._decode = Decoder(Weights)
        self._version: WeightsVersion | None = None
        self._wanted: WeightsWanted | None = None
        self._fetch: Fetch | None = None
        self._arrived: asyncio.Queue[WeightsSnapshot] = asyncio.Queue(1)

    @property
    def num_reconnects(self) -> int:
        """Times that the connection came back."""
        return max(0, self._num_connects - 1)

    async def newer(self, *, min_updates: int = 0, keep: bool = False) -> WeightsSnapshot:
        """Waits for a version newer than the last one returned, with at least `min_updates` learner updates.

        `run` must be under way. With `keep` the hub holds the version until its evaluation is reported.
        """
        self._wanted = WeightsWanted(newer_than=self._version, min_updates=min_updates, keep=keep)
        await self._channel.send(encode(self._wanted))
        snapshot = await self._arrived.get()
        self._version = snapshot.version
        return snapshot

    async def run(self) -> None:
        """Receives, and asks again after each reconnect, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive())
            tasks.create_task(self._watch_link())

    async def _receive(self) -> None:
        while True:
            for frames in await self._channel.receive_many():
                message, arrays = self._decode(frames)
                await self._send(self._handle(message, arrays))

    async def _watch_link(self) -> None:
        while True:
            if await self._channel.next_event() is LinkEvent.CONNECTED:
                self._num_connects += 1
                await self._send(self._unanswered())

    def _unanswered(self) -> list[Message]:
        if self._fetch is not None:
            return list(self._fetch.again())
        return [] if self._wanted is None else [self._wanted]

    def _handle(self, message: Any, arrays: dict[str, npt.NDArray[Any]]) -> list[Message]:
        known: WeightsAnnounced | WeightsChunk | VersionGone | ChunkWanted | WeightsWanted = message
        match known:
            case WeightsAnnounced():
                if self._wanted is None:
                    return []  # the answer to a request that was repeated after a reconnect
                return self._begin(known, self._wanted)
            case WeightsChunk():
                return self._take(known, arrays)
            case VersionGone():
                self._fetch = None
                return self._unanswered()
            case ChunkWanted() | WeightsWanted():
                return []
            case _:
                assert_never(known)

    def _begin(self, announced: WeightsAnnounced, wanted: WeightsWanted) -> list[Message]:
        try:
            self._fetch = Fetch(announced, self._max_bytes)
        except WireError as error:
            log.warning("passed over a version that is none of this run's: %s", error)
            self._wanted = wanted.model_copy(update={"newer_than": announced.version})
            return [self._wanted]
        return list(self._fetch.first())

    def _take(self, chunk: WeightsChunk, arrays: dict[str, npt.NDArray[Any]]) -> list[Message]:
        fetch = self._fetch
        if fetch is None or tuple(chunk.version) != tuple(fetch.announced.version):
            return []
        wanted = fetch.take(chunk, arrays)
        if not fetch.is_complete:
            return list(wanted)
        self._fetch = None
        try:
            snapshot = fetch.snapshot()
        except WireError as error:
            log.warning("fetching again: %s", error)
            return self._unanswered()
        self._wanted = None
        self._arrived.put_nowait(snapshot)
        return []

    async def _send(self, messages: list[Message]) -> None:
        for message in messages:
            await self._channel.send(encode(message))
