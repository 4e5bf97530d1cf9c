"""`parl-mq services`: the nodes of a run as services of systemd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.services.units import AttachedActors, Installation, LocalRun, Places

_Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[PRESET_OR_FILE]",
        help="The run's settings; with --join there are none.",
        autocompletion=options.presets_that_start_with,
    ),
]
_Join = Annotated[
    Path | None,
    typer.Option("--join", metavar="FILE", help="Actors alone, of the run on another machine that made this file."),
]
_Name = Annotated[
    str | None,
    typer.Option("--name", help="The run's name, which its directory has too; default: that of its settings."),
]
_Actors = Annotated[int | None, typer.Option("--actors", min=1, help="Actor processes on this machine.")]
_User = Annotated[bool, typer.Option("--user", help="Services of your own session, without root, less shut off.")]
_Python = Annotated[
    Path | None,
    typer.Option("--python", metavar="FILE", help="Interpreter that has parl_mq; default: the one of this command."),
]


def render(
    source: _Source = None,
    settings: options.Settings = None,
    join: _Join = None,
    name: _Name = None,
    actors: _Actors = None,
    user: _User = False,
    python: _Python = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Write the files there; else they are printed.")
    ] = None,
) -> None:
    """Show the units that `install` would write, and say what they cannot do here."""
    import os
    import sys

    from parl_mq.services.files import write_atomically, writing
    from parl_mq.services.installing import SECRET, examine, written_files

    installation = _installation(source, settings, join, name, actors, user=user, python=python)
    files = {path: text for path, (text, mode) in written_files(installation).items() if mode != SECRET}
    for path, text in files.items():
        if output is None:
            print(f"# {path}\n{text}")
        else:
            with writing(output):
                output.mkdir(parents=True, exist_ok=True)
            write_atomically(output / path.name, text)
    for finding in examine(installation, os.environ):
        print(f"parl-mq: {finding.about}: {finding.what}", file=sys.stderr)


def install(
    source: _Source = None,
    settings: options.Settings = None,
    join: _Join = None,
    name: _Name = None,
    actors: _Actors = None,
    user: _User = False,
    python: _Python = None,
) -> None:
    """Write the units and enable them: they start with the machine, or with --user when you log in. Starts nothing."""
    import os
    import sys

    from parl_mq.services import installing
    from parl_mq.services.units import TARGET

    installation = _installation(source, settings, join, name, actors, user=user, python=python)
    installing.check(installation, os.environ)
    manager = installing.Manager.here(installation.flavour)
    for path in installing.install(installation, manager, os.environ):
        print(f"wrote {path}")
    for finding in installing.examine(installation, os.environ):
        print(f"parl-mq: {finding.about}: {finding.what}", file=sys.stderr)
    print(f"start them with: {' '.join(installing.systemctl_of(installation.flavour))} start {TARGET}")
    if installation.run_directory is not None:
        print(f"look at them with: parl-mq status {installation.run_directory}")


def uninstall(user: _User = False) -> None:
    """Stop the services and remove their units. Settings and run directories stay."""
    import os
    import sys

    from parl_mq.services import installing
    from parl_mq.services.units import Places

    flavour = _flavour(user=user)
    places = Places.of(flavour, os.environ)
    for path in installing.uninstall(places, installing.Manager.here(flavour)):
        print(f"removed {path}")
    for finding in installing.left_over(places, flavour):
        print(f"parl-mq: {finding.about}: {finding.what}", file=sys.stderr)
    kept = [path for path in (places.settings, places.runs) if path.exists()]
    print(f"left alone: {', '.join(map(str, kept))}" if kept else "nothing else is there")


def _installation(
    source: str | None,
    settings: list[str] | None,
    join: Path | None,
    name: str | None,
    actors: int | None,
    *,
    user: bool,
    python: Path | None,
) -> Installation:
    import os
    import sys

    from parl_mq.services.units import Installation, Places

    flavour = _flavour(user=user)
    places = Places.of(flavour, os.environ)
    what = (
        _run(source, settings, name, actors, places)
        if join is None
        else _attached(source, settings, name, join, actors)
    )
    return Installation(what, flavour, Path(os.path.abspath(python or sys.executable)), places)


def _flavour(*, user: bool) -> Literal["system", "user"]:
    return "user" if user else "system"


def _run(
    source: str | None, settings: list[str] | None, name: str | None, actors: int | None, places: Places
) -> LocalRun:
    """The run of these settings; those that an installation has written lie in a file with the run's name."""
    import re

    from parl_mq.config.loader import load_config
    from parl_mq.config.settings import Origin, Setting
    from parl_mq.errors import UsageError
    from parl_mq.services.units import LocalRun

    if source is None:
        raise UsageError("name a preset or a file of settings, or --join FILE for actors of another machine's run")
    flag = Origin("flag", f"--actors {actors}")
    named = [] if actors is None else [Setting(("actor", "num_actors"), actors, flag)]
    config = load_config(source, overrides=options.settings_of_flags(settings, named), environ={})
    file = Path(source).absolute()
    name = name or (file.stem if file.parent == places.settings else config.preset)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise UsageError(f"--name {name}: a run's name has letters, digits, '.', '_' and '-' alone")
    return LocalRun(name, config)


def _attached(
    source: str | None, settings: list[str] | None, name: str | None, join: Path, actors: int | None
) -> AttachedActors:
    from parl_mq.errors import UsageError
    from parl_mq.services.installing import attached_actors

    if source is not None or settings:
        raise UsageError("--join FILE: the run's settings come from its hub; leave them out")
    if name is not None:
        raise UsageError("--join FILE: the actors have the name that stands in it; leave out --name")
    return attached_actors(join, 1 if actors is None else actors)
