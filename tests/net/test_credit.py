"""The books of both ends: each message stored once and in order, whatever the connection and the receiver do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.errors import WireError
from parl_mq.net.credit import Arrival, ReceiverBook, SenderBook


def granted(rows=100, num_bytes=1000):
    book = SenderBook()
    assert book.reattach(None, counted_rows=0, counted_bytes=0) == []
    book.grant(rows, num_bytes)
    return book


def add(book, rows=10, num_bytes=100):
    frames = [b"%d" % book.next_sequence]
    book.add(frames, rows=rows, num_bytes=num_bytes)
    return frames


# The sender's


def test_without_a_grant_nothing_may_be_sent():
    assert SenderBook().available_rows == 0


def test_credit_is_absolute_and_repeats_do_no_harm():
    book = granted(rows=100)
    add(book, rows=60)
    assert book.available_rows == 40
    for rows in (100, 100, 50):
        book.grant(rows, 1000)
        assert book.available_rows == 40
    book.grant(130, 1000)
    assert book.available_rows == 70


def test_used_up_bytes_leave_no_rows():
    book = granted(rows=100, num_bytes=150)
    add(book, rows=10, num_bytes=100)
    assert book.available_rows == 90
    add(book, rows=10, num_bytes=100)
    assert book.available_rows == 0
    book.grant(100, 1000)
    assert book.available_rows == 80


def test_acknowledgement_takes_all_messages_up_to_its_number():
    book = granted()
    for _ in range(4):
        add(book, rows=5)
    book.acknowledge(None)
    assert (book.acknowledged_rows, book.unacknowledged_rows) == (0, 20)
    book.acknowledge(2)
    book.acknowledge(1)
    assert (book.acknowledged_rows, book.unacknowledged_rows) == (15, 5)


def test_acknowledging_what_was_never_sent_is_an_error():
    book = granted()
    add(book)
    with pytest.raises(WireError, match="message 1 was acknowledged, the last one sent is 0"):
        book.acknowledge(1)


def test_reattaching_sends_again_what_is_not_stored_oldest_first():
    book = granted()
    sent = [add(book) for _ in range(5)]
    book.acknowledge(0)
    assert book.reattach(2, counted_rows=30, counted_bytes=300) == sent[3:]
    assert (book.acknowledged_rows, book.unacknowledged_rows) == (30, 20)


def test_reattaching_voids_the_credit_until_the_next_grant():
    book = granted(rows=100)
    book.reattach(None, counted_rows=0, counted_bytes=0)
    assert book.available_rows == 0


@pytest.mark.parametrize("last_sequence", [None, 2])
def test_credit_of_a_receiver_that_counts_anew_is_shifted_to_the_senders_count(last_sequence):
    book = granted(rows=100)
    for _ in range(3):
        add(book, rows=30)
    book.acknowledge(2)
    assert book.reattach(last_sequence, counted_rows=0, counted_bytes=0) == []
    book.grant(50, 1000)
    assert book.available_rows == 50


def test_credit_of_a_new_ring_covers_what_is_sent_again():
    book = granted(rows=100)
    sent = [add(book, rows=30) for _ in range(3)]
    book.acknowledge(0)
    assert book.reattach(None, counted_rows=0, counted_bytes=0) == sent[1:]
    book.grant(100, 1000)
    assert book.available_rows == 100 - 60


def test_receiver_that_forgot_acknowledged_messages_is_an_error():
    book = granted()
    for _ in range(3):
        add(book)
    book.acknowledge(2)
    with pytest.raises(WireError, match="message 2 was acknowledged, now the last is 1"):
        book.reattach(1, counted_rows=20, counted_bytes=200)


def test_abandoned_rows_close_the_books():
    book = granted()
    for _ in range(3):
        add(book, rows=7)
    book.acknowledge(0)
    book.abandon()
    assert (book.sent_rows, book.acknowledged_rows, book.abandoned_rows) == (21, 7, 14)
    assert book.unacknowledged_rows == 0
    assert book.reattach(0, counted_rows=7, counted_bytes=100) == []


# The receiver's


def test_stream_that_is_not_known_may_start_anywhere_and_goes_on_without_a_gap():
    book = ReceiverBook()
    assert book.judge(17) is Arrival.NEW
    book.note(17, rows=3, num_bytes=30)
    judged = [book.judge(sequence) for sequence in (16, 17, 18, 19)]
    assert judged == [Arrival.DUPLICATE, Arrival.DUPLICATE, Arrival.NEW, Arrival.GAP]
    assert (book.last_sequence, book.rows, book.num_bytes, book.num_duplicates) == (17, 3, 30, 2)


def test_remembered_stream_goes_on_where_it_was():
    book = ReceiverBook(last_sequence=4)
    assert [book.judge(sequence) for sequence in (4, 5, 6)] == [Arrival.DUPLICATE, Arrival.NEW, Arrival.GAP]


def test_refused_message_is_passed_over_and_not_counted():
    book = ReceiverBook()
    book.note(0, rows=3, num_bytes=30)
    book.skip(1)
    assert book.judge(2) is Arrival.NEW
    assert (book.last_sequence, book.rows) == (1, 3)


@pytest.mark.parametrize("sequence", [3, 4, 6])
def test_only_the_next_message_can_be_noted(sequence):
    book = ReceiverBook(last_sequence=4)
    with pytest.raises(ValueError, match=f"sequence={sequence} does not follow 4"):
        book.note(sequence, rows=1, num_bytes=1)
    assert (book.last_sequence, book.rows) == (4, 0)


def test_granted_credit_never_falls_and_tells_when_it_grew():
    book = ReceiverBook()
    assert book.grant(10, 100)
    assert not book.grant(10, 100)
    assert not book.grant(5, 50)
    assert (book.credit_rows, book.credit_bytes) == (10, 100)
    book.note(0, rows=4, num_bytes=40)
    assert book.grant(10, 100)
    assert (book.credit_rows, book.credit_bytes) == (14, 140)


# Both, over a connection that breaks

CREDIT_ROWS, CREDIT_BYTES = 50, 600


class Stream:
    """Both books and the messages under way between them."""

    def __init__(self):
        self.sender, self.receiver = SenderBook(), ReceiverBook()
        self.to_receiver, self.to_sender, self.stored = [], [], []
        self.attach()

    def attach(self):
        """A new connection: what was under way is lost."""
        self.to_receiver, self.to_sender = [], []
        book = self.receiver
        again = self.sender.reattach(book.last_sequence, counted_rows=book.rows, counted_bytes=book.num_bytes)
        self.to_receiver += again
        self.grant()

    def grant(self):
        self.receiver.grant(CREDIT_ROWS, CREDIT_BYTES)
        self.to_sender.append((self.receiver.last_sequence, self.receiver.credit_rows, self.receiver.credit_bytes))

    def send(self, rows):
        if rows <= self.sender.available_rows:
            frames = [self.sender.next_sequence, rows]
            self.sender.add(frames, rows=rows, num_bytes=10 * rows)
            self.to_receiver.append(frames)

    def deliver_to_receiver(self):
        if self.to_receiver:
            sequence, rows = self.to_receiver.pop(0)
            arrival = self.receiver.judge(sequence)
            assert arrival is not Arrival.GAP
            if arrival is Arrival.NEW:
                self.receiver.note(sequence, rows=rows, num_bytes=10 * rows)
                self.stored.append((sequence, rows))
            self.grant()

    def deliver_to_sender(self):
        if self.to_sender:
            last_sequence, rows, num_bytes = self.to_sender.pop(0)
            self.sender.acknowledge(last_sequence)
            self.sender.grant(rows, num_bytes)

    def restart_receiver(self):
        """It keeps its ring, and begins to count anew."""
        self.receiver = ReceiverBook(self.receiver.last_sequence)
        self.attach()

    def settle(self):
        self.attach()
        while self.to_receiver or self.to_sender:
            self.deliver_to_receiver()
            self.deliver_to_sender()


steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 60)),
    st.tuples(st.sampled_from(["deliver_to_receiver", "deliver_to_sender", "attach", "restart_receiver"])),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, max_size=80))
def test_every_row_is_stored_once_and_in_order_and_credit_comes_back(steps):
    stream = Stream()
    for name, *arguments in steps:
        getattr(stream, name)(*arguments)
        assert stream.sender.unacknowledged_rows <= 2 * CREDIT_ROWS
    stream.settle()
    sender = stream.sender
    assert [sequence for sequence, _ in stream.stored] == list(range(sender.next_sequence))
    assert sum(rows for _, rows in stream.stored) == sender.sent_rows == sender.acknowledged_rows
    assert sender.available_rows == CREDIT_ROWS
