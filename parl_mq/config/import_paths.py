"""Names a function in a way by which other processes find it; no code is ever sent."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_HOW: Final = "define it at the top level of a module of its own"


def import_path(function: Any) -> str:
    """`module:name` of a function or class at the top level of a module.

    Raises:
        ValueError: module and name do not lead back to it.
    """
    module_name, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str):
        raise ValueError(f"{function!r} has no module and name by which other processes can import it; {_HOW}")
    if module_name == "__main__":
        raise ValueError(f"{name} stands in the script that was started, which other processes cannot import; {_HOW}")
    if getattr(import_module(module_name), name, None) is not function:
        raise ValueError(f"{module_name}:{name} does not lead back to {function!r}; {_HOW}")
    return f"{module_name}:{name}"
