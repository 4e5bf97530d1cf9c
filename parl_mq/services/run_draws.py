"""What a learner decides where a run has several replay nodes: when a draw is due, and how many rows each node gives.

Rows are drawn from the run as a whole: which node gives each of them is drawn in proportion to the nodes' totals, and a
row's probability is that of its node times that which the node tells. Pure and synchronous.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.replay.draws import PROBABILITIES
from parl_mq.replay.limiter import Counts, RatioLimiter

SILENT_S: Final = 1.0
"""A node that has owed rows for so long is left out until it says something."""

BANDS_AWAY: Final = 2.0
"""Of the limiter's band: no run whose counts are complete comes so far from its ratio."""

NOTHING: Final = Counts()

Arrays = dict[str, npt.NDArray[Any]]
MakeArrays = Callable[[int], Arrays]
"""Arrays of a draw of so many rows."""


@dataclass(slots=True)
class NodeView:
    """A replay node as this learner knows it.

    Attributes:
        counts: what it has told last; kept while it is away.
        gone: counts of its earlier rings, which are part of what the run has inserted and drawn.
        is_up: it is attached, and does not owe rows for too long.
        is_told: it has told its counts, once.
        num_asked: rows that it owes.
    """

    counts: Counts = NOTHING
    gone: Counts = NOTHING
    num_live: int = 0
    total_priority: float = 0.0
    ring_id: str = ""
    is_up: bool = False
    is_told: bool = False
    num_asked: int = 0

    @property
    def sums(self) -> Counts:
        """All that it has inserted and drawn, and what was asked for."""
        return self.gone.plus(self.counts).plus(Counts(drawn=self.num_asked))


@dataclass(frozen=True, slots=True)
class Part:
    """What one node gives to one draw.

    Attributes:
        request_id: unique among all parts.
        slices: rows of the draw [start, stop) that it fills, in the order in which it sends them.
        chance: of the node, that a row comes from it.
    """

    request_id: int
    node: int
    ring_id: str
    slices: tuple[tuple[int, int], ...]
    chance: float
    asked_at: float

    @property
    def num_rows(self) -> int:
        """Rows of all slices."""
        return sum(stop - start for start, stop in self.slices)


@dataclass(slots=True)
class JointDraw:
    """Some batches that are drawn together.

    Attributes:
        arrays: [n B, ...] each; filled part by part.
        parts: of it, by their request.
        missing: requests that are not answered.
        chances: of each node, when it was planned.
        num_live: N, rows of the nodes that were up then.
        held_s: for which it was not due.
    """

    num_batches: int
    arrays: Arrays
    parts: dict[int, Part]
    missing: set[int]
    chances: npt.NDArray[np.float64]
    num_live: int
    held_s: float
    torn: list[npt.NDArray[np.intp]] = field(default_factory=list)


class RunDraws:
    """The draws of one learner from several replay nodes.

    Attributes:
        nodes: by index.
    """

    def __init__(
        self,
        num_nodes: int,
        limiter: RatioLimiter,
        make_arrays: MakeArrays,
        *,
        batch_size: int,
        rng: np.random.Generator,
    ) -> None:
        """Begins without a word from any node.

        Args:
            num_nodes: R.
            limiter: that has no counts of its own; it is told those of all nodes.
            make_arrays: for the rows.
            batch_size: B.
            rng: decides which node gives a row.
        """
        self.nodes = [NodeView() for _ in range(num_nodes)]
        self._limiter = limiter
        self._make_arrays = make_arrays
        self._batch_size = batch_size
        self._rng = rng
        self._numbers = itertools.count()
        self._open: dict[int, JointDraw] = {}  # by each request that is not answered
        self._again: list[JointDraw] = []
        self._held_since: float | None = None
        self._began_at: float | None = None
        self._lost, self._num_told = NOTHING, 0

    @property
    def num_open_batches(self) -> int:
        """Batches that are being drawn."""
        return sum(draw.num_batches for draw in self._draws())

    @property
    def waiting_for(self) -> str:
        """Why no draw is due, such that "NODE waits for" may stand in front of it."""
        if not any(node.is_up for node in self.nodes):
            return "the replay nodes to come back"
        self._tell_limiter()
        return self._limiter.waiting(self._num_live)

    def sums_beside(self, index: int) -> Counts:
        """What all nodes but one have inserted and drawn, and were asked for; that one's earlier rings too."""
        others = [node.sums for number, node in enumerate(self.nodes) if number != index]
        return sum_of([*others, self.nodes[index].gone, self._lost])

    # What nodes say

    def note_attached(self, index: int, ring_id: str) -> None:
        """A node is there, or there again; what it owed is drawn anew, as it may know nothing of it."""
        node = self.nodes[index]
        self._draw_again(index)
        if node.ring_id not in ("", ring_id):
            node.gone, node.counts = node.gone.plus(node.counts), NOTHING
            node.num_live, node.total_priority = 0, 0.0
        node.ring_id, node.is_up = ring_id, True

    def note_lost(self, index: int) -> None:
        """The connection to a node is gone."""
        self.nodes[index].is_up = False
        self._draw_again(index)

    def note_counts(self, index: int, counts: Counts, *, num_live: int, total_priority: float) -> None:
        """A node has told how far it is."""
        node = self.nodes[index]
        node.counts, node.num_live, node.total_priority = counts, num_live, total_priority
        node.is_up = node.is_told = True

    def part_of(self, index: int, request_id: int) -> tuple[JointDraw, Part] | None:
        """The draw and the part that a reply belongs to; None where it comes too late."""
        draw = self._open.get(request_id)
        if draw is None or draw.parts[request_id].node != index:
            return None
        return draw, draw.parts[request_id]

    def note_filled(self, draw: JointDraw, part: Part) -> bool:
        """The rows of a part lie in the draw's arrays, its node's own probabilities too; whether it is complete now."""
        probabilities = draw.arrays[PROBABILITIES]
        for start, stop in part.slices:
            probabilities[start:stop] *= part.chance
        self._forget(draw, part.request_id)
        return not draw.missing

    # What is due

    def due(self, now: float, num_wanted: int, most_batches: int) -> list[JointDraw]:
        """Draws that are to be asked for now.

        Args:
            now: the time, s.
            num_wanted: batches that are wanted beside those that are being drawn.
            most_batches: of one draw.
        """
        self._leave_out_silent(now)
        again, self._again = self._again, []
        planned = [draw for draw in again if self._replan(draw, now)]
        self._again = [draw for draw in again if not draw.missing]
        while num_wanted > 0 and self._may_begin(now):
            num_batches = self._num_due(min(num_wanted, most_batches))
            if not num_batches:
                self._held_since = now if self._held_since is None else self._held_since
                break
            planned.append(self._plan(num_batches, now))
            num_wanted -= num_batches
        return planned

    def _may_begin(self, now: float) -> bool:
        """Whether all nodes have said how far they are, or have had the time to: a run is not drawn from in part."""
        if not self._is_any_up:
            return False
        self._began_at = now if self._began_at is None else self._began_at
        if now - self._began_at < SILENT_S and not all(node.is_told for node in self.nodes):
            return False
        self._reckon_lost()
        return True

    def _reckon_lost(self) -> None:
        """Makes up for rings that were lost before this learner came, of which nobody can tell it the counts.

        Those of all rings together stay within the band. Where they are far from that, what is missing is reckoned, so
        that the ratio is held from here on. It is done anew when a node tells its counts for the first time.
        """
        num_told = sum(node.is_told for node in self.nodes)
        if num_told == self._num_told:
            return
        ratio, run = self._limiter.samples_per_insert, sum_of([node.sums for node in self.nodes])
        balance = run.inserted * ratio - run.drawn
        self._num_told, self._lost = num_told, NOTHING
        if abs(balance) > BANDS_AWAY * self._limiter.error_band:
            self._lost = Counts(drawn=round(balance)) if balance > 0 else Counts(inserted=round(-balance / ratio))

    def _num_due(self, num_batches: int) -> int:
        self._tell_limiter()
        num_live = self._num_live
        while num_batches and not self._limiter.may_draw(num_batches * self._batch_size, num_live):
            num_batches -= 1
        return num_batches

    def _plan(self, num_batches: int, now: float) -> JointDraw:
        held_s = 0.0 if self._held_since is None else now - self._held_since
        self._held_since = None
        arrays = self._make_arrays(num_batches * self._batch_size)
        draw = JointDraw(num_batches, arrays, {}, set(), np.empty(0), 0, held_s)
        self._replan(draw, now)
        return draw

    def _replan(self, draw: JointDraw, now: float) -> bool:
        """Decides anew which node gives which rows; whether any can."""
        if not self._is_any_up:
            return False
        draw.chances, draw.num_live = chances_of(self.nodes), self._num_live
        draw.parts, draw.torn = {}, []
        counts = self._rng.multinomial(self._batch_size, draw.chances, size=draw.num_batches)
        ends = counts.cumsum(axis=1) + self._batch_size * np.arange(draw.num_batches)[:, None]
        for index in np.flatnonzero(counts.sum(axis=0)).tolist():
            starts = ends[:, index] - counts[:, index]
            slices = tuple((a, b) for a, b in zip(starts.tolist(), ends[:, index].tolist(), strict=True) if a < b)
            chance, ring_id = float(draw.chances[index]), self.nodes[index].ring_id
            part = Part(next(self._numbers), index, ring_id, slices, chance, now)
            draw.parts[part.request_id] = part
            self._open[part.request_id] = draw
            self.nodes[index].num_asked += part.num_rows
        draw.missing = set(draw.parts)
        return True

    def _leave_out_silent(self, now: float) -> None:
        """But for the last node that has rows: whoever is slow beside nobody else is waited for."""
        for draw in self._draws():
            for part in [draw.parts[number] for number in draw.missing]:
                others = [node for number, node in enumerate(self.nodes) if number != part.node]
                is_needed = not any(node.is_up and node.num_live for node in others)
                if now - part.asked_at >= SILENT_S and self.nodes[part.node].is_up and not is_needed:
                    self.note_lost(part.node)

    def _draw_again(self, index: int) -> None:
        """Draws that the node takes part in are drawn anew among the others: what came of them so far is dropped.

        Rows of the others alone would not be drawn in proportion: the share of a node that is silent is not theirs.
        """
        for draw in self._draws():
            if any(draw.parts[number].node == index for number in draw.missing):
                for number in tuple(draw.missing):
                    self._forget(draw, number)
                self._again.append(draw)

    def _forget(self, draw: JointDraw, request_id: int) -> None:
        part = draw.parts[request_id]
        draw.missing.discard(request_id)
        self.nodes[part.node].num_asked -= part.num_rows
        del self._open[request_id]

    def _draws(self) -> list[JointDraw]:
        """Those under way, each once."""
        return [*{id(draw): draw for draw in self._open.values()}.values(), *self._again]

    @property
    def _is_any_up(self) -> bool:
        return any(node.is_up and node.num_live for node in self.nodes)

    @property
    def _num_live(self) -> int:
        return sum(node.num_live for node in self.nodes if node.is_up)

    def _tell_limiter(self) -> None:
        self._limiter.note_elsewhere(sum_of([*(node.sums for node in self.nodes), self._lost]), arrived_here=0)


def sum_of(counts: list[Counts]) -> Counts:
    """The sums of all counts."""
    total = NOTHING
    for each in counts:
        total = total.plus(each)
    return total


def chances_of(nodes: list[NodeView]) -> npt.NDArray[np.float64]:
    """Q [R]: the chance of each node that a row comes from it; 0 where it is away.

    In proportion to the totals, or to the live rows where all totals are 0. At least one node is up and has rows.
    """
    is_there = [node.is_up and node.num_live > 0 for node in nodes]
    weights = np.array([node.total_priority * ok for node, ok in zip(nodes, is_there, strict=True)])
    if not weights.any():
        weights = np.array([float(node.num_live * ok) for node, ok in zip(nodes, is_there, strict=True)])
    chances: npt.NDArray[np.float64] = weights / weights.sum()
    return chances
