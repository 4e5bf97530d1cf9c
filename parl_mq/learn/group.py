"""The learners that share each batch, as one of them sees the others: torch.distributed, and nothing else.

A group is made once and ends when it breaks: any learner that goes ends it for all. Those that are left wait in an
operation for one that hangs as they wait for one that has no batch yet, so no time limit can tell the two apart: who
knows that a learner hangs calls `abort`, from any thread. Nor does gloo always notice a connection that breaks while an
operation begins: of 150 groups that were aborted at random moments in a loop of sums, 39 had a learner that waited for
ever. Such an operation is left to itself when the group is aborted. With NCCL nothing can be left to itself, as what
the device does next stands behind it: who sees that an operation outlasts its abort ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

import torch
import torch.distributed

from parl_mq.errors import GroupBroken
from parl_mq.learn.devices import is_out_of_memory
from parl_mq.learn.interfaces import interface_of

CONNECT_S: Final = 15.0
"""In which all learners of a group must have met."""
ATTEMPT_S: Final = 1.0
"""So long the store is tried to be reached until it is seen whether the group was aborted."""
MEET_AGAIN_S: Final = 0.02
"""Between two looks at who has come."""
NO_LIMIT: Final = timedelta(days=365)
LOOK_AGAIN: Final = timedelta(seconds=0.25)
"""So long an operation is waited for until it is seen whether the group was aborted."""

LOOK_AT_DEVICE_S: Final = 50e-6
"""The same on a GPU, where a wait with a limit does not exist: a sum takes some tenths of a millisecond."""
NCCL_SETTINGS: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # its watchdog would end this process with another
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",  # else no abort ends the wait for one who does not connect
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": f"{CONNECT_S:.0f}",
}

C10D: Final[Any] = torch.distributed
"""Its stubs lack half of the names that are used here."""

Backend = Literal["gloo", "nccl"]


class _Processes(Protocol):
    """What torch calls a process group, as far as it is used here."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Any: ...

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any: ...

    def eager_connect_single_device(self, device: torch.device) -> None: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A learner's place in a group.

    Attributes:
        generation: of the group.
        rank: of the learner, from 0.
        names: of all learners, by rank.
        source: rank whose state all begin with.
        backend: `nccl` where each has a GPU of its own, else `gloo`.
        store: host and port of the store where they meet; None for a group of one.
    """

    generation: int
    rank: int
    names: tuple[str, ...]
    source: int = 0
    backend: Backend = "gloo"
    store: tuple[str, int] | None = None

    @property
    def size(self) -> int:
        """Learners of the group."""
        return len(self.names)


class MeetingPoint:
    """A store of key and value that a learner keeps for the groups in which it may get rank 0.

    It listens at one address alone, which torch's own way of opening a store would not.

    Attributes:
        address: host and port.
    """

    def __init__(self, host: str) -> None:
        """Opens it at a free port of this host's address `host`."""
        listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address: tuple[str, int] = (host, listening.getsockname()[1])
        self._store = _tcp_store(self.address, fd=listening.detach())

    def close(self) -> None:
        """Closes it."""
        del self._store


class LearnerGroup:
    """One group; the Averaging of a trainer. All but `abort` and `outlasts_abort_s` belongs to the work thread.

    Attributes:
        place: this learner's.
    """

    def __init__(
        self,
        place: Place,
        *,
        host: str = "127.0.0.1",
        device: torch.device | None = None,
        clock: Callable[[], float] = time.monotonic,
        gets_on: Callable[[], object] = lambda: None,
    ) -> None:
        """Begins apart from the others; `meet` comes first.

        Args:
            place: this learner's.
            host: this machine's address, at which the others reach it.
            device: that this learner computes on; None: the CPU.
            clock: monotonic seconds.
            gets_on: called now and then while the others are waited for.
        """
        self.place = place
        self._host = host
        self._device = device or torch.device("cpu")
        self._waited_s = 0.0
        self._clock = clock
        self._gets_on = gets_on
        self._aborted, self._is_stuck = threading.Event(), False
        self._aborted_at: float | None = None
        self._is_operating = False
        self._sockets: list[socket.socket] = []
        self._processes: _Processes | None = None

    def meet(self) -> None:
        """Waits for the others.

        Raises:
            GroupBroken: not all of them came within CONNECT_S, or the group was aborted meanwhile.
        """
        if self.size > 1 and self.place.store is not None:
            with self._breaking("did not meet"):
                self._connect(self.place, self.place.store)

    @property
    def rank(self) -> int:
        """This learner's place, from 0."""
        return self.place.rank

    @property
    def size(self) -> int:
        """Learners of the group."""
        return self.place.size

    def sum(self, vector: torch.Tensor) -> None:
        """See parl_mq.algorithms.averaging.Averaging."""
        if self._processes is None:
            return
        with self._breaking("stopped in the midst of an update"):
            self._wait_for(self._processes.allreduce([vector]))

    def broadcast(self, payload: bytes) -> bytes:
        """The bytes of the learner at `place.source`; the others' own are left out of account.

        Raises:
            GroupBroken: a learner is gone.
        """
        if self._processes is None:
            return payload
        with self._breaking("stopped while it took up the common state"):
            length = torch.tensor([len(payload)])
            self._send_from_source(length)
            content = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == self.place.source:
                content = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            self._send_from_source(content)
        return content.numpy().tobytes()

    def take_waited_s(self) -> float:
        """Seconds spent in operations since the last call, waiting for the others included."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    @property
    def outlasts_abort_s(self) -> float:
        """Seconds since the abort for which an operation has gone on all the same; else 0. From any thread."""
        aborted_at = self._aborted_at
        return self._clock() - aborted_at if self._is_operating and aborted_at is not None else 0.0

    def abort(self) -> None:
        """Ends every operation that waits for others, here and at the others, with GroupBroken. From any thread."""
        self._aborted_at = self._clock() if self._aborted_at is None else self._aborted_at
        self._aborted.set()
        if self._processes is not None and self.place.backend == "nccl":
            self._processes.abort()
        for connection in self._sockets:
            with contextlib.suppress(OSError):  # the other end was faster
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of the others; an operation must not be under way."""
        self.abort()
        if self._is_stuck:  # its end would be waited for in torch: it is never freed
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._processes))
        self._processes = None
        while self._sockets:
            self._sockets.pop().close()

    def _connect(self, place: Place, address: tuple[str, int]) -> None:
        self._until(lambda: _is_reachable(address), "{}:{} could not be reached".format(*address))
        meeting = C10D.PrefixStore(f"group-{place.generation}", _tcp_store(address))
        meeting.set(f"here-{place.rank}", "")
        all_here = [f"here-{rank}" for rank in range(place.size)]
        self._until(lambda: meeting.check(all_here), "not all have come")
        if place.backend == "nccl":
            set_up_nccl(self._host)
            self._processes = _nccl(meeting, place)  # before it connects: an abort is to end that too
            if self._aborted.is_set():
                raise RuntimeError("the group was aborted")
            self._processes.eager_connect_single_device(self._device)  # by itself it takes that of the first operation
            return
        before = _open_sockets()
        self._processes = _gloo(meeting, place, self._host)
        self._sockets = [_duplicate(fd) for fd, inode in _open_sockets().items() if before.get(fd) != inode]
        self._sockets = [each for each in self._sockets if _is_connection(each)]

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Waits until an abort at most, which ends nothing that torch waits for."""
        until = self._clock() + CONNECT_S
        while not condition():
            self._gets_on()
            if self._aborted.wait(MEET_AGAIN_S):
                raise RuntimeError("the group was aborted")
            if self._clock() >= until:
                raise RuntimeError(f"{otherwise} within {CONNECT_S:g} s")

    def _wait_for(self, operation: Any) -> None:
        """Until it has ended, or the group was aborted and it does not end by that."""
        if self.place.backend == "nccl":
            operation.wait()  # makes the device wait, not the host, which would go on after an abort as after a sum
            done = torch.cuda.current_stream(self._device).record_event()
            while not done.query():
                self._gets_on()
                time.sleep(LOOK_AT_DEVICE_S)
            if self._aborted.is_set():
                raise RuntimeError("the group was aborted")
            return
        while True:
            self._gets_on()
            was_aborted = self._aborted.is_set()
            try:
                operation.wait(LOOK_AGAIN)
                return
            except RuntimeError:
                if operation.is_completed():
                    raise
                if was_aborted:
                    self._is_stuck = True
                    raise

    def _send_from_source(self, tensor: torch.Tensor) -> None:
        """In the place of each one's; through the memory of the device that the backend needs."""
        if self._processes is None:
            return
        carried = tensor.to(self._device) if self.place.backend == "nccl" else tensor
        options = C10D.BroadcastOptions()
        options.rootRank = self.place.source
        self._wait_for(self._processes.broadcast([carried], options))
        tensor.copy_(carried)

    @contextlib.contextmanager
    def _breaking(self, what: str) -> Iterator[None]:
        """Tells the failure of an operation as the group's, unless this learner's own device or memory has failed."""
        began_at, self._is_operating = self._clock(), True
        try:
            if self._aborted.is_set():
                raise GroupBroken(f"the group of learners of generation {self.place.generation} has ended")
            yield
        except RuntimeError as error:
            if isinstance(error, torch.AcceleratorError) or is_out_of_memory(error):
                raise
            others = ", ".join(name for rank, name in enumerate(self.place.names) if rank != self.rank)
            raise GroupBroken(f"{others} {what}: {_first_sentence(error)}") from error
        finally:
            self._is_operating = False
            self._waited_s += self._clock() - began_at


def _first_sentence(error: RuntimeError) -> str:
    """What torch says, without the place in its own source that stands in front, and the advice behind."""
    text = str(error).splitlines()[0]
    return re.sub(r"^\[[^\]]*\] ", "", text).partition(". ")[0]


def _is_reachable(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, ATTEMPT_S).close()
    except OSError:
        return False
    return True


def _tcp_store(address: tuple[str, int], *, fd: int | None = None) -> Any:
    host, port = address
    own = {} if fd is None else {"master_listen_fd": fd}
    return C10D.TCPStore(
        host, port, is_master=fd is not None, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S), **own
    )


def _gloo(store: Any, place: Place, host: str) -> _Processes:
    """Without init_process_group, which would take the machine's own name for the address, and knows one group only."""
    options = C10D.ProcessGroupGloo._Options()
    options._devices = [C10D.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=CONNECT_S)
    processes: Any = C10D.ProcessGroupGloo(store, place.rank, place.size, options)
    processes._set_default_timeout(NO_LIMIT)
    own: _Processes = processes
    return own


def set_up_nccl(host: str) -> None:
    """Settings that NCCL takes from the environment, where nobody has said others; before the first group.

    Args:
        host: this machine's address for the others. Of several networks NCCL would take the first by name.
    """
    for name, value in NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    if (interface := interface_of(host)) is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def _nccl(store: Any, place: Place) -> _Processes:
    options = C10D.ProcessGroupNCCL.Options()
    options._timeout = NO_LIMIT
    processes: _Processes = C10D.ProcessGroupNCCL(store, place.rank, place.size, options)
    return processes


def _open_sockets() -> dict[int, str]:
    """Descriptor -> what it stands for, of this process's sockets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own, closed since
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _duplicate(fd: int) -> socket.socket:
    """Its own descriptor of the same socket: gloo may close the other one at any time."""
    return socket.socket(fileno=os.dup(fd))


def _is_connection(each: socket.socket) -> bool:
    """Gloo ends the process when the socket that it listens at is shut down; that one is let alone."""
    is_tcp = each.family in (socket.AF_INET, socket.AF_INET6)
    if is_tcp and not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return True
    each.close()
    return False
