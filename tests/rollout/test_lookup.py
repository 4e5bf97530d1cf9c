"""Environments are found by id, by function, and by an installed package's name for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import EnvironmentFault
from parl_mq.rollout import lookup
from parl_mq.rollout.environments import make_single, make_vector
from parl_mq.rollout.lookup import environment_spec
from parl_mq.rollout.stepper import Stepper
from tests.environments import ScriptedEnv

NOT_A_FUNCTION = 3


def make_scripted(length: int = 2, offset: float = 0.0) -> gymnasium.Env[Any, Any]:
    return ScriptedEnv([(length, "trunc")], offset=offset)


def make_nothing() -> None:
    return None


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that names two environments and a name that gymnasium has too."""
    metadata = tmp_path / "scripted-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{lookup.ENTRY_POINT_GROUP}]\n"
        "Scripted-v3 = tests.rollout.test_lookup:make_scripted\n"
        "CartPole-v1 = tests.rollout.test_lookup:make_scripted\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    lookup._installed.cache_clear()
    yield
    lookup._installed.cache_clear()


def _first_obs(env_id: str, **kwargs: Any) -> float:
    obs, _ = make_single(EnvironmentConfig(id=env_id, kwargs=kwargs)).reset(seed=1)
    return float(obs[0])


def test_function_makes_the_environment_from_its_settings() -> None:
    assert _first_obs("tests.rollout.test_lookup:make_scripted", offset=5.0) == 5.0


def test_class_does_as_well_as_a_function() -> None:
    assert _first_obs("tests.environments:ScriptedEnv", script=[(1, "term")], offset=7.0) == 7.0


def test_each_environment_of_a_vector_is_made_by_the_function() -> None:
    settings = EnvironmentConfig(id="tests.rollout.test_lookup:make_scripted", kwargs={"length": 2})
    stepper = Stepper(make_vector(settings, 3))
    stepper.reset([1, 2, 3])
    ends = [stepper.step(np.zeros(3, np.int64)).truncated.tolist() for _ in range(2)]
    assert ends == [[False] * 3, [True] * 3]


def test_time_limit_of_the_settings_holds_for_a_function_too() -> None:
    path = "tests.rollout.test_lookup:make_scripted"
    env = make_single(EnvironmentConfig(id=path, kwargs={"length": 100}, max_episode_steps=2))
    env.reset(seed=1)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_nothing_is_registered_for_a_function() -> None:
    before = set(gymnasium.registry)
    environment_spec("tests.rollout.test_lookup:make_scripted")
    assert set(gymnasium.registry) == before


@pytest.mark.usefixtures("installed")
def test_installed_package_names_an_environment() -> None:
    assert _first_obs("Scripted-v3", offset=2.0) == 2.0


@pytest.mark.usefixtures("installed")
def test_what_gymnasium_knows_comes_first() -> None:
    assert "cartpole" in str(environment_spec("CartPole-v1").entry_point).lower()


@pytest.mark.usefixtures("installed")
def test_installed_name_is_offered_as_the_nearest() -> None:
    with pytest.raises(EnvironmentFault, match=r"nearest is 'Scripted-v3'"):
        environment_spec("Scripted-v2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("make_scriptd", "tests.rollout.test_lookup has nothing of that name"),
        ("NOT_A_FUNCTION", "is of type int, not a function"),
        ("make_nothing", "cannot be made: TypeError: .*gymnasium.Env"),
    ],
)
def test_path_that_makes_no_environment_says_why(name: str, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        make_single(EnvironmentConfig(id=f"tests.rollout.test_lookup:{name}"))
