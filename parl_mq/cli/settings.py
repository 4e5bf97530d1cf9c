"""`parl-mq presets`, `config show`, `config schema`: what there is, and what applies."""

from __future__ import annotations

import json
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.config.loader import LoadedConfig


def presets(as_json: options.Json = False) -> None:
    """List the published presets."""
    from parl_mq.config.loader import load_config, preset_names, read_preset

    rows = []
    for name in preset_names():
        config = load_config(name, environ={})
        rows.append(
            {
                "name": name,
                "env_id": config.environment.id,
                "algorithm": config.algorithm.name,
                "target_return": config.stop.target_return,
                "about": _about(read_preset(name)),
            }
        )
    print(json.dumps(rows) if as_json else "\n".join(f"{row['name']}\n    {row['about']}" for row in rows))


def _about(text: str) -> str:
    """The first paragraph of a preset's comment, in one line."""
    return " ".join(line.removeprefix("# ") for line in text.partition("\n#\n")[0].splitlines())


def show(source: options.Source, settings: options.Settings = None, as_json: options.Json = False) -> None:
    """Show every setting that applies, and where it came from.

    The output is a TOML file that gives the same run.
    """
    from parl_mq.config.loader import load_with_origins

    loaded = load_with_origins(source, overrides=options.settings_of_flags(settings))
    print(json.dumps(_with_origins(loaded)) if as_json else commented_toml(loaded))


def schema(
    algorithm: Annotated[
        str | None, typer.Option(help="Whose settings the section algorithm has; without it, anyone's.")
    ] = None,
) -> None:
    """Print the JSON schema of a run's settings."""
    from parl_mq.config.schema import run_schema

    print(json.dumps(run_schema(algorithm), indent=2))


def commented_toml(loaded: LoadedConfig) -> str:
    """The settings as TOML, each with its origin in a comment; what has no value is named at the end."""
    from parl_mq.config.loader import dump_toml
    from parl_mq.config.settings import lines_of_keys

    text = dump_toml(loaded.config)
    lines, places = text.splitlines(), lines_of_keys(text)
    for key, origin in loaded.origins.items():
        if key in places:
            lines[places[key] - 1] += f"  # {origin.place}"
        else:
            lines.append(f"# {'.'.join(key)} has no value: {origin.place}")
    return "\n".join(lines)


def _with_origins(loaded: LoadedConfig) -> dict[str, Any]:
    values = loaded.config.model_dump(mode="json")
    return {
        ".".join(key): {"value": reduce(getitem, key, values), "kind": origin.kind, "place": origin.place}
        for key, origin in loaded.origins.items()
    }
