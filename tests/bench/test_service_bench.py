"""What `bench service` starts, looks at and leaves behind; no speed is judged."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from parl_mq.bench import service
from parl_mq.bench.service import Process, Rounds, Scene, Ticks, measure, scenes
from parl_mq.bench.service_node import READY, NodeTask
from parl_mq.bench.workloads import ATARI, HALF_CHEETAH
from parl_mq.errors import NodeFailed, UsageError

VECTORS = replace(HALF_CHEETAH, num_rows=4096)
FRAMES = replace(ATARI, num_rows=1024, obs_shape=(3, 2))
ROUNDS = Rounds(2, 0.2)


@pytest.fixture(autouse=True)
def shared_memory(tmp_path, monkeypatch):
    """Everything lies in the test's own folder, which must be empty in the end."""
    monkeypatch.setattr(service, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(service, "WARM_S", 0.2)
    yield
    assert list(tmp_path.iterdir()) == []


def task(directory, **changed):
    fields = {
        "name": "replay-0",
        "endpoint": f"ipc://{directory}/data",
        "directory": str(directory),
        "workload": VECTORS,
        "overrides": Scene("sample", VECTORS, "ipc", learners=1).overrides(),
        "insert_steps": 1024,
    }
    return NodeTask(**{**fields, **changed})


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (
            Scene("both", VECTORS, "ipc", learners=1, inserting=1, path="mapped", ratio=8),
            {("both", "items/s"), ("insert beside sampling", "rows/s"), ("processor", "cores")},
        ),
        (Scene("two", FRAMES, "tcp", learners=2, path="socket"), {("two", "items/s"), ("processor", "cores")}),
        (Scene("insert", FRAMES, "ipc", inserting=1), {("insert", "rows/s"), ("processor", "cores")}),
        (Scene("one", FRAMES, "curve", learners=1), {("one", "items/s"), ("processor", "cores")}),
    ],
    ids=["mapped beside inserts", "two by tcp", "inserts", "encrypted"],
)
def test_rows_flow_between_real_processes_and_all_of_them_are_reported(scene, expected):
    results = list(measure(scene, ROUNDS))
    assert {(result.measure, result.unit) for result in results} == expected
    assert all(0 < result.min <= result.median <= result.max for result in results if result.unit != "cores")
    shown = [result.params["process"] for result in results if result.unit == "cores"]
    assert len(shown) == scene.learners + scene.inserting + 1


def test_every_budget_has_its_scene():
    measured = {
        (scene.measure, scene.workload.name, scene.transport, scene.path)
        for scene in scenes(VECTORS, FRAMES, quick=False)
    }
    for workload in (VECTORS, FRAMES):
        for transport in ("ipc", "tcp"):
            assert ("insert", workload.name, transport, "socket") in measured
            for path in ("mapped", "socket"):
                for name in ("sample", "sample beside inserts", "sample by two"):
                    assert (name, workload.name, transport, path) in measured


def test_a_process_that_ends_by_itself_is_named(tmp_path):
    with (
        Process("sample", task(tmp_path, overrides=("replay.shards=0",))) as child,
        pytest.raises(NodeFailed, match="replay-0"),
    ):
        child.ready()


def test_a_process_ends_when_its_parent_is_gone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-m", "parl_mq.bench.service_node", "replay", task(folder).to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline().startswith(READY)
        child.stdin.close()
        child.stdout.read()
        child.wait(20.0)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_counts_are_read_between_ticks():
    ticks = Ticks(np.array([[10.0, 0.0, 1.0], [12.0, 100.0, 2.0], [14.0, 100.0, 2.0]]))
    np.testing.assert_allclose(ticks.counts_at([10.0, 11.0, 13.0]), [0.0, 50.0, 100.0])
    np.testing.assert_allclose(ticks.cpu_at([11.0]), [1.5])


def test_a_task_is_the_same_behind_the_command_line(tmp_path):
    for workload in (VECTORS, FRAMES):
        given = task(tmp_path, workload=workload)
        assert NodeTask.from_json(given.to_json()) == given


def test_an_unknown_peer_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="there are ray, reverb"):
        service.run(["redis"])
