"""Writes docs/configuration.md, the reference of all settings: `python docs/write_configuration.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from parl_mq.config.schema import run_schema

PATH: Final = Path(__file__).with_name("configuration.md")

WORDS: Final = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "object": "table",
    "string": "text",
}

HEAD: Final = """\
# Settings

Written by `python docs/write_configuration.py` from the schema that `parl-mq config schema` prints.

A run is a preset or a TOML file. Four layers apply, and later ones win:

| layer | form |
|---|---|
| defaults | the tables below |
| preset or file | `[replay]` and `buffer_size = 50_000` |
| environment variables | `PARL_MQ_REPLAY__BUFFER_SIZE=50000` |
| flags | `--set replay.buffer_size=50000`; `none` puts a default back |

An unknown key anywhere ends the command before anything starts, and names the nearest valid one. `parl-mq config show`
prints what applies and where each value came from:

```bash
parl-mq config show cartpole-dqn --set seed=7
parl-mq config schema
```

`PARL_MQ_RUN_DIR` stands for `--run-dir`, and `PARL_MQ_HUB` for a node's `--hub`; they are no settings.
"""


def markdown(schema: dict[str, Any]) -> str:
    """The reference as Markdown, one table a section."""
    plain: dict[str, Any] = {}
    tables = []
    for name, value in schema["properties"].items():
        options = [_resolved(schema, option) for option in value.get("anyOf", [value])]  # one for each algorithm
        if "properties" not in options[0]:
            plain[name] = value
        tables += [_table(_title(name, section), section) for section in options if "properties" in section]
    run = {"description": "Keys outside of any section.", "properties": plain}
    return "\n".join([HEAD, _table("The run", run), *tables])


def _title(name: str, section: dict[str, Any]) -> str:
    """The section's name; of an algorithm's settings with the algorithm's, so that each heading can be linked to."""
    known_as = section["properties"].get("name", {}).get("default")
    return f"`[{name}]`" if known_as is None else f"`[{name}]` of `{known_as}`"


def _table(title: str, section: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {_kind(setting)} | {_default(name, setting, section)} | {setting['description']} |"
        for name, setting in section["properties"].items()
    ]
    head = [f"## {title}\n", f"{section['description']}\n", "| key | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _default(name: str, setting: dict[str, Any], section: dict[str, Any]) -> str:
    if name in section.get("required", []):
        return "required"
    return _value(setting["default"]) if "default" in setting else "empty"


def _resolved(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    path = value.get("$ref") or (value.get("allOf") or [{}])[0].get("$ref")
    return value if path is None else schema["$defs"][path.rpartition("/")[2]]


def _kind(setting: dict[str, Any]) -> str:
    """Type and range in words."""
    if "anyOf" in setting:
        return " or ".join(_kind(option) for option in setting["anyOf"] if option.get("type") != "null")
    if "enum" in setting:
        return ", ".join(_value(option) for option in setting["enum"])
    if "const" in setting:
        return _value(setting["const"])
    if setting.get("type") == "array":
        return f"list of {_kind(setting['items'])}"
    word = WORDS[setting["type"]]
    bounds = [
        f"{sign} {setting[bound]:,}"
        for bound, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
        if bound in setting
    ]
    return " ".join([word, ", ".join(bounds)]).strip()


def _value(value: Any) -> str:
    return "none" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PATH.write_text(markdown(run_schema()), encoding="utf-8")
