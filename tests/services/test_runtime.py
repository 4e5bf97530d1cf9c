"""What stands around a service: the stop, the work thread, exit codes, the lifeline."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import weakref

import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import (
    EXIT_CONFIG,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TEMPORARY,
    ConfigError,
    NodeFailed,
)
from parl_mq.services.runtime import (
    NodeOptions,
    StoppedEarly,
    StopSignal,
    WorkThread,
    first_cause,
    run_service,
    watch_lifeline,
)
from tests.services.builders import soon


@pytest.fixture(autouse=True)
def restored():
    """A service sets logging, the switch interval and more of its process, which here is that of all tests."""
    interval, handlers, level = sys.getswitchinterval(), logging.root.handlers[:], logging.root.level
    threshold = gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def run(service, loop="uvloop", **options):
    return run_service(NodeOptions("actor-0", "ipc:///hub", node=NodeConfig(loop=loop), **options), service)


async def forever():
    await asyncio.get_running_loop().create_future()


def test_what_is_left_in_cycles_goes_while_a_service_runs():
    class Cycle:
        def __init__(self):
            self.itself = self

    async def service(stop):
        alive = weakref.WeakSet()
        for _ in range(20_000):
            alive.add(Cycle())
        return len(alive)

    gc.set_threshold(100_000)  # as right for a start
    assert run(service) < 10_000


# The stop


async def test_only_the_first_reason_counts():
    stop = StopSignal()
    stop.set("the first")
    stop.set("the second")
    assert (stop.is_set(), stop.reason) == (True, "the first")


async def test_what_comes_before_the_stop_is_returned():
    async def work():
        return 7

    assert await soon(StopSignal().wait_for(work())) == 7


async def test_what_outlasts_the_stop_is_cancelled():
    stop, cancelled = StopSignal(), []

    async def work():
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    waiting = asyncio.create_task(stop.wait_for(work()))
    await asyncio.sleep(0)
    stop.set("enough")
    assert await soon(waiting) is None
    assert cancelled == [True]


async def test_what_fails_before_the_stop_raises():
    async def work():
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        await soon(StopSignal().wait_for(work()))


async def test_after_the_stop_what_need_not_wait_still_happens():
    stop, done = StopSignal(), []
    stop.set("enough")

    async def work():
        done.append(True)

    await soon(stop.wait_for(work()))
    assert done == [True]


async def test_a_cancelled_wait_cancels_what_it_waits_for():
    ended = asyncio.Event()

    async def work():
        try:
            await forever()
        finally:
            ended.set()

    waiting = asyncio.create_task(StopSignal().wait_for(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await soon(ended.wait())
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()


# The work thread


async def test_work_is_done_in_one_other_thread_in_turn():
    work = WorkThread("work")
    try:
        threads = await asyncio.gather(*(work(threading.get_ident) for _ in range(5)))
    finally:
        work.close()
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


async def test_what_the_work_raises_comes_back():
    work = WorkThread("work")
    try:
        with pytest.raises(ZeroDivisionError):
            await work(lambda: 1 / 0)
    finally:
        work.close()


# Exit codes


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_services_own_code_is_the_processs(loop):
    async def service(stop):
        return EXIT_TEMPORARY

    assert run(service, loop) == EXIT_TEMPORARY


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no such key"), EXIT_CONFIG),
        (NodeFailed("no", 75), EXIT_TEMPORARY),
        (ZeroDivisionError("a defect"), EXIT_INTERNAL),
        (StoppedEarly("asked to end"), EXIT_OK),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [ConfigError("deep")])]), EXIT_CONFIG),
    ],
)
def test_what_a_service_raises_decides_the_code(error, code):
    async def service(stop):
        raise error

    assert run(service) == code


def test_an_error_on_purpose_is_logged_without_a_traceback_and_a_defect_with_one(capfd):
    for error in (ConfigError("no such key"), ZeroDivisionError("a defect")):

        async def service(stop, error=error):
            raise error

        run(service)
        told = capfd.readouterr().err
        assert str(error) in told
        assert ("Traceback" in told) == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, EXIT_OK), (signal.SIGHUP, EXIT_OK), (signal.SIGINT, EXIT_INTERRUPTED)],
    ids=["SIGTERM", "SIGHUP", "SIGINT"],
)
@pytest.mark.usefixtures("heard_hangups")
def test_signals_ask_the_service_to_end(number, code):
    reasons = []

    async def service(stop):
        os.kill(os.getpid(), number)
        await soon(stop.wait())
        reasons.append(stop.reason)
        return EXIT_OK

    assert run(service) == code
    assert reasons == [f"signal {number.name}"]


def test_a_process_that_is_to_outlive_its_terminal_does_not_hear_of_its_end():
    async def service(stop):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # heard after it
        await soon(stop.wait())
        return EXIT_OK if stop.reason == "signal SIGTERM" else EXIT_INTERNAL

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert run(service) == EXIT_OK
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_cause_of_nested_groups_is_found():
    cause = ConfigError("deep")
    assert first_cause(ExceptionGroup("a", [ExceptionGroup("b", [cause]), ValueError("other")])) is cause
    assert first_cause(cause) is cause


# The lifeline


def test_losing_the_supervisor_asks_the_service_to_end():
    reading, writing = os.pipe()

    async def service(stop):
        os.close(writing)
        await soon(stop.wait())
        return EXIT_OK if stop.reason == "the supervisor is gone" else EXIT_INTERNAL

    timers = _without_the_end_of_this_process()
    try:
        assert run(service, lifeline_fd=reading) == EXIT_OK
    finally:
        timers.undo()
        os.close(reading)


def test_the_lifeline_is_silent_while_the_supervisor_lives():
    reading, writing = os.pipe()
    lost = threading.Event()
    timers = _without_the_end_of_this_process()
    try:
        watch_lifeline(reading, lost.set, lambda: None)
        os.write(writing, b"x")
        assert not lost.wait(0.05)
        os.close(writing)
        assert lost.wait(20)
    finally:
        timers.undo()
        os.close(reading)


def test_a_node_knows_whether_a_supervisor_started_it():
    assert NodeOptions("a", "ipc:///hub", lifeline_fd=3).is_supervised
    assert not NodeOptions("a", "ipc:///hub").is_supervised


def _without_the_end_of_this_process():
    """The timer that would end the process is never started."""
    patch = pytest.MonkeyPatch()
    patch.setattr(threading.Timer, "start", lambda timer: None)
    return patch


def test_what_a_peer_has_said_makes_one_line_of_a_log_and_no_terminal_act(capsys):
    async def service(stop):
        logging.getLogger("parl_mq").error("a node has failed: %s", "no\nhub ERROR forged \x1b[31m\u202e, Grüße")
        try:
            raise ValueError("of its own")
        except ValueError:
            logging.getLogger("parl_mq").exception("a traceback has lines")
        return EXIT_OK

    assert run(service) == EXIT_OK
    first, second, *traceback = capsys.readouterr().err.splitlines()
    assert first.endswith(r"actor-0 ERROR a node has failed: no\nhub ERROR forged \x1b[31m\u202e, Grüße")
    assert second.endswith("a traceback has lines")
    assert traceback[-1] == "ValueError: of its own"
