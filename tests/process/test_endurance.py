"""Every node may die, and the run goes on: real processes, killed or stopped by signals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.marks import slow
from tests.process.running import Run, running

ROLES = ("hub", "replay-0", "learner-0", "actor-0", "evaluator-0", "zygote", "zygote-light")


def _figure(run: Run, name: str) -> float:
    rows = [row for row in run.metrics() if row["kind"] == "figures"]
    return float(rows[-1].get(name, 0.0)) if rows else 0.0


def _wait_for_steps(run: Run, more: float, timeout_s: float = 60.0) -> None:
    """Waits until so many more environment steps and some updates are done: everybody is at work."""
    steps, updates = _figure(run, "env_steps_total"), _figure(run, "updates_total")
    run.until(lambda: _figure(run, "env_steps_total") >= steps + more or None, timeout_s)
    run.until(lambda: _figure(run, "updates_total") != updates or None, timeout_s)


def _replaced(run: Run, name: str, old: psutil.Process) -> psutil.Process:
    return run.until(lambda: _other(run.nodes().get(name), old))


def _other(found: psutil.Process | None, old: psutil.Process) -> psutil.Process | None:
    return found if found is not None and found.pid != old.pid else None


def _assert_balanced(summary: dict[str, Any]) -> None:
    rows = summary["rows"]
    assert rows["sent"] == rows["acknowledged"] + rows["abandoned"], rows
    assert rows["acknowledged"] == rows["stored"] + rows["lost"], rows
    assert rows["balanced"] is True


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
        assert [name for name in ROLES if f"{name} died (signal 9); restarted (1)" not in stderr] == []
        assert run.alive() == []
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == dict.fromkeys(ROLES, 1)
    _assert_balanced(summary)


@pytest.mark.timeout(600)
def test_each_of_two_replay_nodes_may_die_and_return_with_every_row_accounted_for(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--actors", "2", "--set", "replay.nodes=2") as run:
        run.wait_until_training(240)
        for victim in ("replay-0", "replay-1"):
            before = run.nodes()[victim]
            before.kill()
            _replaced(run, victim, before)
            _wait_for_steps(run, 1000)
        status = _status(run)
        for name in ("replay-0", "replay-1"):
            assert _inspected(run, name)["ring"].endswith(name)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert run.alive() == []
        assert run.left_behind() == []
    assert {node["name"] for node in status["nodes"] if node["role"] == "replay"} == {"replay-0", "replay-1"}
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {"replay-0": 1, "replay-1": 1}
    assert summary["rows"]["lost"] == 0
    _assert_balanced(summary)


@pytest.mark.timeout(600)
def test_a_replay_node_that_dies_while_the_run_ends_says_what_its_ring_holds(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--max-steps", "40000") as run:  # seconds after the first updates
        nodes = dict(run.wait_until_training(240))
        nodes["evaluator-0"].send_signal(signal.SIGSTOP)  # the end waits for its last word
        for name in ("actor-0", "learner-0"):
            run.until(lambda name=name: name not in run.alive() or None, 120)  # type: ignore[misc]
        nodes["replay-0"].kill()
        _replaced(run, "replay-0", nodes["replay-0"])
        nodes["evaluator-0"].send_signal(signal.SIGCONT)
        code, stdout, stderr = run.finish(120)
        assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {"replay-0": 1}
    assert summary["rows"]["lost"] == 0
    _assert_balanced(summary)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stopped", ["learner", "actor"])
def test_nodes_that_have_nothing_to_do_need_no_processor(stopped: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", "replay.nodes=2", "--set", "node.busy_limit_s=1000") as run:
        nodes = run.wait_until_training(240)
        nodes[f"{stopped}-0"].send_signal(signal.SIGSTOP)
        idle = {name: node for name, node in nodes.items() if not name.startswith((stopped, "zygote"))}
        run.until(lambda: _steps_and_updates(run, quiet_s=3), 120)
        before = {name: _cpu_s(node) for name, node in idle.items()}
        time.sleep(10)  # the time in which nothing happens
        used = {name: (_cpu_s(node) - before[name]) / 10 for name, node in idle.items()}
        print({name: f"{share:.2%}" for name, share in used.items()})
        assert max(used.values()) < 0.02 * 3, used


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _steps_and_updates(run: Run, *, quiet_s: int) -> bool | None:
    """Whether neither has changed over the last rows of the record, of which there is one a second."""
    rows = [row for row in run.metrics() if row["kind"] == "figures"][-quiet_s - 1 :]
    return len({(row.get("env_steps_total"), row.get("updates_total")) for row in rows}) == 1 or None


def _status(run: Run) -> dict[str, Any]:
    return _said("status", str(run.directory), "--json")


def _inspected(run: Run, name: str) -> dict[str, Any]:
    options = ("--name", name, "--json", "--set", f"node.ring_directory={run.rings}")
    return _said("replay", "inspect", str(run.directory), *options)


def _said(*command: str) -> dict[str, Any]:
    """What a command of its own says in JSON."""
    done = subprocess.run([sys.executable, "-m", "parl_mq", *command], capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


# Nodes that hang


@pytest.mark.parametrize("victim", ["hub", *map(slow, ROLES[1:4])])
def test_a_node_that_hangs_is_killed_and_started_again(victim: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", "node.busy_limit_s=4") as run:
        hanging = run.wait_until_training(240)[victim]
        hanging.send_signal(signal.SIGSTOP)
        _replaced(run, victim, hanging)
        _wait_for_steps(run, 500)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert f"{victim} gave no sign of life for 4 s and was killed; restarted (1)" in stderr
        assert run.alive() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {victim: 1}
    _assert_balanced(summary)


@pytest.mark.slow
def test_a_zygote_that_hangs_while_it_is_needed_is_started_again_with_its_children(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", "node.busy_limit_s=4") as run:
        nodes = dict(run.wait_until_training(240))
        nodes["zygote"].send_signal(signal.SIGSTOP)
        nodes["actor-0"].kill()  # of which the zygote does not tell
        for name in ("zygote", "actor-0", "learner-0", "evaluator-0"):
            _replaced(run, name, nodes[name])
        _wait_for_steps(run, 500)
        run.process.send_signal(signal.SIGTERM)
        code, _, stderr = run.finish()
        assert code == 0, stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("busy_s", "limit_s"), [(5, 20), (30, 60)], ids=["short", "30 s"])
def test_an_actor_whose_environment_lets_nothing_else_run_for_a_while_is_not_taken_for_dead(
    busy_s: int, limit_s: int, tmp_path: Path
) -> None:
    environment = ("--set", "environment.id=tests.environments:Busy-v0")
    arguments = ("--set", f"environment.kwargs={{seconds={busy_s}, at=3000}}")
    with running(tmp_path / "run", *environment, *arguments, "--set", f"node.busy_limit_s={limit_s}") as run:
        run.wait_until_training(240)
        run.until(lambda: _figure(run, "env_steps_total") > 4000 or None, busy_s + 240)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {}
    assert summary["wall_s"] > busy_s
    _assert_balanced(summary)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stopped_s", [8, 60])
def test_while_a_replay_node_is_stopped_actors_wait_in_bounded_memory_and_go_on_soon_after(
    stopped_s: int, tmp_path: Path
) -> None:
    with running(tmp_path / "run", "--set", "node.busy_limit_s=1000") as run:
        nodes = run.wait_until_training(240)
        before = nodes["actor-0"].memory_info().rss
        nodes["replay-0"].send_signal(signal.SIGSTOP)
        time.sleep(stopped_s)  # the time itself is what is tested: longer than the transport's own limit of 6 s
        steps = _figure(run, "env_steps_total")
        assert nodes["actor-0"].memory_info().rss - before < 64 * 2**20
        nodes["replay-0"].send_signal(signal.SIGCONT)
        run.until(lambda: _figure(run, "env_steps_total") > steps or None, 5 * 3)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {}
    assert summary["rows"]["lost"] == 0
    _assert_balanced(summary)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("num_replays", [1, 2])
def test_a_run_goes_on_learning_while_its_nodes_die_and_hang_at_random(num_replays: int, tmp_path: Path) -> None:
    """Lasts CHAOS_S seconds, 180 where that is not set."""
    lasts_s = float(os.environ.get("CHAOS_S", "180"))
    chance = random.Random(1)
    options = (
        *("node.max_restarts=1000", "node.busy_limit_s=20", "learner.checkpoint_every_s=3"),
        f"replay.nodes={num_replays}",
    )
    with running(tmp_path / "run", "--actors", "2", *(word for each in options for word in ("--set", each))) as run:
        run.wait_until_training(240)
        names = [*ROLES, "actor-1", *(f"replay-{index}" for index in range(1, num_replays))]
        ends_at = time.monotonic() + lasts_s
        while time.monotonic() < ends_at:
            process = run.nodes()[chance.choice(names)]
            try:
                if chance.random() < 0.5:
                    process.kill()
                else:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.1, 2.0))  # the time for which it hangs
                    process.send_signal(signal.SIGCONT)
            except psutil.NoSuchProcess:
                pass  # the zygote took it along
            assert run.process.poll() is None
            time.sleep(3)  # the time between two faults
        _wait_for_steps(run, 1000, 240)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish(timeout_s=120)
        assert code == 0, stderr
        assert run.alive() == []
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    print({name: summary[name] for name in ("env_steps", "updates", "best_eval_return", "rows", "restarts")})
    assert sum(summary["restarts"].values()) > lasts_s / 20
    assert summary["best_eval_return"] > 100  # 22 at random
    _assert_balanced(summary)
