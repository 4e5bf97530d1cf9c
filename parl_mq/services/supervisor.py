"""Starts every node of a run on this machine, keeps them running, and leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.config.settings import value_in_words
from parl_mq.errors import (
    EXIT_CONFIG,
    EXIT_DISK,
    EXIT_INTERNAL,
    EXIT_NOT_ALLOWED,
    EXIT_OK,
    EXIT_TEMPORARY,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    ConfigError,
    NodeFailed,
    PeerTimeout,
    RecordError,
)
from parl_mq.net.endpoints import check_endpoint
from parl_mq.net.zmq_channel import Network
from parl_mq.observe.words import faults_in_words
from parl_mq.replay.memory import mib
from parl_mq.services.attachment import KEYS, PublicPlace, invite_guest
from parl_mq.services.early_start import EarlyStart
from parl_mq.services.health import START_S, Watch
from parl_mq.services.hub_link import HubLink
from parl_mq.services.log_files import keep_small
from parl_mq.services.nursery import Nursery
from parl_mq.services.processes import Child
from parl_mq.services.restarts import FailureRecord, cause_in_words
from parl_mq.services.rings import rings_of_run
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal, first_cause
from parl_mq.services.socket_folders import own_folder
from parl_mq.services.tables import remove_rings
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import Role, RunProgress, SpecOffer, StopRequest

HUB_ENDS_S: Final = 7.5
"""A hub that was asked to end the run has this long; Ctrl-C promises 10 s for everything."""
TERMINATE_S: Final = 2.3
"""Nodes that outlive the hub are asked to end by a signal, and killed after this time."""
HUB: Final = "hub"
MAX_REASON: Final = 1500
BEYOND_REPAIR: Final = (EXIT_USAGE, EXIT_NOT_ALLOWED, EXIT_CONFIG)
"""A process that ends with one of these would do so again."""
NODE_FAILURES: Final = (EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_DISK, EXIT_TEMPORARY, *BEYOND_REPAIR)
PROGRESS_COMES_S: Final = 2.0
"""The hub tells of its progress four times a second."""
LAST_WORDS_S: Final = 2.0
"""What a hub said before it ended is on its way for a moment."""
HEALTH_EVERY_S: Final = 0.25
DIES_S: Final = 5.0
"""A killed child that has not ended after this time has a zygote that does not say so."""

LOSSES: Final = {
    "lost_updates_total": "the learner goes on from its newest checkpoint; {:,.0f} updates since then are lost",
    "failed_checkpoints_total": "{:,.0f} checkpoint could not be written; the learner goes on and tries again",
    "lost_rows_total": "{:,.0f} rows that the replay had acknowledged are lost with its ring",
}
"""What is said when one of these figures grows."""

ProgressSink = Callable[[RunProgress], None]
EventSink = Callable[[str], None]
Launch = Callable[[], Awaitable[Child]]


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
        early: EarlyStart,
        on_progress: ProgressSink,
        on_event: EventSink,
        public: PublicPlace | None = None,
    ) -> None:
        """Prepares a run.

        Args:
            config: of the run.
            spec: of the run's table.
            directory: of the run.
            runtime: folder for sockets.
            started_at: monotonic time at which the command started, s.
            early: lifeline and zygotes of the run.
            on_progress: called a few times a second.
            on_event: called with a line for people when a node has failed.
            public: where other machines may join; None: nowhere.
        """
        self._config = config
        self._spec = spec
        self._directory = directory
        self._runtime = runtime
        self._started_at = started_at
        self._early = early
        self._on_progress = on_progress
        self._on_event = on_event
        self._public = public
        self._children: dict[str, Child] = {}
        self._records: dict[str, FailureRecord] = {}
        learner_limit_s = config.learner.silence_limit_s if config.learner.num_learners > 1 else inf
        self._watch = Watch(config.node.busy_limit_s, learner_limit_s)
        at_first_s = max(START_S, config.node.busy_limit_s)
        self._torch, self._light = (
            Nursery(
                kind,
                early,
                directory.logs,
                at_first_s=at_first_s,
                on_fork=self._watch.note_fork,
                lock_fd=directory.lock_fd,
            )
            for kind in ("torch", "light")
        )
        self._nurseries = {nursery.name: nursery for nursery in (self._torch, self._light)}
        self._run_id: str | None = None
        self._before_s = directory.read_memory().wall_s
        self._failed: asyncio.Future[NodeFailed] = asyncio.get_running_loop().create_future()
        self._lost: asyncio.Queue[str] = asyncio.Queue()  # as many as there are nodes, at most
        self._end_has_begun = asyncio.Event()
        self._hub_has_ended = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_done = asyncio.Event()
        self._is_over = False
        self._told_trouble: str | None = None
        self._told_losses: dict[str, float] = {}
        self._told_faults = 0.0

    async def run(self, stop: StopSignal, kill: StopSignal) -> None:
        """Runs to the end; afterwards no process of the run is alive, and a ring is left only if it was cut off.

        Args:
            stop: ends the run in order.
            kill: ends it at once.

        Raises:
            NodeFailed: a node could not be kept running, or the hub reported a failure. Carries the exit code.
        """
        network = Network()
        try:
            try:
                await kill.wait_for(self._see_through(network, stop))
            finally:
                await self._kill_all()
        except BaseExceptionGroup as group:
            raise first_cause(group) from group
        finally:
            network.close()
            if self._run_id is not None:
                self._leave_rings(self._run_id, was_killed=kill.is_set())
        if self._failed.done():
            raise self._failed.result()

    def _leave_rings(self, run_id: str, *, was_killed: bool) -> None:
        """A run that is done needs none; of one that may be resumed they stay."""
        if not was_killed and not self._failed.done() and self._directory.is_done():
            remove_rings(self._config.node, run_id)
        for ring in rings_of_run(self._config.node, run_id):
            self._on_event(f"kept for --resume: {ring.path}, {mib(ring.num_bytes)}")

    async def _see_through(self, network: Network, stop: StopSignal) -> None:
        """Keeps the nodes running, and returns when the run has come to its end."""
        link = HubLink(network.connect(self._hub_endpoint), role="supervisor", name="supervisor", stop=StopSignal())
        link.on_progress = self._note_progress
        async with asyncio.TaskGroup() as tasks:
            work = [
                *(self._keep(name, launch) for name, launch in self._launches()),
                self._talk(link),
                self._ask_for_the_end(link, stop),
                self._report_failure(link),
                self._report_lost(link),
                self._end_hung_nodes(),
            ]
            background = [tasks.create_task(each) for each in work]
            await self._end_has_begun.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hub_has_ended.wait(), HUB_ENDS_S)
            if (hub := self._children.get(HUB)) is not None and hub.process.returncode == EXIT_OK:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_done.wait(), LAST_WORDS_S)
            for task in background:
                task.cancel()
        self._judge()
        await self._end_the_rest()

    async def _talk(self, link: HubLink) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.run())
            try:
                self._run_id = (await link.join()).run_id
            except PeerTimeout as error:
                hub = self._children.get(HUB)
                told = "it was never started" if hub is None else hub.last_words()
                raise NodeFailed(f"{error}\n{told}", error.exit_code) from error
            self._invite()
            columns, spaces = self._spec.to_wire()
            link.deliver(SpecOffer(columns=columns, spaces=spaces, digest=self._spec.digest))

    def _invite(self) -> None:
        """Says how another machine joins."""
        if self._public is None:
            return
        folder = self._config.node.keys_directory or self._directory.path / KEYS
        path, join = invite_guest(self._directory.path, folder)
        self._on_event(
            f"to add a machine, copy {path} there (it is a key: keep it private) and run: "
            f"parl-mq {join.role} --join {path.name}"
        )

    async def _ask_for_the_end(self, link: HubLink, stop: StopSignal) -> None:
        await stop.wait()
        self._end_has_begun.set()
        link.deliver(StopRequest(reason=stop.reason, interrupted=True))

    async def _report_failure(self, link: HubLink) -> None:
        """Tells the hub which node cannot be kept running, and who else is gone: nobody need wait for them."""
        failure = await asyncio.shield(self._failed)
        self._end_has_begun.set()
        lost = [child.name for child in self._children.values() if not child.is_alive]
        reason = _shortened(str(failure))
        link.deliver(StopRequest(reason=reason, interrupted=True, error_code=failure.code, lost=lost))

    async def _report_lost(self, link: HubLink) -> None:
        """Tells the hub of nodes that died while the run ends, and are not started again."""
        while True:
            name = await self._lost.get()
            link.deliver(StopRequest(reason=f"{name} died while the run ended", interrupted=True, lost=[name]))

    def _judge(self) -> None:
        """The hub's own end is a failure where it says so, or did not come to say anything."""
        hub = self._children.get(HUB)
        code = None if hub is None else hub.process.returncode
        if self._failed.done() or code == EXIT_OK:
            return
        words = "" if hub is None else f"; {hub.last_words()}"
        if code is None:
            error = f"the hub has not ended {HUB_ENDS_S:g} s after it was asked to{words}"
        else:
            ended = "the hub ended" if hub is None else hub.end_in_words()
            error = (self._directory.read_summary() or {}).get("error") or ended
        self._failed.set_result(NodeFailed(error, _exit_code(code)))

    async def _end_the_rest(self) -> None:
        """Whoever has not heard of the end from the hub gets a signal, and a while to follow it."""
        self._is_over = True
        nodes = [child for child in self._children.values() if not child.is_zygote]  # whose end would kill its children
        for child in nodes:
            child.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERMINATE_S):
                for child in nodes:
                    await child.process.wait()

    async def _kill_all(self) -> None:
        self._is_over = True
        for child in self._children.values():
            child.send_signal(signal.SIGKILL)
        for child in self._children.values():
            await child.process.wait()
        for nursery in self._nurseries.values():
            await nursery.close()

    # Keeping nodes running

    async def _keep(self, name: str, launch: Launch) -> None:
        """Starts a node, and starts it again whenever it ends unasked, until the run ends."""
        # A process that was started again begins other random streams: the run would not repeat.
        max_restarts = 0 if self._config.deterministic else self._config.node.max_restarts
        record = self._records[name] = FailureRecord(max_restarts)
        event: str | None = None
        while True:
            child = self._children[name] = await launch()
            if event is not None:
                self._on_event(f"{event}; restarted ({record.num_failures})")
            await child.process.wait()
            if child.is_zygote:
                self._nurseries[name].note_end()
            if child.fell_with_zygote and not self._end_has_begun.is_set():
                event = None  # the zygote's own failure; it says so
                continue
            if await self._ended_in_order(child):
                return
            wait_s = self._note_failure(child, record)
            if wait_s is None:
                if name in (HUB, self._light.name):  # without which there is no other hub
                    self._hub_has_ended.set()
                return
            event = f"{name} {child.how_it_ended()}"
            await asyncio.sleep(wait_s)  # the pause itself

    async def _ended_in_order(self, child: Child) -> bool:
        """Whether a process that has ended was meant to; the hub's own end is the run's."""
        if child.name == HUB:
            has_ended = self._directory.read_summary() is not None
            if has_ended:
                self._hub_has_ended.set()
                self._end_has_begun.set()
            return has_ended or self._is_over
        return self._is_over or (child.process.returncode == EXIT_OK and await self._hub_is_stopping())

    async def _hub_is_stopping(self) -> bool:
        """Whether a node that ended with code 0 was asked to: the hub says so soon, if it has not said it before."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), PROGRESS_COMES_S)
        return self._is_stopping.is_set() or self._end_has_begun.is_set()

    def _note_failure(self, child: Child, record: FailureRecord) -> float | None:
        """Records a failure; returns the pause before the next start, or None where there is none."""
        cause, code = child.cause(), child.process.returncode
        had_progress = self._watch.has_progress(child)
        wait_s = record.note(asyncio.get_running_loop().time(), cause, had_progress=had_progress)
        is_last = wait_s is None or code in BEYOND_REPAIR
        # The ring of a replay has part of the run's books; it and the hub are forked by the light zygote.
        has_more_to_say = child.name in (HUB, self._light.name) or child.role == "replay"
        goes_on = not is_last and (has_more_to_say or not self._end_has_begun.is_set())
        row = {
            "time_s": round(self._before_s + time.monotonic() - self._started_at, 3),
            "node": child.name,
            "how": child.how_it_ended(),
            "restart": record.num_failures if goes_on else None,
            "told": cause,
        }
        try:
            self._directory.append_failure(row)
        except RecordError as error:  # a full disk is no reason to end the run
            self._on_event(f"{child.name} {child.how_it_ended()}, and that could not be recorded: {error}")
        if goes_on:
            return wait_s
        if self._end_has_begun.is_set() and not is_last:
            self._lost.put_nowait(child.name)
        if not self._failed.done():
            self._failed.set_result(NodeFailed(_last_failure(child, record, code), _exit_code(code)))
        return None

    async def _end_hung_nodes(self) -> None:
        """Kills processes that give no sign of life; whoever keeps them starts them again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)  # the period itself
            now = loop.time()
            self._keep_logs_small()
            living = [child for child in self._children.values() if child.is_alive]
            for child, silent_s in self._watch.hung(living, now):
                if child.hung_s is None:
                    child.hung_s = silent_s
                    child.send_signal(signal.SIGKILL)
                    self._watch.note_killed(child.name, now)
                elif self._watch.killed_for_s(child.name, now) > DIES_S:
                    (self._light if child.role in ("hub", "replay") else self._torch).end_hung(silent_s)

    def _keep_logs_small(self) -> None:
        for child in self._children.values():
            if (told := keep_small(child.log)) is not None:
                self._on_event(told)

    def _note_progress(self, progress: RunProgress) -> None:
        self._watch.note(progress, asyncio.get_running_loop().time())
        if progress.phase in ("stopping", "done"):
            self._is_stopping.set()
        self._tell_losses(progress)
        self._tell_faults(progress.figures.get("environment_faults_total", 0.0))
        self._tell_trouble(progress.trouble)
        self._on_progress(progress)
        if progress.phase == "done":
            self._is_done.set()

    def _tell_losses(self, progress: RunProgress) -> None:
        for name, words in LOSSES.items():
            lost = progress.figures.get(name, 0.0)
            if (more := lost - self._told_losses.setdefault(name, lost)) > 0:
                self._told_losses[name] = lost
                self._on_event(words.format(more))

    def _tell_faults(self, num_faults: float) -> None:
        """Told at the first one, and whenever there are twice as many: a line for each might hide all others."""
        if num_faults >= max(1.0, 2 * self._told_faults):
            self._told_faults = num_faults
            self._on_event(f"{faults_in_words(num_faults)}: see {self._directory.logs}/actor-*.log")

    def _tell_trouble(self, trouble: str | None) -> None:
        if trouble != self._told_trouble:
            self._told_trouble = trouble
            self._on_event(trouble or "all that the run records can be written again")

    # Starting nodes

    def _launches(self) -> Iterator[tuple[str, Launch]]:
        """Name and start of each node, in the order in which they are to be started."""
        config = self._config
        for nursery in self._nurseries.values():
            yield nursery.name, nursery.start
        yield HUB, self._fork_hub
        for index in range(config.replay.nodes):
            yield f"replay-{index}", partial(self._fork_replay, f"replay-{index}")
        for index in range(config.actor.num_actors):  # before the learners, who have nothing to do without them
            yield f"actor-{index}", partial(self._fork, "actor", f"actor-{index}")
        for index in range(config.learner.num_learners):
            yield f"learner-{index}", partial(self._fork, "learner", f"learner-{index}")
        yield "evaluator-0", partial(self._fork, "evaluator", "evaluator-0")

    async def _fork_hub(self) -> Child:
        directory = ["--config", str(self._directory.config), "--run-dir", str(self._directory.path)]
        started_at = ["--started-at", repr(self._started_at)]
        public = [] if self._public is None else self._public.arguments(0)
        arguments = ["--bind", self._hub_endpoint, *public, *directory, *started_at, *self._lifeline_option]
        return await self._light.fork({"role": "hub", "name": HUB, "arguments": arguments})

    async def _fork_replay(self, name: str) -> Child:
        index = int(name.rpartition("-")[2])
        public = [] if self._public is None else self._public.arguments(2 + index)
        places = ["--hub", self._hub_endpoint, "--bind", _endpoint(self._runtime, name), *public]
        arguments = [
            *places,
            "--run-dir",
            str(self._directory.path),
            *self._lifeline_option,
            *node_flags(self._config.node),
        ]
        return await self._light.fork({"role": "replay", "name": name, "arguments": arguments})

    async def _fork(self, role: Role, name: str) -> Child:
        """A node that needs torch."""
        return await self._torch.fork(
            {
                "role": role,
                "name": name,
                "hub": self._hub_endpoint,
                "node": self._config.node.model_dump(mode="json", exclude_defaults=True),
                "lifeline_fd": self._early.lifeline.fd,
                "run_directory": str(self._directory.path),
            }
        )

    @property
    def _hub_endpoint(self) -> str:
        return _endpoint(self._runtime, "hub")

    @property
    def _lifeline_option(self) -> list[str]:
        return ["--lifeline-fd", str(self._early.lifeline.fd)]


def _endpoint(folder: Path, name: str) -> str:
    return f"ipc://{folder}/{name}"


def node_flags(node: NodeConfig) -> list[str]:
    """The options that give a node's command these settings."""
    said = node.model_dump(mode="json", exclude_defaults=True)
    return [part for key, value in said.items() for part in ("--set", f"node.{key}={value_in_words(value)}")]


def _last_failure(child: Child, record: FailureRecord, code: int | None) -> str:
    if record.num_failures == 1 or code in BEYOND_REPAIR:
        return child.end_in_words()
    if record.is_constant:
        often, when, told = "twice in the same way before it got anything done", "each", child.cause()
    else:
        often, when, told = f"{record.num_failures} times", "the first", record.first_words
    ended = f"{child.name} failed {often}; at last it {child.how_it_ended()}"
    if not told:
        return f"{ended}; {when} time it had written nothing to {child.log}"
    lines = "".join(f"\n  {line}" for line in told.splitlines())
    return f"{ended}; {when} time it said:{lines}\n{cause_in_words(told)}"


def _shortened(reason: str) -> str:
    """Its beginning and its end, which names the cause."""
    half = MAX_REASON // 2
    return reason if len(reason) <= MAX_REASON else f"{reason[:half]}\n  ...\n{reason[-half:]}"


def _exit_code(returncode: int | None) -> int:
    """A node's own code where it is one that parl_mq documents, else that of a defect."""
    return returncode if returncode in NODE_FAILURES else EXIT_INTERNAL
