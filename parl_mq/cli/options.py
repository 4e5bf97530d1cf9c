"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from parl_mq.config.settings import Origin, Setting

RUN_DIR_VARIABLE: Final = "PARL_MQ_RUN_DIR"
RUN_DIR_HELP: Final = "The run's directory: a new one, else runs/PRESET-seedN-TIME; with --resume that of the run."


def presets_that_start_with(typed: str) -> list[str]:
    """What the shell offers; where nothing fits it offers files."""
    from parl_mq.config.loader import preset_names

    return [name for name in preset_names() if name.startswith(typed)]


def _checked_endpoint(context: typer.Context, option: typer.CallbackParam, endpoint: str | None) -> str | None:
    """An address that cannot be used is told before anything heavy is loaded, as a fault of where it was said."""
    from parl_mq.errors import ConfigError, UsageError
    from parl_mq.net.endpoints import check_endpoint

    if endpoint is None:
        return None
    is_flag = not _is_from_environment(context, option.name or "")
    place, error = (option.opts[0], UsageError) if is_flag else (str(option.envvar), ConfigError)
    try:
        check_endpoint(endpoint)
    except ConfigError as fault:
        raise error(f"{place}: {fault}") from fault
    return endpoint


def _checked_endpoints(context: typer.Context, option: typer.CallbackParam, endpoints: list[str] | None) -> list[str]:
    """Each address of a repeatable option; at most one for this machine, and one that others may reach."""
    from parl_mq.errors import UsageError

    endpoints = endpoints or []
    for endpoint in endpoints:
        _checked_endpoint(context, option, endpoint)
    if len(endpoints) > 2 or len({endpoint.partition(":")[0] for endpoint in endpoints}) < len(endpoints):
        raise UsageError("--bind can be said twice, once with ipc:// and once with tcp://")
    return sorted(endpoints)


def _is_from_environment(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def origin_of_run_dir(context: typer.Context) -> Origin:
    """Where the run directory was said, of a command with `RunDir`."""
    from parl_mq.config.settings import Origin

    if _is_from_environment(context, "run_dir"):
        return Origin("environment", RUN_DIR_VARIABLE)
    if context.params["run_dir"] is None:
        return Origin("default", "default")
    return Origin("flag", f"--run-dir {context.params['run_dir']}")


def settings_of_flags(texts: Sequence[str] | None, named: Sequence[Setting] = ()) -> list[Setting]:
    """The settings that a command line makes.

    Args:
        texts: of --set.
        named: those that have an option of their own.

    Raises:
        UsageError: one has another form, or two of them contradict each other.
    """
    from parl_mq.config.settings import refuse_contradictions, settings_of_override

    settings = [*(setting for text in texts or () for setting in settings_of_override(text)), *named]
    refuse_contradictions(settings)
    return settings


Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET_OR_FILE", help="A preset's name, or a TOML file.", autocompletion=presets_that_start_with
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as replay.buffer_size=50000. Repeatable."),
]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", envvar=RUN_DIR_VARIABLE, help=RUN_DIR_HELP),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]

_HUB: Final = typer.Option(
    "--hub",
    envvar="PARL_MQ_HUB",
    metavar="ENDPOINT",
    callback=_checked_endpoint,
    help="The hub's endpoint, tcp:// or ipc://.",
)
_BIND: Final = typer.Option(
    "--bind", metavar="ENDPOINT", callback=_checked_endpoints, help="Where to listen, tcp:// or ipc://, or both."
)
Hub = Annotated[str | None, _HUB]
Bind = Annotated[list[str], _BIND]
BindOfNode = Annotated[list[str] | None, _BIND]
"""Of a command that starts a node only where none of its subcommands is given."""
Join = Annotated[
    Path | None,
    typer.Option(
        "--join", metavar="FILE", help="In place of --hub, on another machine: a file of `parl-mq join-token`."
    ),
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The node's own key, where the join file has none: `parl-mq keys new`."),
]
Advertise = Annotated[
    str | None,
    typer.Option("--advertise", metavar="HOST", help="The name or address by which other machines reach this one."),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Let other machines connect without keys: nothing is encrypted, anyone may join."),
]
Name = Annotated[str | None, typer.Option("--name", help="The node's name, unique in the run.")]
LifelineFd = Annotated[
    int | None,
    typer.Option("--lifeline-fd", hidden=True, help="Read end of a pipe that the supervisor holds open."),
]
NodeSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="node.KEY=VALUE", help="One of this process's own settings. Repeatable."),
]
