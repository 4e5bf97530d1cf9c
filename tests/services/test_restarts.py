"""When a failed node is started again; `now` is whatever the test says."""

from parl_mq.services.restarts import LONGEST_WAIT_S, WINDOW_S, FailureRecord, cause_in_words

TRACEBACK = """Traceback (most recent call last):
  File "/code/parl_mq/services/learner.py", line 5, in serve
    update()
  File "/home/me/mine.py", line {line}, in update
    return table[key]
           ~~~~~^^^^^
  File "/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in __getitem__
    raise KeyError(key)
KeyError: {key}"""


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


def waits_of(*failures: tuple[str, bool]) -> list[float | None]:
    record = FailureRecord(5)
    return [record.note(0.0, words, had_progress=had) for words, had in failures]


def test_the_same_exception_at_the_same_place_before_any_progress_is_tried_once_more():
    one, same = TRACEBACK.format(line=1, key=1), TRACEBACK.format(line=1, key=2)
    assert waits_of((one, False), (same, False)) == [0.2, None]


def test_other_places_words_without_a_traceback_and_progress_are_tried_on():
    one, other = TRACEBACK.format(line=1, key=1), TRACEBACK.format(line=2, key=1)
    assert None not in waits_of((one, False), (other, False), (one, False))
    assert None not in waits_of(("killed", False), ("killed", False), ("", False), ("", False))
    assert None not in waits_of((one, True), (one, False), (one, False))


def test_the_cause_names_the_line_of_the_users_own_code():
    assert cause_in_words(TRACEBACK.format(line=61, key=3)) == "KeyError: 3 (/home/me/mine.py:61, in update)"
    assert cause_in_words("ValueError: no frames") == "ValueError: no frames"
