"""From a run's settings to its replay table."""

from __future__ import annotations
