"""The books of the actors' rows."""

import json

import numpy as np
import pytest

from parl_mq.replay.senders import digest_of
from parl_mq.services import books as books_module
from parl_mq.services.books import RowBooks, RowCounts

A, B = ("actor-0", 1), ("actor-0", 2)


def counters(sent, acknowledged, abandoned=0, lost=0):
    return {
        "sent_rows_total": sent,
        "acknowledged_rows_total": acknowledged,
        "abandoned_rows_total": abandoned,
        "lost_rows_total": lost,
    }


def account(books, rows, *, key=A, ring="r"):
    books.note_accounts("replay-0", ring, [(*key, rows)])


def test_an_open_stream_has_rows_under_way():
    books = RowBooks()
    books.note_actor(A, counters(10, 4))
    account(books, 6)
    counts = books.counts()
    assert (counts.sent, counts.acknowledged, counts.under_way, counts.stored) == (10, 4, 6, 6)
    assert not counts.is_balanced


def test_rows_given_up_that_were_stored_after_all_count_as_acknowledged():
    books = RowBooks()
    books.note_actor(A, counters(10, 4, abandoned=6))
    books.end(A, in_order=True)
    account(books, 7)
    assert books.counts() == RowCounts(sent=10, acknowledged=7, abandoned=3, stored=7)


def test_of_a_stream_that_was_cut_off_the_replays_word_counts():
    books = RowBooks()
    books.note_actor(A, counters(10, 4))
    books.end(A, in_order=False)
    account(books, 12)  # more than its last heartbeat said it had sent
    assert books.counts() == RowCounts(sent=12, acknowledged=12, abandoned=0, stored=12)


def test_rows_that_nobody_stored_although_an_actor_saw_them_acknowledged_are_not_hidden():
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    books.end(A, in_order=True)
    account(books, 9)
    assert not books.counts().is_balanced


def test_without_a_last_account_what_was_acknowledged_and_is_not_there_is_lost():
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    books.end(A, in_order=True)
    account(books, 9)
    assert books.counts(is_final=True) == RowCounts(sent=10, acknowledged=10, stored=9, lost=1)


def test_a_new_ring_has_lost_what_ended_streams_had_in_the_old_one():
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    books.end(A, in_order=True)
    account(books, 10)
    assert books.note_accounts("replay-0", "another", []) == 10
    assert books.counts() == RowCounts(sent=10, acknowledged=10, stored=0, lost=10)


@pytest.mark.parametrize("actor_first", [True, False])
def test_a_stream_that_goes_on_into_a_new_ring_tells_itself_what_is_lost(actor_first):
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    account(books, 10)
    if actor_first:
        books.note_actor(A, counters(12, 10, lost=10))
        account(books, 2, ring="another")
    else:
        account(books, 2, ring="another")
        books.note_actor(A, counters(12, 10, lost=10))
        account(books, 2, ring="another")
    books.note_actor(A, counters(12, 12, lost=10))
    books.end(A, in_order=True)
    assert books.counts() == RowCounts(sent=12, acknowledged=12, stored=2, lost=10)
    assert books.counts().is_balanced


def test_of_two_nodes_only_the_one_with_the_new_ring_has_lost_rows():
    books = RowBooks()
    books.note_actor(A, counters(30, 30))
    books.note_accounts("replay-0", "r0", [(*A, 10)])
    books.note_accounts("replay-1", "r1", [(*A, 20)])
    books.note_actor(A, counters(30, 30, lost=10))
    books.note_accounts("replay-0", "another", [])
    books.end(A, in_order=True)
    assert books.counts() == RowCounts(sent=30, acknowledged=30, stored=20, lost=10)


def test_what_a_ring_was_found_with_may_come_late_and_takes_nothing_back():
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    account(books, 10)
    books.note_accounts("replay-0", "r", [], [(digest_of(A[0]).hex(), A[1], 4), (digest_of(A[0]).hex(), A[1] + 7, 3)])
    books.end(A, in_order=True)
    assert books.counts() == RowCounts(sent=10, acknowledged=10, stored=10)


@pytest.mark.parametrize("kept", [0, 6, 10])
def test_of_a_ring_that_was_restored_only_those_rows_are_lost_that_it_lacks(kept):
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    books.end(A, in_order=False)
    account(books, 10)
    found = [(digest_of(A[0]).hex(), A[1], kept)]
    assert books.note_accounts("replay-0", "restored", [], found) == 10 - kept
    assert books.note_accounts("replay-0", "restored", [], found) == 0  # it may be told twice
    assert books.counts() == RowCounts(sent=10, acknowledged=10, stored=kept, lost=10 - kept)


def test_the_same_ring_after_a_restart_has_lost_nothing():
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    books.end(A, in_order=True)
    account(books, 10)
    assert books.note_accounts("replay-0", "r", []) == 0
    assert books.counts().is_balanced


def test_the_books_go_on_after_they_were_written_down():
    books = RowBooks()
    books.note_actor(A, counters(10, 10))
    books.end(A, in_order=False)
    account(books, 10)
    books.note_actor(B, counters(3, 1))
    again = RowBooks(json.loads(json.dumps(books.to_json())))
    assert again.counts() == books.counts()
    account(again, 3, key=B)
    again.end(B, in_order=False)
    assert again.counts() == RowCounts(sent=13, acknowledged=13, stored=13)


def test_very_many_streams_are_summed_up_and_not_counted_again(monkeypatch):
    monkeypatch.setattr(books_module, "MAX_STREAMS", 3)
    books = RowBooks()
    for epoch in range(10):
        books.note_actor(("actor-0", epoch), counters(5, 5))
        books.note_accounts("replay-0", "r", [("actor-0", earlier, 5) for earlier in range(epoch + 1)])
        books.end(("actor-0", epoch), in_order=True)
    assert books.counts() == RowCounts(sent=50, acknowledged=50, stored=50)


def test_whatever_dies_the_books_of_a_run_balance():
    rng = np.random.default_rng(1)
    for _ in range(200):
        books, ring, epoch = RowBooks(), 0, 1
        sent = acknowledged = stored = lost = 0
        ended: dict[int, int] = {}

        def tell():
            accounts = [("a", old, rows) for old, rows in ended.items()] + [("a", epoch, stored)]  # noqa: B023
            books.note_accounts("replay-0", f"r{ring}", accounts)  # noqa: B023

        for step in rng.choice(["send", "store", "acknowledge", "beat", "tell", "kill actor", "kill replay"], 60):
            match step:
                case "send":
                    sent += int(rng.integers(1, 9))
                case "store":
                    stored = max(stored, sent - lost)
                case "acknowledge":
                    acknowledged = stored + lost
                case "beat":
                    books.note_actor(("a", epoch), counters(sent, acknowledged, lost=lost))
                case "tell":
                    tell()
                case "kill actor":
                    ended[epoch] = stored
                    books.end(("a", epoch), in_order=False)
                    epoch, sent, acknowledged, stored, lost = epoch + 1, 0, 0, 0, 0
                case "kill replay":
                    ring, lost, stored = ring + 1, acknowledged, 0
                    ended.clear()
                    tell()
        acknowledged = stored + lost
        books.note_actor(("a", epoch), counters(sent, acknowledged, abandoned=sent - acknowledged, lost=lost))
        books.end(("a", epoch), in_order=True)
        tell()
        assert books.counts().is_balanced
