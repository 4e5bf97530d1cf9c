"""Runs as people see them."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from parl_mq.observe.comparison import Comparison, compare, group_runs
from parl_mq.observe.run_table import in_words, print_runs, result_console
from parl_mq.observe.runs import read_run
from tests.observe.recorded import RISING, record_ended

NOW = 2e9


def _printed(paths: list[Path], width: int = 80) -> str:
    groups = group_runs(read_run(path, NOW) for path in paths)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as captured:
        print_runs([(group, compare(group, np.random.default_rng(0))) for group in groups], console)
    return captured.get()


def test_eighty_columns_hold_a_run_of_any_name(tmp_path: Path) -> None:
    name = "cartpole-dqn-seed123-20261129-120000-123"
    ended = record_ended(tmp_path / name, RISING, "seed=123", interrupted=True, env_steps=123_456_789, wall_s=99_999.0)
    printed = _printed([ended.path])
    assert all(len(line) <= 80 for line in printed.splitlines())
    for words in ["123", "interrupted", "490", "123M", "27.8 h", "3.5 s", "dqn on CartPole-v1, target 475"]:
        assert words in printed


def test_failed_run_says_why(tmp_path: Path) -> None:
    ended = record_ended(tmp_path / "run", error="actor-0 ended with code 70\ntrace")
    assert "failed: actor-0 ended with code 70 trace\n" in _printed([ended.path], width=400)


def test_run_without_an_evaluation_has_dashes(tmp_path: Path) -> None:
    row = next(line for line in _printed([record_ended(tmp_path / "x", []).path], 400).splitlines() if "done" in line)
    assert row.split()[-1] == "-"
    assert "None" not in row


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (Comparison("x", 0, 0, None, None, None, None), "no run has ended yet"),
        (Comparison("x", 1, 0, 12.5, None, None, None), "reached by 0 of 1 run; return 12.5"),
        (
            Comparison("x", 4, 3, 480.0, 470.0, 490.0, 8.25),
            "reached by 3 of 4 runs; return 480 (95 % band 470 to 490); median time to target 8.2 s",
        ),
    ],
)
def test_comparison_in_words(comparison: Comparison, words: str) -> None:
    assert in_words(comparison) == words


def test_files_and_pipes_get_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert result_console(io.StringIO()).width > 1_000
    monkeypatch.setenv("COLUMNS", "100")
    assert result_console(io.StringIO()).width == 100
