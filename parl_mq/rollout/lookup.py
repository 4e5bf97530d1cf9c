"""Finds an environment by name: a gymnasium id, a function that makes one, or an installed package's entry point."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import EnvSpec

from parl_mq.errors import EnvironmentFault

ENTRY_POINT_GROUP: Final = "parl_mq.envs"


def environment_spec(env_id: str) -> EnvSpec:
    """Gymnasium's entry for an environment; one that a function makes gets an entry of its own, which nobody else sees.

    Args:
        env_id: an id that gymnasium knows; the name of an entry point in the group `parl_mq.envs`; `module:EnvId`,
            where importing the module registers the id; or `module:function`, where the function takes
            `environment.kwargs` and returns a gymnasium.Env. What gymnasium knows comes first.

    Raises:
        EnvironmentFault: there is none of this name.
        ImportError: the module cannot be imported, or whatever else it raises then.
    """
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    path = _installed().get(env_id, env_id)
    module_name, _, name = path.rpartition(":")
    if not module_name:
        raise EnvironmentFault(_unknown(name))
    module = import_module(module_name)
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    return EnvSpec(id=env_id, entry_point=_maker(module, name))


def _maker(module: Any, name: str) -> Any:
    """The function (or class) `name` of a module."""
    maker = getattr(module, name, None)
    if maker is None:
        raise EnvironmentFault(f"{_unknown(name)}, and {module.__name__} has nothing of that name")
    if not callable(maker):
        raise EnvironmentFault(
            f"environment.id: {module.__name__}:{name} is of type {type(maker).__name__}, not a function that makes an "
            "environment"
        )
    return maker


def _unknown(name: str) -> str:
    known = {*gymnasium.registry, *_installed()}
    nearest = max(known, key=lambda other: (SequenceMatcher(None, name, other).ratio(), other))
    return (
        f"environment.id: there is no environment {name!r}; the nearest is {nearest!r}. One of another package, or "
        "your own, is named `module:EnvId`, where importing the module registers it, or `module:function`"
    )


@cache
def _installed() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
