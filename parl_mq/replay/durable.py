"""Files that are replaced whole, and are on the disk when the call returns if they are to last; or added to whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, lasting: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends; where it fails, nothing has changed.

    Args:
        path: of the file.
        lasting: it outlives a power cut, which takes the disk a while.
        mode: who may use the file, less what the process's mask takes away; from its beginning on.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # left over from a process of this number
    new = os.O_EXCL | os.O_NOFOLLOW  # nobody else has made it, or made it lead elsewhere
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags | new, mode)) as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if lasting:
        sync_directory(path.parent)


def append(path: Path, content: bytes) -> None:
    """Adds to a file, which is made if it is not there.

    Raises:
        OSError: it cannot be written; no part of the content stays.
    """
    with path.open("ab", buffering=0) as file:
        before, rest = file.seek(0, os.SEEK_END), memoryview(content)
        try:
            while rest:  # a disk that becomes full takes a part
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):  # what was said first is the reason
                file.truncate(before)
            raise


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
