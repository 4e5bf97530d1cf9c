"""How a run ends: by a killed node, a killed command, a signal. Deadlines are asserted with threefold slack."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from parl_mq.config.loader import load_config
from parl_mq.errors import CodedError
from parl_mq.learn.checkpoint import find_newest
from parl_mq.services.run_directory import RunDirectory
from tests.marks import slow
from tests.process.running import maps, poll_until, running

SLACK = 3
NODES = ("hub", "replay-0", "learner-0", "actor-0", "evaluator-0")
OTHERS = ("replay-0", "actor-0", "evaluator-0", "zygote")


@pytest.mark.parametrize("victim", ["hub", "learner-0", "zygote-light", *map(slow, OTHERS)])
def test_without_restarts_a_killed_node_ends_the_run_within_ten_seconds_by_name(victim: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", "node.max_restarts=0") as run:
        nodes = run.wait_until_training()
        assert {*NODES, "zygote", "zygote-light"} <= nodes.keys()
        began = time.monotonic()
        nodes[victim].kill()
        code, _, stderr = run.finish()
        assert time.monotonic() - began < 10 * SLACK
        assert code == 70
        assert f"{victim} died (signal 9)" in stderr
        assert run.alive() == []
        assert run.left_behind() == []


def test_no_node_outlives_a_killed_command_and_the_last_counters_are_kept(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        learner = run.wait_until_training()["learner-0"]
        learner.suspend()  # so that it lives on for a while
        run.process.kill()
        run.process.wait()
        with pytest.raises(CodedError, match="another command is training"), RunDirectory(run.directory).held():
            pass
        learner.resume()
        poll_until(lambda: True if not run.alive() else None, 5 * SLACK)
        with RunDirectory(run.directory).held():
            pass
        assert run.left_behind() == []
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stop_reason"] == "the supervisor is gone"
    assert summary["interrupted"] is True
    assert summary["rows"]["balanced"] is True
    assert summary["env_steps"] >= summary["rows"]["stored"] > 0


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), slow(signal.SIGHUP, 0)])
@pytest.mark.usefixtures("heard_hangups")
def test_a_signal_ends_the_run_in_order_and_leaves_a_usable_directory(
    number: signal.Signals, expected: int, tmp_path: Path
) -> None:
    with running(tmp_path / "run") as run:
        run.wait_until_training()
        began = time.monotonic()
        run.process.send_signal(number)
        code, stdout, _ = run.finish()
        assert time.monotonic() - began < 10 * SLACK
        assert code == expected
        assert run.alive() == []
        assert run.left_behind() == []
        summary = json.loads(stdout.splitlines()[-1])
    assert summary["interrupted"] is True
    assert summary["updates"] > 0
    assert load_config(tmp_path / "run" / "config.toml").preset == "cartpole-dqn"
    found = find_newest(tmp_path / "run" / "checkpoints")
    assert found.checkpoint is not None
    assert found.checkpoint.updates == summary["updates"]
    assert found.damaged == ()
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert (tmp_path / "run" / "learning_curve.png").stat().st_size > 0


def test_sigterm_to_all_processes_ends_the_run_in_order(tmp_path: Path) -> None:
    """As at the end of a session, of a job, of a unit around the command."""
    with running(tmp_path / "run") as run:
        nodes = run.wait_until_training()
        for process in (nodes["zygote"], nodes["zygote-light"], run.process):
            process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert run.alive() == []
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {}
    assert summary["rows"]["balanced"] is True


def test_a_signal_before_the_first_step_ends_the_run(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        run.until(lambda: run.nodes().get("hub"))
        run.process.send_signal(signal.SIGTERM)
        code, _, _ = run.finish()
        assert code == 0
        assert run.alive() == []
        assert run.left_behind() == []


def test_hub_and_replay_have_not_loaded_torch_and_zygotes_have_one_thread(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        nodes = run.wait_until_training()
        assert "libtorch" in maps(nodes["learner-0"].pid)
        for name in ("hub", "replay-0"):
            assert "libtorch" not in maps(nodes[name].pid)
        assert [nodes[name].num_threads() for name in ("zygote", "zygote-light")] == [1, 1]


def test_max_steps_ends_the_run_with_code_0_and_a_final_evaluation(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--max-steps", "4000") as run:
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert run.left_behind() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["env_steps"] >= 4000
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "evaluation"][-1]
    assert last["updates"] == summary["updates"]
    assert len(last["returns"]) == 20


@pytest.mark.parametrize("wanted", [4.0, slow(8.0)])
def test_measured_samples_per_insert_are_within_5_percent_of_the_setting(wanted: float, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", f"replay.samples_per_insert={wanted}") as run:
        ratio = run.until(lambda: _samples_per_insert(run.metrics(), at_least=200_000), 120)
        run.process.send_signal(signal.SIGTERM)
        code, _, stderr = run.finish()
        assert code == 0, stderr
    assert ratio == pytest.approx(wanted, rel=0.05)


def _samples_per_insert(metrics: list[dict[str, Any]], *, at_least: int) -> float | None:
    """Rows drawn for each one inserted since training began; None before so many have been drawn."""
    figures = [row for row in metrics if row["kind"] == "figures" and row["phase"] == "training"]
    if len(figures) < 3:
        return None
    first, last = figures[1], figures[-1]
    drawn: float = last["drawn_rows_total"] - first["drawn_rows_total"]
    inserted: float = last["inserted_rows_total"] - first["inserted_rows_total"]
    return drawn / inserted if drawn >= at_least else None


def test_two_actors_are_two_processes_whose_rows_are_all_accounted_for(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--actors", "2") as run:
        nodes = run.wait_until_training()
        assert nodes["actor-0"].pid != nodes["actor-1"].pid
        run.until(lambda: min(nodes[name].cpu_times().user for name in ("actor-0", "actor-1")) or None)
        run.process.send_signal(signal.SIGTERM)
        code, _, stderr = run.finish()
        assert code == 0, stderr
        assert run.alive() == []
    figures = [row for row in run.metrics() if row["kind"] == "figures"][-1]
    assert figures["sent_rows_total"] == figures["acknowledged_rows_total"] + figures["abandoned_rows_total"]
    assert figures["acknowledged_rows_total"] == figures["inserted_rows_total"]


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--max-steps", "4000") as run:
        _, stdout, _ = run.finish()
    first = json.loads(stdout.splitlines()[-1])
    with running(tmp_path / "run", "--resume", "--max-steps", "9000") as run:
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
    second = json.loads(stdout.splitlines()[-1])
    assert "the replay is empty" in stderr
    assert second["env_steps"] >= 9000
    assert second["updates"] > first["updates"]
    assert second["wall_s"] > first["wall_s"]
    assert second["evaluations"] > first["evaluations"]
