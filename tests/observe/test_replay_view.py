from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from parl_mq.observe.replay_view import figures_to_json, print_figures
from parl_mq.replay.inspection import RingFigures, inspect_ring
from parl_mq.replay.ring_view import RingView
from parl_mq.replay.table import Table, TableSettings
from tests.replay.fragments import SPEC, counter_fragment


def figures_of(directory: Path, *priorities: float) -> RingFigures:
    settings = TableSettings("main", 1_000_000, alpha=1.0, eps=0.0, table_index=255)
    table = Table(settings, SPEC, directory=directory, rng=np.random.default_rng(0))
    for priority in priorities:
        table.insert(counter_fragment(0, 1, priorities=[priority]))
    with RingView(directory, "main") as view:
        figures = inspect_ring(view)
    table.close()
    return figures


def shown(figures: RingFigures) -> str:
    text = io.StringIO()
    print_figures(figures, Console(file=text, width=80), title="a ring")
    return text.getvalue()


def test_everything_fits_into_80_columns(tmp_path: Path) -> None:
    text = shown(figures_of(tmp_path, *np.geomspace(1e-9, 1e9, 40)))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "40 of 1,000,000 live (0.0%)" in text
    assert "1e+09" in text


def test_bars_are_in_proportion_and_no_row_is_without_one(tmp_path: Path) -> None:
    lines = shown(figures_of(tmp_path, *[1.0] * 80, 1000.0, 0.0, 0.0)).splitlines()
    bars = {int(line.split()[1]): line.count("#") for line in lines if line.endswith("#")}
    assert bars == {80: 40, 2: 1, 1: 1}


def test_an_empty_ring_is_shown_without_a_histogram(tmp_path: Path) -> None:
    text = shown(figures_of(tmp_path))
    assert "0 of 1,000,000 live" in text
    assert "priority from" not in text
    assert "reward" not in text


def test_all_figures_are_json(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, 1.0, 4.0)
    values = json.loads(json.dumps(figures_to_json(figures), allow_nan=False))
    assert values["fill"] == 2e-6
    assert values["top"][0]["priority"] == 4.0
    assert values["top"][0]["key"] == figures.top[0].key > 2**63
    assert values["histogram"]["counts"][-1] == 1
