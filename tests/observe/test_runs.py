"""Run directories: found, and judged."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_mq.errors import EXIT_NOT_ALLOWED, CodedError, RecordError, UsageError
from parl_mq.observe.runs import SILENT_AFTER_S, find_runs, read_run, read_settings
from tests.observe.recorded import RISING, figures, record, record_ended, written_at

NOW = 2e9


def test_runs_are_found_at_and_below_a_folder(tmp_path: Path) -> None:
    for name in ["a", "study/b", "study/deep/c"]:
        record(tmp_path / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.toml").write_text("")
    assert find_runs(tmp_path) == [tmp_path / name for name in ["a", "study/b", "study/deep/c"]]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(UsageError, match="no such directory"):
        find_runs(tmp_path / "nowhere")


def test_ended_run_is_what_its_summary_says(tmp_path: Path) -> None:
    run = read_run(record_ended(tmp_path / "run", RISING, "seed=7").path, NOW)
    assert (run.state, run.reached, run.seed, run.env_id) == ("done", True, 7, "CartPole-v1")
    assert (run.eval_return, run.env_steps, run.time_to_target_s) == (490.0, 3_000, 3.5)


@pytest.mark.parametrize(
    ("summary", "state"), [({}, "done"), ({"interrupted": True}, "interrupted"), ({"error": "actor-0 ended"}, "failed")]
)
def test_summary_decides_the_state(tmp_path: Path, summary: dict[str, object], state: str) -> None:
    assert read_run(record_ended(tmp_path / "run", **summary).path, NOW).state == state


def test_run_without_a_summary_goes_on_while_it_writes_or_a_command_runs_in_it(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", ends=False)
    written = written_at(directory)
    going, later = read_run(directory.path, written + 1), written + SILENT_AFTER_S + 1
    assert (going.state, going.error) == ("running", None)
    with directory.held():
        assert read_run(directory.path, later).state == "running"
    dead = read_run(directory.path, later)
    assert dead.state == "failed"
    assert re.match(r"presumed dead since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", dead.error or "")
    assert (dead.error or "").endswith(f"`parl-mq train {directory.config} --run-dir {directory.path} --resume`")
    assert (going.env_steps, going.eval_return, going.time_to_target_s) == (3_010, 490.0, 3.5)


def test_run_that_has_just_begun_is_running(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", [], ends=False)
    run = read_run(directory.path, directory.path.stat().st_mtime)
    assert (run.state, run.reached, run.eval_return, run.env_steps) == ("running", False, None, 0)


def test_resumed_run_does_not_end_with_its_old_summary(tmp_path: Path) -> None:
    directory = record_ended(tmp_path / "run", interrupted=True)
    directory.append_metrics(figures(9.0, "training", env_steps_total=9_000.0))
    run = read_run(directory.path, written_at(directory))
    assert (run.state, run.env_steps) == ("running", 9_000)


def test_target_is_not_reached_where_there_is_none(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", RISING, "stop.target_return=none", ends=False)
    path = directory.config
    path.write_text(path.read_text().replace("target_return = 475.0\n", ""))
    run = read_run(directory.path, written_at(directory))
    assert (run.target_return, run.reached) == (None, False)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("summary.json", "{", r"summary\.json is damaged"),
        ("summary.json", "{}", "it lacks 'reached'"),
        ("config.toml", "seed", r"config\.toml is damaged"),
        ("config.toml", "[tool]\nname = 'x'", "is no run's: it does not set algorithm.name, environment.id"),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, file: str, content: str, told: str) -> None:
    path = record_ended(tmp_path / "run").path
    (path / file).write_text(content)
    with pytest.raises(RecordError, match=told):
        read_run(path, NOW)


def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is no run directory"):
        read_settings(tmp_path)
    with pytest.raises(UsageError, match="no such directory"):
        read_settings(tmp_path / "nowhere")


def test_settings_of_another_version_are_read(tmp_path: Path) -> None:
    directory = record_ended(tmp_path / "run")
    directory.config.write_text('flavour = "new"\n' + directory.config.read_text())
    assert read_run(directory.path, NOW).settings["flavour"] == "new"


def test_json_holds_what_people_compare(tmp_path: Path) -> None:
    shown = json.loads(json.dumps(read_run(record_ended(tmp_path / "run").path, NOW).to_json(), allow_nan=False))
    assert shown["run_dir"] == str(tmp_path / "run")
    assert {
        "preset",
        "env_id",
        "seed",
        "reached",
        "eval_return",
        "env_steps",
        "wall_s",
        "time_to_target_s",
        "state",
    } < (shown.keys())


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder with a run in it, and a folder `closed` that this user may not look into; root becomes nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        record_ended(folder / "run")
        (folder / "closed" / "deep").mkdir(parents=True)
        (folder / "closed").chmod(0)
        was = os.geteuid()
        if was == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(was)
        (folder / "closed").chmod(0o755)


def test_folder_that_is_closed_hides_no_other(closed: Path) -> None:
    assert find_runs(closed) == [closed / "run"]


@pytest.mark.parametrize("place", ["closed", "closed/deep", "closed/run"])
def test_closed_folder_that_was_named_is_told_as_such(closed: Path, place: str) -> None:
    with pytest.raises(CodedError, match=f"{place}: this user may not look there: Permission denied") as refused:
        find_runs(closed / place)
    assert refused.value.code == EXIT_NOT_ALLOWED
