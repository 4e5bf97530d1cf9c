"""DeepMind's Reverb behind its own server: a table, learners and an inserting client, each a process."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from parl_mq.bench.replay_users import ALPHA
from parl_mq.bench.ticks import Ticks, ticks_of
from parl_mq.bench.workloads import Workload

TABLE: Final = "main"
MOST_ROWS: Final = {1: 2**16, 4: 2**12}
"""Rows that its table holds, by the stack: a million take it minutes to write, and it is no slower with less."""
BAND_ROWS: Final = 16_384
"""Rows drawn that inserts may be ahead of, where a ratio is held."""
IN_FLIGHT: Final = 256
"""Items that the inserting client has not had confirmed; its documentation warns of many more."""
START_S: Final = 900.0
END_S: Final = 10.0

Role = Callable[[Connection, "Scene"], object]


@dataclass(frozen=True, slots=True)
class Scene:
    """What all processes of a measurement know.

    Attributes:
        port: of the server.
    """

    workload: Workload
    batch_size: int
    prefetch: int
    ratio: float | None
    seconds: float
    port: int = 0

    @property
    def num_rows(self) -> int:
        """That the table holds."""
        return min(self.workload.num_rows, MOST_ROWS[self.workload.stack])

    @property
    def address(self) -> str:
        """Of the server."""
        return f"localhost:{self.port}"


def measure_reverb(
    workload: Workload,
    *,
    learners: int,
    insert_steps: int,
    batch_size: int,
    prefetch: int,
    ratio: float | None,
    seconds: float,
) -> tuple[list[Ticks], list[Ticks]]:
    """What learners and, with `insert_steps`, an inserting client did side by side."""
    scene = Scene(workload, batch_size, prefetch, ratio, seconds)
    with ExitStack() as held:
        server = held.enter_context(_process(_serve, scene))
        scene = replace(scene, port=_heard(server))
        writer = held.enter_context(_process(_insert, scene))
        _heard(writer)  # the table is full
        drawing = [held.enter_context(_process(_sample, scene)) for _ in range(learners)]
        inserting = [writer] * (insert_steps > 0)
        for one in drawing:
            _heard(one)
        for one in (*drawing, *inserting):
            one.send("go")
        return [_heard(one) for one in drawing], [_heard(one) for one in inserting]


@contextmanager
def _process(role: Role, scene: Scene) -> Iterator[Connection]:
    """A process of this role, which says when it is ready, and is ended with the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=role, args=(there, scene), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.terminate()
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()
        here.close()


def _heard(connection: Connection) -> Any:
    """What a process says next.

    Raises:
        TimeoutError: it says nothing for START_S.
        EOFError: it has ended.
    """
    if not connection.poll(START_S):
        raise TimeoutError(f"a process of Reverb said nothing for {START_S:g} s")
    return connection.recv()


def _serve(connection: Connection, scene: Scene) -> None:
    reverb = importlib.import_module("reverb")
    limits = reverb.rate_limiters
    limiter = limits.MinSize(1)
    if scene.ratio is not None:
        limiter = limits.SampleToInsertRatio(scene.ratio, scene.num_rows, error_buffer=2 * BAND_ROWS)
    table = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Prioritized(ALPHA),
        remover=reverb.selectors.Fifo(),
        max_size=scene.num_rows,
        rate_limiter=limiter,
    )
    server = reverb.Server([table], port=None)
    connection.send(server.port)
    server.wait()


def _insert(connection: Connection, scene: Scene) -> None:
    """Fills the table, and when told goes on writing as fast as it is stored, or as the ratio allows."""
    client = importlib.import_module("reverb").Client(scene.address)
    stack = scene.workload.stack
    with client.trajectory_writer(num_keep_alive_refs=stack + 1) as writer:
        write = writer_of(writer, scene.workload)
        for _ in range(scene.num_rows):
            write()
        writer.flush()
        connection.send("ready")
        connection.recv()
        connection.send(ticks_of(write, scene.seconds))


def writer_of(writer: Any, workload: Workload) -> Callable[[], int]:
    """Writes the next step and the transition that it completes; gives the number of rows."""
    steps, stack = workload.steps(1024), workload.stack
    ending = np.zeros((), np.bool_)
    numbers = count()

    def write() -> int:
        number = next(numbers)
        at = number % len(steps)
        writer.append(
            {"obs": steps.frames[at], "action": steps.action[at], "reward": steps.reward[at], "terminated": ending}
        )
        if number < stack:
            return 0
        seen = writer.history
        old, new = (slice(-stack - 1, -1), slice(-stack, None)) if stack > 1 else (-2, -1)
        figures = {name: seen[name][-2] for name in ("action", "reward", "terminated")}
        writer.create_item(TABLE, 1.0, {"obs": seen["obs"][old], "next_obs": seen["obs"][new], **figures})
        writer.flush(block_until_num_items=IN_FLIGHT)
        return 1

    return write


def _sample(connection: Connection, scene: Scene) -> None:
    """Draws batches and gives priorities back, as a learner does."""
    reverb = importlib.import_module("reverb")
    client = reverb.Client(scene.address)
    batches = _batches(reverb, scene)
    magnitudes = np.random.default_rng(0).random(scene.batch_size).tolist()

    def take() -> int:
        keys = next(batches).info.key
        client.mutate_priorities(TABLE, dict(zip(keys.tolist(), magnitudes, strict=True)))
        return scene.batch_size

    if scene.ratio is None:
        take()
    connection.send("ready")
    connection.recv()
    connection.send(ticks_of(take, scene.seconds))


def _batches(reverb: Any, scene: Scene) -> Any:
    tf = importlib.import_module("tensorflow")
    workload = scene.workload
    columns = {
        "obs": (workload.stacked_shape, workload.obs_dtype),
        "next_obs": (workload.stacked_shape, workload.obs_dtype),
        "action": (workload.action_shape, workload.action_dtype),
        "reward": ((), "float32"),
        "terminated": ((), "bool"),
    }
    rows = reverb.TrajectoryDataset(
        server_address=scene.address,
        table=TABLE,
        dtypes={name: tf.as_dtype(dtype) for name, (_, dtype) in columns.items()},
        shapes={name: tf.TensorShape(shape) for name, (shape, _) in columns.items()},
        max_in_flight_samples_per_worker=2 * scene.batch_size,
    )
    return rows.batch(scene.batch_size, drop_remainder=True).prefetch(scene.prefetch).as_numpy_iterator()
