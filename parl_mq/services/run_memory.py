"""What a run remembers of itself from one start to the next; kept by the hub in the run directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

from parl_mq.errors import SnapshotError
from parl_mq.services.files import write_atomically

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class RunMemory:
    """Everything that goes on counting when a run is resumed; the learner's part lies in its checkpoints.

    Attributes:
        incarnation: starts of this run, from 1. Random streams depend on it, so that they do not repeat.
        generation: of the newest learner's weights.
        totals: sums over all nodes that there have been, by the metric's name.
        updates: learner updates.
        num_episodes: episodes of the exploring policy.
        num_evaluations: finished evaluations.
        recent_returns: of the newest exploring episodes.
        eval_return: mean return of the last evaluation.
        best_eval_return: the best mean return.
        wall_s: seconds that the run has taken.
        time_to_target_s: after how many of them the target was reached.
    """

    incarnation: int = 0
    generation: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    updates: float = 0.0
    num_episodes: int = 0
    num_evaluations: int = 0
    recent_returns: tuple[float, ...] = ()
    eval_return: float | None = None
    best_eval_return: float | None = None
    wall_s: float = 0.0
    time_to_target_s: float | None = None

    def write(self, path: Path) -> None:
        """Writes it so that a reader finds the old state or this one."""
        write_atomically(path, json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False))

    @classmethod
    def read(cls, path: Path) -> RunMemory:
        """What `write` wrote.

        Raises:
            SnapshotError: it is damaged, or of another format.
        """
        try:
            values = json.loads(path.read_text())
            found = values.pop("format")
            if found != FORMAT:
                raise SnapshotError(f"{path}: format is {found}, this version reads {FORMAT}")
            known = {item.name for item in fields(cls)}
            if values.keys() != known:
                raise SnapshotError(f"{path}: its fields are {sorted(values)}, not {sorted(known)}")
            return cls(**{**values, "recent_returns": tuple(values["recent_returns"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"{path} is damaged: {error}") from error
