from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.replay.limiter import NUM_WORDS, Counts, RatioLimiter


def test_nothing_is_drawn_before_enough_rows_are_in() -> None:
    limiter = RatioLimiter(4.0, 1000.0, min_live=100)
    assert not limiter.may_draw(10, 0)
    limiter.note_inserted(99)
    assert not limiter.may_draw(10, 99)
    assert limiter.waiting(99) == "the actors to fill the replay: 99 of 100 rows"
    limiter.note_inserted(1)
    assert limiter.may_draw(10, 100)


def test_rows_restored_from_before_count_towards_the_floor() -> None:
    assert RatioLimiter(4.0, 1000.0, min_live=100).may_draw(10, 100)


def test_a_table_that_cannot_hold_the_floor_starts_once_it_was_inserted() -> None:
    limiter = RatioLimiter(4.0, 1000.0, min_live=100)
    limiter.note_inserted(100)
    assert limiter.may_draw(10, 60)
    assert not limiter.may_draw(10, 0)


def test_counting_starts_at_the_first_draw() -> None:
    limiter = RatioLimiter(4.0, 1000.0, min_live=100)
    limiter.note_inserted(500)
    assert limiter.ratio is None
    limiter.note_drawn(10)
    limiter.note_inserted(5)
    assert (limiter.num_inserted, limiter.num_drawn, limiter.ratio) == (5, 10, 2.0)


def test_draws_stop_at_the_band() -> None:
    limiter = RatioLimiter(2.0, 100.0, min_live=1)
    limiter.note_inserted(1)
    for _ in range(10):
        assert limiter.may_draw(10, 1)
        limiter.note_drawn(10)
    assert not limiter.may_draw(10, 1)
    assert limiter.waiting(1) == "new rows from the actors: 100 rows drawn for 0 inserted, 100 ahead of 2 each"
    limiter.note_inserted(4)
    assert not limiter.may_draw(10, 5)
    limiter.note_inserted(1)
    assert limiter.may_draw(10, 6)


def test_credit_stops_at_half_the_band() -> None:
    limiter = RatioLimiter(2.0, 100.0, min_live=1)
    limiter.note_inserted(1)
    limiter.note_drawn(10)
    assert limiter.credit_share(num_actors=5, largest_insert=1) == 5
    limiter.note_inserted(30)
    assert limiter.rows_allowed() == 1
    limiter.note_inserted(1)
    assert limiter.credit_share(num_actors=5, largest_insert=1) == 0
    assert limiter.waiting(10) == "the learner to draw: 10 rows drawn for 31 inserted, 52 behind 2 each"
    limiter.note_drawn(10)
    assert limiter.credit_share(num_actors=5, largest_insert=1) == 5


def test_before_the_first_draw_rows_flow_to_the_floor_and_half_a_band_more() -> None:
    limiter = RatioLimiter(2.0, 100.0, min_live=50)
    limiter.note_inserted(75)
    assert limiter.credit_share(1, 1) > 0
    limiter.note_inserted(1)
    assert limiter.credit_share(1, 1) == 0
    assert limiter.waiting(76) == "the learner's first draw: 76 rows are here"


def test_a_share_is_never_less_than_one_largest_insert() -> None:
    limiter = RatioLimiter(2.0, 100.0, min_live=50)
    assert limiter.credit_share(num_actors=100, largest_insert=7) == 7
    assert not limiter.has_room_for(num_actors=100, largest_insert=7)
    assert limiter.has_room_for(num_actors=3, largest_insert=7)


def test_another_ratio_starts_to_count_anew() -> None:
    limiter = RatioLimiter(2.0, 100.0, min_live=1)
    limiter.note_inserted(1)
    limiter.note_drawn(100)
    assert not limiter.may_draw(10, 1)
    limiter.retune(1.0, 50.0)
    assert limiter.may_draw(10, 1)
    assert (limiter.samples_per_insert, limiter.error_band, limiter.ratio) == (1.0, 50.0, None)
    with pytest.raises(ValueError, match="error_band is -1"):
        limiter.retune(1.0, -1)
    assert limiter.error_band == 50.0


def _pair(band: float = 100.0, min_live: int = 50) -> list[RatioLimiter]:
    return [RatioLimiter(2.0, band, min_live, num_tables=2) for _ in range(2)]


def _tell(limiters: list[RatioLimiter]) -> None:
    for limiter, other in (limiters, limiters[::-1]):
        limiter.note_elsewhere(other.counts, arrived_here=limiter.counts.arrived)


def test_tables_that_hear_of_each_other_hold_one_ratio() -> None:
    first, second = limiters = _pair(min_live=10)
    first.note_inserted(10)
    second.note_drawn(10)
    _tell(limiters)
    first.note_inserted(30)
    _tell(limiters)
    for limiter in limiters:
        assert limiter.ratio == pytest.approx(10 / 30)
        assert limiter.rows_allowed() == 1
        assert limiter.waiting(10) == "the learner to draw: 10 rows drawn for 30 inserted, 50 behind 2 each"
    assert (first.counts, second.counts) == (Counts(10, 30, 0), Counts(0, 0, 10))


def test_before_anybody_has_told_them_each_lets_its_part_of_the_first_rows_in() -> None:
    limiters = _pair(min_live=50)
    for limiter in limiters:
        while limiter.rows_allowed():
            limiter.note_inserted(1)
    assert sum(limiter.counts.arrived for limiter in limiters) == pytest.approx(50 + 25, abs=2)


def test_what_comes_untold_is_taken_to_come_everywhere() -> None:
    first, second = limiters = _pair(min_live=1)
    first.note_drawn(1)
    _tell(limiters)
    allowed = first.rows_allowed()
    for limiter in limiters:
        while limiter.rows_allowed():
            limiter.note_inserted(1)
    assert first.num_inserted + second.num_inserted == pytest.approx(allowed, abs=2)
    _tell(limiters)
    assert first.rows_allowed() <= 2


def test_a_table_that_was_drawn_from_lets_nothing_in_before_it_knows_of_the_others() -> None:
    words = np.zeros(NUM_WORDS, np.int64)
    before = RatioLimiter(2.0, 100.0, 1, words=words, num_tables=2)
    before.note_inserted(5)
    before.note_drawn(8)
    again = RatioLimiter(2.0, 100.0, 1, words=words, num_tables=2)
    assert again.rows_allowed() == 0
    again.note_elsewhere(Counts(), arrived_here=5)
    assert again.rows_allowed() > 0


@pytest.mark.parametrize(("name", "value"), [("samples_per_insert", 0), ("error_band", float("inf")), ("min_live", 0)])
def test_impossible_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        RatioLimiter(**{"samples_per_insert": 1.0, "error_band": 1.0, "min_live": 1, name: value})


class _Actor:
    """Sends messages of up to `largest` rows while its credit lasts; what it sends arrives some turns later."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.num_sent = self.num_stored = self.credit = 0

    def wants(self, rng: np.random.Generator) -> int:
        size = int(rng.integers(1, self.largest + 1))
        return size if self.num_sent + size <= self.credit else 0


@given(
    ratio=st.sampled_from([0.25, 1.0, 3.0, 8.0]),
    num_actors=st.integers(1, 5),
    largest=st.integers(1, 40),
    batch_size=st.integers(1, 64),
    num_requests=st.integers(1, 4),
    slack=st.floats(1.0, 4.0),
    actor_speed=st.floats(0.02, 1.0),
    learner_speed=st.floats(0.02, 1.0),
    min_live=st.integers(1, 500),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_mix_of_speeds_deadlocks_or_leaves_the_band(
    ratio: float,
    num_actors: int,
    largest: int,
    batch_size: int,
    num_requests: int,
    slack: float,
    actor_speed: float,
    learner_speed: float,
    min_live: int,
    seed: int,
) -> None:
    band = 2 * slack * max(batch_size * num_requests, largest * ratio * num_actors)
    limiter = RatioLimiter(ratio, band, min_live)
    rng = np.random.default_rng(seed)
    actors = [_Actor(largest) for _ in range(num_actors)]
    under_way: list[tuple[_Actor, int]] = []
    num_live = idle_turns = 0
    for _ in range(600):
        has_moved = False
        for actor in actors:
            if (share := limiter.credit_share(num_actors, largest)) > 0:
                actor.credit = max(actor.credit, actor.num_stored + share)
            is_awake = rng.random() < actor_speed or idle_turns > 0
            if is_awake and (size := actor.wants(rng)):
                actor.num_sent += size
                under_way.append((actor, size))
                has_moved = True
        while under_way and (rng.random() < 0.5 or idle_turns > 0):
            actor, size = under_way.pop(int(rng.integers(len(under_way))))
            actor.num_stored += size
            limiter.note_inserted(size)
            num_live += size
            has_moved = True
        for _ in range(num_requests):
            if (rng.random() < learner_speed or idle_turns > 0) and limiter.may_draw(batch_size, num_live):
                limiter.note_drawn(batch_size)
                has_moved = True
        idle_turns = 0 if has_moved else idle_turns + 1
        assert idle_turns < 5, limiter.waiting(num_live)
        if limiter.num_drawn:
            assert abs(limiter.num_inserted * ratio - limiter.num_drawn) <= band
    assert limiter.num_drawn > 0 or num_live < min_live  # slow actors alone may take longer than this to begin


def test_a_limiter_goes_on_with_the_counts_that_it_finds() -> None:
    words = np.zeros(NUM_WORDS, np.int64)
    first = RatioLimiter(2.0, 40.0, 10, words=words)
    first.note_inserted(30)
    first.note_drawn(8)
    first.note_inserted(4)
    again = RatioLimiter(2.0, 40.0, 10, words=words.copy())
    for each in (first, again):
        assert (each.num_inserted, each.num_drawn, each.rows_allowed()) == (4, 8, first.rows_allowed())
        assert each.may_draw(8, num_live=34)
    assert again.waiting(34) == first.waiting(34)


def test_rows_that_were_stored_and_not_noted_are_caught_up_with() -> None:
    limiter = RatioLimiter(2.0, 40.0, 10, words=np.zeros(NUM_WORDS, np.int64))
    limiter.catch_up(12)
    assert (limiter.num_inserted, limiter.may_draw(8, num_live=12)) == (0, True)
    limiter.note_drawn(8)
    limiter.note_inserted(5)
    for total in (17, 20, 20, 3):
        limiter.catch_up(total)
    assert limiter.num_inserted == 8


def test_counts_of_another_ratio_say_only_how_many_rows_there_were() -> None:
    words = np.zeros(NUM_WORDS, np.int64)
    first = RatioLimiter(2.0, 40.0, 10, words=words)
    first.note_inserted(10)
    first.note_drawn(8)
    first.note_inserted(6)
    other = RatioLimiter(3.0, 40.0, 10, words=words)
    assert (other.num_inserted, other.num_drawn) == (0, 0)
    assert other.may_draw(8, num_live=1)  # 16 rows were stored before
    other.catch_up(16)
    assert other.num_inserted == 0


@pytest.mark.parametrize("word", range(NUM_WORDS))
def test_counts_that_are_damaged_begin_anew_and_that_is_said(caplog: pytest.LogCaptureFixture, word: int) -> None:
    words = np.zeros(NUM_WORDS, np.int64)
    first = RatioLimiter(2.0, 40.0, 10, words=words)
    first.note_inserted(30)
    first.note_drawn(8)
    first.note_inserted(4)
    words[word] ^= 1 << 40
    caplog.set_level("INFO")
    again = RatioLimiter(2.0, 40.0, 10, words=words)
    again.catch_up(34)
    assert again.counts == (34, 0, 0)
    assert again.may_draw(8, num_live=34)
    assert "anew" in caplog.text
