"""A checkpoint is whole or not there, and the newest whole one is found."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from parl_mq.errors import SnapshotError
from parl_mq.learn import checkpoint as checkpoints
from parl_mq.learn.checkpoint import Checkpoint, find_newest, load, save, save_best

FILES = ("manifest.json", "state.json", "trainer.safetensors", "weights.safetensors")


def _checkpoint(updates: int) -> Checkpoint:
    return Checkpoint(updates, b"weights %d" % updates, b"trainer %d" % updates, {"nested": {"count": 3, "rate": 0.1}})


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = save(tmp_path / "not" / "yet", _checkpoint(7), keep=3)
    assert sorted(os.listdir(path)) == sorted(FILES)
    assert load(path) == _checkpoint(7)
    assert find_newest(tmp_path / "not" / "yet") == checkpoints.Found(_checkpoint(7), path, ())


def test_there_is_none_where_nothing_was_saved(tmp_path: Path) -> None:
    assert find_newest(tmp_path / "missing") == checkpoints.Found(None, None, ())


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_stay(tmp_path: Path, keep: int) -> None:
    for updates in (9, 10, 100, 1_000):
        save(tmp_path, _checkpoint(updates), keep=keep)
    assert _names(tmp_path) == [f"updates-{updates:012d}" for updates in (9, 10, 100, 1_000)[-keep:]]
    assert find_newest(tmp_path).checkpoint == _checkpoint(1_000)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_damaged_one_is_named_and_the_one_before_is_taken(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path, _checkpoint(1), keep=3)
    damaged = save(tmp_path, _checkpoint(2), keep=3) / name
    content = damaged.read_bytes()
    match damage:
        case "missing":
            damaged.unlink()
        case "truncated":
            damaged.write_bytes(content[:-1])
        case _:
            damaged.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(SnapshotError, match=name):
        load(damaged.parent)
    found = find_newest(tmp_path)
    assert found.checkpoint == _checkpoint(1)
    assert [name in str(error) for error in found.damaged] == [True]


def test_saving_after_a_resume_removes_the_damaged_newer_one(tmp_path: Path) -> None:
    save(tmp_path, _checkpoint(10), keep=1)
    (tmp_path / "updates-000000000500").mkdir()
    save(tmp_path, _checkpoint(20), keep=1)
    assert _names(tmp_path) == ["updates-000000000020"]


def test_a_newer_one_that_is_whole_stays_and_is_the_newest(tmp_path: Path) -> None:
    save(tmp_path, _checkpoint(2000), keep=1)
    save(tmp_path, _checkpoint(500), keep=1)
    save(tmp_path, _checkpoint(600), keep=1)
    assert _names(tmp_path) == ["updates-000000000600", "updates-000000002000"]
    assert find_newest(tmp_path).checkpoint == _checkpoint(2000)


def test_same_update_saved_again_never_leaves_a_moment_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(tmp_path, _checkpoint(5), keep=1)
    whole_at_removal = []
    remove = checkpoints._remove

    def watched(*paths: Path) -> None:
        whole_at_removal.append(find_newest(tmp_path).checkpoint == _checkpoint(5))
        remove(*paths)

    monkeypatch.setattr(checkpoints, "_remove", watched)
    second = save(tmp_path, _checkpoint(5), keep=1)
    assert second != first
    assert all(whole_at_removal)
    assert _names(tmp_path) == [second.name]


@pytest.mark.parametrize("calls_until_kill", range(8))
def test_kill_in_the_middle_of_saving_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_until_kill: int
) -> None:
    class Killed(BaseException):
        pass

    save(tmp_path, _checkpoint(1), keep=1)
    calls = iter(range(100))
    fsync = os.fsync

    def fsync_or_die(descriptor: int) -> None:
        if next(calls) == calls_until_kill:
            raise Killed
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync_or_die)
        with suppress(Killed):
            save(tmp_path, _checkpoint(2), keep=1)
    assert find_newest(tmp_path).checkpoint in (_checkpoint(1), _checkpoint(2))
    assert find_newest(tmp_path).damaged == ()
    monkeypatch.setattr(checkpoints, "_ABANDONED_S", -1.0)  # what it left there is old
    save(tmp_path, _checkpoint(3), keep=1)
    assert _names(tmp_path) == ["updates-000000000003"]


def test_another_process_may_save_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files = checkpoints._write_files

    def while_another_saves(directory: Path, checkpoint: Checkpoint) -> None:
        monkeypatch.setattr(checkpoints, "_write_files", write_files)
        write_files(directory, checkpoint)
        save(tmp_path, _checkpoint(5), keep=1)

    monkeypatch.setattr(checkpoints, "_write_files", while_another_saves)
    path = save(tmp_path, _checkpoint(5), keep=1)
    assert _names(tmp_path) == [path.name] == ["updates-000000000005-001"]


def test_another_process_may_remove_what_is_saved_and_removed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, _checkpoint(1), keep=1)
    sync = checkpoints.sync_directory

    def while_another_saves(directory: Path) -> None:
        sync(directory)
        if directory == tmp_path:
            monkeypatch.setattr(checkpoints, "sync_directory", sync)
            save(tmp_path, _checkpoint(9), keep=1)

    monkeypatch.setattr(checkpoints, "sync_directory", while_another_saves)
    save(tmp_path, _checkpoint(5), keep=1)
    assert _names(tmp_path) == ["updates-000000000009"]


def test_another_process_may_remove_the_same_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, _checkpoint(1), keep=1)
    rmtree = shutil.rmtree

    def twice(path: Path) -> None:
        rmtree(path)
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", twice)
    save(tmp_path, _checkpoint(2), keep=1)
    assert _names(tmp_path) == ["updates-000000000002"]


def test_full_disk_is_told_and_leaves_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, _checkpoint(1), keep=1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match="No space left"):
        save(tmp_path, _checkpoint(2), keep=1)
    assert _names(tmp_path) == ["updates-000000000001"]
    assert find_newest(tmp_path).checkpoint == _checkpoint(1)


def test_values_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, Checkpoint(1, b"", values={"loss": float("nan")}), keep=1)
    assert find_newest(tmp_path).checkpoint is None


def test_other_format_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, _checkpoint(1), keep=1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(SnapshotError, match="format is 2, this version reads 1"):
        load(path)


def test_best_stays_and_changes_beside_the_numbered_ones(tmp_path: Path) -> None:
    best = Checkpoint(1, b"policy", values={"mean_return": 100.0})
    save_best(tmp_path, best)
    for updates in (2, 3):
        save(tmp_path, _checkpoint(updates), keep=1)
    assert load(tmp_path / "best") == best
    assert find_newest(tmp_path).checkpoint == _checkpoint(3)
    better = Checkpoint(3, b"better policy", values={"mean_return": 200.0})
    save_best(tmp_path, better)
    assert load(tmp_path / "best") == better
    assert _names(tmp_path) == ["best", "best-000000000003", "updates-000000000003"]


def test_checkpoints_load_without_torch() -> None:
    script = "import sys, parl_mq.learn.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("trainer", [b"moments", b"", None])
def test_a_checkpoint_in_one_piece_is_the_same_again(trainer: bytes | None) -> None:
    checkpoint = Checkpoint(7, b"weights", trainer, {"trainer": {"noise": {"state": 2**127 + 1}}})
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@pytest.mark.parametrize("cut", [0, 4, 30, -1])
def test_a_piece_of_a_checkpoint_is_refused(cut: int) -> None:
    payload = Checkpoint(7, b"weights", b"moments", {}).to_bytes()
    with pytest.raises(SnapshotError, match="the state that another learner sent is damaged"):
        Checkpoint.from_bytes(payload[:cut])
