"""What a node tells its service manager, and when it stops telling that it is alive."""

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest

from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.notify import BEATS_A_WATCHDOG, Notifier, WorkWatch, give_signs_of_life
from parl_mq.services.runtime import WorkThread

LIMIT_S = 60.0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Manager:
    """The socket of a service manager."""

    def __init__(self, address):
        self.address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.address[1:]}" if self.address.startswith("@") else self.address)
        self._socket.setblocking(False)

    def heard(self):
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return messages

    def close(self):
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    manager = Manager(tmp_path / "n" if request.param == "path" else f"@parl-mq-test-{os.getpid()}")
    yield manager
    manager.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def status(clock):
    return NodeStatus(clock)


def watched(status, clock, busy_s=None):
    return WorkWatch(status, SimpleNamespace(busy_s=busy_s), LIMIT_S, clock)


def test_a_node_is_ready_once_and_then_alive(manager, clock):
    notifier = Notifier(manager.address, 8.0, clock)
    notifier.ready("in  run\na1")
    notifier.ready("again")
    notifier.beat("stepping")
    assert manager.heard() == [["READY=1", "STATUS=in run a1"], ["WATCHDOG=1", "STATUS=stepping"]]


def test_a_node_that_is_not_ready_asks_for_more_time(manager, clock):
    Notifier(manager.address, 8.0, clock).beat("restoring")
    assert manager.heard() == [["EXTEND_TIMEOUT_USEC=30000000", "STATUS=restoring"]]


def test_signs_of_life_are_sent_when_they_are_due(manager, clock):
    notifier = Notifier(manager.address, 8.0, clock)
    notifier.ready("")
    for _ in range(5):
        notifier.beat("stepping")
    clock.now += 8.0 / BEATS_A_WATCHDOG
    notifier.beat("stepping")
    assert [message[0] for message in manager.heard()] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_node_that_ends_says_why_and_needs_no_watchdog(manager, clock):
    notifier = Notifier(manager.address, 8.0, clock)
    notifier.stopping("signal SIGTERM")
    notifier.stopping("again")
    assert manager.heard() == [["STOPPING=1", "WATCHDOG_USEC=0", "STATUS=ends: signal SIGTERM"]]


def test_without_a_manager_nothing_is_said(clock):
    Notifier(None, 8.0, clock).ready("")


def test_a_manager_that_is_gone_is_complained_about_once(tmp_path, clock, caplog):
    notifier = Notifier(str(tmp_path / "nobody"), 8.0, clock)
    notifier.ready("")
    notifier.stopping("")
    assert [record.message for record in caplog.records if "cannot be told" in record.message] == [
        f"the service manager at {tmp_path / 'nobody'} cannot be told anything: [Errno 2] No such file or directory"
    ]


def test_variables_of_the_manager_are_taken_so_that_children_do_not_use_them():
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    assert Notifier.taken_from(environ).beat_every_s == 8.0 / BEATS_A_WATCHDOG
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("watchdog", [{"WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {}])
def test_a_watchdog_of_another_process_is_none(watchdog):
    assert Notifier.taken_from(dict(watchdog)).beat_every_s == Notifier().beat_every_s


def test_work_that_gets_something_done_is_alive(status, clock):
    watch = watched(status, clock)
    for _ in range(5):
        clock.now += LIMIT_S - 1
        status.works("stepping")
        assert watch.is_alive()


def test_work_that_gets_nothing_done_hangs_after_the_limit(status, clock):
    status.works("stepping")
    watch = watched(status, clock)
    clock.now += LIMIT_S
    assert watch.is_alive()
    clock.now += 1
    assert not watch.is_alive()
    status.works("stepping")
    assert watch.is_alive()


def test_work_that_waits_for_others_is_alive_however_long(status, clock):
    watch = watched(status, clock)
    status.waits("the replay node")
    clock.now += 10 * LIMIT_S
    assert watch.is_alive()
    assert watch.doing == "waits for the replay node (for 600 s)"


def test_a_call_in_the_work_thread_may_last_as_long_as_the_limit_whatever_the_loop_says(status, clock):
    status.waits("the replay node")
    assert watched(status, clock, busy_s=LIMIT_S).is_alive()
    assert not watched(status, clock, busy_s=LIMIT_S + 1).is_alive()


async def test_work_thread_knows_since_when_it_is_busy(clock):
    work = WorkThread("work", clock)
    seen = []

    def call():
        clock.now += 5
        seen.append(work.busy_s)
        work.gets_on()
        seen.append(work.busy_s)

    await work(call)
    work.close()
    assert seen == [5, 0]
    assert work.busy_s is None


async def test_a_node_whose_work_hangs_stops_telling_that_it_is_alive(manager, status, clock, caplog):
    notifier = Notifier(manager.address, 0.04, clock)
    notifier.ready("")
    status.works("stepping")
    beating = asyncio.create_task(give_signs_of_life(notifier, watched(status, clock)))
    async with asyncio.timeout(20):
        while not any("WATCHDOG=1" in message for message in manager.heard()):
            clock.now += 1
            await asyncio.sleep(0)
        clock.now += 2 * LIMIT_S
        while "the work hangs (stepping)" not in caplog.text:  # noqa: ASYNC110 - the log tells no one
            await asyncio.sleep(0.01)
    manager.heard()
    clock.now += 1
    await asyncio.sleep(0.05)
    assert manager.heard() == []
    beating.cancel()
