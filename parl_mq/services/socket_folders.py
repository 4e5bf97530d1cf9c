"""The private folder of a run's sockets, and those that dead runs have left.

The run's command holds a lock on the folder itself. The kernel gives the lock up when the command dies, however it
dies; so a folder is left over exactly if its lock can be had, whatever its age and whoever has the old process's id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "parl-mq-sockets-"
MAKE_ATTEMPTS: Final = 10


@contextmanager
def own_folder(root: Path | None) -> Iterator[Path]:
    """A new folder of this process, which goes with the block; what dead ones have left beside it goes before.

    Args:
        root: where it is made; None: in the temporary folder.

    Raises:
        OSError: it cannot be made there.
    """
    remove_left_over(root)
    folder, lock = _make(root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def left_over(root: Path | None) -> list[Path]:
    """Folders of this user whose owners are dead, sorted."""
    return [folder for folder in _folders(root) if _is_left(folder)]


def remove_left_over(root: Path | None) -> None:
    """Removes folders of this user whose owners are dead, so far as that is possible."""
    for folder in _folders(root):
        with locked(folder) as is_ours:  # held until it is gone: nobody may take it for its own meanwhile
            if is_ours:
                shutil.rmtree(folder, ignore_errors=True)


def _folders(root: Path | None) -> list[Path]:
    place = root or Path(tempfile.gettempdir())
    return sorted(place.glob(f"{PREFIX}*"))


def _is_left(folder: Path) -> bool:
    with locked(folder) as is_ours:
        return is_ours


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether the folder is this user's and its lock could be had, which is held while the block is open."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it is gone, somebody else's, or no folder
        yield False
        return
    try:
        yield os.fstat(number).st_uid == os.getuid() and _lock(folder, number)
    finally:
        os.close(number)


def _lock(folder: Path, number: int) -> bool:
    """Whether the open folder was locked and is still there under its name."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(number), os.stat(folder, follow_symlinks=False))
    except OSError:
        return False


def _make(root: Path | None) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    for _ in range(MAKE_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        with contextlib.suppress(FileNotFoundError):  # another command took it for left over, before it was locked
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(folder, number):
                return folder, number
            os.close(number)
    raise OSError(f"no folder could be kept in {root or tempfile.gettempdir()}")
