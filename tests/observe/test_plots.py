"""Pictures of runs: what is drawn is read back from the figure, and files are what they are named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from parl_mq.errors import RecordError, UsageError
from parl_mq.observe import plots
from parl_mq.observe.comparison import Group, group_runs
from parl_mq.observe.plots import write_comparison, write_learning_curve
from parl_mq.observe.runs import read_run
from tests.observe.recorded import RISING, record, record_ended

NOW = 2e9


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    figures: list[Any] = []
    save = plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, path: (figures.append(figure), save(figure, path)))
    return figures


def _lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.get_lines()}


def _groups(*paths: Path) -> list[Group]:
    return group_runs(read_run(path, NOW) for path in paths)


def test_learning_curve_lies_in_the_run_directory(tmp_path: Path) -> None:
    path = write_learning_curve(record(tmp_path / "run").path)
    assert path == tmp_path / "run" / "learning_curve.png"
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.size == (1200, 504)
    assert not list(path.parent.glob(".unfinished*"))


def test_both_panels_show_evaluation_exploration_and_target(tmp_path: Path, drawn: list[Any]) -> None:
    write_learning_curve(record(tmp_path / "run").path)
    by_steps, by_time = drawn[0].axes
    for axes, along, explored in [
        (by_steps, [1_000, 2_000, 3_000], [1_010, 2_010, 3_010]),
        (by_time, [1, 2, 3.5], [1.1, 2.1, 3.6]),
    ]:
        lines = _lines(axes)
        assert lines["evaluation, mean"].get_xdata().tolist() == along
        assert lines["evaluation, mean"].get_ydata().tolist() == [20, 150, 490]
        np.testing.assert_allclose(lines["exploration, recent episodes"].get_xdata(), explored)
        assert list(lines["target 475"].get_ydata()) == [475, 475]
        (band,) = axes.collections
        assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(np.quantile([10, 30], 0.1))


@pytest.mark.parametrize(
    ("judged", "verdict"),
    [(RISING, "reached 475 after 3,000 steps, 3.5 s"), (RISING[:2], "best evaluation 150 of 475")],
)
def test_title_says_what_was_reached(tmp_path: Path, drawn: list[Any], judged: list[Any], verdict: str) -> None:
    write_learning_curve(record(tmp_path / "run", judged, "seed=4").path)
    assert drawn[0].get_suptitle() == f"cartpole-dqn: dqn on CartPole-v1, seed 4; {verdict}"


def test_run_without_evaluations_gets_a_picture_that_says_so(tmp_path: Path, drawn: list[Any]) -> None:
    assert write_learning_curve(record(tmp_path / "run", []).path).exists()
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["no episode has ended yet"]


def test_directory_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is no run directory"):
        write_learning_curve(tmp_path)
    with pytest.raises(RecordError, match=r"no metrics\.jsonl"):
        write_learning_curve(record(tmp_path / "run", [], ends=False).path)


def test_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = record(tmp_path / "run").path
    (run / "learning_curve.png").mkdir()
    with pytest.raises(RecordError, match=r"learning_curve\.png cannot be written"):
        write_learning_curve(run)
    assert not list(run.glob(".unfinished*"))


def test_comparison_draws_the_interquartile_mean_of_each_group(tmp_path: Path, drawn: list[Any]) -> None:
    paths = [
        record_ended(tmp_path / "a1", RISING, "seed=1").path,
        record_ended(tmp_path / "a2", [(1_000, 1.0, [40.0]), (3_000, 2.0, [480.0])], "seed=2").path,
        record_ended(tmp_path / "b1", RISING, "preset=other").path,
    ]
    written = write_comparison(_groups(*paths), tmp_path / "all.png", np.random.default_rng(0))
    assert written.exists()
    lines = _lines(drawn[0].axes[0])
    assert set(lines) == {"cartpole-dqn, 2 runs", "other, 1 run", "target 475"}
    both = lines["cartpole-dqn, 2 runs"].get_ydata()
    assert (both[0], both[-1]) == ((20 + 40) / 2, (490 + 480) / 2)
    assert len(drawn[0].axes[0].collections) == 1, "one run alone has no band"


@pytest.mark.parametrize("name", ["all.svg", "all.pdf"])
def test_comparison_may_be_a_drawing(tmp_path: Path, name: str) -> None:
    groups = _groups(record_ended(tmp_path / "run").path)
    assert write_comparison(groups, tmp_path / name, np.random.default_rng(0)).stat().st_size > 1_000


def test_other_endings_are_refused(tmp_path: Path) -> None:
    groups = _groups(record_ended(tmp_path / "run").path)
    with pytest.raises(UsageError, match=r"must end in \.png, \.svg, \.pdf"):
        write_comparison(groups, tmp_path / "all.gif", np.random.default_rng(0))


def test_comparison_of_nothing_is_refused(tmp_path: Path) -> None:
    groups = _groups(record_ended(tmp_path / "run", []).path)
    with pytest.raises(RecordError, match="nothing to draw"):
        write_comparison(groups, tmp_path / "all.png", np.random.default_rng(0))


def test_returns_of_several_environments_share_no_axis(tmp_path: Path) -> None:
    one = record_ended(tmp_path / "one").path
    other = record_ended(tmp_path / "other", RISING, "environment.id=Acrobot-v1").path
    with pytest.raises(UsageError, match=r"these are of Acrobot-v1, CartPole-v1"):
        write_comparison(_groups(one, other), tmp_path / "all.png", np.random.default_rng(0))
