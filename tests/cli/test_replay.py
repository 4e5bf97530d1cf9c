"""`parl-mq replay`: the node's command, and those below it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parl_mq.nodes import replay as entry

from parl_mq.errors import EXIT_CONFIG, EXIT_USAGE
from parl_mq.replay.table import Table
from parl_mq.services.replay import ReplayOptions
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.tables import make_ring_directory, table_settings
from tests.cli.command import run_command
from tests.services.builders import SPEC, fragments, small_config

NODE = ("replay", "--hub", "ipc:///h", "--bind", "ipc:///b")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ReplayOptions]:
    """What a node is started with; none really is."""
    noted: list[ReplayOptions] = []

    def main(_: Any, options: ReplayOptions) -> int:
        noted.append(options)
        return 0

    monkeypatch.setattr(entry, "main", main)
    return noted


def test_without_a_subcommand_a_node_starts(started: list[ReplayOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(monkeypatch, *NODE) == 0
    assert run_command(monkeypatch, *NODE, "--fresh", "--run-dir", "r") == 0
    assert started == [ReplayOptions("ipc:///b"), ReplayOptions("ipc:///b", fresh=True, run_directory=Path("r"))]


@pytest.mark.parametrize(("given", "missing"), [(NODE[:3], "--bind"), (("replay", *NODE[3:]), "--hub")])
def test_a_node_needs_its_addresses(
    started: list[ReplayOptions],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    missing: str,
) -> None:
    monkeypatch.delenv("PARL_MQ_HUB", raising=False)
    assert run_command(monkeypatch, *given) == EXIT_USAGE
    assert f"needs {missing}" in capsys.readouterr().err
    assert started == []


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that was interrupted with 4 rows in its ring."""
    (tmp_path / "rings").mkdir()
    config = small_config(f"node.ring_directory={tmp_path / 'rings'}")
    directory = RunDirectory.create(tmp_path / "run", config)
    directory.write_memory(dataclasses.replace(directory.read_memory(), run_id="one"))
    place = make_ring_directory(config.node, "one", "replay-0")
    table = Table(table_settings(config), SPEC, directory=place, rng=np.random.default_rng(0))
    table.insert(fragments(4))
    table.close(remove=False)
    return tmp_path / "run"


def test_a_ring_is_shown(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "replay", "inspect", str(run_dir), "--top", "2") == 0
    shown = capsys.readouterr().out
    assert "4 of 100 live" in shown
    assert "not in use" in shown
    assert run_command(monkeypatch, "replay", "inspect", str(run_dir), "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["num_live"], values["is_in_use"], len(values["top"])) == (4, False, 4)


def test_rows_are_written_and_put_back(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(tmp_path / "rows")
    assert run_command(monkeypatch, "replay", "snapshot", str(run_dir), rows) == 0
    assert "4 live rows" in capsys.readouterr().err
    assert run_command(monkeypatch, "replay", "restore", rows, str(run_dir)) == EXIT_CONFIG
    assert "--fresh" in capsys.readouterr().err
    assert run_command(monkeypatch, "replay", "restore", rows, str(run_dir), "--fresh") == 0
    assert "4 live rows in" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "snapshot"])
def test_what_is_not_there_is_said(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    more = [str(tmp_path / "rows")] if command == "snapshot" else []
    assert run_command(monkeypatch, "replay", command, str(tmp_path / "nowhere"), *more) == EXIT_CONFIG
    assert "is no run directory" in capsys.readouterr().err
    assert run_command(monkeypatch, "replay", command, str(run_dir), *more, "--name", "replay-3") == EXIT_CONFIG
    assert "no ring of replay-3" in capsys.readouterr().err
    (ring,) = (tmp_path / "rings").glob("*/main.000.ring")
    ring.write_bytes(b"")
    assert run_command(monkeypatch, "replay", command, str(run_dir), *more) == EXIT_CONFIG
    assert "main.000.ring: it has 0 bytes" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_a_snapshot_that_cannot_be_written_names_its_file(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "replay", "snapshot", str(run_dir), str(tmp_path / "no" / "rows")) == EXIT_CONFIG
    assert f"{tmp_path / 'no' / 'rows'} cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [".", "/", ".."])
def test_a_snapshot_does_not_take_the_place_of_a_folder(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    assert run_command(monkeypatch, "replay", "snapshot", str(run_dir), folder) == EXIT_CONFIG
    assert f"{folder} cannot be written: Is a directory" in capsys.readouterr().err


def test_of_the_environments_settings_those_of_the_process_are_taken_alone(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(tmp_path / "rows")
    monkeypatch.setenv("PARL_MQ_REPLAY__BUFFER_SIZE", "1")
    assert run_command(monkeypatch, "replay", "snapshot", str(run_dir), rows) == 0
    assert run_command(monkeypatch, "replay", "restore", rows, str(run_dir), "--fresh") == 0
    (tmp_path / "others").mkdir()
    monkeypatch.setenv("PARL_MQ_NODE__RING_DIRECTORY", str(tmp_path / "others"))
    assert run_command(monkeypatch, "replay", "inspect", str(run_dir)) == EXIT_CONFIG
    assert f"lies in {tmp_path / 'others'}" in capsys.readouterr().err
