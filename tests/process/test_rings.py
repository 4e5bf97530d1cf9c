"""Rings that outlive their processes: real runs that are interrupted, killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.running import Run, poll_until, running

ARGUMENTS = ("--set", "replay.samples_per_insert=1")


def _figures(run: Run) -> dict[str, Any]:
    return [row for row in run.metrics() if row["kind"] == "figures"][-1]


def _live_rows(run: Run) -> list[float]:
    return [row["replay_live_rows"] for row in run.metrics() if "replay_live_rows" in row]


def _interrupted(tmp_path: Path) -> int:
    """Trains until some rows are there, and interrupts it; returns after how many steps."""
    with running(tmp_path / "run", *ARGUMENTS, rings=tmp_path / "rings") as run:
        run.wait_until_training()
        run.until(lambda: (_live_rows(run) or [0])[-1] > 3000 or None)
        run.process.send_signal(signal.SIGINT)
        code, stdout, stderr = run.finish()
        assert code == 130, stderr
        (ring,) = run.kept_rings()
        assert f"kept for --resume: {tmp_path / 'rings' / ring}" in stderr.replace("\n", "")
    return int(json.loads(stdout.splitlines()[-1])["env_steps"])


def _further(num_steps: int) -> tuple[str, ...]:
    """Options that resume a run for some thousand steps more."""
    return (*ARGUMENTS, "--resume", "--max-steps", str(num_steps + 5000))


def _kill_replay(run: Run) -> None:
    """Kills the replay node, and waits until another one has stored rows."""
    killed, before = run.nodes()["replay-0"], _figures(run)["inserted_rows_total"]
    killed.kill()
    run.until(lambda: run.nodes()["replay-0"].pid != killed.pid or None)
    run.until(lambda: _figures(run)["inserted_rows_total"] > before or None)


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "parl_mq", *arguments], capture_output=True, text=True, timeout=60)


def _inspected(run_dir: Path) -> dict[str, Any]:
    done = _command("replay", "inspect", str(run_dir), "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_an_interrupted_run_goes_on_with_its_rows_which_go_when_it_is_done(tmp_path: Path) -> None:
    num_steps = _interrupted(tmp_path)
    found = _inspected(tmp_path / "run")
    assert found["num_live"] > 2000
    assert not found["is_in_use"]
    with running(tmp_path / "run", *_further(num_steps), rings=tmp_path / "rings") as run:
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert f"the replay has kept {found['num_live']:,} rows" in stderr
        assert run.kept_rings() == []
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["rows"]["lost"] == 0
    assert summary["rows"]["balanced"]
    log = (tmp_path / "run" / "logs" / "replay-0.log").read_text()
    assert f"goes on with {found['num_live']} live rows" in log


def test_a_run_whose_processes_were_all_killed_goes_on_with_its_rows(tmp_path: Path) -> None:
    with running(tmp_path / "run", *ARGUMENTS, rings=tmp_path / "rings") as run:
        run.wait_until_training()
        run.until(lambda: (_live_rows(run) or [0])[-1] > 2000 or None)
        acknowledged = _figures(run)
        for process in (*run.nodes().values(), run.process):
            process.send_signal(signal.SIGKILL)
        poll_until(lambda: True if not run.alive() else None, 30)
    found = _inspected(tmp_path / "run")
    assert found["num_inserted"] >= acknowledged["acknowledged_rows_total"]
    with running(tmp_path / "run", *_further(int(acknowledged["env_steps_total"])), rings=tmp_path / "rings") as run:
        code, _, stderr = run.finish()
        assert code == 0, stderr
        assert f"the replay has kept {found['num_live']:,} rows" in stderr
        assert run.kept_rings() == []


def test_a_killed_replay_node_comes_back_with_every_row(tmp_path: Path) -> None:
    with running(tmp_path / "run", *ARGUMENTS) as run:
        run.wait_until_training()
        for _ in range(2):
            _kill_replay(run)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["restarts"] == {"replay-0": 2}
    assert summary["rows"]["lost"] == 0
    assert summary["rows"]["balanced"]
    assert "goes on with" in (tmp_path / "run" / "logs" / "replay-0.log").read_text()


def test_a_damaged_ring_is_refused_by_name(tmp_path: Path) -> None:
    _interrupted(tmp_path)
    (ring,) = (tmp_path / "rings").glob("*/main.000.ring")
    with ring.open("r+b") as file:
        file.write(b"NONSENSE")
    with running(tmp_path / "run", *ARGUMENTS, "--resume", rings=tmp_path / "rings") as run:
        code, _, stderr = run.finish()
    told = stderr.replace("\nparl-mq: ", "")
    assert code == 78, stderr
    assert f"{ring}: field 'magic' of its head is 'NONSENSE'" in told
    assert f"--fresh, or remove {ring.parent}" in told


def test_a_ring_moves_to_another_place(tmp_path: Path) -> None:
    num_steps = _interrupted(tmp_path)
    rows = _inspected(tmp_path / "run")
    done = _command("replay", "snapshot", str(tmp_path / "run"), str(tmp_path / "rows"))
    assert done.returncode == 0, done.stderr
    assert f"{rows['num_live']:,} live rows" in done.stderr
    done = _command("replay", "restore", str(tmp_path / "rows"), str(tmp_path / "run"))
    assert done.returncode == 78
    assert "--fresh" in done.stderr
    shutil.rmtree(tmp_path / "rings")
    (tmp_path / "elsewhere").mkdir()
    place = ("--set", f"node.ring_directory={tmp_path / 'elsewhere'}")
    done = _command("replay", "restore", str(tmp_path / "rows"), str(tmp_path / "run"), *place)
    assert done.returncode == 0, done.stderr
    with running(tmp_path / "run", *_further(num_steps), rings=tmp_path / "elsewhere") as run:
        code, _, stderr = run.finish()
        assert code == 0, stderr
        assert f"the replay has kept {rows['num_live']:,} rows" in stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_replay_node_loses_nothing_over_many_kills(tmp_path: Path) -> None:
    with running(tmp_path / "run", *ARGUMENTS, "--set", "node.max_restarts=100") as run:
        run.wait_until_training()
        for _ in range(15):
            _kill_replay(run)
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["rows"]["lost"] == 0
    assert summary["rows"]["balanced"]
