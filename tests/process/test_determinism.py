"""Two runs in lock step learn the same to the bit, though their nodes are held up at random moments."""

from __future__ import annotations

import hashlib
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.process.running import Run, running

OPTIONS = (
    "--deterministic", "--seed", "5", "--actors", "2", "--set", "stop.max_updates=150",
)  # fmt: skip
ROLES = ("actor-0", "actor-1", "replay-0", "learner-0")


def _hold_up_at_random(run: Run, chance: random.Random) -> int:
    """Stops nodes for random times until the run ends; how often."""
    times = 0
    while run.process.poll() is None:
        nodes = run.nodes()
        name = chance.choice(ROLES)
        try:
            if name in nodes:
                nodes[name].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0.01, 0.1))  # the time for which it is held up: what is tested
                nodes[name].send_signal(signal.SIGCONT)
                times += 1
        except psutil.NoSuchProcess:
            pass  # the run has come to its end meanwhile
        time.sleep(chance.uniform(0.0, 0.1))  # the time between two
    return times


def _hash_of_checkpoint(run: Run) -> str:
    [checkpoint] = (run.directory / "checkpoints").glob("updates-000000000150")
    digest = hashlib.sha256()
    for name in ("weights.safetensors", "trainer.safetensors"):
        digest.update((checkpoint / name).read_bytes())
    return digest.hexdigest()


@pytest.mark.timeout(240)
def test_two_runs_in_lock_step_end_with_the_same_weights_however_long_anything_takes(tmp_path: Path) -> None:
    hashes, returns = set(), set()
    for number in (1, 2):
        with running(tmp_path / f"run-{number}", *OPTIONS) as run:
            assert _hold_up_at_random(run, random.Random(number)) > 0
            code, _, stderr = run.finish()
            assert code == 0, stderr
            hashes.add(_hash_of_checkpoint(run))
            returns.add(tuple(row["mean_return"] for row in run.metrics() if row["kind"] == "evaluation")[-1:])
    assert len(hashes) == 1
    assert len(returns) == 1  # of the last weights
