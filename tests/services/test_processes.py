"""What is told of a process that has ended."""

import signal
from types import SimpleNamespace

import pytest

from parl_mq.services.processes import LOG_TAIL_LINES, Child
from parl_mq.services.zygote import open_log


def child(tmp_path, returncode, log=None):
    path = tmp_path / "actor-0.log"
    if log is not None:
        path.write_text(log)
    return Child("actor-0", "actor", SimpleNamespace(returncode=returncode), path)


@pytest.mark.parametrize(
    ("returncode", "how"), [(78, "ended with code 78"), (-9, "died (signal 9)"), (-signal.SIGSEGV, "died (signal 11)")]
)
def test_a_nodes_end_is_told_with_the_end_of_its_log(tmp_path, returncode, how):
    lines = [f"line {number}" for number in range(100)]
    told = child(tmp_path, returncode, "\n".join(lines)).end_in_words().splitlines()
    assert told[0].startswith(f"actor-0 {how}; the end of ")
    assert [line.strip() for line in told[1:]] == lines[-LOG_TAIL_LINES:]


@pytest.mark.parametrize("log", [None, ""])
def test_a_node_that_wrote_nothing_is_told_of_as_well(tmp_path, log):
    assert child(tmp_path, 1, log).end_in_words().endswith("actor-0.log: nothing was written")


def test_a_node_that_has_ended_gets_no_signal(tmp_path):
    child(tmp_path, 0).send_signal(signal.SIGKILL)  # the process here has no such method


def test_a_hung_node_was_killed_for_its_silence(tmp_path):
    hung = child(tmp_path, -9)
    hung.hung_s = 61.2
    assert hung.how_it_ended() == "gave no sign of life for 61 s and was killed"


LOG = """\
2026-01-01 actor-0 INFO started
2026-01-01 actor-0 ERROR actor-0 failed
Traceback (most recent call last):
  File "first.py", line 1, in <module>
    first()
ValueError: the first cause

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "second.py", line 1, in <module>
    second()
RuntimeError: a consequence
"""


def test_the_cause_is_the_first_traceback(tmp_path):
    lines = child(tmp_path, 1, LOG).cause().splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ValueError: the first cause")


def test_the_cause_without_a_traceback_is_the_end_of_the_log(tmp_path):
    assert child(tmp_path, 1, "one\ntwo\n").cause() == "one\ntwo"


def test_what_earlier_processes_wrote_is_not_told_again(tmp_path):
    later = child(tmp_path, 1, LOG + "now\n")
    later.log_start = len(LOG)
    assert later.cause() == "now"
    assert later.end_in_words().endswith(":\n  now")


def test_a_log_that_cannot_be_written_gives_way_to_stderr(tmp_path, capfd):
    with open_log(tmp_path / "missing" / "actor-0.log") as file:
        file.write(b"what a node says\n")
    told = capfd.readouterr().err
    assert "actor-0.log cannot be written: No such file or directory" in told
    assert told.endswith("what a node says\n")
