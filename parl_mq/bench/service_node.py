"""One process of `parl-mq bench service`: a replay node without a hub, or a client of it.

`python -m parl_mq.bench.service_node ROLE JSON` says `ready` on stdout when it is (a replay node with its endpoint),
then every TICK_S the monotonic clock, what it has done so far, and its processor time. It ends when it is told to, or
when stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.bench.replay_users import FILL_STEPS, fragments_of, spec_of_workload
from parl_mq.bench.workloads import Workload
from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK
from parl_mq.net.channel import Frame
from parl_mq.net.credit import SenderBook
from parl_mq.net.curve import Guard, KeyPair, Verdict, new_key_pair
from parl_mq.net.zmq_channel import Network
from parl_mq.replay.table import Table
from parl_mq.services.gate import NOBODY
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.keyring import Grant, KeyRole
from parl_mq.services.permits import Permits
from parl_mq.services.replay import ReplayNode
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.replay_link import ReplayLink
from parl_mq.services.row_map import RowMap
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread, run_service
from parl_mq.services.sample_client import SampleClient
from parl_mq.services.tables import limiter, make_ring_directory, table_settings
from parl_mq.wire.codec import encode
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import (
    MAIN_TABLE,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Credit,
    InsertFragments,
    Message,
    Role,
)

TICK_S: Final = 0.05
RUN_ID: Final = "bench"
READY: Final = "ready"
SETTINGS: Final = "cartpole-dqn"
"""The preset that all settings come from which no measure is about."""


CLIENTS: Final[dict[str, KeyRole]] = {"learner-0": "learner", "actor-0": "actor"}
"""Processes that have keys where connections are encrypted, and their roles."""


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """Key pairs of a measure's processes, public and secret key of each.

    Attributes:
        server: of the replay node.
        clients: of the others by name.
    """

    server: tuple[str, str]
    clients: dict[str, tuple[str, str]]

    @classmethod
    def new(cls) -> TaskKeys:
        """Pairs for one measure."""
        pairs = {name: new_key_pair() for name in ("server", *CLIENTS)}
        server, *clients = [(pair.public, pair.secret) for pair in pairs.values()]
        return cls(server, dict(zip(CLIENTS, clients, strict=True)))

    def grant_of(self, key: str) -> Grant | None:
        """What a key is for."""
        names = (name for name, (public, _) in self.clients.items() if public == key)
        return next((Grant(name=name, role=CLIENTS[name], public=key) for name in names), None)

    def admit(self, key: str) -> Verdict:
        """The clients alone may connect."""
        return Verdict.WELCOME if any(public == key for public, _ in self.clients.values()) else Verdict.DENIED


@dataclass(frozen=True, slots=True)
class NodeTask:
    """What one process does.

    Attributes:
        name: unique among the processes of a measure.
        endpoint: of the replay node.
        directory: for sockets and rings.
        workload: the rows.
        overrides: settings of the run, as after --set.
        insert_steps: rows of one insert message.
        keys: with which connections are encrypted; None: they are not.
    """

    name: str
    endpoint: str
    directory: str
    workload: Workload
    overrides: tuple[str, ...]
    insert_steps: int
    keys: TaskKeys | None = None

    def network(self, *, is_server: bool) -> Network:
        """That of the process."""
        if self.keys is None:
            return Network()
        if is_server:
            return Network(guard=Guard(KeyPair(*self.keys.server), self.keys.admit))
        network = Network(pair=KeyPair(*self.keys.clients[self.name]))
        network.trust({self.endpoint: self.keys.server[0]})
        return network

    def to_json(self) -> str:
        """For the process's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> NodeTask:
        """What `to_json` was given."""
        fields = json.loads(text)
        shapes = {name: tuple(fields["workload"][name]) for name in ("obs_shape", "action_shape")}
        workload = Workload(**{**fields.pop("workload"), **shapes})
        pairs = fields.pop("keys")
        keys = None if pairs is None else TaskKeys(pairs["server"], pairs["clients"])
        return cls(**{**fields, "workload": workload, "overrides": tuple(fields["overrides"]), "keys": keys})

    @property
    def config(self) -> RunConfig:
        """Settings of the run, and where this process's rings lie."""
        return load_config(
            SETTINGS,
            overrides=[
                f"replay.buffer_size={self.workload.num_rows}",
                f"environment.frame_stack={self.workload.stack}",
                "algorithm.n_step=1",
                f"node.ring_directory={self.directory}",
                "node.log_level=warning",
                *self.overrides,
            ],
            environ={},
        )

    def attach(self, role: Role) -> Attach:
        """The first message to the replay node."""
        return Attach(
            protocol=PROTOCOL_VERSION,
            run_id=RUN_ID,
            role=role,
            name=self.name,
            epoch=time.time_ns(),
            table=MAIN_TABLE,
            digest=spec_of_workload(self.workload).digest,
        )


class NoHub:
    """A link to a hub that is not there."""

    def __init__(self) -> None:
        self.status = NodeStatus()

    def send(self, message: Message) -> None:
        """Tells nobody."""

    def deliver(self, message: Message) -> None:
        """Tells nobody."""


async def replay(task: NodeTask, network: Network, stop: StopSignal) -> None:
    """Serves a full table."""
    config, spec = task.config, spec_of_workload(task.workload)
    table = Table(
        table_settings(config),
        spec,
        directory=make_ring_directory(config.node, RUN_ID, task.name),
        rng=np.random.default_rng(1),
    )
    fragments = fragments_of(task.workload.steps(FILL_STEPS))
    for _ in range(-(-task.workload.num_rows // FILL_STEPS) + 1):
        table.insert(fragments)
    desk = ReplayDesk(table, limiter(config), spec, config, RUN_ID)
    server = network.bind(task.endpoint)
    permits = NOBODY if task.keys is None else Permits(task.keys.grant_of)
    print(READY, server.endpoint, flush=True)
    await _until_stopped(
        stop,
        ReplayNode(NoHub(), server, desk, WorkThread("rows"), permits=permits).run(stop),
        _report(lambda: table.counts.drawn),
    )
    table.close()


async def sample(task: NodeTask, network: Network, stop: StopSignal) -> None:
    """Takes batches and gives priorities back as a learner does that needs no time to learn."""
    config, spec = task.config, spec_of_workload(task.workload)
    batch_size = config.algorithm.batch_size
    samples = SampleClient(
        network.connect(task.endpoint),
        task.attach("learner"),
        batch_size=batch_size,
        prefetch=config.learner.prefetch,
        row_map=RowMap(config, spec, RUN_ID),
    )
    magnitudes = np.random.default_rng(0).random(batch_size)
    count = 0

    async def take() -> None:
        nonlocal count
        print(READY, flush=True)
        while True:
            for batch in [await samples.next_batch(), *samples.ready_batches()]:
                samples.give_back(batch, magnitudes)
                count += batch_size
            samples.ask()

    await _until_stopped(stop, samples.run(), take(), _report(lambda: count))


async def insert(task: NodeTask, network: Network, stop: StopSignal) -> None:
    """Sends fragments as fast as the credit allows."""
    fragments = fragments_of(task.workload.steps(task.insert_steps))
    arrays = arrays_of(fragments)
    book, may_send = SenderBook(), asyncio.Event()

    def handle(message: Message, _: dict[str, npt.NDArray[Any]]) -> list[list[Frame]]:
        match message:
            case Attached():
                book.grant(message.credit_rows, message.credit_bytes)
            case Credit():
                book.acknowledge(message.last_sequence)
                book.grant(message.credit_rows, message.credit_bytes)
            case _:
                raise RuntimeError(f"an insert was answered by {message}")
        may_send.set()
        return []

    link = ReplayLink(network.connect(task.endpoint), task.attach("actor"), handle)

    async def send() -> None:
        print(READY, flush=True)
        while True:
            while book.available_rows < fragments.num_live:
                may_send.clear()
                await may_send.wait()
            frames = encode(InsertFragments(sequence=book.next_sequence, table=MAIN_TABLE), arrays)
            book.add(frames, rows=fragments.num_live, num_bytes=fragments.num_bytes)
            await link.channel.send(frames)
            await asyncio.sleep(0)  # credit is read here

    await _until_stopped(stop, link.run(), send(), _report(lambda: book.acknowledged_rows))


ROLES: Final = {"replay": replay, "sample": sample, "insert": insert}


async def _until_stopped(stop: StopSignal, *works: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in works]
        await stop.wait()
        for work in running:
            work.cancel()


async def _report(count: Callable[[], int]) -> None:
    while True:
        await asyncio.sleep(TICK_S)  # the period itself
        print(time.monotonic(), count(), time.process_time(), flush=True)


def main() -> int:
    """Runs the process; its exit code."""
    role, task = sys.argv[1], NodeTask.from_json(sys.argv[2])
    options = NodeOptions(
        task.name, f"ipc://{Path(task.directory) / 'hub'}", task.config.node, lifeline_fd=sys.stdin.fileno()
    )

    async def serve(stop: StopSignal) -> int:
        network = task.network(is_server=role == "replay")
        try:
            await ROLES[role](task, network, stop)
        finally:
            network.close(linger_s=0.0)
        return EXIT_OK

    return run_service(options, serve)


if __name__ == "__main__":
    sys.exit(main())
