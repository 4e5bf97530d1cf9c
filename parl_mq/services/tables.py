"""From a run's settings to its replay table and limiter."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import Final

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import ConfigError
from parl_mq.replay.limiter import RatioLimiter
from parl_mq.replay.settings import TableSettings
from parl_mq.wire.messages import MAIN_TABLE

SHARED_MEMORY: Final = Path("/dev/shm")


def table_settings(config: RunConfig) -> TableSettings:
    """The settings of one replay node's table."""
    replay, algorithm = config.replay, config.algorithm
    return TableSettings(
        name=MAIN_TABLE,
        capacity=replay.buffer_size // replay.nodes,
        kind=replay.kind,
        alpha=replay.alpha,
        eps=replay.eps,
        n_step=algorithm.n_step,
        gamma=algorithm.gamma,
        frame_stack=config.environment.frame_stack,
        fragment_length=replay.fragment_length,
        num_shards=replay.shards,
        arity=replay.tree_arity,
    )


def limiter(config: RunConfig) -> RatioLimiter:
    """The samples-per-insert limiter of one replay node."""
    return RatioLimiter(
        samples_per_insert=config.replay.samples_per_insert,
        error_band=config.error_band,
        min_live=config.replay.learning_starts,
    )


def ring_directory(node: NodeConfig, run_id: str, name: str) -> Path:
    """Where a replay node of a run keeps its ring."""
    return ring_root(node) / f"{run_id}-{name}"


def remove_rings(node: NodeConfig, run_id: str) -> None:
    """Removes what replay nodes of this run that were killed have left."""
    root = ring_root(node)
    for directory in root.glob(f"{run_id}-*"):
        shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        root.rmdir()  # the last ring of this user takes the folder with it


def ring_root(node: NodeConfig) -> Path:
    """The folder under which this user's rings lie; a private one in shared memory unless `node.ring_directory` is set.

    Raises:
        ConfigError: the private folder belongs to somebody else, or others may enter it.
    """
    if node.ring_directory is not None:
        return node.ring_directory
    root = SHARED_MEMORY / f"parl-mq-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{root} must be a folder of this user alone; remove it, or set node.ring_directory")
    return root
