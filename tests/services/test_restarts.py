"""When a failed node is started again; `now` is whatever the test says."""

from parl_mq.services.restarts import LONGEST_WAIT_S, WINDOW_S, FailureRecord


def test_each_failure_soon_after_the_last_doubles_the_pause():
    record = FailureRecord(5)
    waits = [record.note(float(number), "", had_progress=True) for number in range(6)]
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, None]


def test_a_while_of_health_begins_the_count_anew():
    record = FailureRecord(1)
    waits = [record.note(number * WINDOW_S, "", had_progress=True) for number in range(10)]
    assert waits == [0.2] * 10
    assert record.num_failures == 10


def test_failures_without_progress_count_however_far_apart_they_are():
    record = FailureRecord(2)
    waits = [record.note(number * 10 * WINDOW_S, "", had_progress=False) for number in range(3)]
    assert waits == [0.2, 0.4, None]


def test_progress_ends_a_row_of_vain_starts():
    record = FailureRecord(2)
    times = iter(range(0, 100_000, 1000))
    waits = [record.note(next(times), "", had_progress=had) for had in (False, False, True, False)]
    assert waits == [0.2, 0.4, 0.2, 0.4]


def test_the_pause_has_a_limit():
    record = FailureRecord(1000)
    assert max(record.note(0.0, "", had_progress=True) for _ in range(100)) == LONGEST_WAIT_S


def test_without_restarts_the_first_failure_is_the_last():
    assert FailureRecord(0).note(0.0, "", had_progress=True) is None


def test_the_first_words_are_kept():
    record = FailureRecord(5)
    for words in ("the cause", "a consequence"):
        record.note(0.0, words, had_progress=True)
    assert record.first_words == "the cause"
