"""`parl-mq runs`: what it prints where, and its exit code."""

import json
from pathlib import Path

import pytest

from parl_mq.errors import EXIT_OK, EXIT_USAGE
from tests.cli.command import run_command
from tests.observe.recorded import RISING, record_ended


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        record_ended(tmp_path / "runs" / f"seed{seed}", RISING, f"seed={seed}")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_runs_of_this_folder_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "runs") == EXIT_OK
    out, err = capsys.readouterr()
    assert "runs/seed1 " in out
    assert "reached by 2 of 2 runs; return 490 (95 % band 490 to 490); median time to target 3.5 s" in out
    assert err == ""


@pytest.mark.usefixtures("folder")
def test_json_has_runs_and_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "runs", "runs/seed2", "runs", "--json") == EXIT_OK
    shown = json.loads(capsys.readouterr().out)
    assert [run["run_dir"] for run in shown["runs"]] == ["runs/seed1", "runs/seed2"]
    assert [group["num_reached"] for group in shown["groups"]] == [2]


def test_plot_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    record_ended(folder / "runs" / "seed3", [], "seed=3")
    assert run_command(monkeypatch, "runs", "--plot", "all.png") == EXIT_OK
    assert (folder / "all.png").read_bytes().startswith(b"\x89PNG")
    err = capsys.readouterr().err
    assert "drawn: all.png" in err
    assert "not in it: 1 run without an evaluation" in err


def test_damaged_run_hides_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "runs" / "seed1" / "summary.json").write_text("{")
    assert run_command(monkeypatch, "runs") == EXIT_OK
    out, err = capsys.readouterr()
    assert "parl-mq: left out: runs/seed1/summary.json is damaged" in err
    assert "seed2" in out


@pytest.mark.parametrize(("arguments", "told"), [(["nowhere"], "no such directory"), (["--plot", "x.gif"], ".png")])
@pytest.mark.usefixtures("folder")
def test_wrong_arguments_are_told(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "runs", *arguments) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert told in err
    assert out == ""


def test_folder_without_runs_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(monkeypatch, "runs") == EXIT_OK
    assert "parl-mq train" in capsys.readouterr().err
    run_command(monkeypatch, "runs", "--json")
    assert json.loads(capsys.readouterr().out) == {"runs": [], "groups": []}
