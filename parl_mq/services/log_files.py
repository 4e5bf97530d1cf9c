"""Logs of nodes that stay small however long a run lasts."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

LOG_BYTES: Final = 16 * 1024 * 1024
"""A log that has grown beyond this is set aside; the one that was set aside before goes."""


def keep_small(log: Path, limit: int = LOG_BYTES) -> str | None:
    """Sets a log aside as `NAME.log.1` and empties it, if it has grown too large.

    Its writers go on: they add to the file's end, wherever that is. What they write in the moment between copying and
    emptying, some milliseconds, is lost; a file that was renamed instead would go on growing under its new name.

    Returns:
        Words for people where it could only be emptied; None otherwise.
    """
    if not log.exists() or log.stat().st_size <= limit:
        return None
    aside = log.with_name(f"{log.name}.1")
    told = None
    try:
        shutil.copyfile(log, aside)
    except OSError as error:  # on a full disk, emptying it is what helps
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        told = f"{log} has grown to {limit:,} bytes and was emptied; it could not be set aside: {error.strerror}"
    try:
        os.truncate(log, 0)
    except OSError:  # on a disk that cannot be written it does not grow either
        return None
    return told
