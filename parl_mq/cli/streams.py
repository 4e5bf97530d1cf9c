"""The command's own standard streams: ones that are closed, and ones whose readers leave."""

from __future__ import annotations

import io
import os
import sys
from typing import Final, TextIO

STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_standard_streams() -> None:
    """A stream that the caller has closed leads nowhere, lest a socket gets its number and its words."""
    for name, mode in STREAMS:  # an open takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (open until the process ends)


def let_readers_leave() -> None:
    """From now on a reader who leaves (`parl-mq train ... 2>&1 | head -1`) ends no run.

    Progress that cannot be written for any other reason, such as a terminal that is gone or a full disk, ends none
    either; a result that cannot be written is a failure.
    """
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        sys.stdout = _patient(sys.__stdout__, BrokenPipeError)
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        sys.stderr = _patient(sys.__stderr__, OSError)


class _Outlet(io.FileIO):
    """A file that leads nowhere once a write to it has failed with a forgivable error."""

    def __init__(self, fd: int, forgiven: type[OSError]) -> None:
        super().__init__(fd, "w", closefd=False)
        self._forgiven = forgiven

    def write(self, data: object, /) -> int:
        """Writes all or part of the bytes; returns how many."""
        view = memoryview(data)  # type: ignore[arg-type]  # any buffer, as for the base class
        try:
            return super().write(view)
        except self._forgiven:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return view.nbytes


def _patient(stream: TextIO, forgiven: type[OSError]) -> TextIO:
    """The same stream on an `_Outlet`; one without a descriptor stays as it is."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Outlet(fd, forgiven)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=isinstance(stream, io.TextIOWrapper) and stream.line_buffering,
    )
