"""Trains with one seed after another, beside other libraries, and says what all of it came to.

Each run is a process of its own and leaves a run directory. What has ended is not run again, so that a benchmark that
was cut off goes on where it was.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from parl_mq.bench.peers import open_peers, versions
from parl_mq.bench.report import BenchReport, describe_machine
from parl_mq.bench.tables import OWN
from parl_mq.bench.train_jobs import Job, OwnJob, PeerJob, run_to_end
from parl_mq.bench.train_peer import Kind
from parl_mq.bench.train_peers import PEERS
from parl_mq.bench.train_runs import System, read_training, results_of
from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.observe.comparison import Comparison, Group, compare
from parl_mq.observe.plots import write_comparison
from parl_mq.observe.runs import read_run

BOOTSTRAP_SEED: Final = 0
"""The same runs give the same bands each time."""
PICTURE: Final = "comparison.png"
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainBench:
    """What is to be trained.

    Attributes:
        source: a preset's name, or a file.
        overrides: settings that replace some of it, `key=value`.
        num_seeds: seeds 1 to this.
        directory: where the runs lie; None: `runs/bench/PRESET`.
        peers: libraries beside.
        kind: what peers are given: the preset's settings (`equal`), or their own published ones (`best`).
        peer_seconds: after which a peer's run ends without its target.
    """

    source: str
    overrides: tuple[str, ...] = ()
    num_seeds: int = 5
    directory: Path | None = None
    peers: tuple[str, ...] = ()
    kind: Kind = "equal"
    peer_seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What it came to.

    Attributes:
        compared: the runs of each system and what they came to, parl_mq's first.
        picture: their returns over steps and over wall time.
    """

    report: BenchReport
    compared: tuple[tuple[Group, Comparison], ...]
    picture: Path


def run(bench: TrainBench, tell: Tell, plot: Path | None = None) -> Outcome:
    """Trains what has not been trained yet, and compares; blocks until then.

    Args:
        bench: what to train.
        tell: called with a line for people before each run and after it.
        plot: where the picture goes; None: beside the runs.

    Raises:
        ConfigError: the settings are impossible, a peer is unknown, does not load or cannot learn this, or the
            directory holds runs of other settings. Nothing was started.
        NodeFailed: a run failed; those that had ended before it stay.
    """
    open_peers(bench.peers, PEERS)
    config = load_config(bench.source, overrides=bench.overrides)
    directory = bench.directory or Path("runs") / "bench" / config.preset
    jobs = _jobs(bench, directory)
    for job in jobs:
        job.check()
    for number, job in enumerate(jobs, start=1):
        run_to_end(job, f"{number} of {len(jobs)}: {job.name}", tell)
    systems, groups = _read(jobs)
    picture = write_comparison(groups, plot or directory / PICTURE, np.random.default_rng(BOOTSTRAP_SEED))
    return Outcome(
        _report(bench, config, systems),
        tuple(zip(groups, (system.comparison for system in systems), strict=True)),
        picture,
    )


def _jobs(bench: TrainBench, directory: Path) -> list[Job]:
    """Seed by seed, so that whatever else the machine does is spread over all systems."""
    jobs: list[Job] = []
    for seed in range(1, bench.num_seeds + 1):
        jobs.append(OwnJob(bench.source, bench.overrides, seed, directory))
        jobs += [
            PeerJob(bench.source, bench.overrides, seed, directory, peer, bench.kind, bench.peer_seconds)
            for peer in bench.peers
        ]
    return jobs


def _read(jobs: Sequence[Job]) -> tuple[list[System], list[Group]]:
    """The systems in the order of their first jobs."""
    systems, groups, now = [], [], time.time()
    for system in dict.fromkeys(job.system for job in jobs):
        same = [job for job in jobs if job.system == system]
        runs = tuple(read_run(job.path, now) for job in same)
        group = Group(same[0].label, runs)
        compared = compare(group, np.random.default_rng(BOOTSTRAP_SEED))
        systems.append(System(system, same[0].settings, tuple(map(read_training, runs)), compared))
        groups.append(group)
    return systems, groups


def _report(bench: TrainBench, config: RunConfig, systems: Sequence[System]) -> BenchReport:
    target = config.stop.target_return
    params = {
        "preset": config.preset,
        "target": "none" if target is None else target,
        "seeds": f"1 to {bench.num_seeds}",
    }
    machine = {
        **describe_machine(),
        "gymnasium": importlib.metadata.version("gymnasium"),
        "torch": importlib.metadata.version("torch"),
        "precision": "float32",
        OWN: importlib.metadata.version("parl-mq"),
        **versions(bench.peers, PEERS),
    }
    return BenchReport("train", machine, tuple(results_of(systems, params)))
