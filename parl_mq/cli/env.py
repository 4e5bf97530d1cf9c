"""`parl-mq env check`: whether an environment can be used here, and what is odd about it."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from parl_mq.cli import options

UNSUPPORTED: Final = 1
SEED: Final = 1


def check(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="A gymnasium id, module:EnvId, or module:function.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="environment.KEY=VALUE", help="How it is made. Repeatable."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Try an environment: spaces, seeding, episodes, memory, vector version, speed.

    Exit code 0 if actors can use it, 1 if not.
    """
    import sys
    import time

    from parl_mq.config.loader import load_environment_config
    from parl_mq.services.env_check import check_environment

    report = check_environment(
        load_environment_config(env_id, overrides=options.settings_of_flags(settings)), SEED, time.monotonic
    )
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        from rich.text import Text

        from parl_mq.cli.findings import print_findings
        from parl_mq.observe.run_table import result_console

        console = result_console(sys.stdout)
        print_findings(report.findings, console)
        console.print(Text(f"{env_id} is {'supported' if report.is_supported else 'not supported'}", "bold"))
    raise typer.Exit(0 if report.is_supported else UNSUPPORTED)
