"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _presets_that_start_with(typed: str) -> list[str]:
    """What the shell offers; where nothing fits it offers files."""
    from parl_mq.config.loader import preset_names

    return [name for name in preset_names() if name.startswith(typed)]


Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET_OR_FILE", help="A preset's name, or a TOML file.", autocompletion=_presets_that_start_with
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as replay.buffer_size=50000. Repeatable."),
]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", envvar="PARL_MQ_RUN_DIR", help="Where the run is recorded; must not exist yet."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]

Hub = Annotated[
    str, typer.Option("--hub", envvar="PARL_MQ_HUB", metavar="ENDPOINT", help="The hub's endpoint, tcp:// or ipc://.")
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
