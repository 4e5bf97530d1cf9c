"""What the check of an environment finds in environments with known oddities; its clock counts its readings."""

import json
import sys
from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parl_mq.config.models import EnvironmentConfig
from parl_mq.services.env_check import Finding, Report, check_environment
from tests.environments import CarelessEnv, ConstEnv, CounterEnv


class SeededEnv(CounterEnv):
    """Starts at a random number that the seed decides; each oddity can be asked for."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, oddity: str = "") -> None:
        super().__init__(4, "trunc")
        self._oddity = oddity
        self._calls = count()

    def reset(self, **kwargs: Any) -> Any:
        if self._oddity == "ignores seeds":
            kwargs["seed"] = next(self._calls)
        super().reset(**kwargs)
        self._at = 0.5 if self._oddity == "one start" else self.np_random.random()
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        _, reward, *ends = super().step(action)
        self._at = self.np_random.random() if self._oddity != "unseeded steps" else next(self._calls) % 97 / 97
        return self._obs(), np.nan if self._oddity == "nan reward" else reward, *ends

    def _obs(self) -> Any:
        dtype = np.float64 if self._oddity == "other dtype" else np.float32
        return np.array([getattr(self, "_at", 0) + 5 * (self._oddity == "outside")], dtype)


class OddActionEnv(CounterEnv):
    """Takes actions that no algorithm here learns."""

    action_space = spaces.MultiDiscrete([2, 3])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "odd_environments", ModuleType("odd_environments"))
    known: dict[str, Callable[..., Any]] = {"Seeded-v0": SeededEnv, "Still-v0": ConstEnv, "Odd-v0": OddActionEnv}
    for env_id, entry_point in known.items():
        spec = gymnasium.envs.registration.EnvSpec(id=env_id, entry_point=entry_point)
        monkeypatch.setitem(gymnasium.registry, env_id, spec)


def _check(env_id: str, max_episode_steps: int | None = None, **kwargs: Any) -> Report:
    config = EnvironmentConfig(id=env_id, kwargs=kwargs, max_episode_steps=max_episode_steps)
    ticks = count()
    return check_environment(config, 1, lambda: next(ticks) * 1e-4)


def _found(report: Report, about: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.about == about]
    return finding


def _verdicts(report: Report) -> dict[str, str]:
    return {finding.about: finding.verdict for finding in report.findings}


def test_sound_environment_has_no_notes_but_on_pictures_and_time() -> None:
    report = _check("Seeded-v0")
    assert report.is_supported
    assert {about for about, verdict in _verdicts(report).items() if verdict != "ok"} == {"rendering", "time limit"}


@pytest.mark.parametrize(
    ("oddity", "about", "words"),
    [
        ("ignores seeds", "seeding", "the first observations differ"),
        ("unseeded steps", "seeding", "what step 1 shows differ"),
        ("one start", "variety", "starts with the same observation"),
        ("outside", "observations", "outside -1 to 1"),
        ("other dtype", "observations", "is float64 instead of float32"),
    ],
)
def test_oddity_is_noted_and_does_no_harm(oddity: str, about: str, words: str) -> None:
    report = _check("Seeded-v0", oddity=oddity)
    finding = _found(report, about)
    assert finding.verdict == "note"
    assert words in finding.what
    assert report.is_supported


def test_memory_that_is_written_again_is_noted() -> None:
    assert _found(_check("tests.environments:Counter-v0", reuses_memory=True), "memory").verdict == "note"
    assert _found(_check("tests.environments:Counter-v0"), "memory").verdict == "ok"


@pytest.mark.parametrize("fault", ["raises", "shape", "nan observation", "infinite reward"])
def test_what_actors_refuse_is_a_fault(fault: str) -> None:
    report = _check("tests.environments:Broken-v0", fault=fault)
    assert not report.is_supported
    assert report.to_json()["why_not"]


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("tests.environments:Unsupported-v0", "Text is not supported"),
        ("tests.environments:TwoActions-v0", "several parts"),
        ("tests.environments:MissingPackage-v0", "physics is not installed"),
        ("CartPol-v1", "the nearest is 'CartPole-v1'"),
    ],
)
def test_environment_that_cannot_be_made_says_why(env_id: str, words: str) -> None:
    report = _check(env_id)
    assert not report.is_supported
    assert words in report.to_json()["why_not"][0]


def test_rewards_and_episodes_are_those_seen() -> None:
    report = _check("Seeded-v0")
    assert _found(report, "rewards").what == "1 to 4 seen"
    assert " of 4 to 4 steps; 0 terminated, " in _found(report, "episodes").what


@pytest.mark.parametrize(("limit", "words"), [(None, "500 steps"), (30, "30 steps")])
def test_time_limit_is_the_one_that_applies(limit: int | None, words: str) -> None:
    assert _found(_check("CartPole-v1", limit), "time limit").what == words


def test_episodes_that_do_not_end_are_noted() -> None:
    finding = _found(_check("Still-v0", length=10**9), "episodes")
    assert finding.verdict == "note"
    assert "none has ended yet; the longest has" in finding.what


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPole-v1", "its own vector version CartPoleVectorEnv, autoreset NextStep"),
        ("Seeded-v0", "plain environments in turn, autoreset SameStep"),
    ],
)
def test_vector_is_the_one_that_actors_use(env_id: str, words: str) -> None:
    assert _found(_check(env_id), "vector").what == words


def test_algorithms_are_those_that_can_act() -> None:
    assert _found(_check("CartPole-v1"), "algorithms") == Finding("algorithms", "ok", "dqn, sac-discrete")
    assert _found(_check("Pendulum-v1"), "algorithms") == Finding("algorithms", "ok", "ddpg, sac, td3")
    refused = _found(_check("Odd-v0"), "algorithms")
    assert refused.verdict == "note"
    assert "dqn needs one Discrete action" in refused.what


def test_pictures_need_a_mode() -> None:
    assert _found(_check("CartPole-v1"), "rendering").what == "human, rgb_array"
    assert "needs rgb_array" in _found(_check("Seeded-v0"), "rendering").what


def test_speed_is_steps_over_the_time_that_they_took() -> None:
    """Each reading of this clock takes 0.1 ms, and a step of one environment lies between two."""
    assert _found(_check("Seeded-v0"), "speed").what == "10,000 steps/s in one environment"


def test_report_is_json() -> None:
    shown = json.loads(json.dumps(_check("CartPole-v1").to_json(), allow_nan=False))
    assert (shown["env_id"], shown["supported"], shown["why_not"]) == ("CartPole-v1", True, [])
    assert {"about", "verdict", "what"} == shown["findings"][0].keys()


@pytest.mark.parametrize("reward", [None, [1.0], "plenty"])
def test_reward_that_is_no_number_is_a_fault(reward: Any) -> None:
    class Paying(CarelessEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, np.array(reward) if isinstance(reward, list) else reward, *rest

    gymnasium.register("Paying-v0", entry_point=Paying)
    try:
        (told,) = _check("Paying-v0").to_json()["why_not"]
    finally:
        del gymnasium.registry["Paying-v0"]
    assert "expected one number" in told


def test_what_close_raises_is_a_note() -> None:
    report = _check("tests.environments:Careless-v0", fault="broken close")
    assert report.is_supported
    assert _found(report, "end") == Finding("end", "note", "close raised KeyError: 'window'")
    assert _found(report, "end of vector").verdict == "note"
