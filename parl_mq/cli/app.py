"""Puts the commands together. It imports nothing that takes time, so that --help is quick."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from parl_mq.cli import (
    bench,
    doctor,
    env,
    keys,
    nodes,
    plan,
    play,
    replay,
    runs,
    services,
    settings,
    status,
    top,
    train,
    wire,
)

NODES: Final = "Single nodes"

app = typer.Typer(
    name="parl-mq",
    help="Deep reinforcement learning with parallel actors and learners.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(name="config", help="What can be set, and what applies.", no_args_is_help=True)
bench_app = typer.Typer(name="bench", help="How fast this is, here and beside others.", no_args_is_help=True)
wire_app = typer.Typer(name="wire", help="What nodes say to each other.", no_args_is_help=True)
services_app = typer.Typer(name="services", help="The nodes of a run as services of systemd.", no_args_is_help=True)
env_app = typer.Typer(name="env", help="What an environment is like.", no_args_is_help=True)

app.command("train", cls=train.TrainCommand)(train.train)
app.command("presets")(settings.presets)
app.command("runs")(runs.runs)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("play")(play.play)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.command("join-token")(keys.join_token)
app.add_typer(keys.app)
app.add_typer(wire_app)
wire_app.command("dump")(wire.dump)
app.add_typer(config_app)
config_app.command("show")(settings.show)
config_app.command("schema")(settings.schema)
app.add_typer(env_app)
env_app.command("check")(env.check)
app.add_typer(services_app)
services_app.command("render")(services.render)
services_app.command("install")(services.install)
services_app.command("uninstall")(services.uninstall)
app.add_typer(bench_app)
bench_app.command("tree")(bench.tree)
bench_app.command("replay")(bench.replay)
bench_app.command("service")(bench.service)
bench_app.command("scale")(bench.scale)
bench_app.command("metrics")(bench.metrics)
bench_app.command("train")(bench.train)
app.command("hub", rich_help_panel=NODES)(nodes.hub)
app.add_typer(replay.app, rich_help_panel=NODES)
for role in (nodes.learner, nodes.actor, nodes.evaluator):
    app.command(role.__name__, rich_help_panel=NODES)(role)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from parl_mq import __version__

        print(f"parl-mq {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Deep reinforcement learning with parallel actors and learners."""
