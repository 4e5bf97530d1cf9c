"""The run directory: resolved configuration, metrics, logs, checkpoints, summary."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parl_mq.config.loader import dump_toml
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError
from parl_mq.observe.files import CHECKPOINTS, CONFIG, LOGS, METRICS, SUMMARY


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
            raise ConfigError(f"run directory {path} exists already; name another one with --run-dir") from error
        except OSError as error:
            raise ConfigError(f"run directory {path} cannot be made: {error.strerror}") from error
        directory = cls(path)
        directory.logs.mkdir()
        directory.checkpoints.mkdir()
        write_atomically(path / CONFIG, dump_toml(config))
        return directory

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


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader finds the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
