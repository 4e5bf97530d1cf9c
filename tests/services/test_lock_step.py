"""Rounds of actors and learner that follow each other in one order, however their messages come."""

import itertools

import numpy as np
import pytest

from parl_mq.replay.table import Table
from parl_mq.services.lock_step import LockStep
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.tables import limiter, table_settings
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import Attached, Credit, FromReplay, InsertFragments, SampleReply, SampleRequest
from tests.services.builders import SPEC, attach, decoded, fragments, small_config


def _step(num_actors=2, ratio=2.0, batch_size=8, learning_starts=10):
    return LockStep(num_actors, samples_per_insert=ratio, batch_size=batch_size, learning_starts=learning_starts)


def test_rows_are_taken_in_the_order_of_the_numbers_in_the_actors_names():
    names = ["actor-10", "actor-2", "actor-0", "other"]
    for order in itertools.permutations(names):
        step = _step(num_actors=4)
        for name in order:
            assert not step.is_complete
            step.bring(name, name)
        assert step.is_complete
        assert step.take() == ["actor-0", "actor-2", "actor-10", "other"]
        assert not step.is_complete


def test_rows_that_come_twice_count_once():
    step = _step()
    step.bring("actor-0", "first")
    step.bring("actor-0", "again")
    assert not step.is_complete
    step.bring("actor-1", "other")
    assert step.take() == ["again", "other"]


def test_batches_are_owed_by_the_ratio_from_the_round_on_that_fills_the_table():
    step = _step()
    drawn = []
    for num_rows, num_live in ((6, 6), (6, 12), (6, 18), (3, 21)):
        step.begin_draws(num_rows, num_live)
        drawn.append(step.num_draws)
        for left in range(step.num_draws - 1, -1, -1):
            assert step.note_draw() == (left == 0)
    assert drawn == [0, 1, 2, 0]  # 12 rows owed; 12 more and 4 left over; 6 more
    assert step.version == 2


class Desk:
    """A desk in lock step with two actors and a learner."""

    def __init__(self):
        self.config = small_config(
            "deterministic=true", "stop.max_updates=100", "actor.num_actors=2", "replay.learning_starts=4"
        )
        self.table = Table(table_settings(self.config), SPEC, directory=None, rng=np.random.default_rng(1))
        self.desk = ReplayDesk(self.table, limiter(self.config, self.table.words), SPEC, self.config, "run")
        for name in ("actor-0", "actor-1", "learner-0"):
            self.desk.handle(name.encode(), attach(name.partition("-")[0], name), {})
        self.due()

    def due(self):
        return [(peer.decode(), message, arrays) for peer, message, arrays in decoded(self.desk.due(0.0), FromReplay)]

    def insert(self, actor, *, sequence=0):
        rows = fragments(4, first=100 * int(actor[-1]) + 10 * sequence)
        self.desk.handle(actor.encode(), InsertFragments(sequence=sequence, table="main"), arrays_of(rows))
        return self.due()

    def ask(self, number, updates=None):
        request = SampleRequest(request_id=number, table="main", batch_size=8)
        self.desk.handle(b"learner-0", request, updates or {})
        return self.due()


def _news(replies):
    credit = [(peer, message.last_sequence, message.version) for peer, message, _ in replies if type(message) is Credit]
    return credit, [message for _, message, _ in replies if type(message) is SampleReply]


@pytest.mark.parametrize("order", list(itertools.permutations(["actor-0", "actor-1", "learner-0"])))
def test_whatever_comes_first_the_same_rows_are_drawn(order):
    desk, replies = Desk(), []
    for name in order:
        assert not _news(replies)[1]
        replies = desk.ask(0) if name == "learner-0" else desk.insert(name)
    assert desk.table.num_live == 8
    [(_, _, arrays)] = [reply for reply in replies if type(reply[1]) is SampleReply]
    expected = Desk()
    expected.insert("actor-0"), expected.insert("actor-1")
    [(_, _, same)] = [reply for reply in expected.ask(0) if type(reply[1]) is SampleReply]
    for name, array in same.items():
        np.testing.assert_array_equal(array, arrays[name])


def test_actors_go_on_with_the_weights_that_the_learner_publishes_after_the_round_s_last_batch():
    desk = Desk()
    desk.insert("actor-1")
    desk.insert("actor-0")
    credit, [first] = _news(desk.ask(0))
    assert sorted(credit) == [("actor-0", 0, 1), ("actor-1", 0, 1)]
    assert not first.ends_round  # 8 rows at a ratio of 2 are two batches
    credit, [last] = _news(desk.ask(1))
    assert (credit, last.ends_round) == ([], True)


@pytest.mark.parametrize("num_asked", [0, 1, 2])
def test_an_actor_that_attaches_goes_on_with_the_same_weights_as_the_others(num_asked):
    desk = Desk()
    desk.insert("actor-0"), desk.insert("actor-1")
    for number in range(num_asked):
        desk.ask(number)
    desk.desk.handle(b"another route", attach("actor", "actor-0"), {})
    [attached] = [message for _, message, _ in desk.due() if type(message) is Attached]
    assert attached.version == min(num_asked, 1)


def test_a_request_that_comes_again_over_another_connection_gets_the_same_answer_and_counts_once():
    desk = Desk()
    desk.insert("actor-0"), desk.insert("actor-1")
    _, [first] = _news(desk.ask(0))
    [(_, _, lost)] = [reply for reply in desk.ask(1) if type(reply[1]) is SampleReply]
    desk.desk.forget(b"learner-0")
    desk.desk.handle(b"learner-0", attach("learner"), {})
    [(_, last, arrays)] = [reply for reply in desk.ask(1) if type(reply[1]) is SampleReply]
    assert (first.ends_round, last.ends_round) == (False, True)
    for name, array in lost.items():
        np.testing.assert_array_equal(array, arrays[name])
    assert not _news(desk.ask(2))[1]  # the next round's rows have not come


def test_rows_of_the_next_round_wait_for_the_priorities_of_the_last_batch():
    desk = Desk()
    desk.insert("actor-0"), desk.insert("actor-1"), desk.ask(0), desk.ask(1)
    desk.insert("actor-0", sequence=1)
    desk.insert("actor-1", sequence=1)
    assert desk.table.num_live == 8
    keys = desk.table.draw(8).keys
    desk.ask(2, {"keys": keys, "magnitudes": np.full(8, 50.0)})
    assert desk.table.num_live == 16
    assert desk.table.max_magnitude == 50.0
    assert (desk.table.total_priority / desk.table.max_priority) > 8  # the new rows have the largest priority too


def test_who_waits_for_whom_is_said():
    desk = Desk()
    desk.ask(0)
    assert desk.desk.waiting_for == "the actors, in lock step: the rows of 0 of 2 have come"
