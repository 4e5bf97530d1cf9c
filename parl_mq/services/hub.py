"""The hub: who is here, the run's settings, the newest weights, the record of the run."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parl_mq import __version__
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_OK, ConfigError, WireError
from parl_mq.learn.checkpoint import Checkpoint, save_best
from parl_mq.net.channel import SendOutcome, ServerChannel
from parl_mq.net.zmq_channel import Network
from parl_mq.observe.prometheus import HUB, NodeFigures, page
from parl_mq.observe.sinks import make_sinks
from parl_mq.services.backlog import Backlog
from parl_mq.services.complaints import Complaints
from parl_mq.services.hub_state import HubState, Outgoing
from parl_mq.services.metrics_page import serving_metrics
from parl_mq.services.network import network_of
from parl_mq.services.notify import Notifier
from parl_mq.services.process_figures import process_figures
from parl_mq.services.recording import Record
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import SUPERVISOR_GONE, NodeOptions, StopSignal
from parl_mq.services.tally import Evaluation
from parl_mq.services.weights_store import WeightsStore
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import EvaluationFinished, Goodbye, ToHub, Weights

TICK_S: Final = 0.25
METRICS_EVERY_S: Final = 1.0
NODES_EVERY_S: Final = 10.0

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class HubOptions:
    """What the hub needs beside the options of every node.

    Attributes:
        config: of the run.
        directory: where the run is recorded.
        started_at: monotonic time at which the command started, s.
    """

    config: RunConfig
    directory: Path
    started_at: float


class Hub:
    """Two sockets around HubState and WeightsStore."""

    def __init__(
        self,
        network: Network,
        control_endpoint: str,
        options: HubOptions,
        stop: StopSignal,
        notifier: Notifier | None = None,
    ) -> None:
        self._control = network.bind(control_endpoint)
        self._directory = RunDirectory(options.directory)
        self._record = Record(self._directory)
        before = self._directory.read_memory()
        self._weights = _bind_weights(network, self._control.endpoint, before.weights_endpoint)
        self._stop = stop
        self._notifier = notifier or Notifier()
        self._config = options.config
        self._started_at = options.started_at
        self._store = WeightsStore()
        self._backlog = Backlog(self._weights)
        self._state = HubState(
            options.config,
            run_id=before.run_id or uuid.uuid4().hex[:12],
            weights_endpoint=self._weights.endpoint,
            started_at=options.started_at,
            before=before,
            now=time.monotonic(),
        )
        self._control_complaints, self._weights_complaints = Complaints("control"), Complaints("weights")
        self._is_done = asyncio.Event()
        self._next_metrics_at = self._next_nodes_at = 0.0
        self._record.attempt(lambda: self._directory.write_endpoint(self._control.endpoint), again="endpoint")
        self._notifier.ready(f"listens at {self._control.endpoint}")

    async def run(self) -> int:
        """Serves until the run is over; returns the exit code."""
        self._record.sinks = await asyncio.to_thread(make_sinks, self._config, self._directory.path, self._state.run_id)
        async with serving_metrics(self._config.node, self._page) as address:
            if address is not None:
                self._record.attempt(lambda: self._directory.write_metrics_address(address))
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
        for sink in self._record.sinks:
            sink.close()
        self._directory.write_summary(self.summary())
        self._directory.note_end()
        self._directory.forget_endpoint()
        return EXIT_OK if self._state.error is None else self._state.error[1]

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
            "lost_updates": int(figures["lost_updates_total"]),
            "restarts": dict(Counter(row["node"] for row in failures if row["restart"] is not None)),
            "failures": failures,
            "version": __version__,
        }

    async def _serve_control(self) -> None:
        decode = Decoder(ToHub)
        while True:
            for peer, frames in await self._control.receive_many():
                try:
                    message, _ = decode(frames)
                    outgoing = self._state.handle(peer, message, time.monotonic())
                except WireError as error:
                    self._control_complaints.note(peer, error)
                    continue
                if isinstance(message, Goodbye) and message.error is not None:
                    log.error("a node has failed: %s", message.error)
                if isinstance(message, EvaluationFinished):
                    self._store.release(WeightsVersion(*message.version))
                for evaluation in self._state.tally.take_evaluations():
                    self._record_evaluation(evaluation)
                self._send(outgoing)
                self._after_change()

    async def _serve_weights(self) -> None:
        decode = Decoder(Weights)
        while True:
            for peer, frames in await self._weights.receive_many():
                try:
                    message, arrays = decode(frames)
                    self._backlog.send(self._store.handle(peer, message, arrays, time.monotonic()))
                    if self._store.newest is not None:
                        self._state.note_weights(self._store.newest.version, self._store.newest.updates)
                except WireError as error:
                    self._weights_complaints.note(peer, error)

    async def _tick(self) -> None:
        while True:
            now = time.monotonic()
            self._send(self._state.tick(now))
            self._backlog.flush()
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
            if self._control.try_send(peer, encode(message)) is SendOutcome.GONE:
                queue.extend(self._state.note_unreachable(peer, time.monotonic()))

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
        for name in ("dropped_messages_total", "cpu_seconds_total", "rss_bytes", "rss_anon_bytes"):
            own[name] += figures.get(name, 0.0)
        return {**figures, "run_seconds": self._state.wall_s(time.monotonic()), **own}

    def _own_figures(self) -> dict[str, float]:
        return {
            **process_figures(),
            "dropped_messages_total": self._control_complaints.num_dropped + self._weights_complaints.num_dropped,
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
    network = network_of(options)
    try:
        return await Hub(network, options.hub, hub, stop, options.notifier).run()
    finally:
        network.close()
        if stop.reason == SUPERVISOR_GONE:
            options.remove_sockets()


def _bind_weights(network: Network, control: str, before: str) -> ServerChannel:
    """The weights socket: beside the control socket; for tcp at the port of an earlier hub, else at any free one."""
    if control.startswith("ipc://"):
        return network.bind(f"{control}.weights")
    host = control.rpartition(":")[0]
    if before.rpartition(":")[0] == host:
        try:
            return network.bind(before)
        except ConfigError as error:
            log.warning("nodes that knew the earlier hub have to be started again: %s", error)
    return network.bind(f"{host}:0")
