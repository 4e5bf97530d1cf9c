"""`parl-mq replay`: a replay node in this process; and what the ring of a run's node holds, looked at and moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parl_mq.cli import nodes, options

if TYPE_CHECKING:
    from parl_mq.config.models import RunConfig
    from parl_mq.services.run_directory import RunDirectory

app = typer.Typer(name="replay", invoke_without_command=True)

_RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's directory.")]
_OfNode = Annotated[str | None, typer.Option("--name", help="Of the replay node, where the run has several.")]


@app.callback()
def replay(
    context: typer.Context,
    hub: options.Hub = None,
    join: options.Join = None,
    key: options.Key = None,
    bind: options.BindOfNode = None,
    advertise: options.Advertise = None,
    insecure: options.Insecure = False,
    name: options.Name = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin with an empty ring, in place of one that an earlier process left.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="The run's directory, if it is on this machine: its ring goes with it.")
    ] = None,
    settings: options.NodeSettings = None,
    lifeline_fd: options.LifelineFd = None,
) -> None:
    """Start a replay node, with --hub and --bind: it stores what actors send and draws batches for the learners.

    It goes on with the ring that an earlier process of the same name has left in this run.
    """
    if context.invoked_subcommand is not None:
        return
    from parl_mq.errors import UsageError

    if not bind or (hub is None and join is None):
        needed = "--bind" if not bind else "--hub, or --join"
        raise UsageError(f"a replay node needs {needed}; see parl-mq replay --help")
    node = nodes._node("replay", hub, name, settings, lifeline_fd, join, key)
    nodes.replay(node, bind, fresh=fresh, run_dir=run_dir, advertise=advertise, insecure=insecure)


@app.command("inspect")
def inspect(
    run_dir: _RunDir,
    name: _OfNode = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the largest priorities that are shown.")] = 10,
    settings: options.NodeSettings = None,
    as_json: options.Json = False,
) -> None:
    """Show what a run's ring holds: fill, ages, priorities. The replay node, if it runs, goes on meanwhile."""
    import json
    import sys

    from parl_mq.observe.replay_view import figures_to_json, print_figures
    from parl_mq.observe.run_table import result_console
    from parl_mq.services.moving import inspect_run

    directory, config = _run(run_dir, settings)
    found = inspect_run(directory, config.node, name=name, num_top=top)
    place = {"ring": str(found.ring.path), "is_in_use": found.is_in_use}
    if as_json:
        print(json.dumps({**place, **figures_to_json(found.figures)}, allow_nan=False))
    else:
        state = "in use" if found.is_in_use else "not in use"
        print_figures(found.figures, result_console(sys.stdout), title=f"{found.ring.path}, {state}")


@app.command("snapshot")
def snapshot(
    run_dir: _RunDir,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the rows go; replaced if it exists.")],
    name: _OfNode = None,
    settings: options.NodeSettings = None,
) -> None:
    """Write a run's ring into one file. The replay node, if it runs, does not wait for it."""
    import sys

    from parl_mq.replay.memory import mib
    from parl_mq.services.moving import snapshot_run

    directory, config = _run(run_dir, settings)
    done = snapshot_run(directory, config.node, file, name=name)
    left_out = f"; {done.num_left_out:,} were overwritten meanwhile and left out" if done.num_left_out else ""
    print(
        f"{done.num_live:,} live rows, {mib(done.num_bytes)}, in {done.duration_s:.1f} s{left_out}",
        file=sys.stderr,
    )


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `replay snapshot` has written.")],
    run_dir: _RunDir,
    name: _OfNode = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace a ring that the run has already.")] = False,
    settings: options.NodeSettings = None,
) -> None:
    """Make a run's ring of a snapshot; `parl-mq train --resume` goes on with it."""
    import sys

    from parl_mq.services.moving import restore_run

    directory, config = _run(run_dir, settings)
    done = restore_run(directory, config, file, name=name, fresh=fresh)
    print(f"{done.num_live:,} live rows in {done.path}, in {done.duration_s:.1f} s", file=sys.stderr)


def _run(path: Path, settings: list[str] | None) -> tuple[RunDirectory, RunConfig]:
    """The run as it was started; of the environment's settings only those of this process are taken."""
    import os

    from parl_mq.config.loader import load_config
    from parl_mq.config.settings import settings_of_environment
    from parl_mq.services.run_directory import RunDirectory

    directory = RunDirectory.open(path)
    own = [setting for setting in settings_of_environment(os.environ) if setting.key[0] == "node"]
    overrides = [*own, *options.settings_of_flags(settings)]
    return directory, load_config(directory.config, overrides=overrides, environ={})
