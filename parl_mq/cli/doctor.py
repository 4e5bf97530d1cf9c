"""`parl-mq doctor`: what is wrong with this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.config.models import NodeConfig, RunConfig
    from parl_mq.services.findings import Finding

SOMETHING_WRONG: Final = 1


def doctor(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET_OR_FILE]",
            help="Of a run that is to work here; without it, the machine alone.",
            autocompletion=options.presets_that_start_with,
        ),
    ] = None,
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="ENDPOINT", help="Examine the way to this hub too.")
    ] = None,
    join: Annotated[
        Path | None, typer.Option("--join", metavar="FILE", help="Examine a join file, and the way to its hub.")
    ] = None,
    key: options.Key = None,
    settings: options.Settings = None,
    as_json: options.Json = False,
) -> None:
    """Check this machine: versions, compiled parts, devices, limits, memory, and what dead runs have left.

    With --hub or --join, the connection too: each port, the handshake, keys, versions, clocks.

    Exit code 0 if all that is needed is there, 1 if not.
    """
    import sys
    from dataclasses import asdict

    node, run = _wanted(source, settings)

    from parl_mq.services.doctor import examine

    findings = list(examine(node, run))
    if hub is not None or join is not None:
        findings += _connection(hub, join, key)
    is_healthy = all(finding.verdict != "fault" for finding in findings)
    if as_json:
        print(json.dumps({"healthy": is_healthy, "findings": [asdict(finding) for finding in findings]}))
    else:
        from rich.text import Text

        from parl_mq.cli.findings import print_findings
        from parl_mq.observe.run_table import result_console

        console = result_console(sys.stdout)
        print_findings(findings, console)
        what = "this machine" if source is None else f"{source} on this machine"
        console.print(Text(f"nothing is wrong with {what}" if is_healthy else f"{what} has faults", "bold"))
    raise typer.Exit(0 if is_healthy else SOMETHING_WRONG)


def _connection(hub: str | None, join: Path | None, key: Path | None) -> list[Finding]:
    from parl_mq.errors import ConfigError, UsageError
    from parl_mq.net.endpoints import check_endpoint
    from parl_mq.services.connection_check import check_connection

    if hub is not None and join is not None:
        raise UsageError("say --hub ENDPOINT or --join FILE: the file says where its hub is")
    try:
        if hub is not None:
            check_endpoint(hub)
    except ConfigError as error:
        raise UsageError(f"--hub: {error}") from error
    return check_connection(hub, join, key)


def _wanted(source: str | None, settings: list[str] | None) -> tuple[NodeConfig, RunConfig | None]:
    from parl_mq.config.loader import load_config, load_node_config

    flags = options.settings_of_flags(settings)
    if source is None:
        return load_node_config(overrides=flags), None
    run = load_config(source, overrides=flags)
    return run.node, run
