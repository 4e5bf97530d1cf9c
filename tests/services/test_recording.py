"""A record that cannot be written for a while: a directory whose files are as the test says."""

import pytest

from parl_mq.errors import RecordError
from parl_mq.services import recording
from parl_mq.services.recording import Record


class Directory:
    """Takes rows while it has room."""

    def __init__(self):
        self.is_full = False
        self.rows = []

    def append_metrics(self, row):
        self.check()
        self.rows.append(row)

    def check(self):
        if self.is_full:
            raise RecordError("runs/a/metrics.jsonl cannot be written: No space left on device")


class Sink:
    name = "the sink"

    def __init__(self):
        self.taken = []
        self.is_broken = False

    def write(self, wall_time, env_steps, scalars):
        if self.is_broken:
            raise OSError("its server is gone")
        self.taken.append((env_steps, dict(scalars)))

    def close(self):
        pass


def row(number, kind="figures"):
    return {"kind": kind, "time_s": float(number)}


@pytest.fixture
def directory():
    return Directory()


def test_rows_wait_while_the_disk_is_full_and_are_written_in_their_order(directory, caplog):
    record = Record(directory)
    record.append(row(0))
    directory.is_full = True
    for number in range(1, 4):
        record.append(row(number))
        record.round(directory.check)
    assert "No space left on device" in record.trouble
    assert "make room" in record.trouble
    assert (record.num_waiting, record.num_failed) == (3, 9)
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
    directory.is_full = False
    record.round(directory.check)
    assert (record.trouble, record.num_waiting) == (None, 0)
    assert directory.rows == [row(number) for number in range(4)]
    assert "nothing is missing" in caplog.text


def test_of_very_many_waiting_rows_the_oldest_figures_go_and_no_evaluation(directory, monkeypatch, caplog):
    monkeypatch.setattr(recording, "MAX_WAITING", 3)
    record = Record(directory)
    directory.is_full = True
    for number, kind in enumerate(["evaluation", "figures", "nodes", "figures", "figures"]):
        record.append(row(number, kind))
    directory.is_full = False
    record.round()
    assert directory.rows == [row(0, "evaluation"), row(3), row(4)]
    assert "2 rows of metrics are missing" in caplog.text


def test_what_failed_is_tried_again_unless_something_newer_took_its_place(directory):
    record, written = Record(directory), []

    def write(what):
        directory.check()
        written.append(what)

    directory.is_full = True
    record.attempt(lambda: write("first"), again="best")
    record.attempt(lambda: write("second"), again="best")
    directory.is_full = False
    record.round()
    record.round()
    assert written == ["second"]


def test_trouble_lasts_until_a_whole_round_succeeds(directory):
    record = Record(directory)

    def fail():
        raise OSError("the other file")

    record.round(fail)
    record.append(row(1))
    record.round(fail)
    assert record.trouble.startswith("the other file")
    record.round()
    assert record.trouble is None


def test_sinks_are_fed_ever_less_often(directory):
    record = Record(directory, [sink := Sink()])
    for second in range(10_000):
        record.feed(float(second), 0.0, second, {"loss": 1.0})
    assert sink.taken[0] == (0, {"learner/loss": 1.0})
    assert 1_000 < len(sink.taken) < 2_500
    assert sink.taken[-1][0] - sink.taken[-2][0] >= 15


def test_a_sink_that_fails_is_told_once_whatever_else_can_be_written(directory, caplog):
    record = Record(directory, [sink := Sink()])
    sink.is_broken = True
    for second in range(3):
        record.append(row(second))
        record.feed(float(second), 0.0, second, {"loss": 1.0})
        record.round()
        assert record.trouble == (
            "the sink takes no figures: its server is gone; the run goes on, and its own record has them"
        )
    assert record.num_failed == 3
    sink.is_broken = False
    record.feed(9.0, 0.0, 9, {"loss": 1.0})
    record.round()
    assert record.trouble is None
    assert [each.levelname for each in caplog.records] == ["ERROR", "WARNING"]


def test_a_disk_that_fails_is_told_before_a_sink_that_does(directory):
    record = Record(directory, [sink := Sink()])
    sink.is_broken = directory.is_full = True
    record.feed(0.0, 0.0, 0, {"loss": 1.0})
    record.append(row(0))
    assert "make room" in record.trouble
    directory.is_full = False
    record.round()
    assert record.trouble.startswith("the sink")
