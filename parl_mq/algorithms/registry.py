"""Finds algorithms by name. Nothing is imported before it is asked for, and settings never import torch."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from parl_mq.errors import ConfigError

if TYPE_CHECKING:
    from parl_mq.algorithms.base import Algorithm
    from parl_mq.config.models import AlgorithmConfig

ENTRY_POINT_GROUP: Final = "parl_mq.algorithms"


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """Where an algorithm stands; two `module:NAME` paths, so that settings load without torch.

    Attributes:
        settings: of the subclass of AlgorithmConfig; its module must not import torch.
        algorithm: of the object with the methods of parl_mq.algorithms.base.Algorithm.
    """

    settings: str
    algorithm: str


def _beside(module: str, name: str) -> AlgorithmEntry:
    return AlgorithmEntry(f"parl_mq.algorithms.{module}_config:{name}Config", f"parl_mq.algorithms.{module}:{name}")


BUILT_IN: Final = {
    "dqn": _beside("dqn", "DQN"),
    "sac": _beside("sac", "SAC"),
    "sac-discrete": _beside("sac_discrete", "SACDiscrete"),
    "td3": _beside("td3", "TD3"),
    "ddpg": _beside("ddpg", "DDPG"),
}


def settings_model(name: str) -> type[AlgorithmConfig]:
    """The settings model of an algorithm; torch is not imported.

    Args:
        name: a built-in one, one of an installed package's entry points (group `parl_mq.algorithms`), or
            `module:NAME`. The latter two name an AlgorithmEntry.

    Raises:
        ConfigError: there is none; the message has the nearest valid name.
    """
    from parl_mq.config.models import AlgorithmConfig

    model = _load(entry_of(name).settings, asked_for=name)
    if not (isinstance(model, type) and issubclass(model, AlgorithmConfig)):
        raise ConfigError(f"algorithm {name!r}: its settings {model!r} are no subclass of AlgorithmConfig")
    return model


def load_algorithm(name: str) -> Algorithm:
    """The algorithm itself; imports torch.

    Raises:
        ConfigError: as `settings_model`.
    """
    algorithm: Algorithm = _load(entry_of(name).algorithm, asked_for=name)
    return algorithm


def is_installed(name: str) -> bool:
    """Whether the name is a built-in one or an installed package's, and no import path.

    An import path may come from the local command line or file alone: a name that a peer sent must pass this check,
    or be one that was given locally, before anything here loads it.
    """
    return name in BUILT_IN or name in _installed_names()


def algorithm_names() -> tuple[str, ...]:
    """Every name that works on this machine without an import path, sorted."""
    return tuple(sorted({*BUILT_IN, *_installed_names()}))


def entry_of(name: str) -> AlgorithmEntry:
    """Where the algorithm of this name stands.

    Raises:
        ConfigError: as `settings_model`.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = name if ":" in name else _installed_path(name)
    entry = _load(path, asked_for=name)
    if not isinstance(entry, AlgorithmEntry):
        raise ConfigError(f"algorithm {name!r}: {path} is a {type(entry).__name__}, not an AlgorithmEntry")
    return entry


@cache
def _installed_names() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def _installed_path(name: str) -> str:
    if path := _installed_names().get(name):
        return path
    valid = algorithm_names()
    nearest = get_close_matches(name.lower(), valid, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(valid)}."
    raise ConfigError(f"algorithm.name: no algorithm is called {name!r}; {hint} Give one of your own as module:NAME.")


def _load(path: str, *, asked_for: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"algorithm {asked_for!r}: cannot load {path!r}: {exc}") from exc
