"""Files of which a reader finds all that was written or nothing, also where the disk is full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from parl_mq.errors import DiskError, RecordError
from parl_mq.replay.durable import append, replacing

OF_THE_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What the operating system says where the disk is at fault."""


def write_atomically(path: Path, text: str, *, lasting: bool = True, mode: int = 0o666) -> None:
    """Writes a file so that a reader finds the old text or the new one, never a part.

    Args:
        path: of the file.
        text: all that it is to hold.
        lasting: it outlives a power cut, which takes the disk a while.
        mode: who may use the file, less what the process's mask takes away.

    Raises:
        RecordError: it cannot be written; the old text stays.
    """
    with writing(path), replacing(path, lasting=lasting, mode=mode) as file:
        file.write(text.encode())


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file, which is made if it is not there.

    Raises:
        RecordError: it cannot be written; no part of the line stays.
    """
    with writing(path):
        append(path, f"{line}\n".encode())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file in what the operating system says against writing it.

    Raises:
        DiskError: it did, and the disk is at fault.
        RecordError: it did for another reason.
    """
    try:
        yield
    except OSError as error:
        kind = DiskError if error.errno in OF_THE_DISK else RecordError
        raise kind(f"{path} cannot be written: {error.strerror or error}") from error
