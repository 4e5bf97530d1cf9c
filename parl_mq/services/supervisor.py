"""Starts every node of a run on this machine, watches them, and leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_INTERNAL, EXIT_OK, NodeFailed
from parl_mq.net.zmq_channel import Network
from parl_mq.services.hub_link import HubLink
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import Role, RunProgress, SpecOffer, StopRequest

END_DEADLINE_S: Final = 8.5
"""A run that was asked to end has this long; then what is left is killed. Ctrl-C promises 10 s."""
TERMINATE_S: Final = 3.0
"""Without a hub the nodes are asked to end by a signal, and killed after this time."""
LOG_TAIL_LINES: Final = 12

ProgressSink = Callable[[RunProgress], None]


@dataclass(slots=True)
class Child:
    """A node's process."""

    name: str
    role: Role
    process: asyncio.subprocess.Process
    log: Path

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.returncode is None

    def end_in_words(self) -> str:
        """How it ended, with the end of what it wrote."""
        code = self.process.returncode
        how = f"with code {code}" if code is None or code >= 0 else f"by signal {signal.Signals(-code).name}"
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        told = "".join(f"\n  {line}" for line in lines)
        return f"{self.name} ended {how}; the end of {self.log}:{told or ' nothing was written'}"


class Supervisor:
    """One run on this machine."""

    def __init__(
        self,
        config: RunConfig,
        spec: TableSpec,
        directory: RunDirectory,
        *,
        started_at: float,
        stop: StopSignal,
        on_progress: ProgressSink,
    ) -> None:
        self._config = config
        self._spec = spec
        self._directory = directory
        self._started_at = started_at
        self._stop = stop
        self._on_progress = on_progress
        self._children: list[Child] = []
        self._failure: NodeFailed | None = None
        self._lifeline, self._lifeline_writer = os.pipe()
        self._runtime = Path(tempfile.mkdtemp(prefix="parl-mq-", dir=_runtime_root(config)))

    async def run(self) -> None:
        """Runs to the end; afterwards no process of the run is alive.

        Raises:
            NodeFailed: a node ended unexpectedly, or the hub reported a failure. Carries the exit code.
        """
        network = Network()
        try:
            await self._start("hub", "hub", self._hub_arguments())
            channel = network.connect(self._hub_endpoint)
            link = HubLink(channel, role="supervisor", name="supervisor", stop=StopSignal())
            link.on_progress = self._on_progress
            await self._watch(link)
        finally:
            await self._kill_all()
            network.close()
            os.close(self._lifeline_writer)
            os.close(self._lifeline)
            shutil.rmtree(self._runtime, ignore_errors=True)
        if self._failure is not None:
            raise self._failure

    async def _watch(self, link: HubLink) -> None:
        talk = asyncio.ensure_future(self._talk(link))
        try:
            await self._start_nodes()
            ending = asyncio.ensure_future(self._stop.wait())
            first_failure = asyncio.ensure_future(self._first_failure())
            hub_end = asyncio.ensure_future(self._children[0].process.wait())
            watched = {ending, first_failure, hub_end, talk}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            await self._end(link, hub_end, first_failure)
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)
        finally:
            talk.cancel()

    async def _talk(self, link: HubLink) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.run())
            await link.join()
            columns, spaces = self._spec.to_wire()
            await link.deliver(SpecOffer(columns=columns, spaces=spaces, digest=self._spec.digest))

    async def _start_nodes(self) -> None:
        config = self._config
        for index in range(config.replay.nodes):
            bind = f"ipc://{self._runtime}/replay-{index}"
            await self._start("replay", f"replay-{index}", [*self._node_arguments(), "--bind", bind])
        for index in range(config.learner.num_learners):
            await self._start("learner", f"learner-{index}", self._node_arguments(self._directory_arguments()))
        for index in range(config.actor.num_actors):
            await self._start("actor", f"actor-{index}", self._node_arguments())
        await self._start("evaluator", "evaluator-0", self._node_arguments())

    async def _end(self, link: HubLink, hub_end: asyncio.Future[int], first_failure: asyncio.Future[Child]) -> None:
        if first_failure.done():
            failure = self._note_failure(first_failure.result())
            link.send(StopRequest(reason=str(failure)[:1500], interrupted=True, error_code=failure.code))
        elif self._stop.is_set():
            link.send(StopRequest(reason=self._stop.reason, interrupted=True))
        await asyncio.wait({hub_end}, timeout=END_DEADLINE_S)
        if hub_end.done() and hub_end.result() not in (EXIT_OK, 130) and self._failure is None:
            self._note_failure(self._children[0])
        if all(not child.is_alive for child in self._children):
            return
        for child in self._children:
            _signal(child, signal.SIGTERM)
        await asyncio.wait(
            [asyncio.ensure_future(child.process.wait()) for child in self._children],
            timeout=TERMINATE_S if self._failure is not None or hub_end.done() else 0.5,
        )

    async def _first_failure(self) -> Child:
        """The first node, the hub aside, that ends with another code than 0."""
        nodes = {asyncio.ensure_future(child.process.wait()): child for child in self._children[1:]}
        pending = set(nodes)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                if ended.result() != EXIT_OK:
                    for task in pending:
                        task.cancel()
                    return nodes[ended]
        await asyncio.Event().wait()  # all ended in order: the hub's end says the rest
        raise AssertionError

    def _note_failure(self, child: Child) -> NodeFailed:
        code = child.process.returncode
        is_documented = code is not None and 0 < code < 128
        self._failure = NodeFailed(child.end_in_words(), code if is_documented and code is not None else EXIT_INTERNAL)
        return self._failure

    async def _start(self, role: Role, name: str, arguments: Sequence[str]) -> None:
        log = self._directory.logs / f"{name}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "parl_mq",
                role,
                "--name",
                name,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(self._lifeline,),
                start_new_session=True,  # Ctrl-C reaches `train` alone, which stops the nodes in order
                env=_child_environment(role),
            )
        self._children.append(Child(name, role, process, log))

    @property
    def _hub_endpoint(self) -> str:
        return f"ipc://{self._runtime}/hub"

    def _hub_arguments(self) -> list[str]:
        directory = ["--config", str(self._directory.config), "--run-dir", str(self._directory.path)]
        return [
            "--bind",
            self._hub_endpoint,
            *directory,
            "--started-at",
            repr(self._started_at),
            *self._lifeline_option,
        ]

    def _node_arguments(self, extra: Sequence[str] = ()) -> list[str]:
        node = self._config.node.model_dump(mode="json", exclude_defaults=True)
        settings = [part for key, value in node.items() for part in ("--set", f"node.{key}={value}")]
        return ["--hub", self._hub_endpoint, *self._lifeline_option, *settings, *extra]

    def _directory_arguments(self) -> list[str]:
        return ["--run-dir", str(self._directory.path)]

    @property
    def _lifeline_option(self) -> list[str]:
        return ["--lifeline-fd", str(self._lifeline)]

    async def _kill_all(self) -> None:
        for child in self._children:
            _signal(child, signal.SIGKILL)
        await asyncio.gather(*(child.process.wait() for child in self._children))


def _signal(child: Child, number: signal.Signals) -> None:
    if child.is_alive:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _child_environment(role: Role) -> dict[str, str]:
    """One thread for each actor's and evaluator's numerics: many processes share the cores."""
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if role != "learner" else {}
    return {**os.environ, **single, **hidden}


def _runtime_root(config: RunConfig) -> Path:
    return config.node.runtime_directory or Path(tempfile.gettempdir())
