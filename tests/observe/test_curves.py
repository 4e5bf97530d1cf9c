"""What a run recorded, read back."""

import json
from pathlib import Path

import numpy as np
import pytest

from parl_mq.errors import RecordError
from parl_mq.observe.curves import EMPTY, has_ended, read_curve
from tests.observe.recorded import RISING, evaluation, figures, record


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return record(tmp_path / "run").path / "metrics.jsonl"


def test_evaluations_are_those_that_were_written(tmp_path: Path) -> None:
    found = read_curve(record(tmp_path / "run").path).evaluations
    assert found.env_steps.tolist() == [1_000, 2_000, 3_000]
    assert found.wall_s.tolist() == [1.0, 2.0, 3.5]
    assert found.mean_return.tolist() == [20.0, 150.0, 490.0]
    assert [returns.tolist() for returns in found.returns] == [returns for _, _, returns in RISING]


def test_evaluations_between_two_heartbeats_lie_apart(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", [])
    (directory.path / "metrics.jsonl").unlink()
    rows = [
        figures(1.0, env_steps_total=1_000.0),
        evaluation((1_500, 1.6, [1.0])),
        evaluation((1_500, 1.8, [2.0])),
        figures(2.0, env_steps_total=2_000.0),
        evaluation((2_500, 2.5, [3.0])),  # behind the last figures: as it was told
    ]
    for row in rows:
        directory.append_metrics(row)
    assert read_curve(directory.path).evaluations.env_steps.tolist() == pytest.approx([1_600, 1_800, 2_500])


def test_exploration_leaves_out_figures_without_episodes(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", ends=False)
    directory.append_metrics(figures(9.0, env_steps_total=5_000.0))
    curve = read_curve(directory.path)
    assert curve.exploration.env_steps.tolist() == [1_010, 2_010, 3_010]
    assert curve.exploration.mean_return.tolist() == [5, 50, 240]
    assert (curve.wall_s, curve.newest["env_steps_total"]) == (9.0, 5_000.0)


def test_quantiles_are_those_of_the_episodes(tmp_path: Path) -> None:
    returns = np.random.default_rng(1).normal(size=21)
    curve = read_curve(record(tmp_path / "run", [(1, 1.0, returns.tolist())]).path)
    assert curve.evaluations.quantile(0.5).tolist() == [np.median(returns)]
    assert curve.evaluations.quantile(0.1).item() == pytest.approx(np.quantile(returns, 0.1))


@pytest.mark.parametrize(("target", "place"), [(20.0, 0), (21.0, 1), (490.0, 2), (490.1, None)])
def test_first_evaluation_that_met_the_target_is_found(tmp_path: Path, target: float, place: int | None) -> None:
    assert read_curve(record(tmp_path / "run").path).evaluations.first_at_least(target) == place


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_last_line_may_be_cut_off(metrics: Path, cut: int) -> None:
    metrics.write_text(metrics.read_text() + json.dumps(evaluation((9_000, 9.0, [1.0] * 20)))[:-cut])
    assert read_curve(metrics.parent).evaluations.env_steps.tolist() == [1_000, 2_000, 3_000]


def test_damaged_line_in_the_middle_is_named(metrics: Path) -> None:
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([lines[0], lines[1][:40], *lines[2:]]) + "\n")
    with pytest.raises(RecordError, match=r"metrics\.jsonl:2 is damaged"):
        read_curve(metrics.parent)


@pytest.mark.parametrize("row", ["[]", "3", '{"kind": "evaluation", "time_s": 1}', '{"kind": "figures"}'])
def test_row_that_lacks_a_part_is_named(metrics: Path, row: str) -> None:
    metrics.write_text(row + "\n" + metrics.read_text())
    with pytest.raises(RecordError, match=r"metrics\.jsonl:1 is damaged"):
        read_curve(metrics.parent)


def test_rows_of_other_kinds_are_passed_over(metrics: Path) -> None:
    metrics.write_text('{"kind": "weather", "time_s": 3}\n' + metrics.read_text())
    assert len(read_curve(metrics.parent).evaluations.wall_s) == len(RISING)


def test_row_behind_one_that_a_crash_cut_off_counts(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", RISING[:1], ends=False)
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "figures", "time_s": 1.')
    directory.append_metrics(evaluation(RISING[1]))
    assert read_curve(directory.path).evaluations.env_steps.tolist() == [1_000, 2_000]


def test_seconds_that_a_resumed_run_repeats_count_once(tmp_path: Path) -> None:
    directory = record(tmp_path / "run", ends=False)
    directory.append_metrics(evaluation((1_800, 1.8, [90.0])))
    curve = read_curve(directory.path)
    assert curve.evaluations.wall_s.tolist() == [1.0, 1.8]
    assert [returns.tolist() for returns in curve.evaluations.returns] == [[10.0, 30.0], [90.0]]


def test_foreign_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no run's metrics: there is no metrics\.jsonl"):
        read_curve(tmp_path)


def test_empty_record_is_an_empty_curve(metrics: Path) -> None:
    metrics.write_text("")
    curve = read_curve(metrics.parent)
    assert len(curve.evaluations.mean_return) == len(curve.exploration.mean_return) == 0
    assert (curve.wall_s, curve.newest) == (EMPTY.wall_s, EMPTY.newest)


def test_record_ends_with_its_last_figures(tmp_path: Path) -> None:
    assert not has_ended(record(tmp_path / "going", ends=False).path)
    ended = record(tmp_path / "ended")
    assert has_ended(ended.path)
    ended.append_metrics(figures(10.0, "starting"))
    assert not has_ended(ended.path)
