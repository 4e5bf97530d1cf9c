"""The hub's half of the weights plane: takes versions from the learner, hands them to whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy.typing as npt

from parl_mq.errors import WireError
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.net.channel import Frame, PeerId
from parl_mq.services.weights_exchange import Fetch, announcement, chunk_frames
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import (
    ChunkWanted,
    Message,
    VersionGone,
    WeightsAnnounced,
    WeightsChunk,
    WeightsWanted,
)

MAX_PEERS: Final = 2_000
"""That are remembered as waiting or fetching: connections come and go, and nothing tells that one has gone."""
MAX_EVALUATING: Final = 16
"""Connections for which a version is kept until it has been judged."""
OLDER_BYTES: Final = 2**30
MIN_OLDER: Final = 16
"""Older versions are kept for those who fetch them up to so many bytes, but so many at least."""
FETCH_LEASE_S: Final = 60.0
"""A version that is being fetched is kept this long after a chunk of it was last asked for."""

Arrays = dict[str, npt.NDArray[Any]]
Reply = tuple[PeerId, list[Frame]]


@dataclass(frozen=True, slots=True)
class _Lease:
    """A peer still needs a version: it is fetching it (until a time), or evaluating it (until it reports)."""

    version: WeightsVersion
    until: float


class WeightsStore:
    """Holds the newest version, and older ones while somebody still needs them.

    Every method changes state and returns what must be sent; none waits.
    """

    def __init__(self) -> None:
        self._newest: WeightsSnapshot | None = None
        self._older: dict[WeightsVersion, WeightsSnapshot] = {}
        self._fetching: dict[PeerId, _Lease] = {}
        self._evaluating: dict[PeerId, WeightsVersion] = {}
        self._wants: dict[PeerId, WeightsWanted] = {}
        self._fetch: tuple[PeerId, Fetch] | None = None
        self._offered: tuple[PeerId, WeightsAnnounced] | None = None
        self._is_final = False

    @property
    def newest(self) -> WeightsSnapshot | None:
        """The newest version that has arrived whole."""
        return self._newest

    def get(self, version: WeightsVersion) -> WeightsSnapshot | None:
        """A version that is still held."""
        return next((snapshot for snapshot in self._all() if snapshot.version == version), None)

    def handle(self, peer: PeerId, message: Message, arrays: Arrays, now: float) -> list[Reply]:
        """Takes one message of the weights plane.

        Raises:
            WireError: a learner's version is not what it announced, or a chunk not of the agreed size. A fetch of it is
                given up; the learner announces the next one by itself.
        """
        known: Any = message
        match known:
            case WeightsAnnounced():
                return self._take_offer(peer, known)
            case WeightsChunk():
                return self._take_chunk(peer, known, arrays, now)
            case VersionGone():
                return self._drop_fetch(peer, known)
            case WeightsWanted():
                self._wants[peer] = known
                return self._serve_wants(now)
            case ChunkWanted():
                self._lease(peer, WeightsVersion(*known.version), now)
                return [(peer, chunk_frames(known, self._all()))]
            case _:
                assert_never(known)

    def serve_final(self, now: float) -> list[Reply]:
        """No newer version will come: whoever waits for more updates gets the newest one there is."""
        self._is_final = True
        return self._serve_wants(now)

    def release(self, version: WeightsVersion) -> None:
        """The version's evaluation is done: it is kept no longer for that, nor is an older one.

        Whoever was to judge an older one has died meanwhile, or is slower than the others.
        """
        self._evaluating = {peer: held for peer, held in self._evaluating.items() if tuple(held) > tuple(version)}

    def _all(self) -> list[WeightsSnapshot]:
        return [*([] if self._newest is None else [self._newest]), *self._older.values()]

    def _take_offer(self, peer: PeerId, offer: WeightsAnnounced) -> list[Reply]:
        if self._newest is not None and tuple(offer.version) <= tuple(self._newest.version):
            return []
        if self._fetch is not None and self._fetch[0] == peer:
            self._offered = (peer, offer)
            return []
        fetch = Fetch(offer)
        self._fetch = (peer, fetch)
        return [(peer, encode(wanted)) for wanted in fetch.first()]

    def _take_chunk(self, peer: PeerId, chunk: WeightsChunk, arrays: Arrays, now: float) -> list[Reply]:
        if self._fetch is None or self._fetch[0] != peer or self._fetch[1].announced.version != chunk.version:
            return []
        fetch = self._fetch[1]
        try:
            wanted = fetch.take(chunk, arrays)
            if not fetch.is_complete:
                return [(peer, encode(each)) for each in wanted]
            snapshot = fetch.snapshot()
        except WireError:
            self._fetch = None
            raise
        self._accept(snapshot, now)
        arrived = WeightsWanted(newer_than=snapshot.version)  # tells the learner that this version is here, whole
        return [(peer, encode(arrived)), *self._next_fetch(), *self._serve_wants(now)]

    def _drop_fetch(self, peer: PeerId, gone: VersionGone) -> list[Reply]:
        if self._fetch is None or self._fetch[0] != peer or self._fetch[1].announced.version != gone.version:
            return []
        return self._next_fetch()

    def _next_fetch(self) -> list[Reply]:
        self._fetch = None
        offered, self._offered = self._offered, None
        return [] if offered is None else self._take_offer(*offered)

    def _accept(self, snapshot: WeightsSnapshot, now: float) -> None:
        self._fetching = {peer: lease for peer, lease in self._fetching.items() if lease.until > now}
        fetched, judged = {lease.version for lease in self._fetching.values()}, set(self._evaluating.values())
        room = OLDER_BYTES
        older: dict[WeightsVersion, WeightsSnapshot] = {}
        for held in self._all():  # the newest first
            if held.version in judged or (held.version in fetched and (room > 0 or len(older) < MIN_OLDER)):
                older[held.version] = held
                room -= len(held.payload)
        self._older, self._newest = older, snapshot

    def _lease(self, peer: PeerId, version: WeightsVersion, now: float) -> None:
        self._fetching.pop(peer, None)
        self._fetching[peer] = _Lease(version, now + FETCH_LEASE_S)
        _bound(self._fetching, MAX_PEERS)

    def _serve_wants(self, now: float) -> list[Reply]:
        newest = self._newest
        if newest is None:
            _bound(self._wants, MAX_PEERS)
            return []
        too_many = len(self._wants) - MAX_PEERS  # who has waited longest is told of what there is, and asks again
        due = [
            (peer, want)
            for number, (peer, want) in enumerate(self._wants.items())
            if number < too_many or self._is_due(want, newest)
        ]
        for peer, want in due:
            del self._wants[peer]
            self._lease(peer, newest.version, now)
            if want.keep:
                self._evaluating.pop(peer, None)
                self._evaluating[peer] = newest.version
                _bound(self._evaluating, MAX_EVALUATING)
        return [(peer, encode(announcement(newest))) for peer, _ in due]

    def _is_due(self, want: WeightsWanted, newest: WeightsSnapshot) -> bool:
        if want.newer_than is not None and tuple(want.newer_than) >= tuple(newest.version):
            return False
        # A learner that was started again has gone back to its checkpoint: the updates counted so far say nothing.
        began_anew = want.newer_than is not None and want.newer_than[0] < newest.version.generation
        return self._is_final or began_anew or newest.updates >= want.min_updates


def _bound(of_peers: dict[PeerId, Any], limit: int) -> None:
    """Forgets those that were heard of longest ago."""
    while len(of_peers) > limit:
        del of_peers[next(iter(of_peers))]
