"""Checkpoints: directories that are complete or not there, checked by hash; torch-free.

A directory `updates-000000012345` holds `weights.safetensors` (what a policy needs), `trainer.safetensors` (what a
learner needs besides), `state.json`, and `manifest.json` with the SHA-256 of each. It is written under a temporary
name, synced and renamed. `best` is a link to a directory of the same kind, without the trainer.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, NonNegativeInt, ValidationError

from parl_mq.errors import SnapshotError
from parl_mq.model.snapshot import digest_of
from parl_mq.replay.durable import sync_directory

FORMAT: Final = 1
"""Grows with every change after which older readers would go wrong."""

BEST: Final = "best"
_MANIFEST: Final = "manifest.json"
_STATE: Final = "state.json"
_WEIGHTS: Final = "weights.safetensors"
_TRAINER: Final = "trainer.safetensors"
_UNFINISHED: Final = ".unfinished-"
_ABANDONED_S: Final = 600.0
"""An unfinished one to which nothing was added for so long is that of a writer that is gone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one directory holds.

    Attributes:
        updates: learner updates in it.
        weights: safetensors of the policy's weights.
        trainer: safetensors of the trainer's state; None where only a policy was kept.
        values: plain JSON values beside them.
    """

    updates: int
    weights: bytes
    trainer: bytes | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """All of it in one piece, for another process; `from_bytes` takes it back."""
        trainer = b"" if self.trainer is None else self.trainer
        sizes = [len(self.weights), None if self.trainer is None else len(trainer)]
        head = json.dumps({"updates": self.updates, "values": dict(self.values), "sizes": sizes}).encode()
        return len(head).to_bytes(8, "little") + head + self.weights + trainer

    @classmethod
    def from_bytes(cls, payload: bytes) -> Checkpoint:
        """What `to_bytes` was made of.

        Raises:
            SnapshotError: the bytes are damaged.
        """
        start = 8 + int.from_bytes(payload[:8], "little")
        try:
            head = json.loads(payload[8:start])
            num_weights, num_trainer = head["sizes"]
            weights, trainer = payload[start : start + num_weights], payload[start + num_weights :]
            if len(weights) != num_weights or len(trainer) != (num_trainer or 0):
                raise ValueError(f"{len(payload)} bytes are not as many as the head says")
            return cls(head["updates"], weights, None if num_trainer is None else trainer, head["values"])
        except (ValueError, KeyError, TypeError) as exc:
            raise SnapshotError(f"the state that another learner sent is damaged: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Found:
    """What a search for the newest checkpoint found.

    Attributes:
        checkpoint: the newest one that is whole; None when there is none.
        path: where it lies.
        damaged: what is wrong with those that are newer.
    """

    checkpoint: Checkpoint | None
    path: Path | None
    damaged: tuple[SnapshotError, ...]


def save(root: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes the checkpoint and removes all but the `keep` newest. Several processes may do so under `root` at a time.

    Newer ones that are damaged are removed too: the run went on from an older one because of them. Those that are whole
    are further than this one, and stay.

    Returns:
        Its directory.

    Raises:
        SnapshotError: it could not be written; the message has the path and the reason. The older ones are as before.
    """
    with _os_errors_named(root):
        path = _write(root, f"updates-{checkpoint.updates:012d}", checkpoint)
        numbered = _numbered(root)
        damaged = [other for other in numbered if other > path and not _is_whole(other)]
        others = [other for other in numbered if other < path]
        _remove(*damaged, *others[: max(0, len(others) + 1 - keep)])
    return path


def save_best(root: Path, checkpoint: Checkpoint) -> Path:
    """Writes the checkpoint and makes `best` point at it: a reader sees the old one or the new one.

    One process at a time may do so under `root`; another may call `save` meanwhile.

    Raises:
        SnapshotError: as `save`.
    """
    with _os_errors_named(root):
        path = _write(root, f"{BEST}-{checkpoint.updates:012d}", checkpoint)
        link = root / f"{_UNFINISHED}{BEST}"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        link.replace(root / BEST)
        sync_directory(root)
        _remove(*(other for other in root.glob(f"{BEST}-*") if other != path))
    return path


def load(path: Path) -> Checkpoint:
    """Reads one directory and checks every byte of it.

    Raises:
        SnapshotError: it is incomplete, damaged or of another format; the message names the file.
    """
    manifest = _parse(_Manifest, path / _MANIFEST, _read(path / _MANIFEST))
    if manifest.format != FORMAT:
        raise SnapshotError(f"{path}: its format is {manifest.format}, this version reads {FORMAT}")
    state = _parse(_State, path / _STATE, _read_checked(path / _STATE, manifest))
    weights = _read_checked(path / _WEIGHTS, manifest)
    trainer = _read_checked(path / _TRAINER, manifest) if _TRAINER in manifest.files else None
    return Checkpoint(state.updates, weights, trainer, state.values)


def find_newest(root: Path) -> Found:
    """The newest whole checkpoint under `root`, which need not exist; `best` does not count."""
    damaged: list[SnapshotError] = []
    for path in reversed(_numbered(root)):
        try:
            return Found(load(path), path, tuple(damaged))
        except SnapshotError as exc:
            damaged.append(exc)
    return Found(None, None, tuple(damaged))


class _Manifest(BaseModel):
    format: int
    files: dict[str, str]


class _State(BaseModel):
    updates: NonNegativeInt
    values: dict[str, Any]


_Json = TypeVar("_Json", bound=BaseModel)


def _is_whole(path: Path) -> bool:
    try:
        load(path)
    except SnapshotError:
        return False
    return True


def _numbered(root: Path) -> list[Path]:
    return sorted(root.glob("updates-*"))


def _write(root: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Everything or nothing; never in the place of another one, so that no moment is without a whole one."""
    root.mkdir(parents=True, exist_ok=True)
    _remove(*(path for path in root.glob(f"{_UNFINISHED}{name.partition('-')[0]}-*") if _is_abandoned(path)))
    unfinished = root / f"{_UNFINISHED}{name}.{secrets.token_hex(4)}"
    unfinished.mkdir()
    try:
        _write_files(unfinished, checkpoint)
        path = next(path for path in _names_for(root / name) if _has_become(unfinished, path))
    except (OSError, ValueError):
        _remove(unfinished)
        raise
    sync_directory(root)
    return path


def _is_abandoned(unfinished: Path) -> bool:
    with suppress(FileNotFoundError):  # its writer was faster
        return time.time() - unfinished.stat().st_mtime > _ABANDONED_S
    return False


def _names_for(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{again:03d}") for again in count(1))


def _has_become(unfinished: Path, path: Path) -> bool:
    """Whether it has that name now; False where another one has it, which another process may give it just now."""
    try:
        unfinished.rename(path)
    except OSError as exc:
        if exc.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    files = {_WEIGHTS: checkpoint.weights}
    if checkpoint.trainer is not None:
        files[_TRAINER] = checkpoint.trainer
    files[_STATE] = _to_json({"updates": checkpoint.updates, "values": checkpoint.values})
    digests = {name: digest_of(content) for name, content in files.items()}
    files[_MANIFEST] = _to_json({"format": FORMAT, "files": digests})
    for name, content in files.items():
        with open(directory / name, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    sync_directory(directory)


def _to_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, allow_nan=False, indent=1, sort_keys=True).encode()


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            with suppress(FileNotFoundError):  # another process removes it too
                shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _parse(model: type[_Json], path: Path, content: bytes) -> _Json:
    try:
        return model.model_validate_json(content)
    except ValidationError as exc:
        raise SnapshotError(f"{path} is damaged: {exc}") from exc


def _read(path: Path) -> bytes:
    with _os_errors_named(path):
        return path.read_bytes()


def _read_checked(path: Path, manifest: _Manifest) -> bytes:
    content = _read(path)
    expected = manifest.files.get(path.name)
    if digest_of(content) != expected:
        raise SnapshotError(f"{path} is damaged: its SHA-256 is not {expected}, as the manifest says")
    return content


@contextmanager
def _os_errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise SnapshotError(f"checkpoint {path}: {exc}") from exc
