"""A run's ring, looked at and moved to another machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import ConfigError, SnapshotError
from parl_mq.replay.inspection import RingFigures, inspect_ring
from parl_mq.replay.ring_files import differing
from parl_mq.replay.ring_view import RingView
from parl_mq.replay.settings import TableSettings
from parl_mq.replay.snapshot import open_snapshot
from parl_mq.replay.table import Table
from parl_mq.services.rings import (
    NODE,
    RUN_DIRECTORY,
    RUN_ID,
    FoundRing,
    keys_of,
    ring_of_run,
    values_in_words,
)
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.tables import make_ring_directory, table_settings
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import MAIN_TABLE

FIRST_NODE: Final = "replay-0"


@dataclass(frozen=True, slots=True)
class Inspection:
    """A ring and its figures.

    Attributes:
        ring: where it lies, and whose it is.
        is_in_use: a process holds it open.
        figures: of what it holds.
    """

    ring: FoundRing
    is_in_use: bool
    figures: RingFigures


@dataclass(frozen=True, slots=True)
class Moved:
    """What a snapshot or a restoration came to.

    Attributes:
        path: of the snapshot, or the folder of the ring.
        num_live: live rows in it.
        num_left_out: physical rows that were overwritten before they were copied.
        num_bytes: that it takes.
        duration_s: that it took.
    """

    path: Path
    num_live: int
    num_left_out: int
    num_bytes: int
    duration_s: float


def inspect_run(directory: RunDirectory, node: NodeConfig, *, name: str | None, num_top: int) -> Inspection:
    """Reads the ring of a run's replay node, which goes on meanwhile.

    Args:
        directory: of the run.
        node: says where rings lie.
        name: of the replay node, where there are several.
        num_top: rows of the largest priorities that are told.

    Raises:
        ConfigError, SnapshotError: as `ring_of_run`.
        RingRefused: it is damaged.
    """
    ring = ring_of_run(node, directory, name)
    with RingView(ring.path, MAIN_TABLE) as view:
        return Inspection(ring, ring.is_in_use, inspect_ring(view, num_top=num_top))


def snapshot_run(directory: RunDirectory, node: NodeConfig, path: Path, *, name: str | None) -> Moved:
    """Writes the ring of a run's replay node into one file; neither inserts nor draws wait for it.

    Args:
        directory: of the run.
        node: says where rings lie.
        path: replaced if it exists, when all is written.
        name: of the replay node, where there are several.

    Raises:
        ConfigError: as `ring_of_run`, or the file cannot be written.
        SnapshotError: the run's memory is damaged.
        RingRefused: the ring is damaged.
    """
    started_at = time.monotonic()
    ring = ring_of_run(node, directory, name)
    with RingView(ring.path, MAIN_TABLE) as view:
        try:
            num_left_out = view.save(path, view.description.labels)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        num_live = sum(shard.num_live for shard in view.shards())
    return Moved(path, num_live, num_left_out, path.stat().st_size, time.monotonic() - started_at)


def restore_run(directory: RunDirectory, config: RunConfig, path: Path, *, name: str | None, fresh: bool) -> Moved:
    """Makes a run's ring of a snapshot, for `train --resume` to go on with.

    Args:
        directory: of the run, which no command may be running.
        config: of the run.
        path: of the snapshot.
        name: of the replay node; None: the first.
        fresh: a ring that is there is replaced.

    Raises:
        ConfigError: the run has not begun, or its table has other settings or columns than the snapshot's.
        SnapshotError: the snapshot or the run's memory is damaged.
        RingRefused: there is a ring already, or it is in use.
        MemoryRefused: it does not fit.
        CodedError: another command runs in the directory.
    """
    started_at = time.monotonic()
    with directory.held():
        memory = directory.read_memory()
        if not memory.run_id:
            raise ConfigError(f"the run in {directory.path} has not begun; copy its directory from the other machine")
        own = open_snapshot(path).metadata.get("table", {})
        _check_settings(path, own, config)
        _check_columns(path, own, memory.spec)
        name = name or FIRST_NODE
        table, _ = Table.load(
            path,
            directory=make_ring_directory(config.node, memory.run_id, name),
            fresh=fresh,
            labels={RUN_ID: memory.run_id, NODE: name, RUN_DIRECTORY: str(directory.path.absolute())},
        )
        num_live, num_bytes = table.num_live, table.num_bytes
        table.close(remove=False)
        ring = ring_of_run(config.node, directory, name)
    return Moved(ring.path, num_live, 0, num_bytes, time.monotonic() - started_at)


def _check_settings(path: Path, own: Mapping[str, Any], config: RunConfig) -> None:
    wanted = table_settings(config)
    try:
        found = TableSettings(**own["settings"])
    except (KeyError, ValueError, TypeError) as error:
        raise SnapshotError(f"{path}: it does not describe a table: {error}") from error
    if names := differing(found, wanted):
        stored, others = (", ".join(values_in_words(settings, names)) for settings in (found, wanted))
        raise ConfigError(f"{path}: its rows were stored with {stored}; the run has {others}").about(*keys_of(names))


def _check_columns(path: Path, own: Mapping[str, Any], spec: Mapping[str, Any] | None) -> None:
    if spec is None:
        return
    try:
        digest = TableSpec.from_wire(own["columns"], own["spaces"]).digest
    except (KeyError, ValueError, TypeError) as error:
        raise SnapshotError(f"{path}: it does not describe a table: {error}") from error
    if digest != spec["digest"]:
        raise ConfigError(f"{path}: its columns are not those of the run: another environment or algorithm")
