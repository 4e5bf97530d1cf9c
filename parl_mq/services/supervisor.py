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
from typing import Any, Final

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK, NodeFailed
from parl_mq.net.zmq_channel import Network
from parl_mq.services.hub_link import HubLink
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal
from parl_mq.services.tables import remove_rings
from parl_mq.services.zygote import ForkedProcess, Zygote, module_path
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import Role, RunProgress, SpecOffer, StopRequest

END_DEADLINE_S: Final = 8.5
"""A run that was asked to end has this long; then what is left is killed. Ctrl-C promises 10 s."""
ZYGOTE_MODULE: Final = "parl_mq.nodes.zygote"
TERMINATE_S: Final = 3.0
"""Without a hub the nodes are asked to end by a signal, and killed after this time."""
MAX_REASON: Final = 1500
LOG_TAIL_LINES: Final = 12

ProgressSink = Callable[[RunProgress], None]


@dataclass(slots=True)
class Child:
    """A node's process."""

    name: str
    role: Role
    process: asyncio.subprocess.Process | ForkedProcess
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
        self._first_failed: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._zygote: Zygote | None = None
        self._run_id: str | None = None
        self._lifeline, self._lifeline_writer = os.pipe()
        self._runtime = Path(tempfile.mkdtemp(prefix="parl-mq-", dir=_runtime_root(config)))

    async def run(self) -> None:
        """Runs to the end; afterwards no process of the run is alive.

        Raises:
            NodeFailed: a node ended unexpectedly, or the hub reported a failure. Carries the exit code.
        """
        network = Network()
        try:
            self._zygote = await self._start_zygote()  # first: it takes longest
            hub = await self._start("hub", "hub", self._hub_arguments())
            link = HubLink(network.connect(self._hub_endpoint), role="supervisor", name="supervisor", stop=StopSignal())
            link.on_progress = self._on_progress
            await self._see_through(link, hub)
        finally:
            await self._kill_all()
            if self._zygote is not None:
                await self._zygote.close()
            network.close()
            os.close(self._lifeline_writer)
            os.close(self._lifeline)
            shutil.rmtree(self._runtime, ignore_errors=True)
            if self._run_id is not None:
                remove_rings(self._config.node, self._run_id)
        if self._failure is not None:
            raise self._failure

    async def _see_through(self, link: HubLink, hub: Child) -> None:
        """Starts the other nodes, and returns when the run has come to its end or must be brought to it."""
        talking, starting = asyncio.ensure_future(self._talk(link)), asyncio.ensure_future(self._start_nodes())
        stopping, hub_ends = asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(hub.process.wait())
        tasks: list[asyncio.Future[Any]] = [talking, starting, stopping, hub_ends]
        try:
            events: list[asyncio.Future[Any]] = [talking, stopping, hub_ends, self._first_failed]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            if self._first_failed.done():
                failure = self._note_failure(self._first_failed.result())
                lost = [child.name for child in self._children if not child.is_alive]
                reason = str(failure)[:MAX_REASON]
                link.send(StopRequest(reason=reason, interrupted=True, error_code=failure.code, lost=lost))
            elif self._stop.is_set():
                link.send(StopRequest(reason=self._stop.reason, interrupted=True))
            await asyncio.wait({hub_ends}, timeout=END_DEADLINE_S)
            if hub_ends.done() and hub_ends.result() not in (EXIT_OK, EXIT_INTERRUPTED) and self._failure is None:
                self._note_failure(hub)
            await self._end_the_rest()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_the_rest(self) -> None:
        """The hub has ended: whoever has not heard of it gets a signal, and a while to follow it."""
        for child in self._children:
            _signal(child, signal.SIGTERM)
        ends = [asyncio.ensure_future(child.process.wait()) for child in self._children]
        await asyncio.wait(ends, timeout=TERMINATE_S)
        for end in ends:
            end.cancel()

    async def _talk(self, link: HubLink) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.run())
            self._run_id = (await link.join()).run_id
            columns, spaces = self._spec.to_wire()
            await link.deliver(SpecOffer(columns=columns, spaces=spaces, digest=self._spec.digest))

    async def _start_nodes(self) -> None:
        config = self._config
        for index in range(config.replay.nodes):
            bind = f"ipc://{self._runtime}/replay-{index}"
            await self._start("replay", f"replay-{index}", [*self._node_arguments(), "--bind", bind])
        for index in range(config.learner.num_learners):
            await self._fork("learner", f"learner-{index}")
        for index in range(config.actor.num_actors):
            await self._fork("actor", f"actor-{index}")
        await self._fork("evaluator", "evaluator-0")

    def _note_failure(self, child: Child) -> NodeFailed:
        code = child.process.returncode
        is_documented = code is not None and 0 < code < 128
        self._failure = NodeFailed(child.end_in_words(), code if is_documented and code is not None else EXIT_INTERNAL)
        return self._failure

    async def _start(self, role: Role, name: str, arguments: Sequence[str]) -> Child:
        log = self._directory.logs / f"{name}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
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
        return self._watch(Child(name, role, process, log))

    async def _start_zygote(self) -> Zygote:
        log = self._directory.logs / "zygote.log"
        zygote = await Zygote.start(ZYGOTE_MODULE, pass_fds=(self._lifeline,), log=log)
        self._watch(Child("zygote", "supervisor", zygote.process, log))
        return zygote

    def _watch(self, child: Child) -> Child:
        """The first child, the hub aside, that ends with another code than 0 is a failure of the run."""

        def note_end(end: asyncio.Future[int]) -> None:
            is_failure = not end.cancelled() and end.result() != EXIT_OK and child.role != "hub"
            if is_failure and not self._first_failed.done():
                self._first_failed.set_result(child)

        self._children.append(child)
        asyncio.ensure_future(child.process.wait()).add_done_callback(note_end)
        return child

    async def _fork(self, role: Role, name: str) -> None:
        """Starts a node that needs torch."""
        if self._zygote is None:
            raise ConnectionError("there is no zygote")
        request = {
            "role": role,
            "name": name,
            "hub": self._hub_endpoint,
            "node": self._config.node.model_dump(mode="json", exclude_defaults=True),
            "lifeline_fd": self._lifeline,
            "run_directory": str(self._directory.path),
        }
        log = self._directory.logs / f"{name}.log"
        with contextlib.suppress(ConnectionError):  # its end is a failure that the watch reports
            self._watch(Child(name, role, await self._zygote.fork(request, log), log))

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

    def _node_arguments(self) -> list[str]:
        node = self._config.node.model_dump(mode="json", exclude_defaults=True)
        settings = [part for key, value in node.items() for part in ("--set", f"node.{key}={value}")]
        return ["--hub", self._hub_endpoint, *self._lifeline_option, *settings]

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
    return {**os.environ, **single, **hidden, "PYTHONPATH": module_path()}


def _runtime_root(config: RunConfig) -> Path:
    return config.node.runtime_directory or Path(tempfile.gettempdir())
