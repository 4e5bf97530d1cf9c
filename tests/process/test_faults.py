"""What real runs do when something in them breaks, or cannot work from the start. Deadlines have threefold slack."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.marks import slow
from tests.process.running import Run, poll_until, running

SLACK = 3


def _set(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _broken(fault: str, *more: str) -> list[str]:
    """An environment that breaks at its third step."""
    return _set("environment.id=tests.environments:Broken-v0", f'environment.kwargs={{fault="{fault}"}}', *more)


def _assert_nothing_left(run: Run) -> None:
    assert run.alive() == []
    assert run.left_behind() == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [("raises", "step raised KeyError: 'joint 7'"), ("nan observation", "returned nan in its obs")],
)
def test_an_environment_that_keeps_breaking_ends_the_run_with_actor_environment_and_fault(
    fault: str, told: str, tmp_path: Path
) -> None:
    with running(tmp_path / "run", *_broken(fault)) as run:
        code, _, stderr = run.finish()
        assert code == 78
        assert "actor-0: its environments broke 3 times in a row" in stderr
        assert "Broken-v0" in stderr
        assert told in stderr
        _assert_nothing_left(run)
    figures = [row for row in run.metrics() if row["kind"] == "figures"]
    assert figures[-1]["inserted_rows_total"] > 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "actor-0" in summary["error"]


def test_an_actor_that_an_environment_ends_with_code_0_ends_the_run_by_name(tmp_path: Path) -> None:
    with running(tmp_path / "run", *_broken("exits", "node.max_restarts=1")) as run:
        code, _, stderr = run.finish()
        assert code == 70
        assert "actor-0 ended with code 0; restarted (1)" in stderr
        assert "actor-0 failed 2 times" in stderr
        _assert_nothing_left(run)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path) -> None:
    often, log = _set("learner.checkpoint_every_s=0.5"), tmp_path / "run" / "logs" / "learner-0.log"
    checkpoints = tmp_path / "run" / "checkpoints"
    with running(tmp_path / "run", *often) as run:
        run.until(lambda: any(checkpoints.glob("updates-*")) or None)
        run.process.send_signal(signal.SIGTERM)  # the end writes another one
        assert run.finish()[0] == 0
    *_, older, newest = sorted(checkpoints.glob("updates-*"))
    weights = newest / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with running(tmp_path / "run", *often, "--resume") as run:
        run.until(lambda: f"going on from {older}" in log.read_text() or None)
        run.process.send_signal(signal.SIGTERM)
        code, _, stderr = run.finish()
        assert code == 0, stderr
    assert f"skipped a damaged checkpoint: {weights}" in stderr.replace("\nparl-mq: ", "")


def test_a_learner_that_diverges_ends_the_run_by_name(tmp_path: Path) -> None:
    options = ("algorithm.learning_rate=1e30", "learner.max_skipped_updates=3", "node.max_restarts=1")
    with running(tmp_path / "run", *_set(*options)) as run:
        code, _, stderr = run.finish()
        assert code not in (0, 130)
        assert "learner-0 failed 2 times" in stderr
        assert "finite" in stderr
        _assert_nothing_left(run)


def test_without_restarts_a_hub_that_dies_at_its_start_ends_the_run_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "run", *_set("node.max_restarts=0")) as run:
        hub = run.until(lambda: run.nodes().get("hub"))
        began = time.monotonic()
        hub.kill()
        code, _, stderr = run.finish()
        assert time.monotonic() - began < 10 * SLACK
        assert code == 70
        assert "hub died (signal 9)" in stderr
        _assert_nothing_left(run)


@pytest.mark.parametrize("victim", ["hub", *map(slow, ("replay-0", "learner-0", "actor-0"))])
def test_a_node_that_hangs_does_not_hold_up_the_end(victim: str, tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        run.wait_until_training()[victim].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        code, _, stderr = run.finish()
        assert time.monotonic() - began < 10 * SLACK
        assert code == (70 if victim == "hub" else 130), stderr
        _assert_nothing_left(run)


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        run.wait_until_training()["learner-0"].send_signal(signal.SIGSTOP)  # which an end in order would wait for
        run.process.send_signal(signal.SIGINT)
        poll_until(lambda: any(row.get("phase") == "stopping" for row in run.metrics()) or None, 20)
        began = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        code, _, _ = run.finish()
        assert time.monotonic() - began < 1 * SLACK
        assert code == 130
        _assert_nothing_left(run)


def test_a_hanging_node_does_not_outlive_a_killed_command_for_long(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        run.wait_until_training()["learner-0"].send_signal(signal.SIGSTOP)
        run.process.kill()
        poll_until(lambda: True if not run.alive() else None, 5 * SLACK)
        assert run.left_behind() == []


def test_ctrl_c_while_the_replay_fills_ends_the_run_in_order(tmp_path: Path) -> None:
    with running(tmp_path / "run", *_set("replay.buffer_size=1000000", "replay.learning_starts=1000000")) as run:
        run.until(lambda: any(row.get("phase") == "filling" for row in run.metrics()) or None)
        began = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        code, stdout, _ = run.finish()
        assert time.monotonic() - began < 10 * SLACK
        assert code == 130
        _assert_nothing_left(run)
    summary = json.loads(stdout.splitlines()[-1])
    assert (summary["updates"], summary["interrupted"]) == (0, True)
    assert summary["env_steps"] > 0


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (_set("replay.buffer_size=10000000000", "replay.shards=8"), 2, ["GiB + sum tree", "replay.buffer_size"]),
        (_set("replay.buffer_size=1000000000000"), 2, ["replay.buffer_size = 1000000000000", "replay.shards"]),
        (_set("environment.id=CartPole-v9x"), 2, ["CartPole-v9x", "CartPole-v1"]),
        (_set("environment.id=tests.environments:MissingPackage-v0"), 2, ["physics is not installed"]),
        (_set("replay.error_band=10"), 2, ["replay.error_band", "can never release"]),
        (_set("node.ring_directory=/nowhere"), 2, ["node.ring_directory", "/nowhere"]),
        (_set("node.runtime_directory=/nowhere"), 2, ["node.runtime_directory", "/nowhere"]),
        (_set("node.runtime_directory=/tmp/" + "x" * 100), 2, ["node.runtime_directory"]),
    ],
    ids=["memory", "size", "unknown environment", "missing package", "limiter", "rings", "sockets", "long path"],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    options: list[str], code: int, told: list[str], tmp_path: Path
) -> None:
    began = time.monotonic()
    with running(tmp_path / "run", *options) as run:
        ended, stdout, stderr = run.finish()
        assert time.monotonic() - began < 3 * SLACK
        assert ended == code, stderr
        assert all(part in stderr for part in told), stderr
        assert "Traceback" not in stderr
        assert stdout == ""
        assert not (tmp_path / "run").exists()
        _assert_nothing_left(run)


def test_an_existing_run_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("mine")
    with running(tmp_path / "run") as run:
        code, _, stderr = run.finish()
        assert code == 2
        assert "exists already; name another one with --run-dir" in stderr
        _assert_nothing_left(run)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]
