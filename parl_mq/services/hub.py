"""The hub: who is here, the run's settings, the newest weights, the record of the run."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from parl_mq import __version__
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, ConfigError, DiskError, WireError
from parl_mq.learn.checkpoint import Checkpoint, save_best
from parl_mq.net.channel import PeerId, SendOutcome, ServerChannel
from parl_mq.net.curve import Guard
from parl_mq.net.endpoints import at_host, host_of, port_of
from parl_mq.net.zmq_channel import Network
from parl_mq.observe.prometheus import HUB, NodeFigures, page
from parl_mq.observe.sinks import make_sinks
from parl_mq.services.addresses import Addresses
from parl_mq.services.attachment import Attachment
from parl_mq.services.backlog import Backlog
from parl_mq.services.gate import NOBODY, Gate
from parl_mq.services.hub_state import HubState, Outgoing
from parl_mq.services.joining import CONTROL_MESSAGE_BYTES
from parl_mq.services.keyring import Keyring
from parl_mq.services.metrics_page import serving_metrics
from parl_mq.services.network import network_of
from parl_mq.services.notify import Notifier
from parl_mq.services.permits import Permits
from parl_mq.services.process_figures import process_figures
from parl_mq.services.recording import Record
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import SUPERVISOR_GONE, NodeOptions, StopSignal
from parl_mq.services.tally import Evaluation
from parl_mq.services.weights_exchange import WINDOW
from parl_mq.services.weights_store import WeightsStore
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import MAX_HEADER_BYTES, encode
from parl_mq.wire.messages import (
    CHUNK_BYTES,
    PROTOCOL_VERSION,
    EvaluationFinished,
    Goodbye,
    KeysAllowed,
    ProbeReply,
    ProbeRequest,
    ToHub,
    Weights,
    Welcome,
)

TICK_S: Final = 0.25
METRICS_EVERY_S: Final = 1.0
SIZES: Final = ("rss_bytes", "rss_anon_bytes")
NODES_EVERY_S: Final = 10.0
WEIGHTS_MESSAGE_BYTES: Final = CHUNK_BYTES + MAX_HEADER_BYTES
WEIGHTS_QUEUE: Final = 2 * WINDOW
"""Messages of weights that wait for one connection, in the transport and again as many in front of it."""

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class HubOptions:
    """What the hub needs beside the options of every node.

    Attributes:
        config: of the run.
        directory: where the run is recorded.
        started_at: monotonic time at which the command started, s.
        public: endpoint of the control socket for other machines; None: there is none beside `NodeOptions.hub`.
        advertise: host by which other machines reach this one; None: the one that is bound.
        keyring: keys that may connect over tcp; None: no key is asked for.
        is_insecure: other machines may connect without keys.
    """

    config: RunConfig
    directory: Path
    started_at: float
    public: str | None = None
    advertise: str | None = None
    keyring: Keyring | None = None
    is_insecure: bool = False

    @property
    def is_attachable(self) -> bool:
        """Whether nodes on other machines may join."""
        return self.keyring is not None or self.is_insecure


class Hub:
    """Two sockets around HubState and WeightsStore."""

    def __init__(
        self,
        network: Network,
        control_endpoint: str,
        options: HubOptions,
        stop: StopSignal,
        notifier: Notifier | None = None,
        *,
        is_supervised: bool = False,
    ) -> None:
        public = [] if options.public is None else [options.public]
        self._control = network.bind(control_endpoint, CONTROL_MESSAGE_BYTES, also=public)
        self._directory = RunDirectory(options.directory)
        self._record = Record(self._directory)
        before = self._directory.read_memory()
        fixed = [not each.endswith(":0") for each in (control_endpoint, *public)]
        self._weights = _bind_weights(network, self._control, before.weights_endpoint, options, fixed=fixed)
        self._keyring = options.keyring
        self._keys_version = 0 if options.keyring is None else options.keyring.version
        permits = NOBODY if options.keyring is None else Permits(options.keyring.grant_of, lambda: self._state.names)
        self._control_gate = Gate(self._control, ToHub, socket="control", permits=permits)
        self._weights_gate = Gate(self._weights, Weights, socket="weights", permits=permits)
        self._stop = stop
        self._is_supervised = is_supervised
        self._notifier = notifier or Notifier()
        self._config = options.config
        self._started_at = options.started_at
        self._store = WeightsStore()
        self._backlog = Backlog(self._weights, self._weights_gate.cut_unread, max_waiting=WEIGHTS_QUEUE)
        run_id = before.run_id or uuid.uuid4().hex[:12]
        self._addresses = _addresses(self._control, self._weights, options)
        self._state = HubState(
            options.config,
            run_id=run_id,
            addresses=self._addresses,
            weights_endpoint=self._weights.endpoint,
            started_at=options.started_at,
            before=before,
            now=time.monotonic(),
        )
        self._is_done = asyncio.Event()
        self._next_metrics_at = self._next_nodes_at = 0.0
        self._record.attempt(lambda: self._directory.write_endpoint(self._control.endpoint), again="endpoint")
        if options.is_attachable:
            hub = at_host(self._control.endpoints[-1], options.advertise)
            key = None if options.keyring is None else options.keyring.pair.public
            attachment = Attachment(hub=hub, run_id=run_id, server_key=key)
            self._record.attempt(lambda: attachment.write(options.directory), again="attachment")
            log.info("nodes on other machines may join at %s", hub)

    async def run(self) -> int:
        """Serves until the run is over; returns the exit code."""
        self._record.sinks = await asyncio.to_thread(make_sinks, self._config, self._directory.path, self._state.run_id)
        self._notifier.ready(f"listens at {self._control.endpoint}")  # from here on it must beat
        async with serving_metrics(self._config.node, self._page) as address:
            self._record.attempt(lambda: self._directory.write_metrics_address(address), again="metrics address")
            async with asyncio.TaskGroup() as tasks:
                served = [
                    tasks.create_task(serve)
                    for serve in (self._serve_control(), self._serve_weights(), self._tick(), self._watch_stop())
                ]
                await self._is_done.wait()
                for task in served:
                    task.cancel()
        self._record_metrics()
        self._record.feed(math.inf, time.time(), self._num_env_steps, self._figures())
        await self._write_end()
        for sink in self._record.sinks:
            sink.close()
        return EXIT_OK if self._state.error is None else self._state.error[1]

    async def _write_end(self) -> None:
        """The summary, and that the run is over.

        A hub on its own waits for a disk that has no room for it: the next one would wait for nodes that are gone.
        """
        has_said = False
        while True:
            try:
                self._directory.write_summary(self.summary())
                self._directory.note_end()
                self._directory.forget_endpoint()
            except DiskError as error:
                if self._is_supervised or self._stop.is_set():
                    raise
                if not has_said:
                    log.error("%s; the run is over, and the hub stays until it can say so: make room", error)
                has_said = True
                self._notifier.beat("waits for room to write the summary")
                await self._stop.wait_for(asyncio.sleep(METRICS_EVERY_S))
            else:
                return

    def summary(self) -> dict[str, Any]:
        """What summary.json holds."""
        state, figures, wall_s = self._state, self._state.figures(), self._state.wall_s(time.monotonic())
        steps, updates = figures.get("env_steps_total", 0.0), figures.get("updates_total", 0.0)
        failures = self._directory.read_failures()
        return {
            "preset": self._config.preset,
            "env_id": self._config.environment.id,
            "algorithm": self._config.algorithm.name,
            "seed": self._config.seed,
            "target_return": self._config.stop.target_return,
            "reached": state.time_to_target_s is not None,
            "eval_return": state.tally.eval_return,
            "env_steps": int(steps),
            "updates": int(updates),
            "wall_s": round(wall_s, 3),
            "time_to_target_s": None if state.time_to_target_s is None else round(state.time_to_target_s, 3),
            "env_steps_per_s": round(steps / wall_s, 1),
            "updates_per_s": round(updates / wall_s, 1),
            "samples_per_insert": figures.get("samples_per_insert"),
            "run_dir": str(self._directory.path),
            "episodes": int(figures["episodes_total"]),
            "evaluations": state.tally.num_evaluations,
            "best_eval_return": state.tally.best_eval_return,
            "first_env_step_s": None if state.first_step_s is None else round(state.first_step_s, 3),
            "stop_reason": state.stop_reason,
            "interrupted": state.was_interrupted,
            "error": None if state.error is None else state.error[0],
            "rows": {**state.rows().to_json(), "balanced": state.rows().is_balanced},
            "environment_faults": int(figures.get("environment_faults_total", 0.0)),
            "lost_updates": int(figures["lost_updates_total"]),
            "restarts": dict(Counter(row["node"] for row in failures if row["restart"] is not None)),
            "failures": failures,
            "version": __version__,
        }

    async def _serve_control(self) -> None:
        while True:
            for peer, frames in await self._control.receive_many():
                if (admitted := self._control_gate.admit(peer, frames)) is None:
                    continue
                message = admitted[0]
                if isinstance(message, ProbeRequest):
                    self._send([(peer, self._probe(peer))])
                    continue
                try:
                    outgoing = self._state.handle(peer, message, time.monotonic())
                except WireError as error:
                    self._control_gate.refuse(peer, message, error)
                    continue
                if isinstance(message, Goodbye) and message.error is not None:
                    self._control_gate.told_failure(peer, message.error)
                if isinstance(message, EvaluationFinished):
                    self._store.release(WeightsVersion(*message.version))
                for evaluation in self._state.tally.take_evaluations():
                    self._record_evaluation(evaluation)
                self._send(outgoing)
                self._after_change()

    async def _serve_weights(self) -> None:
        while True:
            for peer, frames in await self._weights.receive_many():
                if (admitted := self._weights_gate.admit(peer, frames)) is None:
                    continue
                message, arrays = admitted
                try:
                    self._backlog.send(self._store.handle(peer, message, arrays, time.monotonic()))
                    if self._store.newest is not None:
                        self._state.note_weights(self._store.newest.version, self._store.newest.updates)
                except WireError as error:
                    self._weights_gate.refuse(peer, message, error)

    async def _tick(self) -> None:
        while True:
            now = time.monotonic()
            self._send(self._state.tick(now))
            self._backlog.flush()
            self._follow_keys(now)
            if now >= self._next_metrics_at:
                self._next_metrics_at = now + METRICS_EVERY_S
                self._record_metrics()
            self._after_change()
            self._notifier.beat(self._state.phase)
            await asyncio.sleep(TICK_S)  # the period itself

    async def _watch_stop(self) -> None:
        await self._stop.wait()
        self._send(self._state.stop(self._stop.reason, time.monotonic(), interrupted=True))
        self._after_change()

    def _probe(self, peer: PeerId) -> ProbeReply:
        """Where everything is, as this peer is to reach it."""
        state, weights = self._state.run_state(peer), self._addresses.weights_for(peer)
        replays = {f"replay {index}": endpoint for index, endpoint in enumerate(state.replay_endpoints)}
        guarded = {} if self._keyring is None or weights.startswith("ipc://") else {weights: self._keyring.pair.public}
        return ProbeReply(
            run_id=self._state.run_id,
            protocol=PROTOCOL_VERSION,
            version=__version__,
            time_s=time.time(),
            endpoints={"weights": weights, **replays},
            server_keys={**guarded, **state.server_keys},
        )

    def _follow_keys(self, now: float) -> None:
        """Keys that are allowed no more lose their connections, here and at the replay nodes."""
        try:
            if self._keyring is None:
                return
            self._keyring.refresh()
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)
            return
        if self._keyring.version == self._keys_version:
            return
        self._keys_version = self._keyring.version
        grant_of, key_of = self._keyring.grant_of, self._control.key_of

        def is_out(peer: PeerId) -> bool:
            return (key := key_of(peer)) is not None and grant_of(key) is None

        self._send(self._state.expel(is_out, now))
        for key in {*self._control.cut_denied(), *self._weights.cut_denied()}:
            log.warning("closed the connections of key %s: it was revoked", key)
        self._tell_keys()

    def _tell_keys(self) -> None:
        self._send(self._keys_for(self._state.replay_peers()))

    def _keys_for(self, replay_peers: Iterable[PeerId]) -> list[Outgoing]:
        """Whom this hub lets in, for the replay nodes, which do as well."""
        if self._keyring is None:
            return []
        keys = [(grant.public, grant.name, grant.role) for grant in self._keyring.grants if grant.role != "host"]
        return [(peer, KeysAllowed(keys=keys)) for peer in replay_peers]

    def _after_change(self) -> None:
        if self._state.awaits_final_evaluation:
            self._backlog.send(self._store.serve_final(time.monotonic()))
        if self._state.phase == "done":
            self._is_done.set()

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        """Sends, after what has been settled is written: nobody hears of anything that a restart would not know."""
        if self._state.take_settled():
            self._record.attempt(lambda: self._directory.write_memory(self._state.memory(time.monotonic())))
        queue = deque(outgoing)
        while queue:
            peer, message = queue.popleft()
            self._control_gate.told(peer, message)
            if self._control.try_send(peer, encode(message)) is SendOutcome.GONE:
                queue.extend(self._state.note_unreachable(peer, time.monotonic()))
            if isinstance(message, Welcome) and peer in self._state.replay_peers():
                queue.extend(self._keys_for([peer]))

    def _record_metrics(self) -> None:
        now = time.monotonic()
        time_s, figures = round(self._state.wall_s(now), 3), self._figures()
        self._record.append({"kind": "figures", "time_s": time_s, "phase": self._state.phase, **figures})
        if now >= self._next_nodes_at:
            self._next_nodes_at = now + NODES_EVERY_S
            self._record.append({"kind": "nodes", "time_s": time_s, "nodes": self._figures_of_nodes(now)})
        self._record.feed(time_s, time.time(), self._num_env_steps, figures)
        self._record.round(
            lambda: self._directory.write_memory(self._state.memory(now)),
            lambda: self._directory.write_status(self._state.status(now).model_dump(mode="json", exclude={"kind"})),
        )
        self._state.trouble = self._record.trouble

    def _figures(self) -> dict[str, float]:
        """The run's, with those of this process."""
        figures, own = self._state.figures(), self._own_figures()
        for name in ("dropped_messages_total", "cut_connections_total", "cpu_seconds_total", *SIZES):
            own[name] += figures.get(name, 0.0)
        return {**figures, "run_seconds": self._state.wall_s(time.monotonic()), **own}

    def _own_figures(self) -> dict[str, float]:
        return {
            **process_figures(),
            "dropped_messages_total": self._control_gate.num_dropped + self._weights_gate.num_dropped,
            "cut_connections_total": self._control_gate.num_cut + self._weights_gate.num_cut,
            "failed_writes_total": self._record.num_failed,
            "unwritten_rows": self._record.num_waiting,
        }

    def _figures_of_nodes(self, now: float) -> dict[str, dict[str, float]]:
        told = {node.name: dict(node.figures) for node in self._state.node_figures(now)}
        return {**told, HUB: self._own_figures()}

    def _page(self) -> str:
        """What Prometheus is given."""
        nodes = [*self._state.node_figures(time.monotonic()), NodeFigures(HUB, HUB, self._own_figures())]
        return page(self._state.info(), self._figures(), nodes)

    @property
    def _num_env_steps(self) -> int:
        return int(self._state.tally.sum("env_steps_total"))

    def _record_evaluation(self, evaluation: Evaluation) -> None:
        report = evaluation.report
        self._record.append(
            {
                "kind": "evaluation",
                "time_s": round(evaluation.wall_s, 3),
                "env_steps": evaluation.env_steps,
                "updates": report.updates,
                "version": list(report.version),
                "mean_return": evaluation.mean_return,
                "returns": report.returns,
                "lengths": report.lengths,
                "duration_s": round(report.duration_s, 4),
            }
        )
        snapshot = self._store.get(WeightsVersion(*report.version))
        if evaluation.is_best and snapshot is None:
            log.warning("the best weights so far, version %s, went with an earlier hub: not kept", report.version)
        elif evaluation.is_best and snapshot is not None:
            values = {"eval_return": evaluation.mean_return, "env_steps": evaluation.env_steps}
            best = Checkpoint(report.updates, snapshot.payload, values=values)
            self._record.attempt(lambda: save_best(self._directory.checkpoints, best), again="best")


async def serve(options: NodeOptions, hub: HubOptions, stop: StopSignal) -> int:
    """Runs a hub to the run's end."""
    keyring = hub.keyring
    guard = None if keyring is None else Guard(keyring.pair, keyring.admit)
    network = network_of(options, guard=guard, is_insecure=hub.is_insecure)
    try:
        made = Hub(network, options.hub, hub, stop, options.notifier, is_supervised=options.is_supervised)
        return await made.run()
    finally:
        network.close()
        if stop.reason == SUPERVISOR_GONE:
            options.remove_sockets()


def _bind_weights(
    network: Network, control: ServerChannel, before: str, options: HubOptions, *, fixed: Sequence[bool]
) -> ServerChannel:
    """The weights socket, at the same places as the control socket; at the next port where that of each is fixed."""
    beside = [_beside(endpoint, is_fixed=is_fixed) for endpoint, is_fixed in zip(control.endpoints, fixed, strict=True)]
    first = control.endpoint
    bind = partial(network.bind, max_message_bytes=WEIGHTS_MESSAGE_BYTES, queue_messages=WEIGHTS_QUEUE)
    if first.startswith("ipc://") or options.is_attachable:
        return bind(beside[0], also=beside[1:])
    if before.rpartition(":")[0] == first.rpartition(":")[0]:
        try:
            return bind(before)
        except ConfigError as error:
            log.warning("nodes that knew the earlier hub have to be started again: %s", error)
    return bind(_beside(first, is_fixed=False))


def _beside(endpoint: str, *, is_fixed: bool) -> str:
    """A fixed port has the next one beside it, as firewalls are told of ports before anything is bound."""
    if endpoint.startswith("ipc://"):
        return f"{endpoint}.weights"
    return f"tcp://{host_of(endpoint)}:{port_of(endpoint) + 1 if is_fixed else 0}"


def _addresses(control: ServerChannel, weights: ServerChannel, options: HubOptions) -> Addresses:
    public = weights.endpoints[-1]
    return Addresses(
        weights.endpoint,
        at_host(public, options.advertise) if public.startswith("tcp://") and options.is_attachable else None,
        lambda peer: control.key_of(peer) is not None or (options.is_insecure and options.public is None),
    )
