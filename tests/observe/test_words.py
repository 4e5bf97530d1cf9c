import pytest

from parl_mq.observe.words import compact, counted, in_one_line, most_urgent, seconds


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (950, "950"), (12_345, "12.3k"), (1_500_000, "1.5M"), (2e9, "2G")]
)
def test_counts_are_short(number: float, words: str) -> None:
    assert compact(number) == words


@pytest.mark.parametrize(
    ("duration", "words"), [(0.04, "0.0 s"), (16.94, "16.9 s"), (252, "4.2 min"), (11_160, "3.1 h")]
)
def test_durations_have_a_unit(duration: float, words: str) -> None:
    assert seconds(duration) == words


def test_one_thing_is_singular() -> None:
    assert [counted(number, "run") for number in (0, 1, 1_000)] == ["0 runs", "1 run", "1,000 runs"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("", ""),
        ("the hub ended", "the hub ended"),
        (
            "actor-0 ended; the end of its log:\n  line\n  ValueError: joint 7",
            "actor-0 ended; the end of its log: ValueError: joint 7",
        ),
    ],
)
def test_an_error_in_one_line_names_its_cause(error: str, words: str) -> None:
    assert in_one_line(error) == words


def test_the_most_urgent_keep_their_places() -> None:
    assert most_urgent([3, 1, 2, 1], lambda number: number, 3) == [1, 2, 1]
