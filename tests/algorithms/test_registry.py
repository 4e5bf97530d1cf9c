"""The registry finds algorithms by name, and tells what it cannot find."""

import subprocess
import sys

import pytest

from parl_mq.algorithms import registry
from parl_mq.algorithms.dqn_config import DQNConfig
from parl_mq.algorithms.registry import AlgorithmEntry, algorithm_names, is_installed, settings_model
from parl_mq.errors import ConfigError

OWN = AlgorithmEntry(registry.BUILT_IN["dqn"].settings, registry.BUILT_IN["dqn"].algorithm)
NOT_SETTINGS = AlgorithmEntry("builtins:int", "builtins:int")


def _path(name: str) -> str:
    sys.modules["own_algorithms"] = sys.modules[__name__]
    return f"own_algorithms:{name}"


def test_built_in_name_gives_its_settings() -> None:
    assert settings_model("dqn") is DQNConfig


@pytest.mark.parametrize("name", ["dqnn", "DQN", "dq"])
def test_unknown_name_is_answered_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'; did you mean 'dqn'"):
        settings_model(name)


@pytest.mark.parametrize("name", ["", "reinforce"])
def test_name_near_to_none_is_answered_with_all(name: str) -> None:
    with pytest.raises(ConfigError, match="there are: ddpg, dqn, sac"):
        settings_model(name)


def test_own_algorithm_is_found_by_path() -> None:
    assert settings_model(_path("OWN")) is DQNConfig


@pytest.mark.parametrize("name", ["no_such_module:X", "math:no_such_name", ":X", "math:"])
def test_path_that_leads_nowhere_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        settings_model(name)


def test_path_to_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an AlgorithmEntry"):
        settings_model("math:pi")


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="no subclass of AlgorithmConfig"):
        settings_model(_path("NOT_SETTINGS"))


def test_entry_points_are_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_installed_names", lambda: {"own": _path("OWN")})
    assert settings_model("own") is DQNConfig
    assert algorithm_names() == tuple(sorted((*registry.BUILT_IN, "own")))


def test_import_paths_do_not_count_as_installed() -> None:
    assert is_installed("dqn")
    assert not is_installed(_path("OWN"))


def test_settings_load_without_torch() -> None:
    script = (
        "import sys; from parl_mq.algorithms.registry import settings_model; settings_model('dqn'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
