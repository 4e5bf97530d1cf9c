"""The run directory: resolved configuration, metrics, logs, checkpoints, summary."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from parl_mq.config.loader import dump_toml, load_config
from parl_mq.config.models import RunConfig, Section
from parl_mq.errors import EXIT_TEMPORARY, CodedError, ConfigError, DiskError, RecordError, SnapshotError
from parl_mq.observe.files import CHECKPOINTS, CONFIG, LOGS, METRICS, SUMMARY, resume_command
from parl_mq.services.files import OF_THE_DISK, append_line, write_atomically, writing
from parl_mq.services.metrics_parts import part_if_large
from parl_mq.services.run_memory import RunMemory

MEMORY: Final = "hub.json"
STATUS: Final = "status.json"
ENDPOINT: Final = "hub.endpoint"
METRICS_ADDRESS: Final = "metrics.address"
FAILURES: Final = "failures.jsonl"
FINISHED: Final = "finished"
"""Is there while the run has come to its end by itself: services look at it before they start (see systemd/)."""
FIXED: Final = ("environment", "algorithm", "seed")
"""Settings that a run keeps for life: its networks and what they learn."""
RUN_DIR: Final = "run_dir"
"""Under this key errors are about the choice of the directory, which is no setting of the run."""


class RunDirectory:
    """Paths of one run, and the writing of its files. Files are whole or not there at all.

    Attributes:
        path: of the directory.
        lock_fd: descriptor of the lock while this object holds it; it is held until every copy of it is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_fd: int | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDirectory:
        """Makes the directory and writes the resolved configuration into it.

        Raises:
            ConfigError: it exists, or cannot be made.
            DiskError: the disk is full or read-only.
            RecordError: nothing can be written into it; it is not there then.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            goes_on = f", or go on with it: `{resume_command(path)}`" if cls(path).config.is_file() else ""
            raise ConfigError(f"run directory {path} exists already; name another one with --run-dir{goes_on}").about(
                RUN_DIR
            ) from error
        except OSError as error:
            reason = f"run directory {path} cannot be made: {error.strerror}"
            if error.errno in OF_THE_DISK:
                raise DiskError(reason) from error
            raise ConfigError(reason).about(RUN_DIR) from error
        directory = cls(path)
        try:
            directory._make_folders()
            directory.write_config(config)
        except RecordError:
            shutil.rmtree(path, ignore_errors=True)  # lest the next attempt finds a run that never was
            raise
        return directory

    def write_config(self, config: RunConfig) -> None:
        """Writes the resolved configuration.

        Raises:
            RecordError: that, or any other file of the run, cannot be written; so do all methods that write.
        """
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
        directory._make_folders()
        return directory

    @classmethod
    def reopen(cls, path: Path, config: RunConfig) -> RunDirectory:
        """The directory of a run to go on with, which must have been started with the same settings.

        Raises:
            ConfigError: it is none, or the run was started with others.
            SnapshotError: what the run remembers is damaged.
        """
        directory = cls.open(path)
        earlier = load_config(directory.config, environ={})
        if differing := list(_differing(earlier, config)):
            before = ", ".join(f"{key} = {earlier.value_of(key)!r}" for key in differing)
            raise ConfigError(
                f"{path} was started with other settings: {before} (see {directory.config}); give the same ones, or "
                "start a new run"
            ).about(*differing)
        directory.read_memory()
        return directory

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other commands from running in this directory while the block is open.

        Where this process is killed, the lock lasts as long as processes that were given a copy of `lock_fd`.

        Raises:
            CodedError: another one does.
        """
        number = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CodedError(f"another command is training in {self.path}", EXIT_TEMPORARY) from error
            self.lock_fd = number
            try:
                yield
            finally:
                self.lock_fd = None
                fcntl.flock(number, fcntl.LOCK_UN)  # copies of the descriptor notwithstanding
        finally:
            os.close(number)

    def forget_summary(self) -> None:
        """Removes the summary of an earlier start, which must not pass for that of the next one."""
        _remove(self.path / SUMMARY)
        _remove(self.path / FINISHED)

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
        """Adds one line to metrics.jsonl; a large one begins anew, and its rows stay beside it, thinned out."""
        part_if_large(self.path)
        append_line(self.path / METRICS, json.dumps(row, allow_nan=False))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json."""
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """What `write_summary` wrote, or None."""
        path = self.path / SUMMARY
        return json.loads(path.read_text()) if path.exists() else None

    def is_done(self) -> bool:
        """Whether the run has come to its end by itself; it may be resumed all the same."""
        summary = self.read_summary()
        return summary is not None and not summary["interrupted"] and summary["error"] is None

    def note_end(self) -> None:
        """After the summary: notes that the run has come to its end by itself, if it has."""
        if self.is_done():
            write_atomically(self.path / FINISHED, "")

    def cut_off_start(self) -> float | None:
        """Monotonic time at which the run's newest start began, where its hub was cut off and the next one goes on.

        None where that start has ended, was being interrupted, or happened before this machine was started.

        Raises:
            SnapshotError: as `read_memory`.
        """
        path, memory = self.path / MEMORY, self.read_memory()
        if not memory.run_id or memory.phase == "done" or (memory.stop is not None and memory.stop["interrupted"]):
            return None
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return memory.started_at if path.stat().st_mtime > booted_at else None

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replaces the picture of the run that is shown when its hub cannot be asked."""
        write_atomically(self.path / STATUS, json.dumps(status, allow_nan=False) + "\n", lasting=False)

    def read_status(self) -> tuple[dict[str, Any], float] | None:
        """What `write_status` wrote and when (wall time, s), or None."""
        path = self.path / STATUS
        return (json.loads(path.read_text()), path.stat().st_mtime) if path.exists() else None

    def write_endpoint(self, endpoint: str) -> None:
        """Says where the run's hub listens."""
        write_atomically(self.path / ENDPOINT, endpoint + "\n")

    def read_endpoint(self) -> str | None:
        """Where the hub listens, or listened when it was killed; None where it has ended in order, or not begun."""
        path = self.path / ENDPOINT
        return path.read_text().strip() if path.exists() else None

    def forget_endpoint(self) -> None:
        """The hub listens no more, and serves no figures."""
        _remove(self.path / ENDPOINT)
        self.write_metrics_address(None)

    def write_metrics_address(self, address: str | None) -> None:
        """Says where the hub serves its figures; None: nowhere, whatever an earlier one did."""
        if address is None:
            _remove(self.path / METRICS_ADDRESS)
        else:
            write_atomically(self.path / METRICS_ADDRESS, address + "\n", lasting=False)

    def append_failure(self, row: Mapping[str, Any]) -> None:
        """Adds one line to failures.jsonl: a node that ended unasked."""
        append_line(self.path / FAILURES, json.dumps(row, allow_nan=False))

    def read_failures(self) -> list[dict[str, Any]]:
        """The nodes that ended unasked, oldest first."""
        path = self.path / FAILURES
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _make_folders(self) -> None:
        for folder in (self.logs, self.checkpoints):
            with writing(folder):
                folder.mkdir(exist_ok=True)


def _remove(path: Path) -> None:
    with writing(path):
        if path.exists():  # a read-only disk refuses to remove what is not there, too
            path.unlink()


def _differing(earlier: RunConfig, config: RunConfig) -> Iterator[str]:
    """Keys of FIXED settings that are not as they were."""
    for name in FIXED:
        old, new = getattr(earlier, name), getattr(config, name)
        if isinstance(old, Section) and type(old) is type(new):
            fields = type(old).model_fields
            yield from (f"{name}.{field}" for field in fields if getattr(old, field) != getattr(new, field))
        elif isinstance(old, Section):
            yield f"{name}.name"  # of the algorithm, which decides what the section holds
        elif old != new:
            yield name
