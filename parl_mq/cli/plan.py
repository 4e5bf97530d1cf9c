"""`parl-mq plan`: which split of this machine's cores between actors and learners is the fastest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.bench.split import Prediction
    from parl_mq.config.models import RunConfig


def plan(
    source: options.Source,
    settings: options.Settings = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores that the run may use; else all of them.")] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="That each measurement lasts once all nodes work.")] = 3.0,
    batch_size: Annotated[
        list[int] | None, typer.Option(metavar="B", help="Measure a learner with these batches too. Repeatable.")
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Run every split as well, beside what was predicted.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it; a .png, .svg or .pdf.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure what actors, learner and replay cost on this machine, and propose the fastest split of its cores.

    `train --actors auto --learners auto` takes it from here on.
    """
    import os

    from parl_mq.bench.plan import make_plan, measurable, measure_splits
    from parl_mq.bench.plan_view import print_plan, write_plan
    from parl_mq.bench.profile_store import machine_identity, profile_path, save_profile
    from parl_mq.bench.profiling import Watching, measure_profile
    from parl_mq.bench.report import describe_machine
    from parl_mq.config.loader import load_with_origins
    from parl_mq.errors import ParlError
    from parl_mq.observe.plots import check_format

    if plot is not None:
        check_format(plot)
    loaded = load_with_origins(source, overrides=options.settings_of_flags(settings))
    config, used = loaded.config, cores or len(os.sched_getaffinity(0))
    watching = Watching(seconds, used)
    try:
        profile = measure_profile(config, cores=used, watching=watching, batch_sizes=batch_size or (), tell=tell)
        made = make_plan(config.preset, {**describe_machine(), "cores": used}, profile)
        if exhaustive:
            from dataclasses import replace

            most = measurable(made.splits, used)
            ran = measure_splits(config, profile, max_actors=most, watching=watching, tell=tell)
            made = replace(made, measured=ran)
    except ParlError as error:
        raise loaded.blamed(error) from error
    save_profile(profile_path(config, machine_identity(used)), profile)
    print_plan(made, sys.stderr)
    if plot is not None:
        write_plan(made, plot)
    if as_json:
        print(made.to_json())


def split_for_training(config: RunConfig, *, num_actors: int | None, num_learners: int | None) -> Prediction:
    """The best split on all cores of this machine, from the profile that is kept or is measured now; says what and why.

    Args:
        config: of the run.
        num_actors: a number that is given already.
        num_learners: likewise.

    Raises:
        UsageError: so many learners cannot be planned with.
        ParlError: as `measure_profile`.
    """
    import os

    from parl_mq.bench.plan import in_words, split_settings
    from parl_mq.bench.profile_store import load_profile, machine_identity, profile_path, save_profile
    from parl_mq.bench.profiling import Watching, measure_profile
    from parl_mq.errors import UsageError
    from parl_mq.observe.words import compact

    cores = len(os.sched_getaffinity(0))
    path = profile_path(config, machine_identity(cores))
    profile = load_profile(path)
    kept = profile is not None
    if profile is None:
        tell("these settings were not measured on this machine yet; that is done now, once")
        profile = measure_profile(config, cores=cores, watching=Watching(3.0), tell=tell)
        save_profile(path, profile)
    try:
        choice = split_settings(profile, num_actors=num_actors, num_learners=num_learners)
    except ValueError as error:
        raise UsageError(f"--learners {num_learners}: {error}; give --actors a number too") from error
    tell(
        f"{in_words(choice)}: {compact(choice.env_steps_per_s)} steps/s are to be expected, limited by "
        f"{choice.bottleneck} ({'measured earlier, ' if kept else ''}{path})"
    )
    return choice


def tell(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)
