"""Every node may die, and the run goes on: real processes, killed or stopped by signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.process.running import Run, poll_until, running

ROLES = ("hub", "replay-0", "learner-0", "actor-0", "evaluator-0", "zygote")


def _figure(run: Run, name: str) -> float:
    rows = [row for row in run.metrics() if row["kind"] == "figures"]
    return float(rows[-1].get(name, 0.0)) if rows else 0.0


def _wait_for_steps(run: Run, more: float, timeout_s: float = 60.0) -> None:
    """Waits until so many more environment steps and some updates are done: everybody is at work."""
    steps, updates = _figure(run, "env_steps_total"), _figure(run, "updates_total")
    poll_until(lambda: _figure(run, "env_steps_total") >= steps + more or None, timeout_s)
    poll_until(lambda: _figure(run, "updates_total") != updates or None, timeout_s)


def _replaced(run: Run, name: str, old: psutil.Process) -> psutil.Process:
    return poll_until(lambda: _other(run.nodes().get(name), old), 60)


def _other(found: psutil.Process | None, old: psutil.Process) -> psutil.Process | None:
    return found if found is not None and found.pid != old.pid else None


def _assert_balanced(summary: dict[str, Any]) -> None:
    rows = summary["rows"]
    assert rows["sent"] == rows["acknowledged"] + rows["abandoned"], rows
    assert rows["acknowledged"] == rows["stored"] + rows["lost"], rows
    assert rows["balanced"] is True


@pytest.mark.parametrize("victim", ROLES)
def test_a_run_survives_the_death_of_a_node(victim: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--max-steps", "9000") as run:
        nodes = dict(run.wait_until_training())
        nodes[victim].kill()
        _replaced(run, victim, nodes[victim])
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert f"{victim} died (signal 9); restarted (1)" in stderr
        assert run.alive() == []
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["env_steps"] >= 9000
    assert summary["restarts"] == {victim: 1}
    assert summary["updates"] > 0
    _assert_balanced(summary)


def test_a_run_survives_the_death_of_each_of_its_nodes_in_turn(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        run.wait_until_training()
        for victim in ROLES:
            before = run.nodes()[victim]
            before.kill()
            _replaced(run, victim, before)
            _wait_for_steps(run, 500)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert run.alive() == []
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == dict.fromkeys(ROLES, 1)
    _assert_balanced(summary)
