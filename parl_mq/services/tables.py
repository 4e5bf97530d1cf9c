"""From a run's settings to its replay table and limiter."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import ConfigError, MemoryRefused
from parl_mq.net.frames import MAX_MESSAGE_BYTES
from parl_mq.replay.draws import draw_columns
from parl_mq.replay.limiter import NUM_WORDS, RatioLimiter
from parl_mq.replay.memory import MemoryNeed, check_memory, gib
from parl_mq.replay.settings import TableSettings
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import MAIN_TABLE

SHARED_MEMORY: Final = Path("/dev/shm")
MAKE_ATTEMPTS: Final = 10


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


def limiter(config: RunConfig, words: npt.NDArray[np.int64] | None = None) -> RatioLimiter:
    """The samples-per-insert limiter of one replay node, with its counts in a table's words."""
    return RatioLimiter(
        samples_per_insert=config.replay.samples_per_insert,
        error_band=config.error_band,
        min_live=config.replay.learning_starts,
        words=None if words is None else words[:NUM_WORDS],
        num_tables=config.replay.nodes,
    )


def check_fits(config: RunConfig, spec: TableSpec, *, reused: int = 0) -> None:
    """Refuses a run whose replay nodes, all on this machine, would not fit in memory.

    Args:
        config: of the run.
        spec: of its table.
        reused: bytes of rings that are there already, and will be gone on with.

    Raises:
        MemoryRefused: the sum and what there is.
        ConfigError: no table can be so large; or as `ring_root`.
    """
    try:
        one = table_settings(config).memory_need(spec)
    except ValueError as error:
        raise ConfigError(
            f"replay.buffer_size = {config.replay.buffer_size}: {error}; lower it, or raise replay.shards"
        ).about("replay.buffer_size", "replay.shards", "replay.fragment_length") from error
    num_nodes = config.replay.nodes
    need = MemoryNeed(num_nodes * one.num_rows, one.row_bytes, num_nodes * one.rows_bytes, num_nodes * one.tree_bytes)
    try:
        check_memory(need, ring_root(config.node), reused=reused)
    except MemoryRefused as error:
        is_from_rows = need.num_rows < 2 * config.replay.buffer_size
        shape = () if is_from_rows else ("replay.fragment_length", "replay.shards", "algorithm.n_step")
        error.about("replay.buffer_size", *shape)
        raise


def largest_insert_bytes(config: RunConfig, spec: TableSpec) -> int:
    """Of an actor's largest message: a full fragment of each environment, with the rows before and behind it."""
    around = config.algorithm.n_step + config.environment.frame_stack + 1
    return (config.largest_insert + config.actor.num_envs * around) * spec.row_bytes


def check_messages(config: RunConfig, spec: TableSpec) -> None:
    """Refuses a run of which a message would be larger than any may be.

    Raises:
        ConfigError: an actor's largest one, or a learner's batch where that is not read from the ring's files.
    """
    actor, replay, limit = config.actor, config.replay, MAX_MESSAGE_BYTES
    if (num_bytes := largest_insert_bytes(config, spec)) > limit:
        raise ConfigError(
            f"an actor's largest message, {actor.num_envs} fragments of {replay.fragment_length} steps, would have "
            f"{gib(num_bytes)}, and at most {gib(limit)} are possible; lower actor.num_envs or replay.fragment_length"
        ).about("actor.num_envs", "replay.fragment_length")
    columns = draw_columns(
        spec,
        batch_size=config.learner_batch_size,
        frame_stack=config.environment.frame_stack,
        n_step=config.algorithm.n_step,
    )
    num_bytes = sum(column.num_bytes for column in columns)
    if config.learner.mapped == "off" and num_bytes > limit:
        raise ConfigError(
            f"a batch of {config.learner_batch_size} rows would have {gib(num_bytes)}, and at most {gib(limit)} are "
            "possible in a message; lower algorithm.batch_size, or let learners read the ring with learner.mapped"
        ).about("algorithm.batch_size", "learner.mapped")


def ring_root(node: NodeConfig) -> Path:
    """The folder under which this user's rings lie: `node.ring_directory`, else a private one in shared memory.

    Raises:
        ConfigError: the private folder belongs to somebody else, or others may enter it; or the other one is not there.
    """
    if node.ring_directory is not None:
        if not node.ring_directory.is_dir():
            raise ConfigError(f"node.ring_directory: {node.ring_directory} is no folder").about("node.ring_directory")
        return node.ring_directory
    root = _private_root()
    with contextlib.suppress(FileNotFoundError):
        found = root.stat(follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(f"{root} must be a folder of this user alone; remove it, or set node.ring_directory")
    return root


def make_ring_directory(node: NodeConfig, run_id: str, name: str) -> Path:
    """The folder of one replay node's ring, which is made if it is not there.

    Raises:
        ConfigError: as `ring_root`.
        OSError: it cannot be made.
    """
    for _ in range(MAKE_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):  # the end of another run has just taken the private folder away
            return _make(node, run_id, name)
    return _make(node, run_id, name)


def remove_rings(node: NodeConfig, run_id: str, name: str = "*") -> None:
    """Removes the ring of one replay node of a run, or what all of them have left, so far as it is there."""
    for directory in ring_root(node).glob(f"{glob.escape(run_id)}-{name}"):
        shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        _private_root().rmdir()  # the last ring of this user takes the folder with it


def _make(node: NodeConfig, run_id: str, name: str) -> Path:
    if node.ring_directory is None:
        with contextlib.suppress(FileExistsError):  # whatever it is, `ring_root` looks at it
            _private_root().mkdir(mode=0o700)
    directory = ring_root(node) / f"{run_id}-{name}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _private_root() -> Path:
    return SHARED_MEMORY / f"parl-mq-{os.getuid()}"
