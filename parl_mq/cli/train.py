"""`parl-mq train`: a whole run on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.config.models import NodeConfig, RunConfig
    from parl_mq.config.settings import Setting
    from parl_mq.wire.messages import RunProgress

AUTO: Final = "auto"


class TrainCommand(TyperCommand):
    """Knows what is meant where a setting is given as an option of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See typer.

        Raises:
            UsageError: an option that there is not has the name of a setting.
        """
        options = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        for word in args:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in options:
                _refuse_setting(name)
        return super().parse_args(ctx, args)


def train(
    context: typer.Context,
    source: options.Source,
    settings: options.Settings = None,
    actors: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Actor processes; auto: as `parl-mq plan` proposes.")
    ] = None,
    learners: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Learner processes; auto: one a GPU, else likewise.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="All random streams derive from it.")] = None,
    run_dir: options.RunDir = None,
    stop_at_return: Annotated[
        float | None, typer.Option(metavar="R", help="End when the mean evaluation return reaches this.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="End after at least so many environment steps.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="End after so many seconds.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --run-dir.")] = False,
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ENDPOINT", help="Where actors on other machines may join: tcp://HOST[:PORT]."),
    ] = None,
    advertise: options.Advertise = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Go in lock step up to stop.max_updates: the same settings learn the same."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, one line, to stdout.")] = False,
) -> None:
    """Train on this machine: start every node, show the progress, stop them cleanly.

    Ctrl-C ends the run in order, with exit code 130.
    """
    import json
    import sys
    import time

    from parl_mq.config.loader import load_with_origins
    from parl_mq.errors import ParlError
    from parl_mq.observe.elapsed import process_started_at

    flags = {
        ("--actors", "actor.num_actors"): _count("--actors", actors),
        ("--learners", "learner.num_learners"): _count("--learners", learners),
        ("--seed", "seed"): seed,
        ("--stop-at-return", "stop.target_return"): stop_at_return,
        ("--max-steps", "stop.max_steps"): max_steps,
        ("--max-seconds", "stop.max_seconds"): max_seconds,
    }
    implied = [] if stop_at_return is None else [_flag_setting("--stop-at-return", "stop.at_target", True)]
    implied += [_flag_setting("--deterministic", "deterministic", True)] if deterministic else []
    named = [_flag_setting(flag, key, value) for (flag, key), value in flags.items() if value is not None]
    given = options.settings_of_flags(settings, [*named, *implied])
    loaded, started_at = load_with_origins(source, overrides=given), process_started_at()
    if learners == AUTO and (num_gpus := _num_gpus(loaded.config)):
        learners, named = str(num_gpus), [*named, _flag_setting("--learners", "learner.num_learners", num_gpus)]
        loaded = load_with_origins(source, overrides=options.settings_of_flags(settings, [*named, *implied]))
    if AUTO in (actors, learners):
        split = _planned(loaded.config, {"--actors": actors, "--learners": learners})
        loaded = load_with_origins(source, overrides=options.settings_of_flags(settings, [*named, *implied, *split]))
        started_at = time.monotonic()  # the seconds of a run are not those of a measurement
    config = loaded.config
    _check_place(bind, advertise)

    from parl_mq import api
    from parl_mq.observe.progress import progress_view
    from parl_mq.observe.summary import print_summary

    earlier = None if run_dir is None or not resume else _EarlierPart.of(run_dir, config.node)
    with progress_view(config, sys.stderr, time.monotonic) as view:
        show = view if earlier is None else earlier.told_before(view)
        try:
            result = api.train(
                config,
                run_dir=run_dir,
                resume=resume,
                on_progress=show,
                on_event=view.tell,
                started_at=started_at,
                bind=bind,
                advertise=advertise,
                early=context.obj,
            )
        except ParlError as error:
            raise loaded.knowing("run_dir", options.origin_of_run_dir(context)).blamed(error) from error
    if earlier is not None:
        earlier.tell()  # a run may end before it shows a sign of life
    print_summary(result.summary, sys.stderr, reached_before=earlier is not None and earlier.has_reached)
    if as_json:
        print(json.dumps(result.summary, allow_nan=False))
    raise typer.Exit(result.exit_code)


def _refuse_setting(name: str) -> None:
    from parl_mq.config.names import settings_called
    from parl_mq.errors import UsageError

    if called := settings_called(name.removeprefix("--").replace("-", "_")):
        meant = " or ".join(f"--set {key}=VALUE" for key in called)
        raise UsageError(f"{name}: there is no such option; did you mean {meant}?")


def _count(flag: str, text: str | None) -> int | None:
    """The number of processes that an option gives; None where it gives none, or leaves it to the plan."""
    from parl_mq.errors import UsageError

    if text is None or text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: must be a whole number, or {AUTO}") from None


def _num_gpus(config: RunConfig) -> int:
    """GPUs that have a learner each; 0 where learners are to compute on the CPU, and a plan says how many."""
    from parl_mq.config.devices import Devices

    return 0 if config.node.device == "cpu" else Devices.here().num_learners


def _planned(config: RunConfig, said: dict[str, str | None]) -> list[Setting]:
    """The settings that `auto` stands for; what was given as a number, or not at all, stays as it is."""
    from parl_mq.cli.plan import split_for_training

    split = split_for_training(
        config,
        num_actors=None if said["--actors"] == AUTO else config.actor.num_actors,
        num_learners=None if said["--learners"] == AUTO else config.learner.num_learners,
    )
    chosen = {
        "--actors": ("actor.num_actors", split.num_actors),
        "--learners": ("learner.num_learners", split.num_learners),
    }
    return [_flag_setting(flag, key, number) for flag, (key, number) in chosen.items() if said[flag] == AUTO]


def _check_place(bind: str | None, advertise: str | None) -> None:
    """An address that cannot be used is a fault of the flag, told before anything heavy is loaded."""
    from parl_mq.errors import ConfigError, UsageError
    from parl_mq.services.attachment import PublicPlace

    try:
        if bind is not None:
            PublicPlace.of(bind, advertise)
    except ConfigError as error:
        raise UsageError(f"--bind: {error}") from error


def _flag_setting(flag: str, key: str, value: Any) -> Setting:
    """A setting that an option of its own makes; a fault in it names that option."""
    from parl_mq.config.settings import Origin, Setting

    shown = flag if value is True else f"{flag} {value}"
    return Setting(tuple(key.split(".")), value, Origin("flag", shown))


@dataclass
class _EarlierPart:
    """What a run that is resumed has behind it.

    Attributes:
        has_reached: its target.
        words: for people, where it goes on; None once they have been told.
    """

    has_reached: bool
    words: str | None

    @classmethod
    def of(cls, run_dir: Path, node: NodeConfig) -> _EarlierPart | None:
        """None where there is no run, which whoever opens it will say."""
        from parl_mq.learn.checkpoint import find_newest
        from parl_mq.services.run_directory import RunDirectory

        directory = RunDirectory(run_dir)
        if not directory.config.is_file():
            return None
        memory = directory.read_memory()
        damaged = [
            f"parl-mq: skipped a damaged checkpoint: {what}" for what in find_newest(directory.checkpoints).damaged
        ]
        goes_on = (
            f"going on after {memory.env_steps:,.0f} environment steps and {memory.updates:,.0f} updates; "
            + _rows_kept(node, memory.run_id)
        )
        return cls(memory.time_to_target_s is not None, "\n".join([*damaged, goes_on]))

    def tell(self) -> None:
        """Says once where the run goes on."""
        import sys

        words, self.words = self.words, None
        if words is not None:
            print(words, file=sys.stderr)

    def told_before(self, view: Callable[[RunProgress], None]) -> Callable[[RunProgress], None]:
        """Tells it in front of the first sign of life: a run that is refused does not go on."""

        def show(progress: RunProgress) -> None:
            self.tell()
            view(progress)

        return show


def _rows_kept(node: NodeConfig, run_id: str) -> str:
    """What the learner finds."""
    from parl_mq.errors import ConfigError, RingRefused
    from parl_mq.services.rings import rings_of_run

    try:
        num_live = sum(ring.num_live() for ring in rings_of_run(node, run_id))
    except (ConfigError, RingRefused):  # it will be refused, with the reason and what can be done
        return "the replay cannot go on with its rows"
    if num_live == 0:
        return "the replay is empty and is filled again before the learner goes on"
    return f"the replay has kept {num_live:,} rows"
