"""The table at a run's end."""

import io
from typing import Any

import pytest

from parl_mq.observe.summary import print_summary

SUMMARY: dict[str, Any] = {
    "preset": "cartpole-dqn",
    "env_id": "CartPole-v1",
    "algorithm": "dqn",
    "seed": 1,
    "target_return": 475.0,
    "reached": True,
    "eval_return": 489.1,
    "env_steps": 123_456,
    "updates": 3_000,
    "wall_s": 8.123,
    "time_to_target_s": 7.5,
    "env_steps_per_s": 40_000.1,
    "updates_per_s": 900.2,
    "samples_per_insert": 8.01,
    "run_dir": "runs/x",
}


def _printed(**changes: Any) -> str:
    stream = io.StringIO()
    print_summary({**SUMMARY, **changes}, stream)
    return stream.getvalue()


def test_every_figure_is_shown() -> None:
    printed = _printed()
    for words in ["dqn on CartPole-v1, seed 1", "489.1", "123,456 (40,000/s)", "3,000 (900/s)", "8.01", "runs/x"]:
        assert words in printed
    assert all(len(line) <= 80 for line in printed.splitlines())


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "reached 475 after 7.5 s"),
        ({"reached": False, "time_to_target_s": None}, "did not reach 475"),
        ({"target_return": None, "reached": False}, "done"),
        ({"error": "actor-0 ended\nwith a trace"}, "failed: actor-0 ended with a trace"),
    ],
)
def test_verdict_comes_first(changes: dict[str, Any], verdict: str) -> None:
    assert _printed(**changes).splitlines()[0].strip() == verdict


@pytest.mark.parametrize("absent", ["eval_return", "samples_per_insert", "env_steps_per_s"])
def test_what_is_not_known_is_left_out(absent: str) -> None:
    assert "None" not in _printed(**{absent: None})
    assert len(_printed(**{absent: None}).splitlines()) == len(_printed().splitlines()) - 1


def test_an_interrupted_run_says_how_it_goes_on() -> None:
    assert "--resume" not in _printed(interrupted=False)
    assert _printed(interrupted=True).endswith(
        "go on with parl-mq train runs/x/config.toml --run-dir runs/x --resume\n"
    )


def test_environments_that_broke_are_counted() -> None:
    assert "environment faults" not in _printed(environment_faults=0)
    assert "broke 3 times, and were made anew" in _printed(environment_faults=3)
