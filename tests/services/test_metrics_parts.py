"""Long records: parts, and who reads them."""

import json
from itertools import pairwise

import pytest

from parl_mq.errors import RecordError
from parl_mq.observe.curves import has_ended, read_curve
from parl_mq.observe.files import metrics_files
from parl_mq.services import metrics_parts, run_directory
from tests.observe.recorded import evaluation, figures, record

LIMIT = 20_000


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A run of 600 s with small parts."""
    monkeypatch.setattr(run_directory, "part_if_large", lambda path: metrics_parts.part_if_large(path, LIMIT))
    made = record(tmp_path / "run", [], ends=False)
    for second in range(600):
        made.append_metrics(figures(float(second), env_steps_total=100.0 * second, train_return=1.0))
        if second % 10 == 0:
            made.append_metrics(evaluation((100 * second, second + 0.5, [float(second)])))
    return made


def test_old_figures_are_thinned_out_and_evaluations_stay(directory):
    *parts, newest = metrics_files(directory.path)
    assert len(parts) > 1
    assert newest.name == "metrics.jsonl"
    rows = [json.loads(line) for path in parts for line in path.read_text().splitlines()]
    times = [row["time_s"] for row in rows if row["kind"] == "figures"]
    assert min(later - earlier for earlier, later in pairwise(times)) >= 1.0
    assert len(times) < 600 / 30 + 2 * len(parts)
    assert sum(path.stat().st_size for path in metrics_files(directory.path)) < 3 * LIMIT


def test_the_whole_curve_is_read_from_all_parts(directory):
    curve = read_curve(directory.path)
    assert curve.evaluations.mean_return.tolist() == [float(second) for second in range(0, 600, 10)]
    assert curve.evaluations.env_steps.tolist() == pytest.approx([100 * second + 50 for second in range(0, 600, 10)])
    assert curve.wall_s == 599.0


def test_whether_a_run_has_ended_is_read_from_the_newest_part(directory):
    assert not has_ended(directory.path)
    directory.append_metrics(figures(631.0, "done"))
    assert has_ended(directory.path)
    metrics_parts.part_if_large(directory.path, 0)
    assert not (directory.path / "metrics.jsonl").exists()
    assert has_ended(directory.path)


def test_a_part_that_cannot_be_thinned_out_stays_whole(tmp_path, monkeypatch):
    made = record(tmp_path / "run")
    before = (made.path / "metrics.jsonl").read_bytes()

    def refuse(lines):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metrics_parts, "thinned", refuse)
    with pytest.raises(RecordError, match=r"metrics\.000001\.jsonl cannot be written: No space left on device"):
        metrics_parts.part_if_large(made.path, 10)
    assert [path.read_bytes() for path in metrics_files(made.path)] == [before]


def test_a_part_that_was_removed_to_make_room_costs_no_other_one(directory):
    oldest, *others, _ = metrics_files(directory.path)
    before = {path: path.read_bytes() for path in others}
    oldest.unlink()
    metrics_parts.part_if_large(directory.path, 0)
    assert {path: path.read_bytes() for path in others} == before
    assert len(metrics_files(directory.path)) == len(others) + 1
