"""A learner's work thread that hangs, and one that only takes long."""

import asyncio
import faulthandler
import logging
import os
import re
import time
from types import SimpleNamespace

import pytest

from parl_mq.errors import EXIT_TEMPORARY
from parl_mq.services import hung_work
from parl_mq.services.hung_work import LongWork, end_if_it_hangs
from parl_mq.services.runtime import WorkThread
from tests.services.builders import soon

log = logging.getLogger("parl_mq")


class Ended(BaseException):
    """In the place of the process's end."""


@pytest.fixture
def ended(monkeypatch):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(faulthandler, "dump_traceback", lambda all_threads: log.error("all stacks: %s", all_threads))
    monkeypatch.setattr(hung_work, "LOOK_EVERY_S", 0.001)


@pytest.mark.parametrize(
    ("busy_s", "outlasts_s", "reason"),
    [
        (60.5, 0.0, r"its work hangs: for 60 s nothing got done \(node.busy_limit_s = 60\)"),
        (0.1, 21.0, "an operation of a group that is over has not ended within 21 s"),
        (60.0, 20.0, None),
        (None, 0.0, None),
    ],
)
async def test_a_learner_whose_work_thread_hangs_ends_to_be_started_again(ended, caplog, busy_s, outlasts_s, reason):
    watching = end_if_it_hangs(SimpleNamespace(busy_s=busy_s), LongWork(print), lambda: outlasts_s, 60.0)
    if reason is None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watching, 0.05)
        return
    with pytest.raises(Ended) as raised:
        await soon(watching)
    assert raised.value.args == (EXIT_TEMPORARY,)
    assert re.search(reason, caplog.text)
    assert caplog.messages[-1] == "all stacks: True"


async def test_work_that_may_take_long_is_none_that_hangs(ended):
    work = WorkThread("training")
    work._busy_since = time.monotonic() - 70.0
    long_work = LongWork(work.gets_on)
    with long_work.lasting(time.monotonic() + 60.0), pytest.raises(TimeoutError):
        await asyncio.wait_for(end_if_it_hangs(work, long_work, lambda: 0.0, 60.0), 0.05)
    assert work.busy_s < 60.0
    work.close()


async def test_a_process_that_was_stopped_has_not_seen_its_work_hang(ended, monkeypatch):
    monkeypatch.setattr(hung_work, "OWN_ABSENCE_S", 0.0)  # each look comes late
    watching = end_if_it_hangs(SimpleNamespace(busy_s=70.0), LongWork(print), lambda: 0.0, 60.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watching, 0.05)


def test_work_that_takes_long_gets_on_within_its_limit_and_until_it_is_done():
    now, told = 0.0, []

    def look(at):
        nonlocal now
        now = at
        work.tell()

    work = LongWork(lambda: told.append(now), lambda: now)
    look(0.0)
    with work.lasting(10.0):
        look(1.0)
        look(9.0)
        look(10.0)
    look(5.0)
    assert told == [1.0, 9.0]
