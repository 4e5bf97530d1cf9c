"""Names of what lies in a run directory; those who write and those who read agree on them here."""

from typing import Final

CONFIG: Final = "config.toml"
METRICS: Final = "metrics.jsonl"
SUMMARY: Final = "summary.json"
CHECKPOINTS: Final = "checkpoints"
LOGS: Final = "logs"
LEARNING_CURVE: Final = "learning_curve.png"
