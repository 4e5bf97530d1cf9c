"""The run directory, and what a run remembers."""

import errno
import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from parl_mq.config.loader import load_config
from parl_mq.errors import EXIT_TEMPORARY, CodedError, ConfigError, DiskError, RecordError, SnapshotError
from parl_mq.services import run_directory
from parl_mq.services.files import append_line, write_atomically
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.run_memory import RunMemory
from tests.services.builders import small_config


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "runs" / "one", small_config())


def test_a_new_run_has_its_folders_and_its_settings_which_load_back(directory):
    assert directory.logs.is_dir()
    assert directory.checkpoints.is_dir()
    loaded = load_config(directory.config, environ={})
    assert loaded.model_copy(update={"preset": "cartpole-dqn"}) == small_config()


def test_an_existing_directory_is_refused_and_left_alone(directory):
    before = sorted(directory.path.rglob("*"))
    with pytest.raises(
        ConfigError, match=r"exists already; .* --run-dir, or go on with it: `parl-mq train .* --resume`"
    ):
        RunDirectory.create(directory.path, small_config())
    assert sorted(directory.path.rglob("*")) == before


def test_one_command_at_a_time_runs_in_a_directory(directory):
    again = RunDirectory.open(directory.path)
    refusal = pytest.raises(CodedError, match="another command is training in")
    with directory.held(), refusal as refused, again.held():
        raise AssertionError("both ran")
    assert refused.value.code == EXIT_TEMPORARY
    with directory.held():
        pass


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        RunDirectory.create(tmp_path / "file" / "run", small_config())


FULL = Path("/dev/full")
"""A file on a full disk."""


def test_a_full_disk_is_told_by_the_name_of_the_file_and_leaves_no_part(tmp_path, monkeypatch):
    (tmp_path / "lines").symlink_to(FULL)
    with pytest.raises(DiskError, match=r"lines cannot be written: No space left on device"):
        append_line(tmp_path / "lines", "{}")
    open_file = os.open

    def open_on_full_disk(name, flags, mode=0o777):
        os.close(open_file(name, flags, mode))
        return open_file(FULL, os.O_WRONLY)

    monkeypatch.setattr(os, "open", open_on_full_disk)
    with pytest.raises(DiskError, match=r"text cannot be written: No space left on device"):
        write_atomically(tmp_path / "text", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def test_a_line_of_which_the_disk_took_a_part_is_taken_back(tmp_path):
    path = tmp_path / "lines"
    append_line(path, "first")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(RecordError, match="File too large"):
            append_line(path, "second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    append_line(path, "third")
    assert path.read_text() == "first\nthird\n"


def test_a_directory_into_which_nothing_can_be_written_is_not_left_behind(tmp_path, monkeypatch):
    def refuse(path, text):
        raise RecordError(f"{path} cannot be written")

    monkeypatch.setattr(run_directory, "write_atomically", refuse)
    with pytest.raises(RecordError, match=r"config\.toml cannot be written"):
        RunDirectory.create(tmp_path / "run", small_config())
    assert list(tmp_path.iterdir()) == []


def test_only_a_run_directory_is_opened_again(directory, tmp_path):
    directory.logs.rmdir()
    assert RunDirectory.open(directory.path).logs.is_dir()
    with pytest.raises(ConfigError, match="no run directory"):
        RunDirectory.open(tmp_path)


def test_metrics_are_one_json_object_a_line(directory):
    directory.append_metrics({"kind": "figures", "loss": 0.5})
    directory.append_metrics({"kind": "evaluation"})
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["figures", "evaluation"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_number_is_written_that_json_does_not_know(directory, value):
    with pytest.raises(ValueError, match="JSON"):
        directory.append_metrics({"loss": value})
    assert not (directory.path / "metrics.jsonl").exists() or (directory.path / "metrics.jsonl").read_text() == ""


def test_a_summary_is_read_back_and_can_be_forgotten(directory):
    assert directory.read_summary() is None
    directory.write_summary({"reached": True})
    assert directory.read_summary() == {"reached": True}
    directory.forget_summary()
    directory.forget_summary()
    assert directory.read_summary() is None


def test_a_run_remembers_what_was_written(directory):
    assert directory.read_memory() == RunMemory()
    memory = RunMemory(
        run_id="a1",
        totals={"env_steps_total": 5.0},
        recent_returns=(1.0, 2.0),
        eval_return=3.0,
        spec={"columns": [], "spaces": {"obs": ["Box", [float("-inf")], [float("inf")]]}},
    )
    directory.write_memory(memory)
    assert directory.read_memory() == memory


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2}', '{"format": 99}', '{"format": 2, "generation": 1, "surplus": 2}']
)
def test_a_damaged_memory_is_refused_by_its_path(directory, text):
    path = directory.path / "hub.json"
    path.write_text(text)
    with pytest.raises(SnapshotError, match=r"hub\.json"):
        directory.read_memory()


def test_lost_counters_of_a_run_that_has_begun_are_refused(directory):
    (directory.checkpoints / "updates-000000000100").mkdir()
    with pytest.raises(SnapshotError, match=r"hub\.json is missing beside checkpoints"):
        directory.read_memory()


def test_a_file_is_replaced_whole_and_leaves_no_other_behind(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])


def test_failures_are_read_back_in_their_order(directory):
    assert directory.read_failures() == []
    for number in range(3):
        directory.append_failure({"node": "actor-0", "restart": number})
    assert [row["restart"] for row in directory.read_failures()] == [0, 1, 2]


def test_the_hubs_endpoint_is_there_while_it_listens(directory):
    directory.write_endpoint("ipc:///hub")
    assert directory.read_endpoint() == "ipc:///hub"
    directory.forget_endpoint()
    directory.forget_endpoint()
    assert directory.read_endpoint() is None


def test_a_run_that_came_to_its_end_by_itself_is_marked(directory):
    directory.write_summary({"interrupted": True, "error": None})
    directory.note_end()
    assert not (directory.path / "finished").exists()
    directory.write_summary({"interrupted": False, "error": None})
    directory.note_end()
    assert (directory.path / "finished").exists()
    directory.forget_summary()
    assert not (directory.path / "finished").exists()


def test_a_hub_that_was_cut_off_left_its_start_to_the_next(directory):
    assert directory.cut_off_start() is None
    directory.write_memory(RunMemory(run_id="a1", started_at=5.0, phase="training"))
    assert directory.cut_off_start() == 5.0


@pytest.mark.parametrize(
    ("phase", "interrupted", "start"), [("done", False, None), ("stopping", True, None), ("stopping", False, 5.0)]
)
def test_an_end_that_was_asked_for_is_not_gone_on_with(directory, phase, interrupted, start):
    stop = {"reason": "signal SIGTERM", "interrupted": interrupted, "error": None}
    directory.write_memory(RunMemory(run_id="a1", started_at=5.0, phase=phase, stop=stop))
    assert directory.cut_off_start() == start


def test_a_start_before_the_machine_was_started_is_over(directory):
    directory.write_memory(RunMemory(run_id="a1", started_at=5.0, phase="training"))
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    os.utime(directory.path / "hub.json", (booted_at - 60, booted_at - 60))
    assert directory.cut_off_start() is None


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskError), (errno.EROFS, DiskError), (errno.EACCES, ConfigError)]
)
def test_a_disk_that_is_full_or_read_only_is_no_wrong_setting(tmp_path, monkeypatch, number, kind):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind, match="cannot be made"):
        RunDirectory.create(tmp_path / "run", small_config())


def test_a_run_on_a_disk_that_became_read_only_can_be_gone_on_with(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path / "run", small_config())

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)  # as a read-only disk does, whether the file is there or not
    RunDirectory.reopen(directory.path, small_config()).forget_summary()


def test_a_missing_folder_is_no_fault_of_the_disk(tmp_path):
    with pytest.raises(RecordError, match="No such file") as caught:
        append_line(tmp_path / "no" / "x", "x")
    assert not isinstance(caught.value, DiskError)


def test_a_run_to_go_on_with_is_compared_with_what_its_file_says_whatever_the_environment_says(directory, monkeypatch):
    monkeypatch.setenv("PARL_MQ_SEED", "5")
    other = small_config().model_copy(update={"seed": 5})
    with pytest.raises(ConfigError, match=r"other settings: seed = 1 ") as refused:
        RunDirectory.reopen(directory.path, other)
    assert refused.value.keys == ("seed",)


def test_the_lock_lasts_while_a_copy_of_it_is_open_and_goes_with_the_block(directory):
    with directory.held():
        copy = os.dup(directory.lock_fd)
    with directory.held():  # in order, copies do not matter
        pass
    os.close(copy)
    assert directory.lock_fd is None
