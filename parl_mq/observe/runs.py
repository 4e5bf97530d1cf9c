"""Finds run directories, and says what became of each run."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from parl_mq.errors import RecordError
from parl_mq.observe.curves import EMPTY, has_ended, read_curve
from parl_mq.observe.files import CHECKPOINTS, CONFIG, METRICS, SUMMARY, check_directory, is_held, resume_command
from parl_mq.observe.words import moment

SILENT_AFTER_S: Final = 5.0
"""A run writes metrics every second; where none came for so long, no summary, and no command holds the directory any
more, all its processes are dead."""
MAX_DEPTH: Final = 3
"""Levels of folders that are searched for runs; deeper ones belong to something else."""

State = Literal["done", "interrupted", "failed", "running"]
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one run.

    Attributes:
        path: its directory.
        state: `failed` too if its processes died without a summary.
        error: why it failed.
        settings: as in its config.toml, by dotted key.
        eval_return: mean return of the newest evaluation, or None before the first.
        time_to_target_s: None if the target was not reached, or there is none.
    """

    path: Path
    state: State
    error: str | None
    settings: Settings
    reached: bool
    eval_return: float | None
    env_steps: int
    updates: int
    wall_s: float
    time_to_target_s: float | None

    @property
    def preset(self) -> str:
        """Name of the preset or file that it came from."""
        return str(self.settings.get("preset", "custom"))

    @property
    def env_id(self) -> str:
        """Its environment."""
        return str(self.settings["environment.id"])

    @property
    def algorithm(self) -> str:
        """Its algorithm."""
        return str(self.settings["algorithm.name"])

    @property
    def seed(self) -> int:
        """Of all its random streams."""
        return int(self.settings.get("seed", 0))

    @property
    def target_return(self) -> float | None:
        """What counts as reached, or None."""
        target = self.settings.get("stop.target_return")
        return None if target is None else float(target)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name; the settings are left out."""
        named = ("preset", "env_id", "algorithm", "seed", "target_return")
        own = [field.name for field in fields(self) if field.name not in ("path", "settings")]
        return {"run_dir": str(self.path), **{name: getattr(self, name) for name in (*named, *own)}}


def is_run(path: Path) -> bool:
    """Whether a directory looks like a run's."""
    return (path / CONFIG).is_file() and (path / CHECKPOINTS).is_dir()


def find_runs(root: Path) -> list[Path]:
    """The run directories at and below `root`, sorted; folders below that this user may not look into are passed over.

    Raises:
        UsageError: there is no such directory.
        CodedError: this user may not look into it.
    """
    check_directory(root)
    return sorted(_search(root, MAX_DEPTH))


def read_run(path: Path, now: float) -> Run:
    """What became of a run.

    Args:
        path: its directory.
        now: seconds since 1970, to tell whether it is still going.

    Raises:
        RecordError: the directory is no run's, or a file in it is damaged.
    """
    settings = read_settings(path)
    if (path / SUMMARY).exists() and has_ended(path):
        return _ended(path, settings, _parsed(path / SUMMARY, json.loads))
    return _without_summary(path, settings, now)


def read_settings(path: Path) -> Settings:
    """The settings of a run, by dotted key, whichever version wrote them.

    Raises:
        UsageError: there is no such directory.
        RecordError: it is no run's, or its settings are damaged.
    """
    check_directory(path)
    if not is_run(path):
        raise RecordError(f"{path} is no run directory: it has no {CONFIG} with {CHECKPOINTS}/ beside it")
    settings = dict(dotted(_parsed(path / CONFIG, tomllib.loads)))
    if missing := {"environment.id", "algorithm.name"} - settings.keys():
        raise RecordError(f"{path / CONFIG} is no run's: it does not set {', '.join(sorted(missing))}")
    return settings


def dead_in_words(path: Path, since: float) -> str:
    """What is said of a run whose processes have all died; they last wrote then (wall time, s)."""
    return f"presumed dead since {moment(since)}, and this is from then; go on with `{resume_command(path)}`"


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by dotted key."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _search(path: Path, depth: int) -> Iterator[Path]:
    if is_run(path):
        yield path
    elif depth > 0:
        with os.scandir(path) as entries:
            places = [Path(entry.path) for entry in entries if not entry.name.startswith(".")]
        for place in places:
            with contextlib.suppress(PermissionError):
                if place.is_dir():
                    yield from _search(place, depth - 1)


def _ended(path: Path, settings: Settings, summary: Mapping[str, Any]) -> Run:
    error = summary.get("error")
    state: State = "failed" if error else "interrupted" if summary.get("interrupted") else "done"
    try:
        return Run(
            path,
            state,
            error,
            settings,
            reached=bool(summary["reached"]),
            eval_return=summary["eval_return"],
            env_steps=summary["env_steps"],
            updates=summary["updates"],
            wall_s=summary["wall_s"],
            time_to_target_s=summary["time_to_target_s"],
        )
    except KeyError as missing:
        raise RecordError(f"{path / SUMMARY} is no run's summary: it lacks {missing}") from missing


def _without_summary(path: Path, settings: Settings, now: float) -> Run:
    """A run that is still going, or whose processes have died: its metrics say how far it came."""
    metrics = path / METRICS
    has_begun = metrics.exists()
    written_at = (metrics if has_begun else path).stat().st_mtime
    curve = read_curve(path) if has_begun else EMPTY
    is_dead = now - written_at > SILENT_AFTER_S and not is_held(path)
    judged = curve.evaluations.mean_return
    target = settings.get("stop.target_return")
    place = None if target is None else curve.evaluations.first_at_least(target)
    return Run(
        path,
        "failed" if is_dead else "running",
        dead_in_words(path, written_at) if is_dead else None,
        settings,
        reached=place is not None,
        eval_return=float(judged[-1]) if len(judged) else None,
        env_steps=int(curve.newest.get("env_steps_total", 0)),
        updates=int(curve.newest.get("updates_total", 0)),
        wall_s=curve.wall_s,
        time_to_target_s=None if place is None else float(curve.evaluations.wall_s[place]),
    )


def _parsed(path: Path, parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is damaged: {error}") from error
