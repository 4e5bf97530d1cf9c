"""Loads a run's settings: defaults < preset or file < environment < flags, each value with its origin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from parl_mq.config.models import (
    IMPOSSIBLE,
    AlgorithmConfig,
    EnvironmentConfig,
    NodeConfig,
    RunConfig,
    Section,
    algorithm_settings,
)
from parl_mq.config.names import known_keys, nearest_name, unknown_key
from parl_mq.config.settings import (
    Key,
    Origin,
    Setting,
    merge,
    settings_of_environment,
    settings_of_override,
    settings_of_toml,
)
from parl_mq.errors import ConfigError, ParlError, UsageError

DEFAULT: Final = Origin("default", "default")
MAX_SHOWN: Final = 80
"""Characters of a wrong value that a message repeats."""

_WORDS: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", float: "a number"}

Model = TypeVar("Model", bound=Section)

_PRESETS: Final = files("parl_mq.presets")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A run's settings, and where each came from.

    Attributes:
        origins: one entry for each setting.
    """

    config: RunConfig
    origins: dict[Key, Origin]

    def knowing(self, key: str, origin: Origin) -> LoadedConfig:
        """This, with the origin of something that is no setting."""
        return LoadedConfig(self.config, {**self.origins, (key,): origin})

    def blamed(self, error: ParlError) -> ParlError:
        """What is to be raised for an error about settings: it says where they were said, and whose fault it is.

        A UsageError where one of them came from a flag, else a ConfigError; an error about none stays as it is.
        """
        if not error.keys:
            return error
        said = {key: self._origin_of(key) for key in error.keys}
        values = {}
        for key in said:
            with contextlib.suppress(KeyError):
                values[key] = self.config.value_of(key)
        return _blame(str(error), said, values)

    def _origin_of(self, name: str) -> Origin:
        """The highest one of a setting, or of those in a section."""
        key = tuple(name.split("."))
        origins = [origin for other, origin in self.origins.items() if other[: len(key)] == key]
        return max(origins, key=lambda origin: origin.rank, default=DEFAULT)


def load_config(
    source: str | Path, *, overrides: Sequence[str | Setting] = (), environ: Mapping[str, str] | None = None
) -> RunConfig:
    """The settings of a run.

    Args:
        source: a preset's name, or a TOML file.
        overrides: `key.path=value`, as after --set; the value is TOML, a bare word a string, `none` the default.
        environ: None takes the process's own. `PARL_MQ_SECTION__KEY` sets `section.key`.

    Raises:
        UsageError: the source or an override is at fault.
        ConfigError: the file or the environment is.
    """
    return load_with_origins(source, overrides=overrides, environ=environ).config


def load_with_origins(
    source: str | Path, *, overrides: Sequence[str | Setting] = (), environ: Mapping[str, str] | None = None
) -> LoadedConfig:
    """As `load_config`, with the origin of every value."""
    text, place = _read(source)
    settings = [
        Setting(("preset",), Path(source).stem, place),
        *settings_of_toml(text, place),
        *settings_of_environment(os.environ if environ is None else environ),
        *_all_overrides(overrides),
    ]
    values, origins = merge(settings)
    origin_of = _OriginFinder(origins, place)
    model = _algorithm_model(values, origin_of)
    _refuse_unknown(settings, model)
    _refuse_values_for_sections(settings, model)
    algorithm = _validated(model, values["algorithm"], origin_of, ("algorithm",))
    config = _validated(RunConfig, {**values, "algorithm": algorithm}, origin_of)
    _refuse_coerced(settings, config, origin_of)
    return LoadedConfig(config, {key: origins.get(key, DEFAULT) for key in _leaf_keys(config, ())})


def load_node_config(
    *, overrides: Sequence[str | Setting] = (), environ: Mapping[str, str] | None = None
) -> NodeConfig:
    """The settings of one node that gets everything else from its hub.

    Args:
        overrides: as for `load_config`, of keys in the section `node` alone.
        environ: as for `load_config`; settings of other sections are not looked at.

    Raises:
        UsageError: an override is at fault, or belongs to another section.
        ConfigError: the environment is at fault.
    """
    flags = _all_overrides(overrides)
    for setting in flags:
        if setting.key[0] != "node" and setting.key[0] in RunConfig.model_fields:
            key = ".".join(setting.key)
            raise UsageError(f"{setting.origin.place}: a node sets node.* alone; it gets {key} from the hub")
    variables = settings_of_environment(os.environ if environ is None else environ)
    settings = [*(setting for setting in variables if setting.key[0] not in _sections_without("node")), *flags]
    _refuse_unknown(settings, AlgorithmConfig)
    _refuse_values_for_sections(settings, AlgorithmConfig)
    values, origins = merge(settings)
    return _validated(NodeConfig, values.get("node", {}), _OriginFinder(origins, DEFAULT), ("node",))


def load_environment_config(env_id: str, *, overrides: Sequence[str | Setting] = ()) -> EnvironmentConfig:
    """The settings of an environment that belongs to no run.

    Args:
        env_id: the environment.
        overrides: as for `load_config`, of keys in the section `environment` alone.

    Raises:
        UsageError: an override is at fault, or belongs to another section.
    """
    settings = [Setting(("environment", "id"), env_id, Origin("flag", env_id)), *_all_overrides(overrides)]
    for setting in settings:
        if setting.key[0] in _sections_without("environment"):
            raise UsageError(f"{setting.origin.place}: an environment alone has environment.* and no other settings")
    _refuse_unknown(settings, AlgorithmConfig)
    _refuse_values_for_sections(settings, AlgorithmConfig)
    values, origins = merge(settings)
    return _validated(EnvironmentConfig, values["environment"], _OriginFinder(origins, DEFAULT), ("environment",))


def dump_toml(config: RunConfig, *, with_node: bool = True) -> str:
    """A file that loads back to the equal settings; what is None is left out.

    Args:
        config: to write.
        with_node: whether the section `node`, which belongs to one process, is part of it.
    """
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True, exclude=None if with_node else {"node"}))


def preset_names() -> tuple[str, ...]:
    """The published presets, sorted."""
    return tuple(sorted(Path(entry.name).stem for entry in _PRESETS.iterdir() if entry.name.endswith(".toml")))


def read_preset(name: str) -> str:
    """The TOML text of a published preset.

    Raises:
        UsageError: there is none of this name; the message has the nearest one.
    """
    names = preset_names()
    if name not in names:
        near = nearest_name(name, names)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
        raise UsageError(f"{name}: there is no such preset or file; {hint}")
    return (_PRESETS / f"{name}.toml").read_text(encoding="utf-8")


def _read(source: str | Path) -> tuple[str, Origin]:
    path = Path(source)
    if str(source) in preset_names() or not (path.suffix == ".toml" or path.exists()):
        return read_preset(str(source)), Origin("preset", f"preset {source}")
    try:
        return path.read_text(encoding="utf-8"), Origin("file", str(path))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file; `parl-mq presets` lists what needs none") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _all_overrides(overrides: Sequence[str | Setting]) -> list[Setting]:
    parsed = [[entry] if isinstance(entry, Setting) else settings_of_override(entry) for entry in overrides]
    return [setting for settings in parsed for setting in settings]


def _sections_without(name: str) -> set[str]:
    return set(RunConfig.model_fields) - {name}


class _OriginFinder:
    """Finds where a key, what stands in it, or the table that it stands in was said; else it belongs to the source."""

    def __init__(self, origins: Mapping[Key, Origin], source: Origin) -> None:
        self._origins = origins
        self._source = source

    def __call__(self, key: Key) -> Origin:
        for length in range(len(key), 0, -1):
            if origin := self._origins.get(key[:length]):
                return origin
        inside = {known: origin for known, origin in self._origins.items() if known[: len(key)] == key}
        return _last_said(inside) if inside else self._source

    def of_each(self, keys: Iterable[str]) -> dict[str, Origin]:
        """Where each was said, and the default where nobody has said it."""
        return {key: self._origins.get(tuple(key.split(".")), DEFAULT) for key in keys}


def _algorithm_model(values: Mapping[str, Any], origin_of: _OriginFinder) -> type[AlgorithmConfig]:
    section = values.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    origin = origin_of(("algorithm", "name"))
    if not isinstance(name, str):
        what = "is missing" if name is None else f"must be a string, not {_shown(name)}"
        raise origin.error(f"{origin.place}: algorithm.name: {what}; set it to an algorithm, such as dqn")
    try:
        return algorithm_settings(name)
    except ConfigError as error:
        raise origin.error(f"{origin.place}: {error}") from error


def _refuse_unknown(settings: Sequence[Setting], model: type[AlgorithmConfig]) -> None:
    known = known_keys(model)
    _raise([(s.origin, unknown_key(s, known)) for s in settings if not known.has(s.key)])


def _refuse_values_for_sections(settings: Sequence[Setting], model: type[AlgorithmConfig]) -> None:
    sections = known_keys(model).sections
    _raise(
        [
            (setting.origin, f"{setting.key[0]}: is a section with settings of its own, not {_shown(setting.value)}")
            for setting in settings
            if setting.key in sections and setting.value != {}
        ]
    )


def _validated(model: type[Model], values: Any, origin_of: _OriginFinder, prefix: Key = ()) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        _raise([_fault(details, origin_of, prefix) for details in error.errors(include_url=False)])
        raise


def _fault(details: ErrorDetails, origin_of: _OriginFinder, prefix: Key) -> tuple[Origin, str]:
    if details["type"] == IMPOSSIBLE:
        values = details["ctx"]["values"]
        origins = origin_of.of_each(values)
        return _last_said(origins), _with_places(details["msg"], origins, values)
    key = (*prefix, *(str(part) for part in details["loc"]))
    name = ".".join(key)
    if details["type"] == "missing":
        return origin_of(key), f"{name}: is missing, and has no default"
    message = str(details["ctx"]["error"]) if details["type"] == "value_error" else details["msg"]
    return origin_of(key), f"{name}: {message[:1].lower()}{message[1:]}; got {_shown(details['input'])}"


def _refuse_coerced(settings: Sequence[Setting], config: RunConfig, origin_of: _OriginFinder) -> None:
    """Pydantic takes `"8"` and `true` for numbers; in a file of settings both are slips."""
    faults = []
    for setting in settings:
        value: Any = config
        for part in setting.key:
            value = getattr(value, part, None) if isinstance(value, BaseModel) else None
        is_cleared = setting.value is None
        if not is_cleared and origin_of(setting.key) == setting.origin and _is_coerced(setting.value, value):
            wanted = _WORDS.get(type(value), "a list of numbers")
            what = f"{'.'.join(setting.key)}: must be {wanted}; got {_shown(setting.value)}"
            faults.append((setting.origin, what))
    _raise(faults)


def _is_coerced(said: Any, value: Any) -> bool:
    if isinstance(said, list) and isinstance(value, tuple | list):
        return any(map(_is_coerced, said, value))
    is_number = isinstance(value, bool | int | float)
    return is_number and (isinstance(said, str) or isinstance(said, bool) != isinstance(value, bool))


def _raise(faults: Sequence[tuple[Origin, str]]) -> None:
    """One error for all faults; the first one's origin decides its kind."""
    if faults:
        raise faults[0][0].error("\n".join(f"{origin.place}: {what}" for origin, what in faults))


def _blame(message: str, origins: Mapping[str, Origin], values: Mapping[str, Any]) -> ConfigError:
    """The error for settings that do not fit each other or this machine."""
    last = _last_said(origins)
    place = "" if last.kind == "default" else f"{last.place}: "
    return last.error(_with_places(f"{place}{message}", origins, values))


def _last_said(origins: Mapping[Any, Origin]) -> Origin:
    """The origin of the highest layer, the first one of that: what was said last has most likely made the misfit."""
    return max(origins.values(), key=lambda origin: origin.rank)


def _with_places(message: str, origins: Mapping[str, Origin], values: Mapping[str, Any]) -> str:
    """The message, and a line for each setting that takes part; one alone the message has named."""
    if len(origins) == 1:
        return message
    lines = [f"  {key} = {_shown(values[key])} ({origin.place})" for key, origin in origins.items() if key in values]
    return "\n".join([message, *lines])


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Path) else repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _leaf_keys(value: Any, key: Key) -> Iterator[Key]:
    names = list(type(value).model_fields if isinstance(value, BaseModel) else value if isinstance(value, dict) else ())
    if not names:
        yield key
    for name in names:
        yield from _leaf_keys(value[name] if isinstance(value, dict) else getattr(value, name), (*key, name))
