"""Reads what a run recorded, metrics.jsonl, into arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from parl_mq.errors import RecordError
from parl_mq.observe.files import METRICS, metrics_files

TAIL_BYTES: Final = 1 << 18
"""Of the record's end, which hold its newest figures: a row of them takes 2 KB, one of 10,000 episodes 150 KB."""
ROW_START: Final = '{"kind": '

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exploration:
    """Returns of the exploring actors; P points in order of time.

    Attributes:
        env_steps: [P], of all actors.
        wall_s: [P], since the command started.
        mean_return: [P], over the last episodes.
    """

    env_steps: Floats
    wall_s: Floats
    mean_return: Floats


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Returns of the greedy policy; P evaluations in order of time.

    Attributes:
        env_steps: [P], of all actors when it ended. The record's own count is that of the actors' last heartbeats, the
            same for all evaluations between two of them; it is interpolated in time instead, where that is possible.
        wall_s: [P], since the command started.
        mean_return: [P].
        returns: P arrays, the returns of its episodes.
    """

    env_steps: Floats
    wall_s: Floats
    mean_return: Floats
    returns: tuple[Floats, ...]

    def quantile(self, share: float) -> Floats:
        """[P] returns that `share` of an evaluation's episodes stay below, interpolated."""
        return np.array([np.quantile(returns, share) for returns in self.returns])

    def first_at_least(self, target: float) -> int | None:
        """Index of the first evaluation whose mean met the target, or None."""
        (met,) = np.nonzero(self.mean_return >= target)
        return int(met[0]) if len(met) else None


@dataclass(frozen=True, slots=True)
class Curve:
    """All that a run recorded about its returns.

    Attributes:
        newest: the figures of the newest row, by the names in parl_mq.metrics; empty before the first one.
        wall_s: time of the newest row, seconds since the command started.
    """

    exploration: Exploration
    evaluations: Evaluations
    newest: Mapping[str, float]
    wall_s: float


def read_curve(run_dir: Path) -> Curve:
    """The learning curve of a run, which may still be going: an unfinished last line does not count.

    Raises:
        RecordError: the directory holds no metrics, or a line of them is damaged; the message names it.
    """
    explored: list[_Point] = []
    stepped: list[_Point] = []
    judged: list[_Point] = []
    newest: Mapping[str, Any] = {}
    wall_s = 0.0
    for place, row in _rows(run_dir):
        match row:
            case {
                "kind": "evaluation",
                "time_s": float() | int() as wall_s,
                "env_steps": int() as steps,
                "mean_return": float() | int() as mean,
                "returns": [_, *_] as episodes,
            }:
                _append(judged, _Point(steps, wall_s, mean, np.array(episodes, np.float64)))
            case {"kind": "figures", "time_s": float() | int() as wall_s}:
                newest = row
                if "env_steps_total" in row:
                    _append(stepped, _Point(row["env_steps_total"], wall_s, 0.0))
                if "train_return" in row and "env_steps_total" in row:
                    _append(explored, _Point(row["env_steps_total"], wall_s, row["train_return"]))
            case {"kind": "evaluation" | "figures"}:
                raise RecordError(f"{place} is damaged: a row of kind {row['kind']} lacks a part")
    figures = {name: float(value) for name, value in newest.items() if isinstance(value, float | int)}
    told, judged_at, means = _columns(judged)
    judged_steps = _steps_at(judged_at, told, stepped)
    evaluations = Evaluations(judged_steps, judged_at, means, tuple(point.returns for point in judged))
    return Curve(Exploration(*_columns(explored)), evaluations, figures, wall_s)


def has_ended(run_dir: Path) -> bool:
    """Whether the newest figures are a run's last ones, or there are none; cheap, whatever the length of the record.

    A run that was resumed and still goes has a summary of its earlier part, but its newest figures are not the last.
    """
    files = metrics_files(run_dir)
    if not files:
        return True
    with files[-1].open("rb") as file:
        file.seek(max(0, file.seek(0, SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        with suppress(ValueError):  # cut off
            row = json.loads(line)
            if row["kind"] == "figures":
                return bool(row["phase"] == "done")
    return False


class _Point(NamedTuple):
    env_steps: float
    wall_s: float
    mean_return: float
    returns: Floats = np.zeros(0)


def _append(points: list[_Point], point: _Point) -> None:
    """A run that was cut off and resumed repeats its last seconds: the later record holds."""
    while points and points[-1].wall_s > point.wall_s:
        points.pop()
    points.append(point)


def _columns(points: list[_Point]) -> tuple[Floats, Floats, Floats]:
    table = np.array([point[:3] for point in points], np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _steps_at(wall_s: Floats, told: Floats, stepped: list[_Point]) -> Floats:
    """Environment steps at the times `wall_s`, by straight lines between the rows of figures; else those `told`."""
    if not stepped:
        return told
    counts, times, _ = _columns(stepped)
    is_between = (wall_s >= times[0]) & (wall_s <= times[-1])
    return np.maximum.accumulate(np.where(is_between, np.interp(wall_s, times, counts), told))


EMPTY: Final = Curve(Exploration(*_columns([])), Evaluations(*_columns([]), ()), {}, 0.0)
"""Of a run that recorded nothing yet."""


def _rows(run_dir: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each whole row with its place, those of earlier parts first."""
    files = metrics_files(run_dir)
    if not files:
        raise RecordError(f"{run_dir} holds no run's metrics: there is no {METRICS} in it")
    for path in files:
        yield from _rows_of(path)


def _rows_of(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if isinstance(row, dict):
            yield f"{path}:{number}", row
        elif number < len(lines):  # the last line may have been cut off
            raise RecordError(f"{path}:{number} is damaged: it is no row of metrics")


def _row(line: str) -> Any:
    """What a line holds, or None. Behind one that was cut off, the next start of the run wrote its first row."""
    for start in (0, line.rfind(ROW_START)):
        with suppress(json.JSONDecodeError):
            return json.loads(line[max(start, 0) :])
    return None
