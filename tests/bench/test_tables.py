"""Reports as tables, pictures and a page."""

import io
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from rich.console import Console

from parl_mq.bench.plots import write_study, write_systems, write_trainings
from parl_mq.bench.report import BenchReport, Result, describe_machine
from parl_mq.bench.tables import Grid, grids, machine_line, print_report, to_markdown
from parl_mq.bench.tree import study_arity

SECONDS = {"parl_mq": 3.0, "sb3": 50.0, "rllib": inf}
DOCS = Path(__file__).parents[2] / "docs"


def result(measure="draw", system="parl_mq", median=2.0, **params):
    return Result(measure, system, "ns/item", {"leaves": 1024, "batch": 256, **params}, median, median / 2, median * 2)


def report_of(*results):
    return BenchReport("tree", {**describe_machine(), "cpprb": "11.0.0"}, results)


def test_a_table_holds_one_measure_and_its_title_what_all_rows_share():
    report = report_of(result(kernel="avx2"), result(kernel="portable", median=4.0), result("update", kernel="avx2"))
    draws, updates = grids(report)
    assert draws == Grid(
        title="draw, ns/item, leaves 1,024, batch 256",
        header=("kernel", "system", "median", "min", "max", "ratio"),
        rows=(("avx2", "parl_mq", "2.0", "1.0", "4.0", "1.00"), ("portable", "parl_mq", "4.0", "2.0", "8.0", "2.00")),
    )
    assert updates.title == "update, ns/item, leaves 1,024, batch 256, kernel avx2"


def test_of_rates_the_largest_is_the_best():
    rates = [
        Result("sample", system, "items/s", {"batch": 256}, rate, rate, rate)
        for system, rate in (("parl_mq", 500.0), ("parl_mq", 1000.0), ("ray", 250.0))
    ]
    (grid,) = grids(report_of(*rates))
    assert [row[-1] for row in grid.rows] == ["0.50", "1.00", "0.25"]


def test_a_ratio_is_over_the_best_of_parl_mq_for_the_same_work():
    report = report_of(
        result(kernel="avx2", median=2.0),
        result(kernel="portable", median=4.0),
        result(system="cpprb", median=500.0),
        result(batch=32, system="cpprb", median=600.0),
    )
    (grid,) = grids(report)
    assert [row[-1] for row in grid.rows] == ["1.00", "2.00", "250", ""]


def test_rows_of_another_kind_have_a_table_of_their_own():
    report = report_of(result("sample", rows="Atari"), result("sample", rows="HalfCheetah"))
    assert [grid.title.split("rows ")[1] for grid in grids(report)] == ["Atari", "HalfCheetah"]


def test_tables_fit_in_80_columns():
    stream = io.StringIO()
    sizes = [result(leaves=8_388_608, batch=1024, arity=8, kernel="portable", median=123_456.0)]
    others = [result(system="tianshou", leaves=1024, batch=32, median=3.0)]
    print_report(report_of(*sizes, *others), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("portable" in line and "123,456" in line and "246,912" in line for line in lines)


def test_the_machine_line_names_processor_and_versions():
    line = machine_line(report_of().machine)
    assert describe_machine()["processor"] in line
    assert "cpprb 11.0.0" in line


def test_markdown_has_one_line_for_each_row():
    (grid,) = grids(report_of(result(kernel="avx2"), result(kernel="portable")))
    lines = to_markdown(grid).splitlines()
    assert lines[0] == f"**{grid.title}**"
    assert lines[2] == "| kernel | system | median | min | max | ratio |"
    assert len(lines) == 6


def test_a_report_survives_json():
    report = report_of(result(kernel="avx2"), result("update", system="cpprb"))
    assert BenchReport.from_json(report.to_json()) == report


def test_pictures_are_drawn(tmp_path):
    report = report_of(result(kernel="avx2", leaves=2**20), result("update", system="cpprb", leaves=2**20))
    study = study_arity((2, 8), (100,), (16, 32))
    params = {"preset": "cartpole-dqn", "target": 475.0}
    times = [replace(result("time to target", system=name), params=params, median=s) for name, s in SECONDS.items()]
    pictures = (
        write_systems(report, tmp_path / "a.png"),
        write_study(study, tmp_path / "b.png"),
        write_trainings([report_of(*times), report_of(times[0])], tmp_path / "c.png"),
    )
    for written in pictures:
        assert written.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def write_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import write_benchmarks

    yield write_benchmarks
    del sys.modules["write_benchmarks"]


@pytest.mark.parametrize("name", ["benchmarks.md", "results.md"])
def test_a_page_shows_the_results_that_are_kept(name, write_benchmarks):
    path = write_benchmarks.DOCS / name
    page = path.read_text("utf-8")
    assert write_benchmarks.filled(page, write_benchmarks.pages()[path]) == page, "run: python docs/write_benchmarks.py"


def test_a_library_that_was_not_compared_seed_by_seed_has_an_empty_cell(write_benchmarks):
    report = write_benchmarks.read_reports(write_benchmarks.PEERS)["cartpole-equal"]
    compared = "time to target over parl_mq's, same seed"
    left = tuple(result for result in report.results if (result.system, result.measure) != ("rllib", compared))
    table = write_benchmarks.results({"x": replace(report, results=left)})["peers x"]()
    (line,) = [line for line in table.splitlines() if line.startswith("| RLlib")]
    assert line.endswith("|  |")


def test_a_page_without_a_mark_is_refused(write_benchmarks):
    with pytest.raises(ValueError, match="the page has 0 places marked 'tree'"):
        write_benchmarks.filled("nothing", write_benchmarks.benchmarks(write_benchmarks.read_reports()))
