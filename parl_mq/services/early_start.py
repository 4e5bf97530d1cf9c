"""What a run can have before it is known which run it is: a lifeline, and a zygote that imports torch.

It imports nothing that takes time: importing torch is the longest part of a start, and begins here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal, Self

from parl_mq.errors import EXIT_INTERNAL, EXIT_TEMPORARY, CodedError

PR_SET_PDEATHSIG: Final = 1
ZYGOTE_MODULE: Final = "parl_mq.nodes.zygote"
PYTHONPATH: Final = "PYTHONPATH"
Kind = Literal["torch", "light"]
"""What a zygote has imported: what learners, actors and evaluators need, or what hubs and replay nodes do."""
ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Variables with which the libraries below numpy and torch compute as they do in a run's nodes."""


def _module_path() -> str:
    """PYTHONPATH of a child started with -P, so that it imports the same modules as this process, in the same order."""
    entries = [os.path.abspath(entry) for entry in sys.path if os.path.exists(entry or os.curdir)]
    own = str(Path(__file__).parents[2])
    # An editable install is found last: a folder that happens to be called parl_mq, such as the clone seen from the
    # folder that it lies in, would be taken for the package before.
    return os.pathsep.join(entries if own in entries else [own, *entries])


def die_with(parent: int) -> None:
    """Has this process killed as soon as the thread that has started it ends, or ends it where that is gone already.

    Args:
        parent: process id of the parent.
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_INTERNAL)


def live_on() -> None:
    """Takes `die_with` back."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)


class Lifeline:
    """A pipe whose write end this process alone holds: whoever watches the other end learns that this process is gone.

    Attributes:
        fd: the end to watch, for nodes to inherit.
    """

    def __init__(self) -> None:
        self._fds: tuple[int, ...] = os.pipe()
        self.fd = self._fds[0]

    def close(self) -> None:
        """Tells everyone, if it has not been done before."""
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)


class StartingZygote:
    """A zygote as it is started: by exec, with a socket over which it will be asked for forks.

    Attributes:
        process: the zygote.
        control: this process's end of the socket.
    """

    def __init__(self, kind: Kind, lifeline: Lifeline) -> None:
        """Starts one.

        Raises:
            CodedError: the system has no process or no file left for it.
        """
        try:
            self._start(kind, lifeline)
        except OSError as error:
            raise CodedError(f"no process for nodes can be started: {error.strerror}", EXIT_TEMPORARY) from error

    def _start(self, kind: Kind, lifeline: Lifeline) -> None:
        self.control, theirs = socket.socketpair()
        self._output = os.fdopen(os.memfd_create("zygote"), "r+b")  # until it is told where its log is
        arguments = (kind, str(theirs.fileno()), str(os.getpid()), os.environ.get(PYTHONPATH, ""))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", ZYGOTE_MODULE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(lifeline.fd, theirs.fileno()),
                start_new_session=True,  # Ctrl-C reaches `train` alone, which stops the nodes in order
                env={**os.environ, **ONE_THREAD, PYTHONPATH: _module_path()},
            )

    def words(self) -> bytes:
        """What it said before it had a log."""
        with self._output:
            self._output.seek(0)
            return self._output.read()

    def abandon(self) -> None:
        """Ends it; nobody needs it."""
        self.process.kill()
        self.process.wait()
        self.control.close()
        self._output.close()


class EarlyStart:
    """A lifeline, and a zygote for the first supervisor that takes it; a context manager that ends both.

    Attributes:
        lifeline: of all nodes of the run.
    """

    def __init__(self) -> None:
        self.lifeline = Lifeline()
        # The other kind can wait: on two cores it would take time from this one, which needs most.
        self._zygotes: dict[Kind, StartingZygote] = {"torch": StartingZygote("torch", self.lifeline)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_zygote(self, kind: Kind) -> StartingZygote:
        """The zygote that was started with the block, if it is of this kind; each other one is started now."""
        return self._zygotes.pop(kind, None) or StartingZygote(kind, self.lifeline)

    def close(self) -> None:
        """Ends what nobody has taken, and tells the nodes, if it has not been done before."""
        while self._zygotes:
            self._zygotes.popitem()[1].abandon()
        self.lifeline.close()
