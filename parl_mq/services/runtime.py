"""What every node's process does around its service: loop, signals, lifeline, work thread, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from parl_mq.config.models import NodeConfig
from parl_mq.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TEMPORARY, ParlError, exit_code_of
from parl_mq.services.join_file import JoinFile
from parl_mq.services.notify import Notifier

P = ParamSpec("P")
T = TypeVar("T")

SWITCH_INTERVAL_S: Final = 0.0005
"""With the interpreter's own 5 ms a loop beside a stepping environment wakes tens of milliseconds late."""
GARBAGE_EVERY: Final = 2_000
"""New objects between two looks for garbage while a node serves. After so many as are right for a start, what the json
module alone leaves in cycles would be megabytes.
"""
SUPERVISOR_GONE: Final = "the supervisor is gone"
LIFELINE_GRACE_S: Final = 4.0
"""Time that a node gets for an orderly stop after its supervisor died, before it ends itself."""

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node's command line says.

    Attributes:
        name: unique in the run.
        hub: endpoint of the hub's control socket; for the hub itself, where to bind it.
        node: this process's own settings.
        lifeline_fd: read end of a pipe whose write end the supervisor holds; None for a node that stands alone.
        notifier: tells the service manager of a node that stands alone how it is.
        join: of a node on another machine than the hub's: its key and the hub's.
    """

    name: str
    hub: str
    node: NodeConfig = field(default_factory=NodeConfig)
    lifeline_fd: int | None = None
    notifier: Notifier = field(default_factory=Notifier)
    join: JoinFile | None = None

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor started this node: then the run's settings are those of the local command line."""
        return self.lifeline_fd is not None

    def remove_sockets(self) -> None:
        """Removes the folder of the run's sockets, for a supervisor that made it and is gone."""
        shutil.rmtree(Path(self.hub.removeprefix("ipc://")).parent, ignore_errors=True)


class StoppedEarly(ParlError):
    """The node was asked to end before it had joined a run."""

    exit_code = EXIT_OK


class StopSignal:
    """Set once, when this process is asked to end; tasks wait on it or race against it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    def set(self, reason: str) -> None:
        """Asks the service to end; only the first reason counts."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def is_set(self) -> bool:
        """Whether the service was asked to end."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Returns once the service was asked to end."""
        await self._event.wait()

    async def wait_for(self, awaitable: Coroutine[Any, Any, T]) -> T | None:
        """The result of `awaitable`, or None when the stop came first and `awaitable` was cancelled."""
        work, stop = asyncio.ensure_future(awaitable), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)


def hangups() -> tuple[signal.Signals, ...]:
    """The signal of a terminal that is gone, unless it is to be ignored, as under nohup."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


class WorkThread:
    """The one thread beside the loop: environments step and torch computes here, one call at a time."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._clock = clock
        self._busy_since: float | None = None

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function` in the work thread and waits for its result without blocking the loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self._run(lambda: function(*args, **kwargs)))

    @property
    def busy_s(self) -> float | None:
        """Seconds since the call under way began or last said that it gets on; None while there is none."""
        since = self._busy_since
        return None if since is None else self._clock() - since

    def gets_on(self) -> None:
        """To be called now and then by a call that takes long, from within."""
        self._busy_since = self._clock()

    def _run(self, call: Callable[[], T]) -> T:
        self._busy_since = self._clock()
        try:
            return call()
        finally:
            self._busy_since = None

    def close(self) -> None:
        """Lets a call under way finish and ends the thread."""
        self._executor.shutdown(wait=True)


def run_service(options: NodeOptions, service: Callable[[StopSignal], Coroutine[Any, Any, int]]) -> int:
    """Runs a node's service to its end and returns the process's exit code.

    SIGTERM, SIGINT, SIGHUP and the loss of the lifeline set the service's StopSignal; what it raises is logged.
    """
    _set_up_logging(options)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GARBAGE_EVERY)
    try:
        with asyncio.Runner(loop_factory=_loop_factory(options.node.loop)) as runner:
            return runner.run(_supervised(options, service))
    except BaseExceptionGroup as group:
        return _report(options.name, first_cause(group))
    except Exception as error:
        return _report(options.name, error)


async def _supervised(options: NodeOptions, service: Callable[[StopSignal], Coroutine[Any, Any, int]]) -> int:
    stop = StopSignal()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *hangups()):
        loop.add_signal_handler(number, stop.set, f"signal {number.name}")
    if options.lifeline_fd is not None:
        watch_lifeline(
            options.lifeline_fd, lambda: _tell(loop, stop, SUPERVISOR_GONE), before_the_end=options.remove_sockets
        )
    telling = asyncio.create_task(_tell_manager(options.notifier, stop))
    try:
        code = await service(stop)
    finally:
        telling.cancel()
    return EXIT_INTERRUPTED if code == EXIT_OK and stop.reason == f"signal {signal.SIGINT.name}" else code


async def _tell_manager(notifier: Notifier, stop: StopSignal) -> None:
    await stop.wait()
    notifier.stopping(stop.reason)


def _tell(loop: asyncio.AbstractEventLoop, stop: StopSignal, reason: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended by itself
        loop.call_soon_threadsafe(stop.set, reason)


def watch_lifeline(fd: int, on_loss: Callable[[], object], before_the_end: Callable[[], object]) -> None:
    """Calls `on_loss` when the pipe's write end closes, and ends the process LIFELINE_GRACE_S later.

    A thread of its own does this, so that a loop that hangs does not keep the process alive.
    """

    def end() -> None:
        before_the_end()
        os._exit(EXIT_TEMPORARY)

    def watch() -> None:
        while os.read(fd, 1):
            pass
        timer = threading.Timer(LIFELINE_GRACE_S, end)
        timer.daemon = True
        timer.start()
        on_loss()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if kind == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def _set_up_logging(options: NodeOptions) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(f"%(asctime)s {options.name} %(levelname)s %(message)s"))
    logging.basicConfig(level=options.node.log_level.upper(), handlers=[handler], force=True)


class OneLine(logging.Formatter):
    """Writes each message in one line, without control characters: it may hold what a peer has said."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """The line."""
        record.message = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in record.message
        )
        return super().formatMessage(record)


def first_cause(error: BaseException) -> BaseException:
    """What a task group failed of first; an error that is no group is its own cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _report(name: str, error: BaseException) -> int:
    code = exit_code_of(error)
    if isinstance(error, StoppedEarly):
        log.info("%s", error)
    elif isinstance(error, ParlError):
        log.error("%s", error)
    else:
        log.error("%s failed", name, exc_info=error)
    return code
