"""What a replay node decides: real tables and limiters, no network, time as the test says."""

import logging

import numpy as np
import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_TEMPORARY, WireError
from parl_mq.replay.keys import shards_of
from parl_mq.replay.senders import digest_of
from parl_mq.replay.table import Table
from parl_mq.services import replay_desk
from parl_mq.services.replay_desk import COUNTS_EVERY_S, MAX_HELD, ReplayDesk
from parl_mq.services.tables import limiter, table_settings
from parl_mq.wire.codec import SlabLayout
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import (
    Attached,
    AttachRefused,
    Credit,
    FromReplay,
    InsertFragments,
    InsertRefused,
    ReplayCounts,
    RunCounts,
    RunSums,
    SampleRefused,
    SampleReply,
    SampleRequest,
    SampleWaiting,
    SayHello,
    UpdatePriorities,
    UpdateRefused,
)
from tests.services.builders import SPEC, attach, decoded, fragments, small_config

ACTOR, LEARNER = b"actor", b"learner"
BAND = 32.0  # rows: twice the two batches of 8 that the learner has outstanding
SHARE = 8  # rows of credit beyond what is stored: half the band at 2 draws a row


class Desk:
    """A desk with an actor and a learner at it, whose replies are read."""

    def __init__(self, *overrides, directory=None):
        self.config = small_config(*overrides)
        assert self.config.error_band == BAND or overrides
        self.table = Table(table_settings(self.config), SPEC, directory=directory, rng=np.random.default_rng(1))
        limits = limiter(self.config, self.table.words)
        self.desk = ReplayDesk(self.table, limits, SPEC, self.config, "run")
        self.sequence = 0

    def say(self, peer, message, arrays=None, now=0.0):
        self.desk.handle(peer, message, arrays or {})
        return self.due(now)

    def due(self, now=0.0):
        return [(peer, message) for peer, message, _ in decoded(self.desk.due(now), FromReplay)]

    def insert(self, num_live, *, peer=ACTOR, sequence=None, **changed):
        """The actor sends one fragment; returns what the desk says then."""
        arrays = {**arrays_of(fragments(num_live)), **changed}
        if sequence is None:
            sequence, self.sequence = self.sequence, self.sequence + 1
        return self.say(peer, InsertFragments(sequence=sequence, table="main"), arrays)

    def fill(self, num_rows=10):
        """The actor sends so many rows, four in a message."""
        for start in range(0, num_rows, 4):
            self.insert(min(4, num_rows - start))

    def ask(self, number=0, batch_size=8, *, peer=LEARNER, arrays=None, now=0.0):
        request = SampleRequest(request_id=number, table="main", batch_size=batch_size)
        return self.say(peer, request, arrays, now)


def attended(*overrides):
    """A desk with both of them."""
    made = Desk(*overrides)
    made.say(ACTOR, attach("actor"))
    made.say(LEARNER, attach("learner"))
    return made


@pytest.fixture
def desk():
    return attended()


def answers(outgoing, kind):
    return [message for _, message in outgoing if isinstance(message, kind)]


# Attaching


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"protocol": 99}, "protocol 99"),
        ({"run_id": "another"}, "run another"),
        ({"digest": "0" * 64}, "other columns"),
        ({"table": "second"}, "table 'second'"),
        ({"role": "evaluator"}, "joined as evaluator"),
    ],
)
def test_a_client_that_does_not_fit_is_refused_with_the_reason(fields, reason):
    [(peer, refused)] = Desk().say(ACTOR, attach(**{"role": "actor", **fields}))
    assert (peer, type(refused), refused.exit_code) == (ACTOR, AttachRefused, EXIT_CONFIG)
    assert reason in refused.reason


def test_an_attached_actor_has_credit_and_nothing_stored():
    desk = Desk()
    attached = answers(desk.say(ACTOR, attach()), Attached)
    assert [(each.last_sequence, each.counted_rows, each.credit_rows) for each in attached] == [(None, 0, SHARE)]
    assert attached[0].ring_id == desk.table.ring_id


def test_an_attached_learner_needs_no_credit():
    [(_, attached)] = Desk().say(LEARNER, attach("learner"))
    assert (attached.last_sequence, attached.credit_rows) == (None, 0)


def test_a_stranger_is_asked_to_attach_once_however_much_it_sends():
    desk = Desk()
    assert desk.insert(4, peer=b"stranger") == [(b"stranger", SayHello())]
    assert desk.insert(4, peer=b"stranger") == []
    assert desk.table.num_live == 0


def test_an_older_process_of_a_name_is_refused_while_the_newer_one_is_attached():
    desk = Desk()
    desk.say(b"new", attach(epoch=2))
    [(_, refused), *_] = desk.say(b"old", attach(epoch=1))
    assert (type(refused), refused.exit_code) == (AttachRefused, EXIT_TEMPORARY)
    assert answers(desk.insert(4, peer=b"new"), Credit)


def test_a_newer_process_begins_a_new_account_and_the_old_one_must_attach(desk):
    desk.fill(8)
    attached = answers(desk.say(b"new", attach(epoch=2)), Attached)
    assert [(each.last_sequence, each.counted_rows) for each in attached] == [(None, 0)]
    assert desk.insert(4, peer=ACTOR, sequence=2) == [(ACTOR, SayHello())]


def test_clients_that_have_gone_are_known_by_name(desk):
    for number in range(3):
        desk.say(b"far", attach(name=f"far.{number}"))
        desk.desk.forget(b"far")
    assert desk.desk.names == {"actor-0", "learner-0", "far.0", "far.1", "far.2"}


def test_a_reconnected_actor_learns_what_was_stored(desk):
    desk.fill(8)
    [attached] = answers(desk.say(b"again", attach()), Attached)
    assert (attached.last_sequence, attached.counted_rows) == (1, 8)
    assert attached.counted_bytes == 2 * fragments(4).num_bytes


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (LEARNER, InsertFragments(sequence=0, table="main")),
        (ACTOR, SampleRequest(request_id=0, table="main", batch_size=8)),
        (ACTOR, UpdatePriorities(table="main")),
    ],
)
def test_a_role_sends_only_its_own_messages(desk, peer, message):
    with pytest.raises(WireError, match=r"may not send"):
        desk.say(peer, message)


def test_a_message_about_another_table_is_not_taken(desk):
    with pytest.raises(WireError, match="'second'"):
        desk.say(LEARNER, SampleRequest(request_id=0, table="second", batch_size=8))


# Inserts


def test_an_insert_is_acknowledged_when_its_rows_can_be_drawn(desk):
    [(peer, credit)] = desk.insert(4)
    assert (peer, credit.last_sequence, desk.table.num_live) == (ACTOR, 0, 4)


def test_a_repeated_message_is_acknowledged_again_and_stored_once(desk):
    desk.insert(4, sequence=7)
    [(_, credit)] = desk.insert(4, sequence=7)
    assert (credit.last_sequence, desk.table.num_live) == (7, 4)


def test_after_a_gap_the_sender_attaches_once_and_sends_again(desk):
    desk.insert(4, sequence=0)
    [hello, *_] = [message for _, message in desk.insert(4, sequence=2)]
    assert hello == SayHello()
    assert desk.insert(4, sequence=3) == []
    [attached] = answers(desk.say(ACTOR, attach()), Attached)
    assert attached.last_sequence == 0
    assert [answers(desk.insert(4, sequence=number), Credit)[0].last_sequence for number in (1, 2, 3)] == [1, 2, 3]
    assert desk.table.num_live == 16


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"obs": np.zeros((5, 4), np.float64)}, "field obs: got float64"),
        ({"obs": np.zeros((5, 3), np.float32)}, "field obs"),
        ({"reward": np.full(5, np.nan, np.float32)}, "field reward: row 0 is not finite"),
        ({"fragment.lengths": np.array([9], np.int32)}, "fragment.lengths"),
    ],
)
def test_a_refused_insert_tells_its_sender_stores_nothing_and_leaves_the_next_one_alone(desk, changed, reason):
    [refused] = answers(desk.insert(4, **changed), InsertRefused)
    assert refused.sequence == 0
    assert reason in refused.reason
    assert (desk.table.num_live, desk.desk.num_refused) == (0, 1)
    assert answers(desk.insert(4), Credit)[0].last_sequence == 1


# Credit


def test_credit_is_what_is_stored_and_a_share_until_enough_rows_are_there(desk):
    credits = [answers(desk.insert(4), Credit)[0] for _ in range(6)]
    assert [credit.credit_rows for credit in credits] == [12, 16, 20, 24, 24, 24]
    assert [credit.waiting_for is None for credit in credits] == [*[True] * 5, False]


def test_an_actor_without_credit_hears_why_and_gets_more_when_rows_are_drawn(desk):
    desk.fill(24)
    [credit] = answers(desk.insert(4, sequence=desk.sequence - 1), Credit)
    assert credit.waiting_for.startswith("the learner")
    told = [message for number in range(4) for message in answers(desk.ask(number), Credit)]
    assert told[-1].credit_rows > credit.credit_rows
    assert told[-1].waiting_for is None


def test_ever_new_processes_of_a_name_store_no_more_beyond_the_credit_than_one(desk):
    desk.fill(24)
    for epoch in range(2, 12):
        desk.say(ACTOR, attach(epoch=epoch))
        for sequence in range(20):
            desk.insert(4, sequence=sequence)
    slack = 16  # rows: the band at two draws a row
    assert desk.table.num_live == 24 + slack
    for number in range(12):
        desk.ask(number)
    desk.say(ACTOR, attach(epoch=12))  # with new credit it may send again
    assert answers(desk.insert(4, sequence=0), InsertRefused) == []


def test_nothing_new_means_no_message(desk):
    desk.insert(4)
    assert desk.due() == []


def test_actors_share_the_credit_and_none_gets_less_than_its_largest_message(caplog):
    desk = Desk("actor.num_actors=4")
    assert desk.config.error_band == 2 * 4 * 4 * 2
    shares = [answers(desk.say(b"%d" % index, attach(name=f"actor-{index}")), Attached)[0] for index in range(4)]
    assert [attached.credit_rows for attached in shares] == [4, 4, 4, 4]
    assert caplog.records == []


def test_more_actors_than_the_band_has_room_for_are_warned_of(caplog):
    desk = Desk()
    for index in range(3):
        desk.say(b"%d" % index, attach(name=f"actor-{index}"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "3 actors" in caplog.text


# Draws


def test_a_request_is_held_until_enough_rows_are_there(desk):
    assert answers(desk.ask(5), SampleReply) == []
    desk.fill(8)
    replies = desk.insert(4)
    assert [(peer, message.request_id) for peer, message in replies if isinstance(message, SampleReply)] == [
        (LEARNER, 5)
    ]


def test_a_reply_brings_rows_that_were_inserted(desk):
    desk.fill(12)
    desk.desk.handle(LEARNER, SampleRequest(request_id=0, table="main", batch_size=8), {})
    [(_, reply, arrays)] = [each for each in decoded(desk.desk.due(0.0), FromReplay) if each[0] == LEARNER]
    assert (reply.num_live, len(arrays["keys"])) == (12, 8)
    np.testing.assert_array_equal(arrays["reward"], arrays["obs"][:, 0])
    np.testing.assert_array_equal(arrays["next_obs"], arrays["obs"] + 1)


def test_draws_stop_where_the_band_ends(desk):
    desk.fill(12)
    replies = [reply for number in range(9) for reply in answers(desk.ask(number), SampleReply)]
    assert [reply.request_id for reply in replies] == [0, 1, 2, 3]
    assert replies[-1].num_drawn == BAND


def test_rows_and_draws_end_up_in_the_ratio_that_was_set(desk):
    desk.fill(12)
    drawn = 0
    for number in range(200):
        drawn += 8 * len(answers(desk.ask(number), SampleReply))
        desk.insert(4)
        drawn += 8 * len(answers(desk.due(), SampleReply))
    counters = desk.desk.counters()
    assert counters["drawn_rows_total"] == drawn
    assert counters["samples_per_insert"] == pytest.approx(2.0, rel=BAND / drawn)


def test_whoever_waits_hears_why_at_most_once_a_second(desk):
    reasons = {now: answers(desk.ask(index, now=now), SampleWaiting) for index, now in enumerate((5.0, 5.5, 6.0))}
    assert [len(told) for told in reasons.values()] == [1, 0, 1]
    assert reasons[5.0][0].reason == "the actors to fill the replay: 0 of 10 rows"
    assert desk.desk.waiting_for == "the actors to fill the replay: 0 of 10 rows"


def test_a_batch_that_can_never_be_due_is_refused(desk):
    [refused] = answers(desk.ask(3, batch_size=int(BAND) + 1), SampleRefused)
    assert (refused.request_id, "error_band" in refused.reason) == (3, True)


@pytest.mark.parametrize("num_batches", [1, 16])
def test_no_learner_holds_more_batches_than_the_limit(desk, num_batches):
    def ask(number):
        request = SampleRequest(request_id=number, table="main", batch_size=8, num_batches=num_batches)
        desk.say(LEARNER, request)

    for number in range(MAX_HELD // num_batches):
        ask(number)
    with pytest.raises(WireError, match="batches at once"):
        ask(MAX_HELD)


def test_batches_of_one_request_that_are_due_together_come_in_one_reply_and_the_rest_later(desk):
    desk.fill(12)
    request = SampleRequest(request_id=5, table="main", batch_size=8, num_batches=6)
    replies = answers(desk.say(LEARNER, request), SampleReply)
    # Of 32 rows that the draws may be ahead four batches go; each of the following needs four rows more.
    assert [(reply.request_id, reply.num_batches, reply.num_drawn) for reply in replies] == [(5, 4, 32)]
    assert answers(desk.insert(3, sequence=3), SampleReply) == []
    assert [reply.num_batches for reply in answers(desk.insert(1, sequence=4), SampleReply)] == [1]
    assert [reply.num_batches for reply in answers(desk.insert(4, sequence=5), SampleReply)] == [1]
    assert answers(desk.insert(4, sequence=6), SampleReply) == []


def test_a_request_that_comes_again_before_its_answer_is_answered_once(desk):
    request = SampleRequest(request_id=5, table="main", batch_size=8)
    desk.say(LEARNER, request)
    desk.say(LEARNER, request)
    replies = [reply for _ in range(5) for reply in answers(desk.insert(4), SampleReply)]
    assert [reply.request_id for reply in replies] == [5]


def test_a_reply_of_several_batches_holds_them_one_after_the_other(desk):
    desk.fill(12)
    request = SampleRequest(request_id=5, table="main", batch_size=8, num_batches=3)
    desk.desk.handle(LEARNER, request, {})
    [(_, reply, arrays)] = [one for one in decoded(desk.desk.due(0.0), FromReplay) if isinstance(one[1], SampleReply)]
    assert reply.num_batches == 3
    assert {array.shape[0] for array in arrays.values()} == {24}


@pytest.mark.parametrize("rows", [True, False])
def test_each_batch_of_a_reply_holds_rows_of_every_shard(rows):
    desk = attended("replay.shards=2", "replay.samples_per_insert=1000")
    desk.fill(12)
    request = SampleRequest(request_id=5, table="main", batch_size=64, num_batches=4, rows=rows)
    desk.desk.handle(LEARNER, request, {})
    [(_, reply, arrays)] = [one for one in decoded(desk.desk.due(0.0), FromReplay) if isinstance(one[1], SampleReply)]
    assert reply.num_batches == 4
    shards = shards_of(arrays["keys"]).reshape(4, 64)
    assert all(len(np.unique(batch)) == 2 for batch in shards)


def test_replies_stay_small_whatever_is_due(monkeypatch, desk):
    one = SlabLayout(desk.table.draw_columns(8)).num_bytes
    monkeypatch.setattr(replay_desk, "REPLY_BYTES", 2 * one)
    desk.fill(12)
    request = SampleRequest(request_id=5, table="main", batch_size=8, num_batches=3)
    assert [reply.num_batches for reply in answers(desk.say(LEARNER, request), SampleReply)] == [2, 1]


def test_one_call_copies_no_more_than_it_may_and_says_that_more_is_due(monkeypatch, desk):
    monkeypatch.setattr(replay_desk, "REPLY_BYTES", 1)
    monkeypatch.setattr(replay_desk, "LOOP_BYTES", SlabLayout(desk.table.draw_columns(8)).num_bytes + 1)
    desk.fill(12)
    desk.desk.handle(LEARNER, SampleRequest(request_id=5, table="main", batch_size=8, num_batches=3), {})
    assert [(len(answers(desk.due(now), SampleReply)), desk.desk.has_more) for now in (1.0, 2.0)] == [
        (2, True),
        (1, False),
    ]


def test_what_waits_for_its_turn_alone_does_not_count_as_held_by_the_limiter(monkeypatch, desk):
    monkeypatch.setattr(replay_desk, "REPLY_BYTES", 1)
    monkeypatch.setattr(replay_desk, "LOOP_BYTES", 1)
    desk.fill(12)
    desk.desk.handle(LEARNER, SampleRequest(request_id=5, table="main", batch_size=8, num_batches=2), {})
    held = [reply.held_s for now in (1.0, 2.0) for reply in answers(desk.due(now), SampleReply)]
    assert held == [0.0, 0.0]


def test_requests_of_a_learner_that_is_gone_are_not_drawn(desk):
    desk.ask(0)
    desk.desk.forget(LEARNER)
    desk.fill(12)
    assert desk.desk.counters()["drawn_rows_total"] == 0


def test_a_learner_that_attaches_again_asks_again_and_is_answered_once(desk):
    desk.ask(0)
    desk.say(b"again", attach("learner"))
    desk.ask(0, peer=b"again")
    desk.fill(8)
    replies = desk.insert(4)
    assert [peer for peer, message in replies if isinstance(message, SampleReply)] == [b"again"]


# Priorities


def drawn_keys(desk):
    desk.desk.handle(LEARNER, SampleRequest(request_id=0, table="main", batch_size=8), {})
    [keys] = [arrays["keys"] for peer, _, arrays in decoded(desk.desk.due(0.0), FromReplay) if peer == LEARNER]
    return keys


@pytest.mark.parametrize("rides", [True, False], ids=["on a request", "alone"])
def test_priorities_are_applied(desk, rides):
    desk.fill(12)
    keys = drawn_keys(desk)
    before = desk.table.total_priority
    updates = {"keys": keys, "magnitudes": np.full(8, 50.0)}
    replies = desk.ask(1, arrays=updates) if rides else desk.say(LEARNER, UpdatePriorities(table="main"), updates)
    assert answers(replies, UpdateRefused) == []
    assert desk.table.total_priority > before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_bad_priority_is_refused_and_the_learner_told(desk, bad):
    desk.fill(12)
    keys = drawn_keys(desk)
    before = desk.table.total_priority
    magnitudes = np.array([5.0, bad, *[1.0] * 6])
    replies = desk.say(LEARNER, UpdatePriorities(table="main"), {"keys": keys, "magnitudes": magnitudes})
    assert len(answers(replies, UpdateRefused)) == 1
    assert desk.table.total_priority == before


def test_priorities_of_another_type_are_refused_and_the_request_beside_them_held(desk):
    updates = {"keys": np.zeros(8, np.int32), "magnitudes": np.ones(8)}
    [refused] = answers(desk.ask(1, arrays=updates), UpdateRefused)
    assert "keys are int32 (8,)" in refused.reason
    desk.fill(12)
    assert desk.desk.counters()["drawn_rows_total"] == 8


def test_a_uniform_table_draws_all_rows_alike_whatever_their_priorities():
    desk = Desk("replay.kind=uniform")
    desk.say(ACTOR, attach("actor"))
    desk.say(LEARNER, attach("learner"))
    desk.fill(12)
    updates = {"keys": drawn_keys(desk), "magnitudes": np.full(8, 1000.0)}
    desk.desk.handle(LEARNER, SampleRequest(request_id=1, table="main", batch_size=8), updates)
    [arrays] = [arrays for peer, _, arrays in decoded(desk.desk.due(0.0), FromReplay) if peer == LEARNER]
    np.testing.assert_allclose(arrays["probabilities"], 1 / 12)


# Drawing for a learner that has the table mapped


def test_without_rows_a_reply_holds_keys_and_probabilities_alone(desk):
    desk.fill()
    desk.desk.handle(LEARNER, SampleRequest(request_id=3, table="main", batch_size=8, rows=False), {})
    [(_, reply, arrays)] = decoded(desk.desk.due(0.0), FromReplay)[-1:]
    assert (reply.request_id, reply.num_live, reply.num_drawn) == (3, 10, 8)
    assert list(arrays) == ["keys", "probabilities"]
    assert arrays["keys"].shape == arrays["probabilities"].shape == (8,)
    assert (arrays["probabilities"] == 1 / 10).all()


def test_rows_and_keys_alone_may_be_asked_for_in_turn(desk):
    desk.fill()
    for rows in (True, False):
        desk.desk.handle(LEARNER, SampleRequest(request_id=rows, table="main", batch_size=8, rows=rows), {})
        [(_, _, arrays)] = [one for one in decoded(desk.desk.due(0.0), FromReplay) if isinstance(one[1], SampleReply)]
        assert ("obs" in arrays) is rows


def test_a_reply_says_how_long_the_limiter_held_its_request(desk):
    desk.ask(0, now=5.0)
    desk.due(now=6.0)
    desk.fill(8)
    desk.desk.handle(ACTOR, InsertFragments(sequence=2, table="main"), arrays_of(fragments(4)))
    outgoing = desk.due(now=7.5)
    assert [reply.held_s for reply in answers(outgoing, SampleReply)] == [2.5]


def test_a_request_that_is_due_at_once_was_not_held(desk):
    desk.fill()
    assert [reply.held_s for reply in answers(desk.ask(now=100.0), SampleReply)] == [0.0]


# Another process of the same node


@pytest.fixture
def restart(tmp_path):
    """Makes a desk, each time another one, as after a kill, on what the one before has left."""
    made = []

    def next_desk(*overrides):
        if made:
            made[-1].table._files.abandon()  # the kernel lets go of a killed process's locks
        made.append(Desk(*overrides, directory=tmp_path / "ring"))
        return made[-1]

    yield next_desk
    made[-1].table.close()


def test_a_sender_hears_after_a_restart_what_is_stored_and_its_repeats_are_dropped(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    before = answers(desk.insert(4), Credit) + answers(desk.insert(4), Credit)
    after = restart()
    [attached] = answers(after.say(ACTOR, attach()), Attached)
    assert (attached.ring_id, attached.last_sequence) == (desk.table.ring_id, 1)
    assert (attached.counted_rows, attached.counted_bytes) == (8, 2 * fragments(4).num_bytes)
    assert attached.credit_rows >= before[-1].credit_rows
    after.insert(4, sequence=1)
    after.insert(4, sequence=2)
    assert after.table.num_live == 12
    assert after.desk.accounts().accounts == [("actor-0", 1, 12)]


def test_a_message_that_was_refused_is_not_missing_after_a_restart(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    desk.insert(4)
    assert answers(desk.insert(4, reward=np.full(5, np.nan, np.float32)), InsertRefused)
    [attached] = answers(restart().say(ACTOR, attach()), Attached)
    assert (attached.last_sequence, attached.counted_rows) == (1, 4)


def test_a_new_process_of_a_sender_begins_a_new_account_after_a_restart(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    desk.insert(4)
    after = restart()
    [attached] = answers(after.say(ACTOR, attach(epoch=2)), Attached)
    assert (attached.last_sequence, attached.counted_rows) == (None, 0)
    after.insert(4, sequence=70)
    [refused] = answers(restart().say(ACTOR, attach(epoch=1)), AttachRefused)
    assert refused.exit_code == EXIT_TEMPORARY
    assert "a newer actor-0" in refused.reason


def test_after_a_restart_draws_are_due_as_before(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    desk.say(LEARNER, attach("learner"))
    desk.fill(12)
    for number in range(4):
        desk.ask(number)
    limits = desk.desk._limiter
    before = limits.num_inserted, limits.num_drawn, limits.rows_allowed()
    assert before[1] == 32
    after = restart()
    limits = after.desk._limiter
    assert (limits.num_inserted, limits.num_drawn, limits.rows_allowed()) == before
    after.say(LEARNER, attach("learner"))
    assert not answers(after.ask(9), SampleReply)  # the band has ended
    after.say(ACTOR, attach())
    assert answers(after.insert(4, sequence=3), SampleReply)


def test_totals_are_those_of_the_process(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    desk.fill(8)
    assert desk.desk.counters()["inserted_rows_total"] == 8
    after = restart()
    assert (after.desk.counters()["inserted_rows_total"], after.desk.counters()["replay_live_rows"]) == (0, 8)


def test_rows_stored_just_before_a_kill_count_for_the_ratio(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    desk.say(LEARNER, attach("learner"))
    desk.fill(12)
    desk.ask(0)
    desk.table.insert(fragments(4))  # and the process is killed before it is noted
    assert desk.desk._limiter.num_inserted == 0
    assert restart().desk._limiter.num_inserted == 4


# One of several


@pytest.fixture
def one_of_two():
    made = Desk("replay.nodes=2", "replay.buffer_size=200")
    made.say(ACTOR, attach("actor"))
    return made


def run_request(number, batch_size, sums):
    return SampleRequest(request_id=number, table="main", batch_size=batch_size, run=sums)


def test_a_learner_hears_how_far_the_node_is_when_it_attaches_and_when_that_has_changed(one_of_two):
    one_of_two.fill(8)
    [told, *_] = answers(one_of_two.say(LEARNER, attach("learner"), now=1.0), ReplayCounts)
    assert (told.num_live, told.num_before, told.num_inserted, told.num_drawn) == (8, 8, 0, 0)
    assert told.total_priority == pytest.approx(8 * (1 + 1e-6) ** 0.6)
    assert answers(one_of_two.due(2.0), ReplayCounts) == []
    arrays = arrays_of(fragments(4))
    replies = one_of_two.say(ACTOR, InsertFragments(sequence=2, table="main"), arrays, now=3.0)
    assert [each.num_live for each in answers(replies, ReplayCounts)] == [12]
    replies = one_of_two.say(ACTOR, InsertFragments(sequence=3, table="main"), arrays, now=3.0 + COUNTS_EVERY_S / 2)
    assert answers(replies, ReplayCounts) == []
    assert [each.num_live for each in answers(one_of_two.due(3.0 + COUNTS_EVERY_S), ReplayCounts)] == [16]


def test_a_draw_that_the_learner_found_due_is_not_held(one_of_two):
    one_of_two.say(LEARNER, attach("learner"))
    one_of_two.insert(4)
    nothing_elsewhere = RunSums(0, 0, 0, 4)
    [reply] = answers(one_of_two.say(LEARNER, run_request(0, 5, nothing_elsewhere)), SampleReply)
    assert (reply.num_drawn, reply.num_live) == (5, 4)


def test_a_draw_from_an_empty_node_waits_for_its_first_rows(one_of_two):
    one_of_two.say(LEARNER, attach("learner"))
    assert answers(one_of_two.say(LEARNER, run_request(0, 5, RunSums(9, 0, 0, 0))), SampleReply) == []
    assert answers(one_of_two.insert(4), SampleReply)


def test_actors_get_credit_for_what_was_drawn_anywhere(one_of_two):
    one_of_two.say(LEARNER, attach("learner"))
    one_of_two.say(LEARNER, RunCounts(table="main", sums=RunSums(10, 0, 1, 0)))
    while one_of_two.desk._limiter.rows_allowed():
        one_of_two.insert(1)
    behind = one_of_two.desk._limiter.num_inserted
    assert answers(one_of_two.say(LEARNER, RunCounts(table="main", sums=RunSums(10, 0, 1, behind))), Credit) != []
    while one_of_two.desk._limiter.rows_allowed():
        one_of_two.insert(1)
    assert answers(one_of_two.due(), Credit) == []
    drawn_elsewhere = RunCounts(table="main", sums=RunSums(10, 0, 100, one_of_two.desk._limiter.counts.arrived))
    assert answers(one_of_two.say(LEARNER, drawn_elsewhere), Credit)


def test_of_several_learners_the_one_counts_that_knows_of_most_draws(one_of_two):
    for name, drawn in (("learner-0", 50), ("learner-1", 40)):
        one_of_two.say(name.encode(), attach("learner", name))
        one_of_two.say(name.encode(), RunCounts(table="main", sums=RunSums(0, 30, drawn, 0)))
    assert one_of_two.desk._limiter.elsewhere.drawn == 50


def test_a_learner_that_speaks_of_other_nodes_where_there_are_none_is_refused(desk):
    with pytest.raises(WireError, match="learner-0 speaks of other replay nodes, and this run has one"):
        desk.say(LEARNER, RunCounts(table="main", sums=RunSums(0, 0, 0, 0)))


def test_a_ring_that_was_found_tells_what_it_holds_of_each_stream(restart):
    desk = restart()
    desk.say(ACTOR, attach())
    desk.fill(12)
    found = restart().desk.found_accounts()
    assert (found.accounts, found.found) == ([], [(digest_of("actor-0").hex(), 1, 12)])
