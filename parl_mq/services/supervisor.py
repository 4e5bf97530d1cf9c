"""Starts every node of a run on this machine, watches them, and leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import (
    EXIT_CONFIG,
    EXIT_INTERNAL,
    EXIT_NOT_ALLOWED,
    EXIT_OK,
    EXIT_TEMPORARY,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    ConfigError,
    NodeFailed,
    PeerTimeout,
)
from parl_mq.net.endpoints import check_endpoint
from parl_mq.net.zmq_channel import Network
from parl_mq.services.hub_link import HubLink
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal, first_cause
from parl_mq.services.socket_folders import own_folder
from parl_mq.services.tables import remove_rings
from parl_mq.services.zygote import ForkedProcess, Zygote, module_path
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import Role, RunProgress, SpecOffer, StopRequest

HUB_ENDS_S: Final = 7.5
"""A hub that was asked to end the run has this long; Ctrl-C promises 10 s for everything."""
TERMINATE_S: Final = 2.3
"""Nodes that outlive the hub are asked to end by a signal, and killed after this time."""
ZYGOTE_MODULE: Final = "parl_mq.nodes.zygote"
MAX_REASON: Final = 1500
NODE_FAILURES: Final = (EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_TEMPORARY, EXIT_NOT_ALLOWED, EXIT_CONFIG)
PROGRESS_COMES_S: Final = 2.0
"""The hub tells of its progress four times a second."""
LAST_WORDS_S: Final = 2.0
"""What a hub said before it ended is on its way for a moment."""
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

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still lives."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def end_in_words(self) -> str:
        """How it ended, with the end of what it wrote."""
        code = self.process.returncode
        how = f"with code {code}" if code is None or code >= 0 else f"by signal {signal.Signals(-code).name}"
        return f"{self.name} ended {how}; {self.last_words()}"

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        told = "".join(f"\n  {line}" for line in lines[-LOG_TAIL_LINES:])
        return f"the end of {self.log}:{told or ' nothing was written'}"


@contextmanager
def runtime_folder(node: NodeConfig) -> Iterator[Path]:
    """A private folder for a run's sockets, which goes with the block; those of dead runs go before.

    Raises:
        ConfigError: there can be none, or its path is too long for a socket.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(node.runtime_directory))
        except OSError as error:
            place = (
                f"node.runtime_directory = {node.runtime_directory}"
                if node.runtime_directory
                else "the temporary folder"
            )
            raise ConfigError(f"{place}: no folder for sockets can be made there: {error.strerror or error}").about(
                "node.runtime_directory"
            ) from error
        try:
            check_endpoint(_endpoint(folder, "replay-255"))  # the longest name
        except ConfigError as error:
            error.about("node.runtime_directory")
            raise
        yield folder


class Supervisor:
    """One run on this machine."""

    def __init__(
        self,
        config: RunConfig,
        spec: TableSpec,
        directory: RunDirectory,
        *,
        runtime: Path,
        started_at: float,
        on_progress: ProgressSink,
    ) -> None:
        """Prepares a run.

        Args:
            config: of the run.
            spec: of the run's table.
            directory: of the run.
            runtime: folder for sockets.
            started_at: monotonic time at which the command started, s.
            on_progress: called a few times a second.
        """
        self._config = config
        self._spec = spec
        self._directory = directory
        self._runtime = runtime
        self._started_at = started_at
        self._on_progress = on_progress
        self._children: list[Child] = []
        self._watches: asyncio.TaskGroup
        self._zygote: Zygote | None = None
        self._run_id: str | None = None
        self._failed: asyncio.Future[NodeFailed] = asyncio.get_running_loop().create_future()
        self._end_has_begun = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_done = asyncio.Event()
        self._is_over = False
        self._lifeline, self._lifeline_writer = os.pipe()

    async def run(self, stop: StopSignal, kill: StopSignal) -> None:
        """Runs to the end; afterwards no process of the run is alive, and no ring is left.

        Args:
            stop: ends the run in order.
            kill: ends it at once.

        Raises:
            NodeFailed: a node ended unexpectedly, or the hub reported a failure. Carries the exit code.
        """
        network = Network()
        try:
            async with asyncio.TaskGroup() as self._watches:
                try:
                    await kill.wait_for(self._see_through(network, stop))
                finally:
                    await self._kill_all()
        except BaseExceptionGroup as group:
            raise first_cause(group) from group
        finally:
            network.close()
            os.close(self._lifeline_writer)
            os.close(self._lifeline)
            if self._run_id is not None:
                remove_rings(self._config.node, self._run_id)
        if self._failed.done():
            raise self._failed.result()

    async def _see_through(self, network: Network, stop: StopSignal) -> None:
        """Starts the nodes, and returns when the run has come to its end."""
        self._zygote = await self._start_zygote()  # first: it takes longest
        hub = await self._start("hub", "hub", self._hub_arguments())
        link = HubLink(network.connect(self._hub_endpoint), role="supervisor", name="supervisor", stop=StopSignal())
        link.on_progress = self._note_progress
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(self._start_nodes())
            background = [
                starting,
                tasks.create_task(self._talk(link, hub)),
                tasks.create_task(self._ask_for_the_end(link, stop)),
                tasks.create_task(self._report_failure(link)),
            ]
            await self._end_has_begun.wait()
            starting.cancel()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hub.process.wait(), HUB_ENDS_S)
            if hub.process.returncode == EXIT_OK:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_done.wait(), LAST_WORDS_S)
            for task in background:
                task.cancel()
        self._judge(hub)
        await self._end_the_rest()

    async def _talk(self, link: HubLink, hub: Child) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.run())
            try:
                self._run_id = (await link.join()).run_id
            except PeerTimeout as error:
                raise NodeFailed(f"{error}\n{hub.last_words()}", error.exit_code) from error
            columns, spaces = self._spec.to_wire()
            await link.deliver(SpecOffer(columns=columns, spaces=spaces, digest=self._spec.digest))

    async def _ask_for_the_end(self, link: HubLink, stop: StopSignal) -> None:
        await stop.wait()
        self._end_has_begun.set()
        await link.deliver(StopRequest(reason=stop.reason, interrupted=True))

    async def _report_failure(self, link: HubLink) -> None:
        """Tells the hub of the first node that failed, and of all that are gone: nobody need wait for them."""
        failure = await asyncio.shield(self._failed)
        self._end_has_begun.set()
        lost = [child.name for child in self._children if not child.is_alive]
        reason = str(failure)[:MAX_REASON]
        await link.deliver(StopRequest(reason=reason, interrupted=True, error_code=failure.code, lost=lost))

    def _judge(self, hub: Child) -> None:
        """The hub's own end is a failure where it says so, or did not come to say anything."""
        code = hub.process.returncode
        if self._failed.done() or code == EXIT_OK:
            return
        if code is None:
            error = f"the hub has not ended {HUB_ENDS_S:g} s after it was asked to; {hub.last_words()}"
        else:
            error = (self._directory.read_summary() or {}).get("error") or hub.end_in_words()
        self._failed.set_result(NodeFailed(error, _exit_code(code)))

    async def _end_the_rest(self) -> None:
        """Whoever has not heard of the end from the hub gets a signal, and a while to follow it."""
        self._is_over = True
        nodes = [child for child in self._children if child.name != "zygote"]  # its end would kill its children
        for child in nodes:
            child.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERMINATE_S):
                for child in nodes:
                    await child.process.wait()

    async def _start_nodes(self) -> None:
        config = self._config
        for index in range(config.replay.nodes):
            name = f"replay-{index}"
            bind = _endpoint(self._runtime, name)
            await self._start("replay", name, [*self._node_arguments(), "--bind", bind])
        for index in range(config.learner.num_learners):
            await self._fork("learner", f"learner-{index}")
        for index in range(config.actor.num_actors):
            await self._fork("actor", f"actor-{index}")
        await self._fork("evaluator", "evaluator-0")

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
        return self._add(Child(name, role, process, log))

    async def _start_zygote(self) -> Zygote:
        log = self._directory.logs / "zygote.log"
        zygote = await Zygote.start(ZYGOTE_MODULE, pass_fds=(self._lifeline,), log=log)
        self._add(Child("zygote", "supervisor", zygote.process, log))
        return zygote

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
            self._add(Child(name, role, await self._zygote.fork(request, log), log))

    def _add(self, child: Child) -> Child:
        self._children.append(child)
        self._watches.create_task(self._watch(child))
        return child

    async def _watch(self, child: Child) -> None:
        """The first node that ends unasked is a failure of the run; the hub's end is the run's."""
        code = await child.process.wait()
        if child.role == "hub":
            self._end_has_begun.set()
        elif (code != EXIT_OK or not await self._hub_is_stopping()) and not self._is_over and not self._failed.done():
            self._failed.set_result(NodeFailed(child.end_in_words(), _exit_code(code)))

    async def _hub_is_stopping(self) -> bool:
        """Whether a node that ended with code 0 was asked to: the hub says so soon, if it has not said it before."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), PROGRESS_COMES_S)
        return self._is_stopping.is_set() or self._end_has_begun.is_set()

    def _note_progress(self, progress: RunProgress) -> None:
        if progress.phase in ("stopping", "done"):
            self._is_stopping.set()
        self._on_progress(progress)
        if progress.phase == "done":
            self._is_done.set()

    @property
    def _hub_endpoint(self) -> str:
        return _endpoint(self._runtime, "hub")

    def _hub_arguments(self) -> list[str]:
        directory = ["--config", str(self._directory.config), "--run-dir", str(self._directory.path)]
        started_at = ["--started-at", repr(self._started_at)]
        return ["--bind", self._hub_endpoint, *directory, *started_at, *self._lifeline_option]

    def _node_arguments(self) -> list[str]:
        node = self._config.node.model_dump(mode="json", exclude_defaults=True)
        settings = [part for key, value in node.items() for part in ("--set", f"node.{key}={value}")]
        return ["--hub", self._hub_endpoint, *self._lifeline_option, *settings]

    @property
    def _lifeline_option(self) -> list[str]:
        return ["--lifeline-fd", str(self._lifeline)]

    async def _kill_all(self) -> None:
        self._is_over = True
        for child in self._children:
            child.send_signal(signal.SIGKILL)
        for child in self._children:
            await child.process.wait()
        if self._zygote is not None:
            await self._zygote.close()


def _endpoint(folder: Path, name: str) -> str:
    return f"ipc://{folder}/{name}"


def _exit_code(returncode: int | None) -> int:
    """A node's own code where it is one that parl_mq documents, else that of a defect."""
    return returncode if returncode in NODE_FAILURES else EXIT_INTERNAL


def _child_environment(role: Role) -> dict[str, str]:
    """One thread for each actor's and evaluator's numerics: many processes share the cores."""
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if role != "learner" else {}
    return {**os.environ, **single, **hidden, "PYTHONPATH": module_path()}
