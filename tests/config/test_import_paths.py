"""A function gets the name by which other processes find it, or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import pytest
from pydantic import ValidationError

from parl_mq.config.import_paths import import_path
from parl_mq.config.models import EnvironmentConfig


def make() -> None:
    """Stands for a function that makes an environment."""


class Maker:
    @staticmethod
    def method() -> None: ...


def _renamed() -> None: ...


_renamed.__qualname__ = "make"


def _of_the_script() -> None: ...


_of_the_script.__module__ = "__main__"


def _nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize("function", [make, Maker])
def test_path_leads_back(function: Any) -> None:
    assert import_path(function) == f"{__name__}:{function.__name__}"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_of_the_script, "stands in the script that was started"),
        (_nested(), "does not lead back"),
        (lambda: None, "does not lead back"),
        (_renamed, f"{re.escape(__name__)}:make does not lead back"),
        (Maker.method, "does not lead back"),
        (partial(make), "has no module and name"),
        (sqrt.__call__, "has no module and name"),
    ],
)
def test_function_that_others_cannot_find_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*define it at the top level of a module"):
        import_path(function)


def test_settings_take_a_function_as_the_environment() -> None:
    settings = EnvironmentConfig.model_validate({"id": make})
    assert settings.id == f"{__name__}:make"
    with pytest.raises(ValidationError, match="define it at the top level"):
        EnvironmentConfig.model_validate({"id": _nested()})
