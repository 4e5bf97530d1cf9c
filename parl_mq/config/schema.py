"""The JSON schema of a run's settings, for editors and other tools."""

from __future__ import annotations

import inspect
import re
from functools import reduce
from operator import or_
from typing import Any, Final

from pydantic import BaseModel, create_model

from parl_mq.config.models import RunConfig, algorithm_names, algorithm_settings

_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n      .+)*)", re.MULTILINE)


def run_schema(algorithm: str | None = None) -> dict[str, Any]:
    """JSON schema of RunConfig; descriptions are those of the models' docstrings.

    Args:
        algorithm: whose settings the section `algorithm` has; None allows those of every installed one.

    Raises:
        ConfigError: there is no such algorithm.
    """
    names = algorithm_names() if algorithm is None else (algorithm,)
    models = tuple(algorithm_settings(name) for name in names)
    section: Any = reduce(or_, models)
    run = create_model("RunConfig", __base__=RunConfig, __doc__=RunConfig.__doc__, algorithm=(section, ...))
    schema = run.model_json_schema()
    _describe(schema, run)
    for model in (*models, *(field.annotation for field in RunConfig.model_fields.values())):
        if isinstance(model, type) and issubclass(model, BaseModel) and model.__name__ in schema["$defs"]:
            _describe(schema["$defs"][model.__name__], model)
    return schema


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a model and its bases say of each of its settings."""
    said: dict[str, str] = {}
    for base in reversed(model.__mro__):
        for name, text in _ATTRIBUTE.findall(inspect.cleandoc(base.__doc__ or "")):
            if name in model.model_fields:
                said[name] = " ".join(text.split())
    return said


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    schema["description"] = inspect.cleandoc(model.__doc__ or "").partition("\n")[0]
    for name, text in descriptions(model).items():
        schema["properties"][name]["description"] = text
