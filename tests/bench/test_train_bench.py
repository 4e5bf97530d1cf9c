"""What `bench train` makes of runs, and how it goes on where it was cut off; runs here are recorded, not trained."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from parl_mq.bench.report import BenchReport, Result, describe_machine
from parl_mq.bench.tables import grids
from parl_mq.bench.train import TrainBench, run
from parl_mq.bench.train_jobs import OwnJob, PeerJob, run_to_end
from parl_mq.bench.train_peers import peer_settings
from parl_mq.bench.train_runs import System, Training, results_of
from parl_mq.config.loader import load_config
from parl_mq.errors import NodeFailed, UsageError
from parl_mq.observe.comparison import Comparison
from parl_mq.observe.files import CHECKPOINTS, CONFIG
from parl_mq.services.run_directory import RunDirectory
from tests.observe.recorded import RISING, record, record_ended

NEVER = math.inf


def training(seed=1, to_target_s=10.0, **figures):
    return replace(Training(seed, to_target_s, to_target_s - 2, 5_000.0, 300.0), **figures)


def system(name, *trainings):
    reached = sum(math.isfinite(one.to_target_s) for one in trainings)
    compared = Comparison(name, len(trainings), reached, 480.0, 470.0, 490.0, None)
    return System(name, "equal", trainings, compared)


def row(results, measure, name):
    (found,) = [r for r in results if r.measure.startswith(measure) and r.system == name]
    return found


def test_half_the_seeds_without_target_make_the_median_never():
    systems = [system("parl_mq", training(1), training(2, NEVER), training(3, NEVER))]
    found = row(results_of(systems, {}), "time to target", "parl_mq")
    assert (found.median, found.min, found.max) == (NEVER, 10.0, NEVER)
    assert found.params["reached"] == "1 of 3"


def test_peers_are_compared_seed_by_seed():
    own = system("parl_mq", training(1, 10.0), training(2, 20.0), training(3, 30.0))
    peer = system("sb3", training(1, 40.0), training(2, 40.0), training(3, NEVER))
    found = row(results_of([own, peer], {}), "time to target over", "sb3")
    assert (found.median, found.min, found.max) == (4.0, 2.0, NEVER)


def test_a_seed_that_parl_mq_alone_missed_counts_for_the_peer():
    own = system("parl_mq", training(1, 10.0), training(2, NEVER), training(3, NEVER))
    peer = system("sb3", training(1, 40.0), training(2, 40.0), training(3, 50.0))
    found = row(results_of([own, peer], {}), "time to target over", "sb3")
    assert (found.median, found.min, found.max) == (0.0, 0.0, 4.0)


def test_seeds_that_both_missed_are_not_compared():
    own = system("parl_mq", training(1, NEVER), training(2, 20.0))
    peer = system("sb3", training(1, NEVER), training(2, 40.0))
    found = row(results_of([own, peer], {}), "time to target over", "sb3")
    assert (found.median, found.min, found.max) == (2.0, 2.0, 2.0)
    neither = results_of([system("parl_mq", training(1, NEVER)), system("sb3", training(1, NEVER))], {})
    assert not [result for result in neither if result.measure.startswith("time to target over")]


def test_never_survives_json_and_is_told_in_tables():
    results = results_of([system("parl_mq", training(1, NEVER))], {"preset": "cartpole-dqn"})
    report = BenchReport("train", describe_machine(), tuple(results))
    line = report.to_json()
    assert json.loads(line)["results"][0]["median"] is None
    assert BenchReport.from_json(line) == report
    (grid, *_) = grids(report)
    assert grid.rows[0][-4:] == ("never", "never", "never", "")


def test_returns_have_no_ratio():
    report = BenchReport(
        "train", describe_machine(), (Result("last", "parl_mq", "return", {}, -150.0, -160.0, -140.0),)
    )
    (grid,) = grids(report)
    assert grid.rows[0][-1] == ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(directory: Path, *seeds: int, **summary) -> None:
    for seed in seeds:
        path = directory / f"parl_mq-seed{seed}"
        record_ended(path, RISING, f"seed={seed}", first_env_step_s=0.5, **summary)


def test_what_has_ended_is_not_run_again(folder):
    recorded(folder / "runs" / "bench" / "cartpole-dqn", 1, 2)
    told: list[str] = []
    outcome = run(TrainBench("cartpole-dqn", num_seeds=2), told.append)
    assert [line.partition(":")[0] for line in told] == ["1 of 2", "2 of 2"]
    assert all("is there already (reached 475 after 3.5 s)" in line for line in told)
    found = row(outcome.report.results, "time to target", "parl_mq")
    assert (found.median, found.unit, found.params["seeds"]) == (3.5, "s", "1 to 2")
    assert row(outcome.report.results, "training alone", "parl_mq").median == 3.0
    assert outcome.picture == Path("runs/bench/cartpole-dqn/comparison.png")
    assert outcome.picture.read_bytes().startswith(b"\x89PNG")


def test_runs_of_other_settings_are_refused_before_anything_starts(folder):
    recorded(folder / "here", 1)
    bench = TrainBench("cartpole-dqn", ("replay.kind=uniform",), num_seeds=1, directory=Path("here"))
    with pytest.raises(UsageError, match=r"other settings \(replay.kind = 'prioritized'\); name another --directory"):
        run(bench, print)


def test_a_peers_run_that_had_another_limit_is_refused(folder):
    job = PeerJob("cartpole-dqn", (), 1, folder, "sb3", "equal", 10.0)
    config = load_config("cartpole-dqn", overrides=("seed=1",))
    (job.path / CHECKPOINTS).mkdir(parents=True)
    (job.path / CONFIG).write_text(peer_settings("sb3", config, "equal").recorded(config, job.label, 10.0))
    job.check()
    with pytest.raises(UsageError, match=r"other settings \(stop.max_seconds = 10.0\); name another --directory"):
        replace(job, limit_s=20.0).check()


def test_a_run_that_was_cut_off_is_resumed(folder):
    record(folder / "parl_mq-seed1", RISING, "seed=1")
    job = OwnJob("cartpole-dqn", ("replay.shards=1",), 1, folder)
    job.check()
    assert not job.is_done()
    assert job.command()[-1] == "--resume"
    assert "--set replay.shards=1" in " ".join(job.command())


def test_what_a_peer_left_half_done_is_removed_before_it_begins_anew(folder):
    job = PeerJob("cartpole-dqn", (), 1, folder, "sb3", "equal", 10.0)
    record(job.path, RISING, "seed=1")
    job.prepare()
    assert not job.path.exists()


@dataclass(frozen=True)
class Script:
    """A job that runs a program; it is done once it has left a summary."""

    path: Path
    program: str
    system: str = "parl_mq"
    settings: str = "preset"
    label: str = "parl_mq"
    name: str = "a job"

    def check(self) -> None:
        """Nothing is refused."""

    def is_done(self) -> bool:
        return self.path.exists() and RunDirectory(self.path).is_done()

    def prepare(self) -> None:
        """Nothing is in the way."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def test_a_job_that_fails_is_named_with_the_end_of_what_it_said(folder):
    job = Script(folder / "job", "print('no such thing'); raise SystemExit(78)")
    with pytest.raises(
        NodeFailed, match=r"(?s)a job ended with code 78; the end of .*job.log:\nno such thing"
    ) as caught:
        run_to_end(job, "1 of 1", print)
    assert caught.value.code == 78


def test_a_job_that_ends_without_an_end_is_a_failure(folder):
    with pytest.raises(NodeFailed, match="ended with code 0"):
        run_to_end(Script(folder / "job", "pass"), "1 of 1", print)


ENDS_ITS_PARENT = """
import signal, sys, time
from pathlib import Path
from parl_mq.bench import train_jobs
from tests.bench.test_train_bench import Script

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
waits = "import signal,sys,time; signal.signal(15, lambda *_: (print('ended', flush=True), sys.exit(0)));" \\
    "print('runs', flush=True); time.sleep(60)"
train_jobs.run_to_end(Script(Path("job"), waits), "1 of 1", print)
"""


def test_ending_the_benchmark_ends_its_job(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS_ITS_PARENT], env=_with_this_folder(), stdout=subprocess.DEVNULL
    )
    log = folder / "job.log"
    try:
        _wait_until(lambda: log.exists() and "runs" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "ended" in log.read_text()


def _with_this_folder():
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def _wait_until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
