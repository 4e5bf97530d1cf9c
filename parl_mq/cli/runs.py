"""`parl-mq runs`: lists and compares run directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from parl_mq.cli import options

DEFAULT_FOLDER: Final = Path("runs")
BOOTSTRAP_SEED: Final = 0
"""The same runs give the same bands each time."""


def runs(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Runs, or folders that hold runs; else runs/.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the comparison; a .png, .svg or .pdf.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List runs, and compare those that differ in their seed alone.

    The return of a group is the interquartile mean over its runs' last evaluations, with a 95 % bootstrap band.
    """
    import sys
    import time
    from dataclasses import asdict

    import numpy as np

    from parl_mq.errors import CodedError, RecordError
    from parl_mq.observe.comparison import compare, group_runs
    from parl_mq.observe.plots import check_format, write_comparison
    from parl_mq.observe.run_table import print_runs, result_console
    from parl_mq.observe.runs import find_runs, read_run
    from parl_mq.observe.words import counted

    if plot is not None:
        check_format(plot)
    found = sorted({path for directory in directories or _default_folder() for path in find_runs(directory)})
    listed, now = [], time.time()
    for path in found:
        try:
            listed.append(read_run(path, now))
        except (RecordError, CodedError) as error:  # one damaged run hides no other
            print(f"parl-mq: left out: {error}", file=sys.stderr)
    groups = group_runs(listed)
    compared = [(group, compare(group, np.random.default_rng(BOOTSTRAP_SEED))) for group in groups]
    if as_json:
        shown = {
            "runs": [run.to_json() for run in listed],
            "groups": [asdict(comparison) for _, comparison in compared],
        }
        print(json.dumps(shown, allow_nan=False))
    elif compared:
        print_runs(compared, result_console(sys.stdout))
    else:
        print("no runs here yet; `parl-mq train cartpole-dqn` makes one", file=sys.stderr)
    if plot is not None:
        written = write_comparison(groups, plot, np.random.default_rng(BOOTSTRAP_SEED))
        print(f"drawn: {written}", file=sys.stderr)
        if num_without := sum(run.eval_return is None for group in groups for run in group.runs):
            print(f"not in it: {counted(num_without, 'run')} without an evaluation", file=sys.stderr)


def _default_folder() -> list[Path]:
    return [DEFAULT_FOLDER] if DEFAULT_FOLDER.is_dir() else []
