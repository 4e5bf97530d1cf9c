"""Forks nodes from small processes that have imported what they need, so that it is imported once.

A zygote is started by exec (see early_start), so that the lifeline's write end exists in the supervisor alone. It has
one thread and neither loop, zmq context nor CUDA. It dies with the supervisor, and its children with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from parl_mq.errors import EXIT_INTERNAL
from parl_mq.services.early_start import StartingZygote, die_with, live_on

PR_SET_NAME: Final = 15
CHILDREN_END_S: Final = 4.5
"""Time that the children get to end by themselves after the supervisor has gone."""

RunNode = Callable[[dict[str, Any]], int]


def open_log(log: Path) -> BinaryIO:
    """A node's log, to add to; where it cannot be written, as on a read-only disk, this process's own stderr."""
    try:
        return log.open("ab")
    except OSError as error:
        with contextlib.suppress(OSError):  # a disk that is full is so for both
            print(f"{log} cannot be written: {error.strerror}; what belongs there follows here", file=sys.stderr)
        return os.fdopen(os.dup(2), "ab")


@dataclass(slots=True)
class ChildProcess:
    """The zygote or a child of it, as the supervisor sees it; the same face as an asyncio process.

    Attributes:
        returncode: None while it lives; negative: minus the signal's number.
    """

    pid: int
    returncode: int | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> int:
        """Its return code, once it has ended."""
        await self._ended.wait()
        return EXIT_INTERNAL if self.returncode is None else self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still lives."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def note_end(self, returncode: int) -> None:
        """It is known how it ended."""
        self.returncode = returncode
        self._ended.set()


class Zygote:
    """The supervisor's end: asks for forks and hears how the children end.

    Attributes:
        process: the zygote itself.
    """

    def __init__(self, starting: StartingZygote, log: Path) -> None:
        """Takes over a zygote, whose output goes to `log`; it is ready when it answers the first `fork`."""
        self.process = ChildProcess(starting.process.pid)
        self._starting = starting
        self._log = log
        self._children: dict[int, ChildProcess] = {}
        self._answers: asyncio.Queue[ChildProcess | str] = asyncio.Queue()  # or why there is no child
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def take_over(cls, starting: StartingZygote, log: Path, lock_fd: int | None = None) -> Zygote:
        """The zygote that has been started, with a log.

        Args:
            starting: the zygote.
            log: its own.
            lock_fd: descriptor of a lock that it and its children hold, too.
        """
        zygote = cls(starting, log)
        pidfd = os.pidfd_open(zygote.process.pid)
        asyncio.get_running_loop().add_reader(pidfd, zygote._note_own_end, pidfd)
        told = json.dumps({"log": str(log)}).encode() + b"\n"
        with contextlib.suppress(ConnectionError):  # it has ended already, which the reader sees
            socket.send_fds(starting.control, [told], [] if lock_fd is None else [lock_fd])
        reader, zygote._writer = await asyncio.open_unix_connection(sock=starting.control)
        zygote._reading = asyncio.ensure_future(zygote._read(reader))
        return zygote

    async def fork(self, request: dict[str, Any], log: Path) -> ChildProcess:
        """A new child that runs the node that `request` describes; one that could not be made has ended already.

        Raises:
            ConnectionError: the zygote is gone.
        """
        if self._writer is None or self._reading is None:
            raise ConnectionError("the zygote was not started")
        if self._reading.done() or self._writer.is_closing() or self.process.returncode is not None:
            raise ConnectionError("the zygote is gone")
        self._writer.write(json.dumps({"request": request, "log": str(log)}).encode() + b"\n")
        await self._writer.drain()
        answer = asyncio.ensure_future(self._answers.get())
        try:
            await asyncio.wait({answer, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ConnectionError("the zygote is gone")
            made = answer.result()
            return made if isinstance(made, ChildProcess) else _never_made(made, log)
        finally:
            answer.cancel()

    async def close(self) -> None:
        """Lets the zygote end; its children must have ended before."""
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):  # it died over a request
            while (line := await reader.readline()).endswith(b"\n"):
                self._take(json.loads(line))
        await self.process.wait()  # so that its end is known before that of its children, which die with it
        for child in self._children.values():
            if child.returncode is None:
                child.note_end(-signal.SIGKILL)

    def _note_own_end(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(OSError):  # a full disk must not hide that it has ended
            if said := self._starting.words():
                with open_log(self._log) as file:
                    file.write(said)
        self.process.note_end(self._starting.process.wait())

    def _take(self, message: dict[str, Any]) -> None:
        if "status" in message:
            self._children[message["pid"]].note_end(os.waitstatus_to_exitcode(message["status"]))
        elif "failed" in message:
            self._answers.put_nowait(message["failed"])
        else:
            child = self._children[message["pid"]] = ChildProcess(message["pid"])
            self._answers.put_nowait(child)


def _never_made(why: str, log: Path) -> ChildProcess:
    """Stands for a child that the system had no room for: it has failed, and its log says why."""
    with contextlib.suppress(OSError), open_log(log) as file:
        file.write(f"no process could be made for this node: {why}\n".encode())
    child = ChildProcess(0)
    child.note_end(EXIT_INTERNAL)
    return child


def serve(control_fd: int, run_node: RunNode) -> None:
    """The zygote's own life: forks what is asked for, tells how children end, ends with the supervisor.

    Args:
        control_fd: the socket to the supervisor.
        run_node: runs a requested node in the child and returns its exit code.
    """
    live_on()  # from here on the children are given time when the supervisor is gone
    gc.freeze()  # the collector would touch, and so copy, every page that the children share
    control = socket.socket(fileno=control_fd)
    children: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    pending = b""
    while True:
        for fd, _ in poll.poll():
            if fd != control_fd:
                poll.unregister(fd)
                _report_end(control, fd, children.pop(fd))
                continue
            try:
                received, lock_fds, *_ = socket.recv_fds(control, 65536, 1)  # which stay open, here and in the children
            except ConnectionResetError:  # the supervisor died with news of ours unread
                received, lock_fds = b"", []
            for lock_fd in lock_fds:
                os.set_inheritable(lock_fd, False)  # for what environments start the run directory is free
            if not received:
                _wait_for_all(children)
                return
            *lines, pending = (pending + received).split(b"\n")
            for asked in map(json.loads, lines):
                if "request" not in asked:
                    _write_to(asked["log"])
                    continue
                try:
                    pidfd, pid = _fork_watched(control, children, asked, run_node)
                except OSError as error:
                    _tell(control, {"failed": error.strerror})
                    continue
                children[pidfd] = pid
                poll.register(pidfd, select.POLLIN)
                _tell(control, {"pid": pid})


def _fork_watched(
    control: socket.socket, children: dict[int, int], asked: dict[str, Any], run_node: RunNode
) -> tuple[int, int]:
    """A descriptor that tells of a new child's end, and the child.

    Raises:
        OSError: the system has no process or no descriptor left for it; there is no child.
    """
    pid = _fork(control, children, asked, run_node)
    try:
        return os.pidfd_open(pid), pid
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _fork(control: socket.socket, children: dict[int, int], asked: dict[str, Any], run_node: RunNode) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = EXIT_INTERNAL
    try:
        for fd in children:
            os.close(fd)
        control.close()
        _become_node(parent, asked["request"]["name"], asked["log"])
        code = run_node(asked["request"])
    except BaseException:  # here the process ends
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a disk is full, or the node has closed it
                stream.flush()
        os._exit(code)


def _become_node(parent: int, name: str, log: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
    _write_to(log)


def _write_to(log: str) -> None:
    with open_log(Path(log)) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _report_end(control: socket.socket, pidfd: int, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    _tell(control, {"pid": pid, "status": status})


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor is gone; the loop sees that next
        control.sendall(json.dumps(message).encode() + b"\n")


def _wait_for_all(children: dict[int, int]) -> None:
    """The supervisor is gone: the children watch the lifeline themselves, and are killed if they do not end."""
    deadline = time.monotonic() + CHILDREN_END_S
    for pidfd, pid in children.items():
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
