"""Since when a command runs."""

import subprocess
import sys
import time

import pytest

from parl_mq.observe.elapsed import STARTUP_S, started_at

SHOWN = "import time; from parl_mq.observe.elapsed import process_started_at as at; print(time.monotonic() - at())"


def test_the_interpreters_start_counts() -> None:
    assert started_at(100.0, 0.5, 0.3) == 99.5


def test_a_shell_that_became_the_command_does_not_count() -> None:
    assert started_at(100.0, 60.0, 0.3) == pytest.approx(99.7)
    assert started_at(100.0, 60.0, 30.0) == 100.0 - STARTUP_S


def test_a_command_at_the_end_of_a_line_has_its_own_time() -> None:
    line = f"sleep {STARTUP_S + 1}; exec {sys.executable} -c '{SHOWN}'"
    began = time.monotonic()
    age_s = float(subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=60).stdout)
    assert 0 < age_s < time.monotonic() - began - STARTUP_S
