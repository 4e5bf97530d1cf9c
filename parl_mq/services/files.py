"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str, *, lasting: bool = True) -> None:
    """Writes a file so that a reader finds the old text or the new one, never a part.

    Args:
        path: of the file.
        text: all that it is to hold.
        lasting: it outlives a power cut, which takes the disk a while.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        if lasting:
            os.fsync(file.fileno())
    temporary.replace(path)
