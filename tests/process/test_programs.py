"""Learners that compute by programs which are compiled, or recorded on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from parl_mq.config.devices import Devices
from parl_mq.errors import EXIT_CONFIG, EXIT_OK
from tests.process.running import running


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_learner_that_compiles_goes_through_and_torch_does_not_give_up(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", "learner.compile=true", "--set", "stop.max_updates=300") as run:
        code, _, told = run.finish(timeout_s=500)
        logs = [file.read_text() for file in (tmp_path / "run").rglob("*.log")]
        assert code == EXIT_OK, told
        assert run.summary["updates"] == 300
        assert logs
        assert not any("recompile_limit" in text for text in (*logs, told))


@pytest.mark.skipif(Devices.here().has_gpu, reason="a GPU records")
def test_recordings_without_a_gpu_end_the_run_and_say_why(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--set", "learner.cuda_graphs=true") as run:
        code, _, told = run.finish()
        assert code == EXIT_CONFIG
        assert "learner.cuda_graphs: this learner computes on cpu, and only a GPU records" in told
        assert run.left_behind() == []
