"""Rings that outlive their processes: where those of a run lie, what they hold, and which nobody will ask for again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parl_mq.config.loader import load_config
from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import ConfigError, RingRefused, SnapshotError
from parl_mq.replay.memory import mib
from parl_mq.replay.ring_files import RingDescription, description_path, differing
from parl_mq.replay.ring_view import RingView
from parl_mq.replay.settings import TableSettings
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.socket_folders import locked
from parl_mq.services.tables import ring_root, table_settings
from parl_mq.wire.messages import MAIN_TABLE

RUN_ID: Final = "run_id"
RUN_DIRECTORY: Final = "run_directory"
NODE: Final = "node"
"""Labels of a ring."""
_KEYS: Final = {
    "capacity": ("replay.buffer_size", "replay.nodes"),
    "kind": ("replay.kind",),
    "alpha": ("replay.alpha",),
    "eps": ("replay.eps",),
    "n_step": ("algorithm.n_step",),
    "frame_stack": ("environment.frame_stack",),
    "fragment_length": ("replay.fragment_length",),
    "num_shards": ("replay.shards",),
    "arity": ("replay.tree_arity",),
}
"""Settings of a run by those of a table; a table's capacity is the first by the second."""
_LOCKS: Final = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class FoundRing:
    """A replay node's folder below the ring root.

    Attributes:
        path: the folder.
        description: of its main table's ring; None where it is missing or damaged.
    """

    path: Path
    description: RingDescription | None

    @property
    def num_bytes(self) -> int:
        """That it takes."""
        return sum(path.stat().st_blocks * 512 for path in self.path.rglob("*") if path.is_file())

    @property
    def is_in_use(self) -> bool:
        """Whether a process holds it open; asked without touching the lock."""
        status = self.path.stat()
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        return any(file in line.split() for line in _LOCKS.read_text().splitlines())

    @property
    def run_directory(self) -> Path | None:
        """The run that it belongs to, as far as it says so."""
        label = None if self.description is None else self.description.labels.get(RUN_DIRECTORY)
        return Path(label) if label else None

    def num_live(self) -> int:
        """Live rows that it holds.

        Raises:
            RingRefused: it is damaged.
        """
        with RingView(self.path, MAIN_TABLE) as view:
            return sum(shard.num_live for shard in view.shards())


def rings_of_run(node: NodeConfig, run_id: str) -> list[FoundRing]:
    """The rings of a run on this machine, by the name of their node."""
    return [ring for ring in _all_rings(node) if ring.path.name.startswith(f"{run_id}-")] if run_id else []


def ring_of_run(node: NodeConfig, directory: RunDirectory, name: str | None = None) -> FoundRing:
    """The ring of a run's replay node.

    Args:
        node: says where rings lie.
        directory: of the run.
        name: of the replay node, where there are several.

    Raises:
        ConfigError: there is none, or there are several and none is named.
        SnapshotError: the run's memory is damaged.
    """
    found = rings_of_run(node, directory.read_memory().run_id)
    chosen = [ring for ring in found if name is None or ring.path.name.partition("-")[2] == name]
    if not chosen:
        of_name = f"of {name} " if name else ""
        raise ConfigError(
            f"no ring {of_name}of the run in {directory.path} lies in {ring_root(node)}: it goes when the run is done, "
            "and with a reboot where it lies in memory (see node.ring_directory)"
        )
    if len(chosen) > 1:
        names = ", ".join(ring.path.name.partition("-")[2] for ring in chosen)
        raise ConfigError(f"the run in {directory.path} has several replay nodes, {names}: choose one by --name")
    return chosen[0]


def check_rings(config: RunConfig, directory: RunDirectory) -> None:
    """Refuses settings with which the rings of a run to be resumed cannot be used.

    Args:
        config: with which it is to go on.
        directory: of the run; the settings of its earlier start are still there.

    Raises:
        ConfigError: names them, their earlier values and the ring.
    """
    settings, earlier = table_settings(config), load_config(directory.config, environ={})
    for ring in rings_of_run(config.node, directory.read_memory().run_id):
        if ring.description is not None and (names := differing(ring.description.settings, settings)):
            keys = [key for key in keys_of(names) if earlier.value_of(key) != config.value_of(key)]
            told = [f"{key} = {earlier.value_of(key)!r}" for key in keys] or values_in_words(
                ring.description.settings, names
            )
            raise ConfigError(
                f"the rows that this run goes on with were stored with other settings: {', '.join(told)}; give the "
                f"same ones, or remove {ring.path} to begin with an empty replay"
            ).about(*(keys or keys_of(names)))


def keys_of(names: Sequence[str]) -> list[str]:
    """The settings of a run that settings of its tables come from."""
    return [key for name in names for key in _KEYS.get(name, ())]


def values_in_words(settings: TableSettings, names: Sequence[str]) -> list[str]:
    """Values of a table's settings, each by the settings of a run that it comes from."""
    return [f"{' / '.join(_KEYS.get(name, (name,)))} = {getattr(settings, name)!r}" for name in names]


def sweep(node: NodeConfig, *, but: str) -> Iterator[str]:
    """Removes the rings of runs that are over or gone, and tells of others that no process uses.

    A ring goes only if nobody holds it, and its run has come to its end or its run directory is not there any more.

    Args:
        node: says where rings lie.
        but: id of a run whose rings are not looked at.

    Yields:
        A line for people about each ring that was removed, and one about all that may be.
    """
    kept: list[FoundRing] = []
    for ring in _all_rings(node):
        if ring.path.name.startswith(f"{but}-") or ring.is_in_use:
            continue
        if why := _why_over(ring):
            size = mib(ring.num_bytes)
            with locked(ring.path) as is_ours:
                if is_ours:
                    shutil.rmtree(ring.path, ignore_errors=True)
                    yield f"removed {ring.path}, {size}: {why}"
        else:
            kept.append(ring)
    if kept:
        size = mib(sum(ring.num_bytes for ring in kept))
        yield f"rings kept for runs that may be resumed: {len(kept)}, {size}; `parl-mq doctor` lists them"


def unused_rings(node: NodeConfig) -> Iterator[tuple[Path, str]]:
    """Folders of rings that no process uses, each with its size and what it is kept for, in words."""
    for ring in _all_rings(node):
        if not ring.is_in_use:
            run = f"for {ring.run_directory} to be resumed" if ring.run_directory else "for a run that is not named"
            yield ring.path, f"keeps {mib(ring.num_bytes)} {run}"


def _all_rings(node: NodeConfig) -> Iterator[FoundRing]:
    root = ring_root(node)
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            yield FoundRing(path, _description(path))


def _description(path: Path) -> RingDescription | None:
    try:
        return RingDescription.read(description_path(path, MAIN_TABLE))
    except RingRefused:
        return None


def _why_over(ring: FoundRing) -> str | None:
    """Why nobody will ask for a ring again; None where somebody may."""
    if ring.description is None:
        return None if any(ring.path.iterdir()) else "it was never made"
    if (run := ring.run_directory) is None:
        return None
    directory = RunDirectory(run)
    if not directory.config.is_file():
        return f"its run directory {run} is gone"
    try:
        memory, is_done = directory.read_memory(), directory.is_done()
    except (SnapshotError, ValueError):
        return None
    if memory.run_id and memory.run_id != ring.description.labels.get(RUN_ID):
        return f"{run} holds another run now"
    return f"its run in {run} is done" if is_done else None
