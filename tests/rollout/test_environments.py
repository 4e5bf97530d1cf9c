from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import EnvironmentFault
from parl_mq.rollout.environments import install_hint, make_single, make_vector
from parl_mq.rollout.stepper import Stepper
from parl_mq.spec import spec_of
from tests.environments import TwoActionsEnv


def config(env_id: str, **kwargs: object) -> EnvironmentConfig:
    return EnvironmentConfig(id=f"tests.environments:{env_id}", kwargs=kwargs)


def test_auto_takes_the_environments_own_vector_version() -> None:
    envs = make_vector(EnvironmentConfig(id="CartPole-v1"), 4)
    assert type(envs).__name__ == "CartPoleVectorEnv"
    assert envs.num_envs == 4


@pytest.mark.parametrize(("num_envs", "vectorization"), [(1, "auto"), (3, "sync")])
def test_otherwise_a_plain_vector_resets_in_the_same_step(num_envs: int, vectorization: str) -> None:
    envs = make_vector(EnvironmentConfig(id="CartPole-v1"), num_envs, vectorization)  # type: ignore[arg-type]
    assert isinstance(envs, SyncVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.num_envs == num_envs


def test_a_time_limit_reaches_both_kinds_of_vector() -> None:
    for vectorization in ("auto", "sync"):
        settings = EnvironmentConfig(id="CartPole-v1", max_episode_steps=3)
        stepper = Stepper(make_vector(settings, 2, vectorization))  # type: ignore[arg-type]
        stepper.reset([0, 1])
        steps = [stepper.step(np.zeros(2, np.int64)) for _ in range(3)]
        assert steps[1].truncated.tolist() == [False, False]
        assert steps[2].truncated.tolist() == [True, True]


def test_settings_reach_the_environments_maker() -> None:
    stepper = Stepper(make_vector(config("Counter-v0", length=2, end="trunc"), 2))
    stepper.reset([0, 1])
    stepper.step(np.zeros(2, int))
    assert stepper.step(np.zeros(2, int)).truncated.tolist() == [True, True]


def test_a_single_environment_has_the_vectors_spec() -> None:
    for settings in (EnvironmentConfig(id="CartPole-v1"), config("Dict-v0")):
        assert spec_of(make_single(settings)) == spec_of(make_vector(settings, 2))


def test_environments_in_processes_step_like_those_in_this_one() -> None:
    settings = config("Counter-v0", length=2)
    in_processes, here = (
        Stepper(make_vector(settings, 2, vectorization))
        for vectorization in ("async", "sync")  # type: ignore[arg-type]
    )
    try:
        assert isinstance(in_processes._envs, AsyncVectorEnv)
        np.testing.assert_array_equal(in_processes.reset([1, 2])[0], here.reset([1, 2])[0])
        for _ in range(5):
            action = np.zeros(2, int)
            found, expected = in_processes.step(action), here.step(action)
            np.testing.assert_array_equal(found.obs[0], expected.obs[0])
            assert {env: last[0].item() for env, last in found.ended.items() if last} == {
                env: last[0].item() for env, last in expected.ended.items() if last
            }
    finally:
        in_processes.close()


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium shows the process's traceback as warnings
def test_a_fault_in_another_process_names_the_environment() -> None:
    stepper = Stepper(make_vector(config("Broken-v0", fault="raises"), 2, "async"))
    try:
        stepper.reset([1, 2])
        stepper.step(np.zeros(2, int))
        stepper.step(np.zeros(2, int))
        with pytest.raises(EnvironmentFault, match=r"Broken-v0, environment [01]: step raised KeyError: 'joint 7'"):
            stepper.step(np.zeros(2, int))
    finally:
        stepper.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPol-v1", "the nearest is 'CartPole-v1'"),
        ("CartPole-v9", "the nearest is 'CartPole-v1'"),
        ("CartPole", "the nearest is 'CartPole-v1'"),
        ("no_such_module_here:CartPole-v1", "no_such_module_here"),
        ("tests.environments:Cuonter-v0", "the nearest is 'Counter-v0'"),
        ("tests.environments:MissingPackage-v0", "physics is not installed"),
        ("tests.environments:Broken-v0", "cannot be made: TypeError: .*'fault'"),
        ("tests.environments:Unsupported-v0", "obs: Text is not supported"),
        ("tests.environments:TwoActions-v0", "action/0, action/1"),
    ],
)
def test_what_cannot_be_made_says_why(env_id: str, message: str) -> None:
    settings = EnvironmentConfig(id=env_id)
    with pytest.raises(EnvironmentFault, match=message):
        make_single(settings)
    with pytest.raises(EnvironmentFault, match=message):
        make_vector(settings, 2)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(EnvironmentFault, match=r"pip install .*\[box2d\]'?"):
        make_single(EnvironmentConfig(id="LunarLander-v3"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"Broken-v0, environment 0: step raised KeyError: 'joint 7'"),
        ("shape", r"Broken-v0, environment 0: its observation has the shape \(2,\), its space says \(1,\)"),
        ("nan observation", r"Broken-v0: environment 0 returned nan in its obs"),
        ("infinite reward", r"Broken-v0: environment 0 returned inf in its reward"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_named(fault: str, message: str) -> None:
    stepper = Stepper(make_vector(config("Broken-v0", fault=fault), 2))
    stepper.reset([1, 2])
    stepper.step(np.zeros(2, int))
    stepper.step(np.zeros(2, int))
    with pytest.raises(EnvironmentFault, match=message):
        stepper.step(np.zeros(2, int))


def test_the_last_observation_survives_an_environment_that_reuses_its_memory() -> None:
    stepper = Stepper(make_vector(config("Counter-v0", length=3, reuses_memory=True), 2))
    stepper.reset([1, 2])
    for _ in range(2):
        stepper.step(np.zeros(2, int))
    step = stepper.step(np.zeros(2, int))
    assert [last and last[0].tolist() for last in step.ended.values()] == [[3.0], [3.0]]
    assert step.obs[0].tolist() == [[1000.0], [1000.0]]


def test_each_environment_has_an_action_space_of_its_own_seed() -> None:
    def samples(seeds: list[int]) -> np.ndarray:
        stepper = Stepper(make_vector(config("RandomStart-v0"), 8))
        return stepper.reset(seeds)[0].copy()

    first = samples(list(range(8)))
    assert len(set(first[:, 0].tolist())) == 8
    assert len(set(first[:, 1].tolist())) > 1
    np.testing.assert_array_equal(samples(list(range(8))), first)


def test_registered_ids_are_left_as_they_are() -> None:
    before = repr(gymnasium.spec("CartPole-v1"))
    make_vector(EnvironmentConfig(id="CartPole-v1", max_episode_steps=7), 2)
    assert repr(gymnasium.spec("CartPole-v1")) == before


def test_what_a_drawing_environment_lacks_is_told_with_the_extra_that_brings_it() -> None:
    lacks = gymnasium.error.DependencyNotInstalled("pygame is not installed")
    assert "[video]" in install_hint(lacks, "CartPole-v1")
    assert "[box2d]" in install_hint(lacks, "LunarLander-v3")
    assert install_hint(ValueError("other"), "CartPole-v1") == ""
    assert install_hint(lacks, "Own-v0") == ""


@pytest.mark.parametrize("missing", ["action_space", "observation_space"])
def test_a_space_that_is_missing_is_named(missing: str) -> None:
    settings = config("Careless-v0", fault=missing)
    with pytest.raises(EnvironmentFault, match=f"Careless-v0 cannot be made: AttributeError: .*{missing}"):
        make_single(settings)
    with pytest.raises(EnvironmentFault, match=f"Careless-v0 cannot be made: AttributeError: .*{missing}"):
        make_vector(settings, 2)


def test_what_close_raises_hides_no_fault() -> None:
    class Refused(TwoActionsEnv):
        def close(self) -> None:
            raise KeyError("window")

    gymnasium.register("Refused-v0", entry_point=Refused)
    try:
        with pytest.raises(EnvironmentFault, match="several parts"):
            make_single(EnvironmentConfig(id="Refused-v0"))
    finally:
        del gymnasium.registry["Refused-v0"]
