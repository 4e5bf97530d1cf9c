"""What a replay node decides: who may send how much, which draws are due, what is answered.

Pure and synchronous: `handle` takes a message, `due` returns everything that must be sent because of it. Any thread may
call, one at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

import numpy.typing as npt

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_CONFIG, EXIT_TEMPORARY, WireError
from parl_mq.fragments import FragmentBatch
from parl_mq.net.channel import Frame, PeerId
from parl_mq.net.credit import Arrival, ReceiverBook
from parl_mq.replay.limiter import Counts, RatioLimiter
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.table import Table
from parl_mq.replay.watching import TableWatch
from parl_mq.services.lock_step import LockStep
from parl_mq.services.tables import largest_insert_bytes
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import SlabLayout, encode, encode_with_slab
from parl_mq.wire.fragments import fragment_batch_of
from parl_mq.wire.messages import (
    MAIN_TABLE,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    AttachRefused,
    Credit,
    InsertFragments,
    InsertRefused,
    Message,
    ReplayCounts,
    RunCounts,
    RunSums,
    SampleRefused,
    SampleReply,
    SampleRequest,
    SampleWaiting,
    SayHello,
    SenderAccounts,
    UpdatePriorities,
    UpdateRefused,
)

SENDER_BYTES: Final = 64 * 1024 * 1024
"""Unacknowledged bytes that one actor may have under way."""
WAITING_EVERY_S: Final = 1.0
COUNTS_EVERY_S: Final = 0.02
"""Learners of several replay nodes hear so often of what has changed."""
MAX_HELD: Final = 64
"""Batches of one learner that wait here; a learner keeps `learner.prefetch` outstanding, 16 at most."""
REPLY_BYTES: Final = 512 * 1024
"""Batches that are due together share replies of this size: larger ones would make their first rows wait for the last.
"""
LOOP_BYTES: Final = 4 * 1024 * 1024
"""Of rows that one call here copies unless it `is_heavy`: some two milliseconds, for which a loop may stand still."""
LOOP_ROWS: Final = 2**15
"""Of a batch, for the same: finding them takes as long, however small they are."""
MAX_LAYOUTS: Final = 256
"""Layouts of replies that are remembered, should a learner ask for ever other batch sizes."""
MAX_ENDED: Final = 1_000
"""Streams that have ended whose rows are still told to the hub."""
BEYOND_LARGEST: Final = 4
"""Largest inserts that a message may have: what is cut after a fault may be more than one fragment an environment."""
SLACK_BYTES: Final = 2**20
MAX_ASKED: Final = 10_000
"""Strangers remembered as having been asked to attach."""

UPDATE_ARRAYS: Final = frozenset({"keys", "magnitudes"})
"""What a table is given; it checks dtypes and shapes itself."""

Arrays = dict[str, npt.NDArray[Any]]
Reply = tuple[PeerId, list[Frame]]

log = logging.getLogger("parl_mq")


def most_bytes_of_a_message(config: RunConfig, spec: TableSpec) -> int:
    """Bytes that no honest message to a replay node exceeds: rows of an actor, or priorities of a learner."""
    priorities = MAX_HELD * config.algorithm.batch_size * 2 * 8
    return SLACK_BYTES + BEYOND_LARGEST * max(largest_insert_bytes(config, spec), priorities)


@dataclass(slots=True)
class _Sender:
    """An actor's account: what it has sent, what it may send.

    Attributes:
        debt: live rows that earlier processes of this name sent beyond their credit; until new credit is given, they
            count as this one's.
    """

    peer: PeerId
    name: str
    epoch: int
    book: ReceiverBook = field(default_factory=ReceiverBook)
    debt: int = 0
    has_news: bool = True
    rows_before: int = field(init=False)

    def __post_init__(self) -> None:
        """What the book begins with, an earlier process of this node has stored."""
        self.rows_before = self.book.rows

    @property
    def overdrawn(self) -> int:
        """Live rows beyond the credit of this process and those before it."""
        return self.debt + self.book.rows - max(self.book.credit_rows, self.rows_before)

    def mark(self, sequence: int, fragments: FragmentBatch | None = None) -> SenderMark:
        """What the ring keeps of the account with message `sequence`, which holds these fragments, or was refused."""
        rows, num_bytes = (0, 0) if fragments is None else (fragments.num_live, fragments.num_bytes)
        return SenderMark(self.name, self.epoch, sequence, self.book.rows + rows, self.book.num_bytes + num_bytes)


@dataclass(slots=True)
class _Held:
    """A sample request that is not answered in full yet.

    Attributes:
        num_left: batches that are still wanted.
        since: when the limiter first held it; None before that.
    """

    peer: PeerId
    request: SampleRequest
    num_left: int
    since: float | None = None


@dataclass(frozen=True, slots=True)
class _Brought:
    """An insert whose turn has not come."""

    sender: _Sender
    message: InsertFragments
    arrays: Arrays


def _lock_step(config: RunConfig) -> LockStep[_Brought]:
    return LockStep(
        config.actor.num_actors,
        samples_per_insert=config.replay.samples_per_insert,
        batch_size=config.learner_batch_size,
        learning_starts=config.replay.learning_starts,
    )


class ReplayDesk:
    """One table and its clients.

    Attributes:
        num_refused: messages that were refused.
        has_more: the last `due` left batches that are due; call it again soon.
        watch: of the table, which whoever runs the desk makes look now and then.
    """

    def __init__(self, table: Table, limiter: RatioLimiter, spec: TableSpec, config: RunConfig, run_id: str) -> None:
        self.num_refused = 0
        self._num_duplicates = 0
        self._refusal: str | None = None
        self.has_more = False
        self.watch = TableWatch(table)
        self._table = table
        self._limiter = limiter
        self._limiter.catch_up(table.counts.inserted)
        self._counts_before = table.counts
        self._spec = spec
        self._config = config
        self._run_id = run_id
        self._clients: dict[PeerId, Attach] = {}
        self._asked_to_attach: set[PeerId] = set()
        self._num_actors = config.actor.num_actors
        self._senders: dict[str, _Sender] = {}
        self._ended: dict[tuple[str, int], int] = {}
        self._held: deque[_Held] = deque()
        self._replies: list[Reply] = []
        self._layouts: dict[tuple[int, bool], SlabLayout] = {}
        self._next_waiting_at = 0.0
        self._told_sums: dict[str, RunSums] = {}
        self._told_counts: ReplayCounts | None = None
        self._next_counts_at = 0.0
        self._lock_step = _lock_step(config) if config.deterministic else None
        self._drawn: tuple[int, list[Frame]] | None = None

    @property
    def waiting_for(self) -> str | None:
        """Who waits for whom, in words; None while everything flows."""
        return self._reason if self._held and not self.has_more else None

    @property
    def _version(self) -> int | None:
        return None if self._lock_step is None else self._lock_step.version

    @property
    def _reason(self) -> str:
        return self._limiter.waiting(self._table.num_live) if self._lock_step is None else self._lock_step.waiting_for

    @property
    def is_heavy(self) -> bool:
        """The next `due` copies a batch that takes more than some milliseconds: call it beside the loop."""
        if not self._held:
            return False
        request = self._held[0].request
        is_large = request.batch_size > LOOP_ROWS or self._layout(request, 1).num_bytes > LOOP_BYTES
        return is_large and self._num_due(self._held[0]) > 0

    @property
    def names(self) -> set[str]:
        """Of the clients that there have been."""
        return {*self._senders, *self._told_sums, *(client.name for client in self._clients.values())}

    def counters(self) -> dict[str, float]:
        """For the heartbeats."""
        counts, before = self._table.counts, self._counts_before
        return {  # totals are those of this process
            "inserted_rows_total": counts.inserted - before.inserted,
            "evicted_rows_total": counts.evicted - before.evicted,
            "drawn_rows_total": counts.drawn - before.drawn,
            "redrawn_rows_total": counts.torn - before.torn,
            "applied_updates_total": counts.updated - before.updated,
            "stale_updates_total": counts.stale - before.stale,
            "refused_updates_total": counts.refused - before.refused,
            "refused_messages_total": self.num_refused,
            "duplicate_messages_total": self._num_duplicates + sum(map(_duplicates, self._senders.values())),
            "replay_live_rows": self._table.num_live,
            "replay_fill": self._table.num_live / self._table.settings.capacity,
            "samples_per_insert_target": self._limiter.samples_per_insert,
            **({} if self._limiter.ratio is None else {"samples_per_insert": self._limiter.ratio}),
            **self.watch.figures,
        }

    def found_accounts(self) -> SenderAccounts:
        """What the ring holds of each stream that it knows, to be told once: earlier processes have stored it."""
        found = [(mark.digest.hex(), mark.epoch, mark.rows) for mark in self._table.senders()]
        return SenderAccounts(ring_id=self._table.ring_id, accounts=[], found=found)

    def accounts(self) -> SenderAccounts:
        """What is stored here of each stream that this process has heard of, those that have ended included."""
        rows = {(name, sender.epoch): sender.book.rows for name, sender in self._senders.items()}
        streams = [(name, epoch, count) for (name, epoch), count in {**self._ended, **rows}.items()]
        return SenderAccounts(ring_id=self._table.ring_id, accounts=streams)

    def handle(self, peer: PeerId, message: Message, arrays: Arrays) -> None:
        """Takes one message of the data plane.

        Raises:
            WireError: a client of this role may not send it, or it is about a table that is not here.
        """
        if isinstance(message, Attach):
            self._attach(peer, message)
            return
        client = self._clients.get(peer)
        if client is None:
            self._ask_to_attach(peer)
            return
        known: Any = message
        if client.role != ("actor" if isinstance(known, InsertFragments) else "learner"):
            raise WireError(f"{client.name} may not send {type(known).__name__}: it attached as {client.role}")
        if known.table != MAIN_TABLE:
            raise WireError(f"{client.name}: there is no table {known.table!r} here")
        match known:
            case InsertFragments():
                self._insert(self._senders[client.name], known, arrays)
            case SampleRequest():
                self._update(peer, arrays)
                if known.run is not None:
                    self._note_run(client, known.run)
                self._hold(peer, known)
            case UpdatePriorities():
                self._update(peer, arrays)
            case RunCounts():
                self._note_run(client, known.sums)
            case _:
                assert_never(known)

    def due(self, now: float) -> list[Reply]:
        """All that must be sent now: answers, batches that are due, acknowledgements and credit."""
        if self._lock_step is None:
            self._draw_what_is_due(now)
        else:
            self._go_in_lock_step(self._lock_step, now)
        for sender in self._senders.values():
            self._grant(sender)
        if self._held and not self.has_more and now >= self._next_waiting_at:
            self._next_waiting_at = now + WAITING_EVERY_S
            reason = self._reason
            for peer in {held.peer for held in self._held}:
                self._reply(peer, SampleWaiting(reason=reason))
        if self._is_one_of_several and now >= self._next_counts_at:
            self._tell_counts(now)
        replies, self._replies = self._replies, []
        return replies

    @property
    def _is_one_of_several(self) -> bool:
        return self._config.replay.nodes > 1

    def _note_run(self, client: Attach, sums: RunSums) -> None:
        """What a learner says of the other replay nodes; of several learners the one counts that knows of most draws.

        Raises:
            WireError: there are no other nodes.
        """
        if not self._is_one_of_several:
            raise WireError(f"{client.name} speaks of other replay nodes, and this run has one")
        self._told_sums[client.name] = sums
        most = max(self._told_sums.values(), key=lambda sums: sums.drawn)
        elsewhere = Counts(most.before, most.inserted, most.drawn)
        self._limiter.note_elsewhere(elsewhere, arrived_here=most.arrived_here)

    def _tell_counts(self, now: float) -> None:
        """Tells the learners how far this node is, if that has changed."""
        self._next_counts_at = now + COUNTS_EVERY_S
        counts = self._counts_message()
        if counts == self._told_counts:
            return
        self._told_counts = counts
        for peer, client in self._clients.items():
            if client.role == "learner":
                self._reply(peer, counts)

    def _counts_message(self) -> ReplayCounts:
        own = self._limiter.counts
        return ReplayCounts(
            num_live=self._table.num_live,
            total_priority=self._table.total_priority,
            num_before=own.before,
            num_inserted=own.inserted,
            num_drawn=own.drawn,
        )

    def take_refusal(self) -> str | None:
        """Why something in the last message was refused, which its sender is told; None where nothing was."""
        refusal, self._refusal = self._refusal, None
        return refusal

    def forget(self, peer: PeerId) -> None:
        """The connection is gone; its client attaches again when it is back."""
        if (gone := self._clients.pop(peer, None)) is not None:
            self._held = deque(held for held in self._held if held.peer != peer)
            self._count_actors()
            if any(client.role == "learner" for client in self._clients.values()):
                self._told_sums.pop(gone.name, None)  # the others go on, and know what is new

    def _count_actors(self) -> None:
        """Actors that share the credit: those of the settings, or all that are attached where these are more."""
        attached = sum(client.role == "actor" for client in self._clients.values())
        self._num_actors = max(self._config.actor.num_actors, attached)

    def _ask_to_attach(self, peer: PeerId) -> None:
        """Once, not for each message that was under way: every answer makes the client send again what is missing."""
        self.forget(peer)
        if peer in self._asked_to_attach:
            return
        if len(self._asked_to_attach) >= MAX_ASKED:
            self._asked_to_attach.clear()
        self._asked_to_attach.add(peer)
        self._reply(peer, SayHello())

    def _attach(self, peer: PeerId, attach: Attach) -> None:
        if refusal := self._why_not(attach):
            self._reply(peer, refusal)
            return
        for old in [known for known, client in self._clients.items() if client.name == attach.name]:
            self.forget(old)
        self._asked_to_attach.discard(peer)
        self._clients[peer] = attach
        self._count_actors()
        sender = self._account(peer, attach) if attach.role == "actor" else _Sender(peer, attach.name, attach.epoch)
        self._reply(
            peer,
            Attached(
                ring_id=self._table.ring_id,
                last_sequence=sender.book.last_sequence,
                counted_rows=sender.book.rows,
                counted_bytes=sender.book.num_bytes,
                credit_rows=sender.book.credit_rows,
                credit_bytes=sender.book.credit_bytes,
                version=self._version,
            ),
        )
        if attach.role == "learner" and self._is_one_of_several:
            self._reply(peer, self._counts_message())

    def _account(self, peer: PeerId, attach: Attach) -> _Sender:
        """The actor's account, which may go on from an earlier process of this node; a new epoch begins a new one."""
        sender = self._senders.get(attach.name)
        if sender is None or sender.epoch != attach.epoch:
            debt = 0
            if sender is not None:
                self._close_account(attach.name, sender)
                debt = max(0, sender.overdrawn)
            sender = self._senders[attach.name] = _Sender(peer, attach.name, attach.epoch, self._book_of(attach), debt)
        sender.peer = peer
        self._raise_credit(sender)
        if not self._limiter.has_room_for(self._num_actors, self._config.largest_insert):
            log.warning(
                "%d actors are more than replay.error_band = %g has room for: the ratio of samples may leave it",
                self._num_actors,
                self._config.error_band,
            )
        return sender

    def _book_of(self, attach: Attach) -> ReceiverBook:
        mark = self._table.sender(attach.name)
        if mark is None or mark.epoch != attach.epoch:
            return ReceiverBook()
        return ReceiverBook(mark.sequence, rows=mark.rows, num_bytes=mark.num_bytes)

    def _close_account(self, name: str, sender: _Sender) -> None:
        """The stream has ended: its rows stay in the books, but for the oldest of very many, which the hub has."""
        self._num_duplicates += _duplicates(sender)
        self._ended[name, sender.epoch] = sender.book.rows
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _why_not(self, attach: Attach) -> AttachRefused | None:
        name, reason, exit_code = attach.name, None, EXIT_CONFIG
        epochs = [client.epoch for client in self._clients.values() if client.name == name]
        if attach.role == "actor" and (mark := self._table.sender(name)) is not None:
            epochs.append(mark.epoch)
        newest = max(epochs, default=attach.epoch)
        if attach.protocol != PROTOCOL_VERSION:
            reason = f"{name} speaks protocol {attach.protocol}, this node speaks {PROTOCOL_VERSION}"
        elif attach.run_id != self._run_id:
            reason = f"{name} belongs to run {attach.run_id}, this is run {self._run_id}"
        elif attach.table != MAIN_TABLE:
            reason = f"{name} wants table {attach.table!r}, which is not here"
        elif attach.digest != self._spec.digest:
            reason = f"{name} has other columns than this table: its environment or version differs"
        elif attach.role not in ("actor", "learner"):
            reason = f"{name} has joined as {attach.role}; actors and learners attach here"
        elif newest > attach.epoch:
            reason, exit_code = f"a newer {name} has attached", EXIT_TEMPORARY
        return None if reason is None else AttachRefused(reason=reason, exit_code=exit_code)

    def _insert(self, sender: _Sender, message: InsertFragments, arrays: Arrays) -> None:
        sender.has_news = True
        match sender.book.judge(message.sequence):
            case Arrival.DUPLICATE:
                return
            case Arrival.GAP:
                self._ask_to_attach(sender.peer)  # then it sends again what is missing
                return
            case Arrival.NEW:
                pass
        if self._lock_step is None:
            self._store(sender, message, arrays)
        else:
            self._lock_step.bring(sender.name, _Brought(sender, message, arrays))

    def _store(self, sender: _Sender, message: InsertFragments, arrays: Arrays) -> int:
        """The live rows that were stored."""
        try:
            fragments = fragment_batch_of(arrays, self._spec, must_be_sound=True)
            self._check_credit(sender, fragments)
            mark = sender.mark(message.sequence, fragments)
            self._table.insert(fragments, sender=mark)
        except (WireError, ValueError) as error:
            self._note_refused(error)
            sender.book.skip(message.sequence)
            self._table.remember(sender.mark(message.sequence))  # lest it be taken for missing after a restart
            self._reply(sender.peer, InsertRefused(sequence=message.sequence, reason=str(error)))
            return 0
        num_live = mark.rows - sender.book.rows
        sender.book.note(message.sequence, rows=num_live, num_bytes=mark.num_bytes - sender.book.num_bytes)
        self._limiter.note_inserted(num_live)
        return num_live

    def _check_credit(self, sender: _Sender, fragments: FragmentBatch) -> None:
        """Refuses rows beyond the credit.

        What an actor has collected under the credit of an earlier process of this node may be more than this one would
        grant: as much again is let pass.
        """
        band_rows = int(self._config.error_band / self._config.replay.samples_per_insert)  # no share of it is larger
        slack = max(band_rows, BEYOND_LARGEST * self._config.largest_insert)
        if sender.overdrawn + fragments.num_live > slack:
            raise WireError(f"{sender.name} sends rows beyond its credit of {sender.book.credit_rows}")

    def _note_refused(self, error: Exception) -> None:
        self.num_refused += 1
        self._refusal = str(error)

    def _hold(self, peer: PeerId, request: SampleRequest) -> None:
        if any((held.peer, held.request.request_id) == (peer, request.request_id) for held in self._held):
            return  # it comes again over the same connection
        if request.batch_size > self._config.error_band:
            reason = f"{request.batch_size} rows are more than replay.error_band = {self._config.error_band:g} releases"
            self._reply(peer, SampleRefused(request_id=request.request_id, reason=reason))
            return
        if sum(held.num_left for held in self._held if held.peer == peer) + request.num_batches > MAX_HELD:
            raise WireError(f"{self._clients[peer].name} asks for more than {MAX_HELD} batches at once")
        self._held.append(_Held(peer, request, request.num_batches))

    def _update(self, peer: PeerId, arrays: Arrays) -> None:
        if not arrays:
            return
        try:
            if arrays.keys() != UPDATE_ARRAYS:
                raise WireError(f"priorities come as {sorted(UPDATE_ARRAYS)}, not as {sorted(arrays)[:10]}")
            self._table.update_priorities(arrays["keys"], arrays["magnitudes"])
        except (WireError, ValueError) as error:
            self._note_refused(error)
            self._reply(peer, UpdateRefused(reason=str(error)))

    def _draw_what_is_due(self, now: float) -> None:
        num_bytes = 0
        self.has_more = False
        while self._held and (num_batches := self._num_due(self._held[0])):
            if num_bytes >= LOOP_BYTES or (num_bytes and self.is_heavy):
                self.has_more = True
                return
            held = self._held[0]
            held.num_left -= num_batches
            if not held.num_left:
                self._held.popleft()
            self._replies.append(self._draw(held, num_batches, now))
            num_bytes += self._layout(held.request, num_batches).num_bytes
        for held in self._held:
            if held.since is None:
                held.since = now

    def _go_in_lock_step(self, step: LockStep[_Brought], now: float) -> None:
        """A request brings the priorities of the batch before: so it is waited for in front of every change.

        One that comes again, as its answer was lost with the connection, gets the same answer.
        """
        if self._held and self._drawn is not None and self._drawn[0] == self._held[0].request.request_id:
            self._replies.append((self._held.popleft().peer, self._drawn[1]))
        if step.is_complete and self._held:
            stored = [self._store(each.sender, each.message, each.arrays) for each in step.take()]
            step.begin_draws(sum(stored), self._table.num_live)
        while step.num_draws and self._held:
            held = self._held.popleft()
            peer, frames = self._draw(held, 1, now, ends_round=step.note_draw())
            self._drawn = held.request.request_id, frames
            self._replies.append((peer, frames))

    def _num_due(self, held: _Held) -> int:
        """Batches of a request that may be drawn now and go in one reply."""
        request, num_live = held.request, self._table.num_live
        num_due = min(held.num_left, self._most_in_a_reply(request))
        if request.run is not None:
            return num_due if num_live else 0
        while num_due and not self._limiter.may_draw(num_due * request.batch_size, num_live):
            num_due -= 1
        return num_due

    def _most_in_a_reply(self, request: SampleRequest) -> int:
        return max(1, REPLY_BYTES // self._layout(request, 1).num_bytes)

    def _draw(self, held: _Held, num_batches: int, now: float, *, ends_round: bool = False) -> Reply:
        """Several batches are drawn in one go, or parts of them, by a reader of several replay nodes."""
        request, table = held.request, self._table
        num_rows = num_batches * request.batch_size
        layout = self._layout(request, num_batches)
        slab, views = layout.allocate()
        draw = (table.draw if request.rows else table.draw_keys)(num_rows, views, is_shared_out=True)
        self._limiter.note_drawn(num_rows)
        if self.watch.wants_draw:
            self.watch.note_draw(draw.keys)
        reply = SampleReply(
            request_id=request.request_id,
            num_live=draw.num_live,
            total_priority=draw.total,
            num_inserted=self._limiter.num_inserted,
            num_drawn=self._limiter.num_drawn,
            held_s=0.0 if held.since is None else now - held.since,
            num_batches=num_batches,
            ends_round=ends_round,
        )
        return held.peer, encode_with_slab(reply, layout, slab)

    def _layout(self, request: SampleRequest, num_batches: int) -> SlabLayout:
        key = num_batches * request.batch_size, request.rows
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            columns = self._table.draw_columns(key[0])
            layout = self._layouts[key] = SlabLayout(columns if request.rows else columns[-2:])
        return layout

    def _raise_credit(self, sender: _Sender) -> None:
        share = self._config.largest_insert
        if self._lock_step is None:
            share = self._limiter.credit_share(self._num_actors, share)
        if share > 0 and sender.book.grant(share, SENDER_BYTES):
            sender.has_news, sender.debt = True, 0

    def _grant(self, sender: _Sender) -> None:
        self._raise_credit(sender)
        if not sender.has_news:
            return
        sender.has_news = False
        is_blocked = sender.book.credit_rows <= sender.book.rows
        self._reply(
            sender.peer,
            Credit(
                last_sequence=sender.book.last_sequence,
                credit_rows=sender.book.credit_rows,
                credit_bytes=sender.book.credit_bytes,
                waiting_for=self._reason if is_blocked else None,
                version=self._version,
            ),
        )

    def _reply(self, peer: PeerId, message: Message) -> None:
        self._replies.append((peer, encode(message)))


def _duplicates(sender: _Sender) -> int:
    return sender.book.num_duplicates
