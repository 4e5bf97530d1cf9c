"""Names of what lies in a run directory; those who write and those who read agree on them here."""

from pathlib import Path
from typing import Final

CONFIG: Final = "config.toml"
METRICS: Final = "metrics.jsonl"
SUMMARY: Final = "summary.json"
CHECKPOINTS: Final = "checkpoints"
LOGS: Final = "logs"
LEARNING_CURVE: Final = "learning_curve.png"

PART: Final = "metrics.{:06d}.jsonl"
"""Earlier parts of a long run's metrics, numbered from 1."""


def metrics_files(run_dir: Path) -> list[Path]:
    """The files of a run's metrics that are there, oldest rows first."""
    parts = sorted(run_dir.glob("metrics.[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"))
    newest = run_dir / METRICS
    return [*parts, newest] if newest.exists() else parts
