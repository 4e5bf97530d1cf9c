"""Small run directories, written as the hub writes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parl_mq.config.loader import load_config
from parl_mq.services.run_directory import RunDirectory

Judged = tuple[int, float, list[float]]
"""(environment steps, seconds, returns of the episodes) of one evaluation."""

RISING: list[Judged] = [(1_000, 1.0, [10.0, 30.0]), (2_000, 2.0, [100.0, 200.0]), (3_000, 3.5, [480.0, 500.0])]


def figures(wall_s: float, phase: str = "training", **values: float) -> dict[str, Any]:
    """A row of figures."""
    return {"kind": "figures", "time_s": wall_s, "phase": phase, **values}


def evaluation(judged: Judged) -> dict[str, Any]:
    """A row of an evaluation."""
    steps, wall_s, returns = judged
    return {
        "kind": "evaluation",
        "time_s": wall_s,
        "env_steps": steps,
        "updates": steps // 10,
        "version": [1, steps // 100],
        "mean_return": sum(returns) / len(returns),
        "returns": returns,
        "lengths": [round(value) for value in returns],
        "duration_s": 0.1,
    }


def record(path: Path, judged: Sequence[Judged] = RISING, *overrides: str, ends: bool = True) -> RunDirectory:
    """A run that trained for a while.

    Args:
        path: of the directory.
        judged: its evaluations.
        overrides: settings, as after --set.
        ends: whether its last figures are those of a run that is over.
    """
    config = load_config("cartpole-dqn", overrides=list(overrides), environ={})
    directory = RunDirectory.create(path, config)
    for steps, wall_s, returns in judged:
        directory.append_metrics(figures(wall_s, env_steps_total=float(steps)))
        directory.append_metrics(evaluation((steps, wall_s, returns)))
        directory.append_metrics(figures(wall_s + 0.1, env_steps_total=steps + 10.0, train_return=returns[0] / 2))
    if ends:
        directory.append_metrics(figures(judged[-1][1] + 0.2 if judged else 0.2, "done", env_steps_total=1.0))
    return directory


def record_ended(path: Path, judged: Sequence[Judged] = RISING, *overrides: str, **summary: Any) -> RunDirectory:
    """A run with a summary; `summary` replaces parts of it."""
    directory = record(path, judged, *overrides)
    config = load_config(directory.config, environ={})
    means = [sum(returns) / len(returns) for _, _, returns in judged]
    reached = [index for index, mean in enumerate(means) if mean >= (config.stop.target_return or 1e9)]
    directory.write_summary(
        {
            "reached": bool(reached),
            "eval_return": means[-1] if means else None,
            "env_steps": judged[-1][0] if judged else 0,
            "updates": 300,
            "wall_s": judged[-1][1] if judged else 0.0,
            "time_to_target_s": judged[reached[0]][1] if reached else None,
            "interrupted": False,
            "error": None,
            "version": "0.1.0",
            **summary,
        }
    )
    return directory


def written_at(directory: RunDirectory) -> float:
    """When its newest metrics were written, s since 1970."""
    return os.stat(directory.path / "metrics.jsonl").st_mtime
