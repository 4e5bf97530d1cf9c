"""`parl-mq bench service`: a replay node and its clients, each a process, over real sockets."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.bench.peers import open_peers, versions
from parl_mq.bench.replay_users import FRAGMENT_LENGTH
from parl_mq.bench.report import BenchReport, Params, Result, describe_machine
from parl_mq.bench.service_node import TICK_S, NodeTask, TaskKeys
from parl_mq.bench.service_peers import PEERS, MeasurePeer
from parl_mq.bench.tables import OWN
from parl_mq.bench.workloads import ATARI, HALF_CHEETAH, Workload
from parl_mq.errors import EXIT_INTERNAL, NodeFailed
from parl_mq.services.tables import SHARED_MEMORY

BATCH: Final = 256
PREFETCH: Final = 8
RATIO: Final = 8
"""Rows drawn for each inserted one, where both happen: the default of replay.samples_per_insert."""
NO_RATIO: Final = 1e12
"""An error band that is never reached."""
INSERT_STEPS: Final = {HALF_CHEETAH.name: 1024, ATARI.name: 256}
"""Rows of one message: one fragment of 64 steps of each of an actor's environments."""
QUICK_ROWS: Final = 2**16
QUICK_FRAMES: Final = 2**12
START_S: Final = 60.0
END_S: Final = 5.0
WARM_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """How long each scene is looked at: so many rounds of so many seconds."""

    num_rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Scene:
    """Clients that work at once on one replay node.

    Attributes:
        measure: what is shown.
        workload: the rows.
        transport: `ipc`, `tcp`, or `curve`: tcp, encrypted.
        learners: clients that draw.
        inserting: clients that insert.
        path: `mapped` or `socket`: how rows reach the learners.
        ratio: rows drawn for each inserted one; None: neither waits for the other.
    """

    measure: str
    workload: Workload
    transport: str
    learners: int = 0
    inserting: int = 0
    path: str = "socket"
    ratio: float | None = None

    def params(self) -> Params:
        """What the measure depends on, without what the measure says."""
        shown: dict[str, int | float | str] = {"rows": self.workload.name, "over": self.transport}
        if self.learners:
            shown |= {"path": self.path, "batch": BATCH, "prefetch": PREFETCH}
        return shown

    def overrides(self) -> tuple[str, ...]:
        """Settings of the run, as after --set."""
        return (
            f"algorithm.batch_size={BATCH}",
            f"learner.prefetch={PREFETCH}",
            f"learner.mapped={'on' if self.path == 'mapped' else 'off'}",
            f"replay.samples_per_insert={self.ratio or 1}",
            *(() if self.ratio else (f"replay.error_band={NO_RATIO}",)),
            f"replay.fragment_length={FRAGMENT_LENGTH}",
            f"actor.num_actors={max(self.inserting, 1)}",
            f"actor.num_envs={INSERT_STEPS[self.workload.name] // FRAGMENT_LENGTH}",
            "replay.learning_starts=1",
        )


def scenes(vectors: Workload, frames: Workload, *, quick: bool) -> list[Scene]:
    """All that is measured."""
    chosen = []
    for workload in (vectors, frames):
        for transport in ("ipc",) if quick else ("ipc", "tcp"):
            for path in ("mapped", "socket"):
                alone = Scene("sample", workload, transport, learners=1, path=path)
                chosen += [alone, replace(alone, measure="sample beside inserts", inserting=1, ratio=RATIO)]
                if not quick:
                    chosen.append(replace(alone, measure="sample by two", learners=2))
            chosen.append(Scene("insert", workload, transport, inserting=1))
    return chosen


def curve_scenes(workloads: Sequence[Workload]) -> list[Scene]:
    """The same over tcp with and without encryption, side by side."""
    return [
        replace(scene, workload=workload, transport=transport)
        for workload in workloads
        for scene in (Scene("sample", workload, "tcp", learners=1), Scene("insert", workload, "tcp", inserting=1))
        for transport in ("tcp", "curve")
    ]


def run(
    against: Sequence[str] = (),
    *,
    quick: bool = False,
    curve: bool = False,
    tell: Callable[[str], object] = lambda _: None,
    scale: float = 1.0,
) -> BenchReport:
    """Items a second that clients draw and insert, over rounds of a second.

    Args:
        against: peers to measure beside: "ray", "reverb".
        quick: small tables, ipc alone, short rounds.
        curve: what encryption costs over tcp, instead of everything else.
        tell: hears what is being done.
        scale: of the number of rows.

    Raises:
        UsageError: a peer is unknown.
        ConfigError: a peer is not installed.
        NodeFailed: a process ended by itself.
    """
    peers = open_peers(against, PEERS)
    vectors = replace(HALF_CHEETAH, num_rows=int((QUICK_ROWS if quick else HALF_CHEETAH.num_rows) * scale))
    frames = replace(ATARI, num_rows=int((QUICK_FRAMES if quick else ATARI.num_rows) * scale))
    rounds = Rounds(3, 0.3) if quick else Rounds(7, 1.0)
    results: list[Result] = []
    chosen = curve_scenes((vectors, frames)) if curve else scenes(vectors, frames, quick=quick)
    for scene in chosen:
        tell(f"{scene.workload.name}: {scene.measure}, {scene.path}, {scene.transport}")
        results += measure(scene, rounds)
        if scene.transport == "ipc" and scene.path == "socket" and scene.learners < 2:
            for name, measure_peer in peers.items():
                tell(f"{scene.workload.name}: {scene.measure}, {name}")
                results += _beside(scene, name, measure_peer, rounds)
    return BenchReport("service", {**describe_machine(), **versions(against, PEERS)}, tuple(results))


def _beside(scene: Scene, name: str, measure_peer: MeasurePeer, rounds: Rounds) -> Iterator[Result]:
    """The same with a peer, which has its own way of moving rows."""
    seconds = WARM_S + rounds.num_rounds * rounds.seconds + 2 * TICK_S
    done = measure_peer(
        scene.workload,
        learners=scene.learners,
        insert_steps=INSERT_STEPS[scene.workload.name] if scene.inserting else 0,
        batch_size=BATCH,
        prefetch=PREFETCH,
        ratio=scene.ratio,
        seconds=seconds,
    )
    start = WARM_S + max(ticks[0][0] for each in done for ticks in each)
    cuts = [start + index * rounds.seconds for index in range(rounds.num_rounds + 1)]
    params = {**scene.params(), "over": name, "path": "its own"}
    for each, (measure_name, unit) in zip(done, _measures(scene), strict=True):
        if each:
            rates = np.sum([np.diff(np.interp(cuts, *np.array(ticks).T)) for ticks in each], axis=0) / rounds.seconds
            yield _result(measure_name, unit, params, rates, name)


def _measures(scene: Scene) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names and units of what learners do, and of what an inserting client does."""
    return (scene.measure, "items/s"), ("insert beside sampling" if scene.learners else scene.measure, "rows/s")


def measure(scene: Scene, rounds: Rounds) -> Iterator[Result]:
    """Starts the processes of a scene, looks at what they do for a while, and ends them.

    Raises:
        NodeFailed: one ended by itself.
    """
    with started(scene) as (replay, clients):
        start = time.monotonic() + WARM_S
        time.sleep(start + rounds.num_rounds * rounds.seconds - time.monotonic() + 2 * TICK_S)
        cuts = [start + index * rounds.seconds for index in range(rounds.num_rounds + 1)]
        ticks = {process: process.end() for process in (*clients, replay)}
    for role, (name, unit) in zip(("sample", "insert"), _measures(scene), strict=True):
        taking_part = [ticks[client] for client in clients if client.role == role]
        if taking_part:
            rates = np.sum([np.diff(one.counts_at(cuts)) for one in taking_part], axis=0) / rounds.seconds
            yield _result(name, unit, scene.params(), rates)
    for process, seen in ticks.items():
        shares = np.diff(seen.cpu_at(cuts)) / rounds.seconds
        yield _result("processor", "cores", {**scene.params(), "at": scene.measure, "process": process.name}, shares)


@contextmanager
def started(scene: Scene) -> Iterator[tuple[Process, list[Process]]]:
    """The replay node of a scene and its clients, which work already; the end of the block ends them.

    Raises:
        NodeFailed: one did not start.
    """
    with ExitStack() as held:
        directory = held.enter_context(tempfile.TemporaryDirectory(prefix="parl-mq-", dir=_shared_memory()))
        endpoint = f"ipc://{directory}/data" if scene.transport == "ipc" else "tcp://127.0.0.1:0"
        task = NodeTask(
            "replay-0",
            endpoint,
            directory,
            scene.workload,
            scene.overrides(),
            INSERT_STEPS[scene.workload.name],
            keys=TaskKeys.new() if scene.transport == "curve" else None,
        )
        replay = held.enter_context(Process("replay", task))
        task = replace(task, endpoint=replay.ready().split()[1])
        clients = [
            *(Process("sample", replace(task, name=f"learner-{index}")) for index in range(scene.learners)),
            *(Process("insert", replace(task, name=f"actor-{index}")) for index in range(scene.inserting)),
        ]
        for client in clients:
            held.enter_context(client)
            client.ready()
        yield replay, clients


class Process:
    """One child process; leaving the block ends it."""

    def __init__(self, role: str, task: NodeTask) -> None:
        self.role = role
        self.name = task.name
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "parl_mq.bench.service_node", role, task.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._is_ready = threading.Event()
        self._reader.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ready(self) -> str:
        """The line that it says when it is ready.

        Raises:
            NodeFailed: it ended, or said nothing for START_S.
        """
        self._is_ready.wait(START_S)
        if not self._lines:
            raise NodeFailed(f"{self.name} of the benchmark did not start", EXIT_INTERNAL)
        return self._lines[0]

    def end(self) -> Ticks:
        """Ends it; what it has said.

        Raises:
            NodeFailed: it had ended by itself.
        """
        if (code := self._process.poll()) is not None:
            raise NodeFailed(f"{self.name} of the benchmark ended by itself, with code {code}", EXIT_INTERNAL)
        self.__exit__()
        rows = [[float(value) for value in line.split()] for line in self._lines[1:]]
        return Ticks(np.array(rows))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            self._is_ready.set()
        self._is_ready.set()


@dataclass(frozen=True, slots=True)
class Ticks:
    """What a process reported.

    Attributes:
        rows: [T, 3] clock, count, processor seconds.
    """

    rows: npt.NDArray[np.float64]

    def counts_at(self, times: Sequence[float]) -> npt.NDArray[np.float64]:
        """What it had done then."""
        return np.interp(times, self.rows[:, 0], self.rows[:, 1])

    def cpu_at(self, times: Sequence[float]) -> npt.NDArray[np.float64]:
        """Its processor time then."""
        return np.interp(times, self.rows[:, 0], self.rows[:, 2])


def _result(measure: str, unit: str, params: Params, values: npt.NDArray[np.float64], system: str = OWN) -> Result:
    median, least, most = statistics.median(values), float(values.min()), float(values.max())
    return Result(measure, system, unit, dict(params), median, least, most)


def _shared_memory() -> Path | None:
    """Where rings and sockets lie for the time being: in shared memory where there is such a folder."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
