"""`parl_mq.train` from Python: a whole small run, and what it refuses."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import parl_mq
from parl_mq.errors import ConfigError
from parl_mq.wire.messages import RunProgress

SETTINGS = [
    "actor.num_envs=8",
    "algorithm.batch_size=32",
    "evaluation.num_episodes=3",
    "replay.fragment_length=8",
    "replay.learning_starts=200",
    "stop.max_steps=3000",
    "stop.target_return=1000.0",
]


@pytest.fixture
def config() -> Iterator[parl_mq.RunConfig]:
    with tempfile.TemporaryDirectory(prefix="pmq-", dir="/tmp") as folder:  # short: socket paths have 107 bytes
        (Path(folder) / "rings").mkdir()
        local = [f"node.ring_directory={folder}/rings", f"node.runtime_directory={folder}"]
        yield parl_mq.load_config("cartpole-dqn", overrides=[*SETTINGS, *local], environ={})
        assert [str(path) for path in Path(folder).rglob("*") if path.name != "rings"] == []


def test_train_returns_what_the_summary_holds_and_tells_its_progress(config: parl_mq.RunConfig, tmp_path: Path) -> None:
    told: list[RunProgress] = []
    result = parl_mq.train(config, run_dir=tmp_path / "run", on_progress=told.append)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert result.summary == summary
    assert (result.exit_code, result.reached, result.run_dir) == (0, False, tmp_path / "run")
    assert (result.env_steps, result.updates) == (summary["env_steps"], summary["updates"])
    assert result.env_steps >= 3000
    assert result.updates > 0
    assert result.eval_return == summary["eval_return"] is not None
    assert told[-1].phase == "done"


def test_a_run_that_was_never_started_cannot_be_resumed(config: parl_mq.RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --run-dir"):
        parl_mq.train(config, resume=True)
    with pytest.raises(ConfigError, match="no run directory"):
        parl_mq.train(config, run_dir=tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_the_algorithm_cannot_learn_in_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    config = parl_mq.load_config("cartpole-dqn", overrides=["environment.id=Pendulum-v1"], environ={})
    with pytest.raises(ConfigError, match="dqn needs one Discrete action"):
        parl_mq.train(config, run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
