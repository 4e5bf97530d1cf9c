"""The run directory: resolved configuration, metrics, logs, checkpoints, summary."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from parl_mq.config.loader import dump_toml
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_TEMPORARY, CodedError, ConfigError, SnapshotError
from parl_mq.observe.files import CHECKPOINTS, CONFIG, LOGS, METRICS, SUMMARY
from parl_mq.services.files import write_atomically
from parl_mq.services.run_memory import RunMemory

MEMORY: Final = "hub.json"
RUN_DIR: Final = "run_dir"
"""Under this key errors are about the choice of the directory, which is no setting of the run."""


class RunDirectory:
    """Paths of one run, and the writing of its files. Files are whole or not there at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDirectory:
        """Makes the directory and writes the resolved configuration into it.

        Raises:
            ConfigError: it exists, or cannot be made.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(
                f"run directory {path} exists already; name another one with --run-dir, or go on with it by --resume"
            ).about(RUN_DIR) from error
        except OSError as error:
            raise ConfigError(f"run directory {path} cannot be made: {error.strerror}").about(RUN_DIR) from error
        directory = cls(path)
        directory.logs.mkdir()
        directory.checkpoints.mkdir()
        directory.write_config(config)
        return directory

    def write_config(self, config: RunConfig) -> None:
        """Writes the resolved configuration."""
        write_atomically(self.config, dump_toml(config))

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A directory that an earlier start of the run has made.

        Raises:
            ConfigError: it is none.
        """
        directory = cls(path)
        if not directory.config.is_file():
            raise ConfigError(
                f"{path} is no run directory, it holds no {CONFIG}; leave out --resume to start one"
            ).about(RUN_DIR)
        for folder in (directory.logs, directory.checkpoints):
            folder.mkdir(exist_ok=True)
        return directory

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other commands from running in this directory while the block is open.

        Raises:
            CodedError: another one does.
        """
        number = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CodedError(f"another command is training in {self.path}", EXIT_TEMPORARY) from error
            yield
        finally:
            os.close(number)

    def forget_summary(self) -> None:
        """Removes the summary of an earlier start, which must not pass for that of the next one."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def read_memory(self) -> RunMemory:
        """What the run remembers; a run that has not begun remembers nothing.

        Raises:
            SnapshotError: the file is damaged, or missing although the run has begun.
        """
        path = self.path / MEMORY
        if path.exists():
            return RunMemory.read(path)
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            raise SnapshotError(f"{path} is missing beside checkpoints: the run's counters are lost; start a new run")
        return RunMemory()

    def write_memory(self, memory: RunMemory) -> None:
        """Replaces what the run remembers."""
        memory.write(self.path / MEMORY)

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / CONFIG

    @property
    def logs(self) -> Path:
        """Folder of the nodes' logs."""
        return self.path / LOGS

    @property
    def checkpoints(self) -> Path:
        """Folder of the learner's checkpoints and of `best`."""
        return self.path / CHECKPOINTS

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Adds one line to metrics.jsonl."""
        with (self.path / METRICS).open("a") as lines:
            lines.write(json.dumps(row, allow_nan=False) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json."""
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """What `write_summary` wrote, or None."""
        path = self.path / SUMMARY
        return json.loads(path.read_text()) if path.exists() else None
