"""What a run remembers of itself from one start to the next; kept by the hub in the run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from parl_mq.errors import SnapshotError
from parl_mq.services.files import write_atomically

FORMAT: Final = 3
ENV_STEPS: Final = "env_steps_total"


@dataclass(frozen=True, slots=True)
class RunMemory:
    """Everything that goes on when the hub starts again, in the same run or in its resumption.

    The learner's part lies in its checkpoints.

    Attributes:
        run_id: of the run, for its whole life; empty where it has not begun.
        weights_endpoint: of the hub's weights socket; nodes go on asking there.
        started_at: monotonic time at which the command started whose hub wrote this, s. A hub that finds its own
            command's time here has been away; one that finds another resumes the run.
        generation: of the newest learner's weights.
        group: names of the learners that are at work together.
        spec: the table's columns, as a SpecOffer; None while there are none.
        nodes: those that there have been (parl_mq.services.roster.Node.to_json).
        totals: sums over all processes whose name another one has, by the metric's name.
        books: of the actors' rows (parl_mq.services.books.RowBooks.to_json).
        updates: learner updates.
        lost_updates: those that went with learners which had not saved them.
        num_episodes: episodes of the exploring policy.
        num_evaluations: finished evaluations.
        judged: versions of the weights that were evaluated last.
        recent_returns: of the newest exploring episodes.
        eval_return: mean return of the last evaluation.
        best_eval_return: the best mean return.
        wall_s: seconds that the run has taken.
        wall_before_s: those of them before the command started.
        time_to_target_s: after how many of them the target was reached.
        first_step_s: after how many seconds of the command the first environment step was done.
        phase: of the run.
        stop: reason, exit code and error of an end that has begun; None before that.
    """

    run_id: str = ""
    weights_endpoint: str = ""
    started_at: float = 0.0
    generation: int = 0
    group: tuple[str, ...] = ()
    spec: dict[str, Any] | None = None
    nodes: tuple[dict[str, Any], ...] = ()
    totals: dict[str, float] = field(default_factory=dict)
    books: dict[str, Any] | None = None
    updates: float = 0.0
    lost_updates: float = 0.0
    num_episodes: int = 0
    num_evaluations: int = 0
    judged: tuple[tuple[int, ...], ...] = ()
    recent_returns: tuple[float, ...] = ()
    eval_return: float | None = None
    best_eval_return: float | None = None
    wall_s: float = 0.0
    wall_before_s: float = 0.0
    time_to_target_s: float | None = None
    first_step_s: float | None = None
    phase: str = "starting"
    stop: dict[str, Any] | None = None

    @property
    def env_steps(self) -> float:
        """Environment steps of all actors that there have been."""
        of_nodes = [float(node["totals"].get(ENV_STEPS, 0.0)) for node in self.nodes]
        return self.totals.get(ENV_STEPS, 0.0) + sum(of_nodes)

    def write(self, path: Path) -> None:
        """Writes it so that a reader finds the old state or this one."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        write_atomically(path, json.dumps({"format": FORMAT, **values}))  # bounds of a space may be infinite

    @classmethod
    def read(cls, path: Path) -> RunMemory:
        """What `write` wrote.

        Raises:
            SnapshotError: it is damaged, or of another format.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text())
            found = values.pop("format")
            if found != FORMAT:
                raise SnapshotError(f"{path}: format is {found}, this version reads {FORMAT}")
            known = {item.name for item in fields(cls)}
            if values.keys() != known:
                raise SnapshotError(f"{path}: its fields are {sorted(values)}, not {sorted(known)}")
            lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
            return cls(**{**values, **lists})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"{path} is damaged: {error}") from error
