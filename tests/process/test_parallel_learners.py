"""Learners that share each update, in processes of their own: over gloo, with a rank that is killed and one that hangs.

Deadlines have threefold slack.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.process.running import Run, running

SLACK = 3
SILENCE_LIMIT_S = 10
"""The default: on busy cores a learner that lives may be silent for some seconds."""


def _updates(run: Run) -> int:
    return max((int(row.get("updates_total", 0)) for row in run.metrics() if row["kind"] == "figures"), default=0)


def _replaced(run: Run, name: str, old: psutil.Process) -> psutil.Process:
    def new() -> psutil.Process | None:
        found = run.nodes().get(name)
        return found if found is not None and found.pid != old.pid else None

    return run.until(new)


def _learns_on(run: Run) -> None:
    """Both ranks of the newest group are there, and updates are made that were not there before."""
    before = _updates(run)
    run.until(lambda: _updates(run) > before + 10 or None)


def _log(run: Run, name: str) -> str:
    return (run.directory / "logs" / f"{name}.log").read_text()


@pytest.mark.timeout(240)
def test_two_learners_train_and_go_on_when_one_is_killed_and_when_one_hangs(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--learners", "2") as run:
        nodes = dict(run.wait_until_training())
        others = {name: nodes[name].pid for name in ("hub", "replay-0", "actor-0", "evaluator-0")}
        nodes["learner-1"].kill()
        killed_at = time.monotonic()
        run.until(lambda: "the group of learners is over: learner-1" in _log(run, "learner-0") or None)
        assert time.monotonic() - killed_at < 5 * SLACK
        _replaced(run, "learner-1", nodes["learner-1"])
        _learns_on(run)
        nodes["learner-0"].send_signal(signal.SIGSTOP)
        hangs_since = time.monotonic()
        run.until(lambda: "the group of learners is over: learner-0" in _log(run, "learner-1") or None)
        assert time.monotonic() - hangs_since < (SILENCE_LIMIT_S + 5) * SLACK
        _replaced(run, "learner-0", nodes["learner-0"])
        _learns_on(run)
        assert {name: run.nodes()[name].pid for name in others} == others  # nobody else noticed
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert run.alive() == []
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["rows"]["balanced"]
    assert summary["rows"]["lost"] == 0
    assert summary["restarts"].keys() == {"learner-0", "learner-1"}
    assert summary["lost_updates"] == 0  # those that were left had all of them
    assert (tmp_path / "run" / "checkpoints" / f"updates-{summary['updates']:012d}").is_dir()  # rank 0 came to its end
