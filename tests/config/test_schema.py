"""The JSON schema knows every setting, and says what each is."""

from typing import Any

import pytest

from parl_mq.config.loader import load_config
from parl_mq.config.names import known_keys
from parl_mq.config.schema import descriptions, run_schema
from parl_mq.errors import ConfigError


def _properties(schema: dict[str, Any], name: str) -> dict[str, Any]:
    properties: dict[str, Any] = schema["$defs"][name]["properties"]
    return properties


def test_schema_has_the_settings_of_the_algorithm() -> None:
    schema = run_schema("dqn")
    assert schema["additionalProperties"] is False
    assert "buffer_size" in _properties(schema, "ReplayConfig")
    assert {"batch_size", "hidden_sizes"} <= set(_properties(schema, "DQNConfig"))


def test_unknown_algorithm_has_no_schema() -> None:
    with pytest.raises(ConfigError, match="dqn"):
        run_schema("dqnn")


def test_every_setting_is_described() -> None:
    config = load_config("cartpole-dqn", environ={})
    sections = {type(getattr(config, name)) for (name,) in known_keys(type(config.algorithm)).sections}
    for model in sections | {type(config)}:
        own = {name for name in model.model_fields if (name,) not in known_keys(type(config.algorithm)).sections}
        assert own <= set(descriptions(model)), model.__name__
