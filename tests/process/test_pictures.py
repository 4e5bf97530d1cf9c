"""A real run, and what the commands that look at runs make of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from parl_mq.observe.curves import read_curve
from parl_mq.observe.plots import write_learning_curve


def _parl_mq(folder: Path, *arguments: str) -> Any:
    """The JSON that a command ends with."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PARL_MQ_")}
    ended = subprocess.run(
        [sys.executable, "-m", "parl_mq", *arguments, "--json"],
        cwd=folder,
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_run_is_listed_drawn_and_played_as_it_was_judged(tmp_path: Path) -> None:
    small = ["evaluation.every_updates=50", "evaluation.num_episodes=3", "stop.target_return=1000.0"]
    settings = [word for setting in small for word in ("--set", setting)]
    trained = _parl_mq(tmp_path, "train", "cartpole-dqn", "--run-dir", "runs/a", "--max-steps", "8000", *settings)
    (run,) = _parl_mq(tmp_path, "runs")["runs"]
    assert (run["state"], run["reached"], run["env_steps"]) == ("done", False, trained["env_steps"])

    evaluations = read_curve(tmp_path / "runs" / "a").evaluations
    assert len(evaluations.mean_return) == trained["evaluations"] > 0
    played = _parl_mq(tmp_path, "play", "runs/a")
    *_, best = (evaluations.mean_return == evaluations.mean_return.max()).nonzero()[0]  # a newer one of equals is kept
    assert played["returns"] == evaluations.returns[best].tolist()

    assert write_learning_curve(tmp_path / "runs" / "a").stat().st_size > 10_000
