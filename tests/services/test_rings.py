"""Rings that outlive their processes: whose they are, and which of them go."""

import dataclasses
import fcntl
import os
import re

import numpy as np
import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import CodedError, ConfigError, RingRefused, SnapshotError
from parl_mq.replay.table import Table
from parl_mq.services.moving import inspect_run, restore_run, snapshot_run
from parl_mq.services.rings import (
    _KEYS,
    RUN_DIRECTORY,
    RUN_ID,
    check_rings,
    ring_of_run,
    rings_of_run,
    sweep,
    unused_rings,
)
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.tables import make_ring_directory, table_settings
from tests.services.builders import OTHER_SPEC, SPEC, fragments, small_config, spec_offer


class Runs:
    """Run directories and rings of a test."""

    def __init__(self, root):
        self.root = root
        self.node = NodeConfig(ring_directory=root / "rings")
        self.node.ring_directory.mkdir()
        self.config = small_config(f"node.ring_directory={root / 'rings'}")

    def run(self, name="one", run_id="one", **summary):
        """A run directory; a summary says how the run has ended."""
        directory = RunDirectory.create(self.root / name, self.config)
        self.remember(directory, run_id)
        if summary:
            directory.write_summary({"interrupted": False, "error": None, **summary})
        return directory

    def remember(self, directory, run_id, spec=SPEC):
        memory = directory.read_memory()
        offer = spec_offer(spec).model_dump(mode="json")
        directory.write_memory(dataclasses.replace(memory, run_id=run_id, spec=offer))

    def table(self, directory, run_id="one", name="replay-0"):
        """A ring with 4 rows, that is open."""
        table = Table(
            table_settings(self.config),
            SPEC,
            directory=make_ring_directory(self.node, run_id, name),
            rng=np.random.default_rng(0),
            labels={RUN_ID: run_id, RUN_DIRECTORY: "" if directory is None else str(directory.path)},
        )
        table.insert(fragments(4))
        return table

    def left(self, directory, run_id="one", name="replay-0"):
        self.table(directory, run_id, name).close(remove=False)

    def names(self):
        return sorted(path.name for path in self.node.ring_directory.iterdir())


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


# Sweeping


@pytest.mark.parametrize("end", ["done", "gone", "another run"])
def test_the_ring_of_a_run_that_is_over_goes(runs, end):
    directory = runs.run(**({"steps": 1} if end == "done" else {}))
    runs.left(directory)
    if end == "gone":
        directory.config.unlink()
    elif end == "another run":
        runs.remember(directory, "two")
    [line] = sweep(runs.node, but="")
    assert re.match(rf"removed {runs.node.ring_directory / 'one-replay-0'}, 0\.[1-9] MiB: ", line)
    assert runs.names() == []


@pytest.mark.parametrize("end", ["interrupted", "failed", "still without a summary", "of a node that stands alone"])
def test_a_ring_that_may_be_asked_for_stays_and_is_told_of(runs, end):
    summary = {"interrupted": {"interrupted": True}, "failed": {"error": "it broke"}}.get(end, {})
    directory = runs.run(**summary)
    runs.left(None if end.endswith("alone") else directory)
    [line] = sweep(runs.node, but="")
    assert line.startswith("rings kept for runs that may be resumed: 1, 0.")
    [(path, kept)] = unused_rings(runs.node)
    assert path == runs.node.ring_directory / "one-replay-0"
    assert kept.startswith("keeps 0.")
    assert runs.names() == ["one-replay-0"]


def test_a_ring_in_use_or_of_the_run_itself_is_not_looked_at(runs):
    done = runs.run(steps=1)
    table = runs.table(done)
    assert rings_of_run(runs.node, "one")[0].is_in_use
    assert list(sweep(runs.node, but="")) == []
    table.close(remove=False)
    assert not rings_of_run(runs.node, "one")[0].is_in_use
    assert list(sweep(runs.node, but="one")) == []
    assert runs.names() == ["one-replay-0"]


def test_a_ring_that_is_taken_in_the_last_moment_stays(runs, monkeypatch):
    runs.left(runs.run(steps=1))
    number = os.open(runs.node.ring_directory / "one-replay-0", os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    monkeypatch.setattr("parl_mq.services.rings.FoundRing.is_in_use", False)
    assert list(sweep(runs.node, but="")) == []
    os.close(number)
    assert runs.names() == ["one-replay-0"]


def test_a_damaged_ring_and_a_damaged_run_are_left_alone(runs):
    runs.left(runs.run("one", "one", steps=1), "one")
    runs.left(runs.run("two", "two", steps=1), "two")
    (runs.node.ring_directory / "one-replay-0" / "main.json").write_text("nonsense")
    (runs.root / "two" / "hub.json").write_text("nonsense")
    assert len(list(sweep(runs.node, but=""))) == 1
    assert len(list(unused_rings(runs.node))) == 2
    assert runs.names() == ["one-replay-0", "two-replay-0"]


def test_a_folder_without_anything_in_it_goes(runs):
    make_ring_directory(runs.node, "one", "replay-0")
    assert len(list(sweep(runs.node, but=""))) == 1
    assert runs.names() == []


# Finding


def test_a_ring_is_found_by_its_run_and_its_node(runs):
    directory = runs.run()
    with pytest.raises(ConfigError, match=r"no ring of the run in .*one lies in .*rings"):
        ring_of_run(runs.node, directory)
    runs.left(directory)
    assert ring_of_run(runs.node, directory).num_live() == 4
    runs.left(directory, name="replay-1")
    with pytest.raises(ConfigError, match="several replay nodes, replay-0, replay-1: choose one by --name"):
        ring_of_run(runs.node, directory)
    assert ring_of_run(runs.node, directory, "replay-1").path.name == "one-replay-1"
    with pytest.raises(ConfigError, match="no ring of replay-7"):
        ring_of_run(runs.node, directory, "replay-7")


# Looking and moving


def test_a_ring_in_use_can_be_looked_at(runs):
    directory = runs.run()
    table = runs.table(directory)
    found = inspect_run(directory, runs.node, name=None, num_top=2)
    assert (found.is_in_use, found.figures.num_live, len(found.figures.top)) == (True, 4, 2)
    table.close()


def test_rows_move_to_another_machine(runs, tmp_path):
    directory = runs.run()
    table = runs.table(directory)
    saved = snapshot_run(directory, runs.node, tmp_path / "rows", name=None)
    assert (saved.num_live, saved.num_left_out) == (4, 0)
    table.close()
    elsewhere = small_config(f"node.ring_directory={tmp_path}")
    moved = restore_run(directory, elsewhere, tmp_path / "rows", name=None, fresh=False)
    assert (moved.path, moved.num_live) == (tmp_path / "one-replay-0", 4)
    ring = ring_of_run(elsewhere.node, directory)
    assert ring.description.labels == {RUN_ID: "one", "node": "replay-0", RUN_DIRECTORY: str(directory.path)}
    with pytest.raises(RingRefused, match="--fresh"):
        restore_run(directory, elsewhere, tmp_path / "rows", name=None, fresh=False)
    restore_run(directory, elsewhere, tmp_path / "rows", name=None, fresh=True)
    assert ring.num_live() == 4


@pytest.mark.parametrize("fault", ["settings", "columns", "not begun", "no file"])
def test_rows_that_do_not_fit_the_run_are_refused_and_nothing_is_made(runs, tmp_path, fault):
    directory = runs.run()
    table = runs.table(directory)
    snapshot_run(directory, runs.node, tmp_path / "rows", name=None)
    table.close()
    make_ring_directory(runs.node, "one", "replay-0").rmdir()
    config, path, expected, words = runs.config, tmp_path / "rows", ConfigError, ""
    if fault == "settings":
        config = small_config(f"node.ring_directory={runs.node.ring_directory}", "replay.alpha=0.1", "replay.nodes=2")
        words = (
            r"rows: its rows were stored with replay\.buffer_size / replay\.nodes = 100, replay\.alpha = 0\.6; the run "
            r"has replay\.buffer_size / replay\.nodes = 50, replay\.alpha = 0\.1"
        )
    elif fault == "columns":
        runs.remember(directory, "one", OTHER_SPEC)
        words = "columns are not those of the run"
    elif fault == "not begun":
        runs.remember(directory, "")
        words = "has not begun"
    elif fault == "no file":
        path, expected, words = tmp_path / "missing", SnapshotError, "missing: No such file"
    with pytest.raises(expected, match=words):
        restore_run(directory, config, path, name=None, fresh=False)
    assert runs.names() == []


def test_rows_move_into_a_run_of_another_gamma(runs, tmp_path):
    directory = runs.run()
    table = runs.table(directory)
    snapshot_run(directory, runs.node, tmp_path / "rows", name=None)
    table.close()
    config = small_config(f"node.ring_directory={runs.node.ring_directory}", "algorithm.gamma=0.5")
    assert restore_run(directory, config, tmp_path / "rows", name=None, fresh=False).num_live == 4


def test_rows_are_not_moved_into_a_run_that_goes_on(runs, tmp_path):
    directory = runs.run()
    with directory.held(), pytest.raises(CodedError, match="another command"):
        restore_run(RunDirectory.open(directory.path), runs.config, tmp_path / "rows", name=None, fresh=False)


def test_a_resume_with_settings_that_its_rows_do_not_have_is_refused_by_the_settings_names(runs):
    directory = runs.run()
    runs.left(directory)
    check_rings(runs.config, directory)
    other = runs.config.model_copy(update={"replay": runs.config.replay.model_copy(update={"tree_arity": 16})})
    with pytest.raises(ConfigError, match=r"other settings: replay\.tree_arity = 8; give the same ones, or remove"):
        check_rings(other, directory)
    runs.remember(directory, "two")
    check_rings(other, directory)


@pytest.mark.parametrize(
    ("changed", "said", "keys"),
    [
        ({"nodes": 2}, r"replay\.nodes = 1; give", ("replay.nodes",)),
        ({"buffer_size": 90}, r"replay\.buffer_size = 100; give", ("replay.buffer_size",)),
        (
            {"nodes": 2, "buffer_size": 90, "eps": 0.5},
            r"replay\.buffer_size = 100, replay\.nodes = 1, replay\.eps = 1e-06; give",
            ("replay.buffer_size", "replay.nodes", "replay.eps"),
        ),
    ],
)
def test_what_differs_is_named_and_nothing_else(runs, changed, said, keys):
    directory = runs.run()
    runs.left(directory)
    other = runs.config.model_copy(update={"replay": runs.config.replay.model_copy(update=changed)})
    with pytest.raises(ConfigError, match=f"other settings: {said}") as refused:
        check_rings(other, directory)
    assert refused.value.keys == keys


def test_a_ring_of_settings_that_its_run_never_had_is_refused_by_its_own(runs):
    directory = runs.run()
    runs.left(directory)
    other = runs.config.model_copy(update={"replay": runs.config.replay.model_copy(update={"nodes": 2})})
    directory.write_config(other)
    with pytest.raises(ConfigError, match=r"other settings: replay\.buffer_size / replay\.nodes = 100; give"):
        check_rings(other, directory)


def test_every_setting_of_a_table_that_rows_depend_on_has_a_name_in_the_settings_of_a_run(runs):
    table = table_settings(runs.config)
    others = {"row_overhead", "name", "table_index", "gamma"}  # no setting of a run changes the first three
    assert _KEYS.keys() == {field.name for field in dataclasses.fields(table)} - others


def test_rows_are_compared_with_the_settings_in_the_runs_file_whatever_the_environment_says(runs, monkeypatch):
    directory = runs.run()
    runs.left(directory)
    monkeypatch.setenv("PARL_MQ_REPLAY__BUFFER_SIZE", "90")
    other = runs.config.model_copy(update={"replay": runs.config.replay.model_copy(update={"buffer_size": 90})})
    with pytest.raises(ConfigError, match=r"replay\.buffer_size = 100; give the same"):
        check_rings(other, directory)
