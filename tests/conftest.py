"""What holds around every test."""

import signal
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def plain_arithmetic() -> Iterator[None]:
    """No test leaves its thread taking subnormals for zero: the tests after it would compute with that."""
    yield
    assert sys.float_info.min / 2 > 0, "this test set flush-to-zero in the thread that runs the tests"


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as they come, unless a test says how wide the terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def heard_hangups() -> Iterator[None]:
    """SIGHUP has its effect, on child processes too, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
