"""What goes wrong in runs that last: a disk becomes full, a directory read-only, memory grows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from parl_mq.learn.checkpoint import find_newest
from parl_mq.metrics import is_known
from tests.process.running import Run, running

DISK_KIB = 800


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(mounted)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs, which root has outside of most containers")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def _fill(run: Path) -> Callable[[], None]:
    """Leaves not a byte on the disk of a run."""
    ballast = run.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                pass
    return ballast.unlink


def _make_read_only(run: Path) -> Callable[[], None]:
    """Lays a read-only view of a run's directory over it."""
    for options in (["--bind", str(run), str(run)], ["-o", "remount,ro,bind", str(run)]):
        subprocess.run(["mount", *options], check=True)
    return lambda: subprocess.run(["umount", "--lazy", str(run)], check=True) and None


def _assert_all_known(run: Run) -> None:
    """Whatever a node tells is in the registry, and so in the documents."""
    rows = [row for row in run.metrics() if row["kind"] == "figures"]
    nodes = [figures for row in run.metrics() if row["kind"] == "nodes" for figures in row["nodes"].values()]
    names = {name for figures in (*rows, *nodes) for name in figures} - {"kind", "time_s", "phase"}
    assert {name for name in names if not is_known(name)} == set()


def _page(run: Run) -> dict[str, float]:
    """The sum over the nodes of each figure, from the hub's page."""
    address = (run.directory / "metrics.address").read_text().strip()
    with urllib.request.urlopen(address, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {family.name: sum(sample.value for sample in family.samples) for family in families}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("spoil", "reason"), [(_fill, "No space left on device"), (_make_read_only, "Read-only file system")]
)
def test_a_run_goes_on_while_its_directory_cannot_be_written_and_catches_up_afterwards(
    spoil: Callable[[Path], Callable[[], None]], reason: str, disk: Path
) -> None:
    settings = ("--set", "learner.checkpoint_every_s=0.5", "--set", "node.metrics_port=0")
    with running(disk / "run", *settings) as run:
        run.wait_until_training(120)
        run.until(lambda: _page(run).get("parl_mq_policy_lag"))
        _assert_all_known(run)
        mend = spoil(run.directory)
        before = _page(run)
        for name, least in (("failed_writes", 2), ("unwritten_rows", 6), ("failed_checkpoints", 2)):  # rows of 3 rounds
            run.until(lambda name=name, least=least: _page(run)[f"parl_mq_{name}"] >= least or None)  # type: ignore[misc]
        run.nodes()["actor-0"].kill()
        run.until(lambda: _page(run)["parl_mq_node_starts"] > before["parl_mq_node_starts"] or None)
        run.until(lambda: _page(run)["parl_mq_updates"] > before["parl_mq_updates"] or None)
        mend()
        run.until(lambda: _page(run)["parl_mq_unwritten_rows"] == 0 or None)
        known = len(run.metrics())
        run.until(lambda: len(run.metrics()) > known + 6 or None)  # by then the command has heard of it too
        behind = [row for row in run.metrics() if row.get("unwritten_rows", 0) > 0]
        assert behind, "what was measured meanwhile has been written afterwards"
        run.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = run.finish()
        assert code == 0, stderr
        assert f"{reason}; the run goes on" in stderr
        assert "all that the run records can be written again" in stderr
        assert "actor-0 died (signal 9), and that could not be recorded" in stderr
        assert "checkpoint could not be written" in stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["rows"]["balanced"] is True
    found = find_newest(disk / "run" / "checkpoints")
    assert found.checkpoint is not None
    assert (found.checkpoint.updates, found.damaged) == (summary["updates"], ())


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_memory_stays_flat_on_every_node(tmp_path: Path) -> None:
    """Lasts SOAK_S seconds, 300 where that is not set, after the buffer is full; prints figures per node."""
    lasts_s = float(os.environ.get("SOAK_S", "300"))
    settings = ("replay.buffer_size=20000", "node.metrics_port=0", "evaluation.every_updates=1000")
    with running(tmp_path / "run", "--actors", "2", *(word for each in settings for word in ("--set", each))) as run:
        run.wait_until_training(300)
        run.until(lambda: _page(run).get("parl_mq_replay_fill", 0.0) > 0.9 or None, 600)
        nodes = dict(run.nodes())
        times, samples = _watch(run, nodes, lasts_s)
        rates = {name: run.metrics()[-1].get(name) for name in ("env_steps_per_s", "updates_per_s")}
        run.process.send_signal(signal.SIGTERM)
        code, _, stderr = run.finish(120)
        assert code == 0, stderr
    slopes = {name: _slope(times, values) for name, values in samples.items()}
    half = len(times) // 2
    for name, values in samples.items():
        first, middle, last = (values[at] / 2**20 for at in (0, half, -1))
        later = _slope(times[half:], values[half:]) / 2**20
        print(
            f"{name:12} RssAnon {first:7.1f} -> {middle:7.1f} -> {last:7.1f} MiB, {slopes[name] / 2**20:+.3f} MiB/min, "
            f"in the second half {later:+.3f}"
        )
    print(f"over {times[-1]:.0f} s, {len(times)} samples; {rates}")
    assert {name: slope for name, slope in slopes.items() if slope > 2**20} == {}


def _slope(times: list[float], values: list[float]) -> float:
    """Bytes a minute of the line that fits best."""
    return float(np.polyfit(times, values, 1)[0]) * 60


def _watch(run: Run, nodes: dict[str, psutil.Process], lasts_s: float) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds and each node's RssAnon in bytes, while the page is read as a Prometheus does."""
    times: list[float] = []
    samples: dict[str, list[float]] = {name: [] for name in nodes}
    begin = time.monotonic()
    while (now := time.monotonic() - begin) < lasts_s:
        assert run.process.poll() is None
        _page(run)
        times.append(now)
        for name, process in nodes.items():
            samples[name].append(_anonymous_bytes(process.pid))
        time.sleep(5)  # the time between two samples
    return times, samples


def _anonymous_bytes(pid: int) -> float:
    lines: dict[str, Any] = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return float(lines["RssAnon"].split()[0]) * 1024
