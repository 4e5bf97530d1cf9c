"""What a ring segment holds after its process was killed at any moment: the newest commit, and dead rows behind it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.replay._commits import check_rows, checksum
from parl_mq.replay._sum_tree import LARGEST_VALUE
from parl_mq.replay.contents import slot_ranges
from parl_mq.replay.mapping import COMMITTED, NUM_LIVE, RESERVED, TAIL, Segment, refusal

Structured = npt.NDArray[np.void]

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class Repair:
    """What makes counters, sender table and leaves those of the newest commit.

    What was reserved behind it stays so, for the ring to bury. `apply` may itself be interrupted anywhere: everything
    that it goes by stays until what follows from it is written.
    """

    segment: Segment
    commit: Structured
    plan: Structured
    num_live: int

    def apply(self) -> None:
        """Writes it."""
        segment, commit = self.segment, self.commit
        if commit["slot"] >= 0:
            entry = commit["sender"].copy()
            entry["checksum"] = checksum(np.atleast_1d(entry).view(np.uint8)[:-8])
            segment.senders[int(commit["slot"])] = entry
        segment.newest[0] = commit["number"]
        self._repair_statistics()
        # What is half-written must not pass for the newest, nor a plan that nothing was reserved by.
        for array, number in ((segment.records_of_commits, commit["number"]), (segment.plans, self.plan["number"])):
            array[array["number"] > number] = np.zeros((), array.dtype)
        tail = int(self.plan["tail"])
        end = max(tail, int(commit["committed"]))
        segment.counters[[TAIL, COMMITTED, NUM_LIVE]] = tail, end, self.num_live
        is_dead = np.ones(segment.shape.num_rows, np.bool_)
        for slots in slot_ranges(tail, end, segment.shape.num_rows):
            is_dead[slots] = False
        segment.leaves[: segment.shape.num_rows][is_dead] = 0.0

    def _repair_statistics(self) -> None:
        """What no record keeps is believed where its copy, or its checksum, says the same."""
        segment = self.segment
        largest, found = largest_magnitude(segment, self.commit), float(segment.max_magnitude[0])
        if largest != found:
            _warn(segment, "max_magnitude", f"it is {found}; {largest} holds, that of the newest commit")
        segment.max_magnitude[0] = segment.max_magnitude_again[0] = largest
        if (stated := int(segment.counts_checksum[0])) and stated != checksum(segment.counts.view(np.uint8)):
            _warn(segment, "counts", "draws and updates are counted from 0 again")
            segment.counts[:] = 0


def _warn(segment: Segment, field: str, what: str) -> None:
    log.warning("%s: field %r of its head is damaged, or was being written: %s", segment.path, field, what)


def largest_magnitude(segment: Segment, commit: Structured) -> float:
    """The running maximum: it stands in the head twice, and has not fallen since the newest commit."""
    found, again = float(segment.max_magnitude[0]), float(segment.max_magnitude_again[0])
    committed = float(commit["max_magnitude"])
    return found if found == again and committed <= found < np.inf else committed


def find_repair(segment: Segment) -> Repair:
    """Checks a segment that was found; the payload of its rows is not looked at.

    Raises:
        RingRefused: something was damaged, and not by a kill.
    """
    commit = _newest_commit(segment)
    _check_senders(segment, commit)
    plan = _plan(segment, commit)
    tail, committed = int(plan["tail"]), int(commit["committed"])
    num_live = _live_rows(segment, tail, committed) if tail < committed else 0
    is_settled = int(segment.counters[RESERVED]) == committed
    if is_settled and (num_live, tail) != (int(commit["num_live"]), int(commit["tail"])):
        raise refusal(segment.path, f"{num_live} rows are live, the commit record says {int(commit['num_live'])}")
    return Repair(segment, commit, plan, num_live)


def read_commit(segment: Segment) -> Structured:
    """The newest whole commit record of a segment, which another process may be writing to; a copy of shape ().

    Raises:
        RingRefused: there is none.
    """
    records = segment.records_of_commits.copy()
    whole = [record for record in records if is_whole(record)]
    if not whole:
        raise refusal(segment.path, "both of its commit records are damaged")
    newest: Structured = max(whole, key=lambda record: int(record["number"]))
    return newest


def _newest_commit(segment: Segment) -> Structured:
    commit, whole = read_commit(segment), int(segment.newest[0])
    number = int(commit["number"])
    if whole > number:
        raise refusal(segment.path, f"the record of commit {whole}, its newest, is damaged")
    if whole < number - 1:
        raise refusal(segment.path, f"field 'newest' of its head is {whole}, but there is a record of commit {number}")
    return commit


def _check_senders(segment: Segment, commit: Structured) -> None:
    """Only the entry of the newest commit may be half-written; it is written again."""
    entries = segment.senders
    is_used = entries.view(np.uint64).reshape(len(entries), -1).any(axis=1)
    for slot in np.flatnonzero(is_used):
        if slot != commit["slot"] and not is_whole(entries[slot]):
            raise refusal(segment.path, f"entry {slot} of its table of senders is damaged")


def _plan(segment: Segment, commit: Structured) -> Structured:
    """The plan by which everything up to `reserved` was reserved: it says where the oldest row may be."""
    reserved, committed = int(segment.counters[RESERVED]), int(commit["committed"])
    plans = [plan for plan in segment.plans.copy() if is_whole(plan) and int(plan["end"]) == reserved]
    if not plans:
        raise refusal(segment.path, f"field 'reserved' of its head is {reserved}, which nothing has planned")
    newest: Structured = max(plans, key=lambda plan: int(plan["number"]))
    tail = int(newest["tail"])
    if reserved < committed or not int(commit["tail"]) <= tail <= reserved:
        raise refusal(
            segment.path, f"its positions are tail {tail}, committed {committed} and reserved {reserved}: not in order"
        )
    return newest


def _live_rows(segment: Segment, tail: int, committed: int) -> int:
    shape = segment.shape
    try:
        num_live, reached = check_rows(segment.rows, shape.layout.stride, segment.leaves, tail, committed)
    except ValueError as error:
        raise refusal(segment.path, str(error)) from error
    if reached < committed:
        raise refusal(segment.path, f"the headers of its rows from position {reached} on are no whole fragment's")
    for slots in slot_ranges(tail, committed, shape.num_rows):
        good = (segment.leaves[slots] >= 0.0) & (segment.leaves[slots] <= LARGEST_VALUE)
        if not good.all():
            slot = slots.start + int(np.argmin(good))
            raise refusal(segment.path, f"the priority of its row {slot} is {segment.leaves[slot]}")
    return num_live


def is_whole(item: Any) -> bool:
    """Whether a record, a plan or an entry of the table of senders has the checksum that it ends in."""
    raw = np.atleast_1d(item).view(np.uint8)
    return bool(checksum(raw[:-8]) == raw[-8:].view(np.uint64)[0])
