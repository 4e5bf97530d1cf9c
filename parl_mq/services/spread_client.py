"""The learner's end of the data plane where a run has several replay nodes: batches that all of them give rows to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.config.models import RunConfig
from parl_mq.errors import ParlError, WireError
from parl_mq.net.channel import ClientChannel, Frame
from parl_mq.replay.draws import KEYS, PROBABILITIES, draw_columns
from parl_mq.replay.limiter import Counts
from parl_mq.replay.recycling import Kind, Recycler
from parl_mq.replay.refusals import KeysRefused
from parl_mq.services.replay_desk import COUNTS_EVERY_S, REPLY_BYTES
from parl_mq.services.replay_link import ReplayLink
from parl_mq.services.row_map import RowMap
from parl_mq.services.run_draws import JointDraw, Part, RunDraws
from parl_mq.services.sample_client import Batch, Origin, joined_updates
from parl_mq.services.tables import limiter, table_settings
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import (
    MAIN_TABLE,
    Attach,
    Attached,
    Message,
    ReplayCounts,
    RunCounts,
    RunSums,
    SampleRefused,
    SampleReply,
    SampleRequest,
    SampleWaiting,
    UpdatePriorities,
    UpdateRefused,
)

Arrays = dict[str, npt.NDArray[Any]]

ANSWER: Final = "an answer of the replay nodes"
SPREAD_STREAM: Final = 9
"""Key of the random stream that decides which node gives a row, among those of the run."""

log = logging.getLogger("parl_mq")


class _Outlet:
    """What this learner has to say to one replay node."""

    def __init__(self, index: int, link: ReplayLink, row_map: RowMap) -> None:
        self.index = index
        self.link = link
        self.row_map = row_map
        self.updates: list[Arrays] = []
        self.num_seen_updates = 0
        self.told: RunSums | None = None

    def send(self, message: SampleRequest | UpdatePriorities | RunCounts, updates: bool = True) -> bool:
        """Sends a message, with all priorities that wait, or keeps these."""
        arrays = joined_updates(self.updates if updates else ())
        if not self.link.channel.try_send(encode(message, arrays)):
            return False
        if arrays:
            self.updates.clear()
            self.num_seen_updates = 0
        return True


class SpreadClient:
    """Keeps `learner.prefetch` batches asked for, or here and not yet taken; SampleClient's face, for several nodes.

    Which node gives a row, and when a draw is due, RunDraws decides. A node is told what the others have whenever that
    changes, as it must know how far the run is before it lets actors send more.

    Attributes:
        num_torn: as of SampleClient.
    """

    def __init__(
        self,
        channels: Sequence[ClientChannel],
        attach: Attach,
        config: RunConfig,
        spec: TableSpec,
        *,
        row_maps: Sequence[RowMap],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes a client; `run` attaches it.

        Args:
            channels: to the replay nodes, by index.
            attach: the first message to each.
            config: of the run.
            spec: of its table.
            row_maps: for the rows of each node, where it is on this host.
            clock: monotonic seconds.
        """
        self.num_torn = 0
        self._batch_size = config.learner_batch_size
        self._prefetch = config.prefetch
        self._clock = clock
        self._new_arrays = _ArrayMaker(config, spec)
        seed = np.random.SeedSequence(config.seed, spawn_key=(SPREAD_STREAM, attach.epoch))
        self._draws = RunDraws(
            len(channels),
            limiter(config),
            self._new_arrays,
            batch_size=self._batch_size,
            rng=np.random.default_rng(seed),
        )
        self._outlets = [
            _Outlet(index, self._link(index, channel, attach), row_map)
            for index, (channel, row_map) in enumerate(zip(channels, row_maps, strict=True))
        ]
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(self._prefetch)

    def _link(self, index: int, channel: ClientChannel, attach: Attach) -> ReplayLink:
        return ReplayLink(channel, attach, partial(self._handle, index), on_loss=partial(self._lose, index))

    @property
    def waiting_for(self) -> str:
        """Why there is no batch yet."""
        return ANSWER if self._draws.num_open_batches else self._draws.waiting_for

    @property
    def num_reconnects(self) -> int:
        """Times that a connection came back."""
        return sum(outlet.link.num_reconnects for outlet in self._outlets)

    async def run(self) -> None:
        """Receives until cancelled, and lets go of the maps then.

        Raises:
            Refused: a replay node refused this client and said why.
            ConfigError: its rows must be mapped and cannot be.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for outlet in self._outlets:
                    tasks.create_task(outlet.link.run())
                tasks.create_task(self._tick())
        finally:
            for outlet in self._outlets:
                outlet.row_map.detach()

    async def next_batch(self) -> Batch:
        """Waits for the oldest batch; take it, then `ask` for another."""
        return await self._batches.get()

    def ready_batches(self) -> list[Batch]:
        """All batches that have come, oldest first."""
        return [self._batches.get_nowait() for _ in range(self._batches.qsize())]

    def give_back(self, batch: Batch, magnitudes: npt.NDArray[np.float64]) -> None:
        """New priorities for a batch's rows; each node's ride on the next request to it, or go soon by themselves.

        Priorities for a ring that is gone are dropped.
        """
        keys, is_whole = batch.arrays[KEYS], batch.arrays[PROBABILITIES] > 0.0
        for origin in batch.origins:
            if origin.ring_id == self._draws.nodes[origin.node].ring_id:
                rows = np.flatnonzero(is_whole[origin.start : origin.stop]) + origin.start
                self._outlets[origin.node].updates.append({"keys": keys[rows], "magnitudes": magnitudes[rows]})

    def ask(self) -> None:
        """Asks for as many batches as make `learner.prefetch`, so far as they are due; the rest when they are."""
        num_missing = self._prefetch - self._draws.num_open_batches - self._batches.qsize()
        while draws := self._draws.due(self._clock(), num_missing, self._most_batches):
            for draw in draws:
                self._send(draw)
            num_missing = self._prefetch - self._draws.num_open_batches - self._batches.qsize()

    def send_last_priorities(self) -> None:
        """Sends priorities that no request carries any more, to all nodes that are there."""
        for outlet in self._outlets:
            if outlet.updates:
                outlet.send(UpdatePriorities(table=MAIN_TABLE))

    @property
    def _most_batches(self) -> int:
        """Of one draw: so that a node's part of it goes in one reply."""
        are_mapped = all(outlet.row_map.table is not None for outlet in self._outlets)
        row_bytes = 16 if are_mapped else self._new_arrays.row_bytes
        return min(64, max(1, REPLY_BYTES // (row_bytes * self._batch_size)))

    def _send(self, draw: JointDraw) -> None:
        """Asks each node for its part; one that cannot be asked is left out until it says something."""
        for part in list(draw.parts.values()):
            outlet = self._outlets[part.node]
            request = SampleRequest(
                request_id=part.request_id,
                table=MAIN_TABLE,
                batch_size=part.num_rows,
                rows=outlet.row_map.table is None,
                run=self._sums_for(part.node),
            )
            if not outlet.send(request):
                self._draws.note_lost(part.node)
                return
            outlet.told = request.run

    def _sums_for(self, index: int) -> RunSums:
        beside = self._draws.sums_beside(index)
        return RunSums(*beside, self._draws.nodes[index].counts.arrived)

    async def _tick(self) -> None:
        """What nothing else leads to: nodes that have become silent, counts and priorities that no request carries."""
        while True:
            await asyncio.sleep(COUNTS_EVERY_S)  # the period itself
            self.ask()
            for outlet in self._outlets:
                if self._draws.nodes[outlet.index].is_up:
                    self._tell(outlet)

    def _tell(self, outlet: _Outlet) -> None:
        sums = self._sums_for(outlet.index)
        if sums != outlet.told and outlet.send(RunCounts(table=MAIN_TABLE, sums=sums), updates=False):
            outlet.told = sums
        if outlet.updates and outlet.num_seen_updates == len(outlet.updates):
            outlet.send(UpdatePriorities(table=MAIN_TABLE))
        outlet.num_seen_updates = len(outlet.updates)

    def _handle(self, index: int, message: Message, arrays: Arrays) -> list[list[Frame]]:
        match message:
            case Attached():
                self._begin(self._outlets[index], message.ring_id)
            case ReplayCounts():
                counts = Counts(message.num_before, message.num_inserted, message.num_drawn)
                self._note(index, message, counts)
            case SampleReply():
                before = self._draws.nodes[index].counts.before
                self._take(index, message, arrays)
                self._note(index, message, Counts(before, message.num_inserted, message.num_drawn))
            case SampleWaiting():
                pass  # the node has no rows just now: RunDraws leaves it out if that lasts
            case SampleRefused():
                raise ParlError(f"replay node {index} refused a sample request: {message.reason}")
            case UpdateRefused():
                raise ParlError(f"replay node {index} refused priorities: {message.reason}")
            case _:
                log.warning("a learner has no use for a message of kind %s", type(message).__name__)
        self.ask()
        return []

    def _note(self, index: int, message: ReplayCounts | SampleReply, counts: Counts) -> None:
        num_live, total = message.num_live, message.total_priority
        self._draws.note_counts(index, counts, num_live=num_live, total_priority=total)

    def _begin(self, outlet: _Outlet, ring_id: str) -> None:
        if ring_id != self._draws.nodes[outlet.index].ring_id:
            outlet.updates.clear()
        self._draws.note_attached(outlet.index, ring_id)
        outlet.row_map.attach(ring_id)
        outlet.told = None

    def _lose(self, index: int) -> None:
        """The connection is gone; the map's ring may have been removed."""
        self._draws.note_lost(index)
        self._outlets[index].row_map.detach()
        self.ask()

    def _take(self, index: int, reply: SampleReply, arrays: Arrays) -> None:
        """Takes one node's part of a draw, and queues the batches that are complete then.

        Raises:
            WireError: it is no answer to its request.
        """
        found = self._draws.part_of(index, reply.request_id)
        if found is None:
            return  # too late: its rows were drawn elsewhere
        draw, part = found
        fill(draw, part, arrays, self._outlets[index].row_map)
        if self._draws.note_filled(draw, part):
            for batch in batches_of(draw, self._batch_size, self._sums(draw)):
                self.num_torn += batch.num_torn
                if batch.num_torn < self._batch_size:
                    self._batches.put_nowait(batch)

    def _sums(self, draw: JointDraw) -> SampleReply:
        """One reply in place of all nodes'."""
        nodes = self._draws.nodes
        return SampleReply(
            request_id=0,
            num_live=draw.num_live,
            total_priority=sum(node.total_priority for node in nodes if node.is_up),
            num_inserted=sum(node.sums.inserted for node in nodes),
            num_drawn=sum(node.sums.drawn for node in nodes),
            held_s=draw.held_s,
            num_batches=draw.num_batches,
        )


class _ArrayMaker:
    """Arrays of the rows of a draw, by the names of `draw_columns`; used again once nobody holds them."""

    def __init__(self, config: RunConfig, spec: TableSpec) -> None:
        settings = table_settings(config)
        self._spec, self._frame_stack, self._n_step = spec, settings.frame_stack, settings.n_step
        self._kinds: dict[int, tuple[list[Kind], int]] = {}
        self._recycler = Recycler()
        self.row_bytes = self._kinds_of(1)[1]

    def __call__(self, num_rows: int) -> Arrays:
        kinds, num_bytes = self._kinds_of(num_rows)
        arrays = self._recycler.take(kinds, num_bytes)
        return {name: array for (name, _, _), array in zip(kinds, arrays, strict=True)}

    def _kinds_of(self, num_rows: int) -> tuple[list[Kind], int]:
        if num_rows not in self._kinds:
            columns = draw_columns(self._spec, batch_size=num_rows, frame_stack=self._frame_stack, n_step=self._n_step)
            kinds = [(column.name, column.shape, np.dtype(column.dtype)) for column in columns]
            self._kinds[num_rows] = kinds, sum(column.num_bytes for column in columns)
        return self._kinds[num_rows]


def fill(draw: JointDraw, part: Part, arrays: Arrays, row_map: RowMap) -> None:
    """Puts what one node has sent, or says to be in its ring, to its place in a draw.

    Raises:
        WireError: these are not the rows that it was asked for.
    """
    is_mapped = arrays.keys() == {KEYS, PROBABILITIES}
    wanted = (KEYS, PROBABILITIES) if is_mapped else tuple(draw.arrays)
    if is_mapped and row_map.table is None:
        raise WireError(f"replay node {part.node} sent keys without rows, and its ring is not mapped")
    _check(arrays, draw.arrays, wanted, part.num_rows)
    for (start, stop), rows in _places(part):
        for name in wanted:
            draw.arrays[name][start:stop] = arrays[name][rows]
        if is_mapped and row_map.table is not None:
            columns = {name: array[start:stop] for name, array in draw.arrays.items() if name not in wanted}
            try:
                draw.torn.append(row_map.table.gather(arrays[KEYS][rows], columns) + start)
            except KeysRefused as error:
                raise WireError(f"replay node {part.node} has drawn a row that is not in its ring: {error}") from error


def _places(part: Part) -> Iterator[tuple[tuple[int, int], slice]]:
    """Rows of the draw, and the rows of the reply that belong there."""
    taken = 0
    for start, stop in part.slices:
        yield (start, stop), slice(taken, taken + stop - start)
        taken += stop - start


def _check(arrays: Arrays, targets: Arrays, wanted: Sequence[str], num_rows: int) -> None:
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    expected = {name: ((num_rows, *targets[name].shape[1:]), targets[name].dtype) for name in wanted}
    if found != expected:
        raise WireError(f"a replay node sent other rows than it was asked for: {found} instead of {expected}")


def batches_of(draw: JointDraw, size: int, reply: SampleReply) -> Iterator[Batch]:
    """The batches of a draw that is complete."""
    is_torn = np.zeros(draw.num_batches * size, np.bool_)
    for rows in draw.torn:
        is_torn[rows] = True
    for start in range(0, len(is_torn), size):
        arrays = {name: array[start : start + size] for name, array in draw.arrays.items()}
        torn = is_torn[start : start + size]
        if torn.any():
            _cover(arrays, torn)
        origins = tuple(_origins(draw, start, start + size))
        yield Batch(reply, arrays, num_torn=int(torn.sum()), origins=origins)


def _cover(arrays: Arrays, is_torn: npt.NDArray[np.bool_]) -> None:
    """Shows a whole row in place of each torn one, at probability 0: what was copied of that may be anything."""
    whole = int(is_torn.argmin())
    for name, array in arrays.items():
        if name != KEYS:
            array[is_torn] = array[whole]
    arrays[PROBABILITIES][is_torn] = 0.0


def _origins(draw: JointDraw, start: int, stop: int) -> Iterator[Origin]:
    for part in draw.parts.values():
        for first, last in part.slices:
            if start <= first and last <= stop:
                yield Origin(part.node, part.ring_id, first - start, last - start)
