"""Single settings, before they become a model: a key, a value, and where it was said."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import tomli_w

from parl_mq.errors import ConfigError, UsageError

Key = tuple[str, ...]

ENVIRONMENT_PREFIX: Final = "PARL_MQ_"
OTHER_VARIABLES: Final = {
    "PARL_MQ_HUB": "endpoint of the hub that a node joins; the option --hub",
    "PARL_MQ_RUN_DIR": "where the run is recorded; the option --run-dir",
}
"""Environment variables with our prefix that are no settings."""
CLEARED: Final = "none"
"""What a flag or variable says to put a setting back to its default; TOML has no word for nothing."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was said.

    Attributes:
        kind: the layer, later ones win: `default`, `preset` or `file`, `environment`, `flag`.
        place: what a person looks for: `run.toml:7`, a variable's name, a flag as it was typed.
    """

    kind: Literal["default", "preset", "file", "environment", "flag"]
    place: str

    @property
    def rank(self) -> int:
        """Grows with the layer."""
        return {"default": 0, "preset": 1, "file": 1, "environment": 2, "flag": 3}[self.kind]

    @property
    def error(self) -> type[ConfigError]:
        """The error for a fault in a setting from here."""
        return UsageError if self.kind == "flag" else ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key; the value is a dict only where that is empty, and None puts the default back."""

    key: Key
    value: Any
    origin: Origin


def settings_of_toml(text: str, origin: Origin) -> list[Setting]:
    """The settings of a file, each with its line.

    Args:
        text: of the file.
        origin: of the file; `:LINE` is added to its place.

    Raises:
        ConfigError: this is not TOML.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin.place}: {error}") from error
    lines = lines_of_keys(text)
    return [
        Setting(key, value, Origin(origin.kind, f"{origin.place}:{lines[key]}")) for key, value in _leaves(values, ())
    ]


def settings_of_environment(environ: Mapping[str, str]) -> list[Setting]:
    """The settings among the variables: `PARL_MQ_REPLAY__BUFFER_SIZE` is `replay.buffer_size`."""
    names = sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_VARIABLES)
    return [
        Setting(key, value, Origin("environment", name))
        for name in names
        for key, value in _leaves(_parse_value(environ[name]), key_of_variable(name))
    ]


def settings_of_override(text: str) -> list[Setting]:
    """The settings of one `key.path=value`; more than one only if the value is an inline table.

    Raises:
        UsageError: it does not have this form.
    """
    path, equals, value = text.partition("=")
    key = tuple(part.strip() for part in path.split("."))
    if not equals or not all(key):
        raise UsageError(f"--set {text}: must have the form key.path=value, such as --set replay.buffer_size=50000")
    return [
        Setting(key, leaf, Origin("flag", f"--set {text}")) for key, leaf in _leaves(_parse_value(value.strip()), key)
    ]


def refuse_contradictions(settings: Sequence[Setting]) -> None:
    """Refuses flags that say different things about one key: which of them is meant, nobody can tell.

    Raises:
        UsageError: names both.
    """
    said: dict[Key, Setting] = {}
    for setting in settings:
        earlier = said.setdefault(setting.key, setting)
        if earlier is not setting and earlier.value != setting.value:
            raise UsageError(
                f"{earlier.origin.place} and {setting.origin.place} say different things about "
                f"{'.'.join(setting.key)}; leave one of them out"
            )


def key_of_variable(name: str) -> Key:
    """The key that an environment variable sets."""
    return tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))


def variable_of_key(key: Key) -> str:
    """The environment variable that sets a key."""
    return ENVIRONMENT_PREFIX + "__".join(key).upper()


def value_in_words(value: Any) -> str:
    """A value as it stands behind `key=` after --set, or in a variable: TOML on one line, so that text stays text."""
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")


def merge(settings: list[Setting]) -> tuple[dict[str, Any], dict[Key, Origin]]:
    """Nested values, and the origin of each leaf; a later setting replaces an earlier one and all below it."""
    values: dict[str, Any] = {}
    origins: dict[Key, Origin] = {}
    for setting in settings:
        *path, last = setting.key
        section = values
        for part in path:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        section[last] = setting.value
        if setting.value is None:
            del section[last]
        origins = {key: origin for key, origin in origins.items() if key[: len(setting.key)] != setting.key}
        origins[setting.key] = setting.origin
    return values, origins


def lines_of_keys(text: str) -> dict[Key, int]:
    """Line of each leaf, from 1; the parser itself says where a statement ends."""
    lines: dict[Key, int] = {}
    table: Key = ()
    statement, first = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # a value that spans lines
        if statement.lstrip().startswith("["):
            table = _only_path(parsed)
            lines.setdefault(table, first)
        else:
            for key, _ in _leaves(parsed, ()):
                lines.setdefault((*table, *key), first)
        statement, first = "", number + 1
    return lines


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    elif key:
        yield key, value


def _parse_value(text: str) -> Any:
    """A TOML value; what is none is a string as it stands."""
    if text == CLEARED:
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _only_path(parsed: dict[str, Any]) -> Key:
    """The name of the table of a header, which is all that was parsed."""
    path: Key = ()
    inner: Any = parsed
    while isinstance(inner, dict) and inner:
        ((name, inner),) = inner.items()
        path = (*path, name)
    return path
