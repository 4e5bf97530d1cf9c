"""`parl-mq train`: a whole run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from parl_mq.cli import options


def train(
    source: options.Source,
    settings: options.Settings = None,
    actors: Annotated[int | None, typer.Option(help="Actor processes.")] = None,
    learners: Annotated[int | None, typer.Option(help="Learner processes.")] = None,
    seed: Annotated[int | None, typer.Option(help="All random streams derive from it.")] = None,
    run_dir: options.RunDir = None,
    stop_at_return: Annotated[
        float | None, typer.Option(metavar="R", help="End when the mean evaluation return reaches this.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="End after so many environment steps.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="End after so many seconds.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --run-dir.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, one line, to stdout.")] = False,
) -> None:
    """Train on this machine: start every node, show the progress, stop them cleanly.

    Ctrl-C ends the run in order, with exit code 130.
    """
    import json
    import sys
    import time

    from parl_mq.config import load_config

    flags = {
        ("--actors", "actor.num_actors"): actors,
        ("--learners", "learner.num_learners"): learners,
        ("--seed", "seed"): seed,
        ("--stop-at-return", "stop.target_return"): stop_at_return,
        ("--max-steps", "stop.max_steps"): max_steps,
        ("--max-seconds", "stop.max_seconds"): max_seconds,
    }
    implied = [] if stop_at_return is None else [_flag_setting("--stop-at-return", "stop.at_target", True)]
    named = [_flag_setting(flag, key, value) for (flag, key), value in flags.items() if value is not None]
    config = load_config(source, overrides=[*(settings or []), *named, *implied])

    from parl_mq import api
    from parl_mq.observe.progress import progress_view
    from parl_mq.observe.summary import print_summary

    if resume and run_dir is not None:
        _tell_where_it_goes_on(run_dir)
    with progress_view(config, sys.stderr, time.monotonic) as view:
        result = api.train(
            config,
            run_dir=run_dir,
            resume=resume,
            on_progress=view,
            on_event=view.tell,
            started_at=_process_started_at(),
        )
    print_summary(result.summary, sys.stderr)
    if as_json:
        print(json.dumps(result.summary, allow_nan=False))
    raise typer.Exit(result.exit_code)


def _flag_setting(flag: str, key: str, value: Any) -> Any:
    """A setting that an option of its own makes; a fault in it names that option."""
    from parl_mq.config.settings import Origin, Setting

    shown = flag if value is True else f"{flag} {value}"
    return Setting(tuple(key.split(".")), value, Origin("flag", shown))


def _process_started_at() -> float:
    """Monotonic time at which this process was started, s: the interpreter's own start counts too."""
    import os
    import time

    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def _tell_where_it_goes_on(run_dir: Path) -> None:
    import sys

    from parl_mq.learn.checkpoint import find_newest
    from parl_mq.services.run_directory import RunDirectory

    directory = RunDirectory.open(run_dir)
    memory = directory.read_memory()
    for damage in find_newest(directory.checkpoints).damaged:
        print(f"parl-mq: skipped a damaged checkpoint: {damage}", file=sys.stderr)
    print(
        f"going on after {memory.env_steps:,.0f} environment steps and {memory.updates:,.0f} "
        "updates; the replay is empty and is filled again before the learner goes on",
        file=sys.stderr,
    )
