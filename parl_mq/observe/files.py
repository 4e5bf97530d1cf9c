"""What lies in a run directory, and whether it is in use; those who write and those who read agree on it here."""

import fcntl
import os
import shlex
from pathlib import Path
from typing import Final

from parl_mq.errors import EXIT_NOT_ALLOWED, CodedError, UsageError

CONFIG: Final = "config.toml"
METRICS: Final = "metrics.jsonl"
SUMMARY: Final = "summary.json"
CHECKPOINTS: Final = "checkpoints"
LOGS: Final = "logs"
LEARNING_CURVE: Final = "learning_curve.png"

PART: Final = "metrics.{:06d}.jsonl"
"""Earlier parts of a long run's metrics, numbered from 1."""


def check_directory(path: Path) -> None:
    """Refuses a directory that was named and is not there.

    Raises:
        UsageError: it is not there, or no directory.
        CodedError: this user may not look into it, or into one above it.
    """
    try:
        os.listdir(path)
        os.stat(os.path.join(path, os.curdir))  # what is in it can be opened, too
    except PermissionError as error:
        raise CodedError(f"{path}: this user may not look there: {error.strerror}", EXIT_NOT_ALLOWED) from error
    except OSError as error:
        raise UsageError(f"{path}: there is no such directory") from error


def metrics_files(run_dir: Path) -> list[Path]:
    """The files of a run's metrics that are there, oldest rows first."""
    parts = sorted(run_dir.glob("metrics.[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"))
    newest = run_dir / METRICS
    return [*parts, newest] if newest.exists() else parts


def is_held(run_dir: Path) -> bool:
    """Whether a command runs in this directory: it keeps the lock that is tried here for a moment."""
    number = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def resume_command(run_dir: Path) -> str:
    """The command line that goes on with a run, whatever settings it was started with."""
    config, place = shlex.quote(str(run_dir / CONFIG)), shlex.quote(str(run_dir))
    return f"parl-mq train {config} --run-dir {place} --resume"
